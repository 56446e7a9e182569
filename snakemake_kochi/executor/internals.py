"""All uses of Snakemake beyond its executor interface and the attributes of rules and jobs.

Another version of Snakemake may lack any of these parts. Each part is checked here and has a
fall-back, which is slower or does less, but loses nothing.
"""

from __future__ import annotations

import dis
import importlib
import inspect
import os
import re
import string
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

# ---- plain shell commands; fall-back: another runner, with a Snakemake

_SHELL_PARTS = (
    ("snakemake.shell", "shell.get_executable"),
    ("snakemake.shell", "shell._get_process_prefix"),
    ("snakemake.shell", "shell._process_suffix"),
    ("snakemake.shell", "shell._process_args"),
    ("snakemake.shell", "MAX_ARG_LEN"),
    ("snakemake.common", "get_function_params"),
    ("snakemake.utils", "SequenceFormatter"),
    ("snakemake.utils", "QuotedFormatter"),
    ("snakemake.rules", "InputFiles._plainstrings"),
    ("snakemake.jobs", "Job.benchmark_repeats"),
    ("snakemake.jobs", "Job.is_group"),
    ("snakemake.jobs", "Job.resources"),
    ("snakemake.jobs", "Job.threads"),
    ("snakemake.rules", "Rule.is_shell"),
)
_WORKFLOW_PARTS = (
    "storage_settings.shared_fs_usage",
    "workflow_settings.cache",
    "deployment_settings.deployment_method",
    "output_settings.benchmark_extended",
    "execution_settings.latency_wait",
    "resource_settings",
    "global_resources",
)


class MissingPartsError(Exception):
    """This Snakemake lacks a part that is needed; the text names it."""


class UnclearError(Exception):
    """Something about a command is not certain; the text names it in a few words."""


class SnakemakeShell:
    """The formatting of a shell command by Snakemake, and its start of a shell."""

    def __init__(self, workflow: Any) -> None:
        """Find the parts of Snakemake; call it when the Snakefile has been read.

        Raises MissingPartsError.
        """
        if missing := _missing_parts(workflow):
            raise MissingPartsError(", ".join(missing))
        module = importlib.import_module("snakemake.shell")
        utils = importlib.import_module("snakemake.utils")
        self.function: Any = module.shell
        self.longest_argument: int = module.MAX_ARG_LEN
        self.default_executable: str | None = module.shell.get_executable()
        self.suffix: str = module.shell._process_suffix
        self.has_arguments = bool(set(module.shell._process_args) - {"executable"})
        # The parameters of a function in a rule, by name.
        self.parameters_of: Callable[[Any], Collection[str]] = importlib.import_module(
            "snakemake.common"
        ).get_function_params
        self._formatter = utils.SequenceFormatter(
            separator=" ", element_formatter=utils.QuotedFormatter()
        )

    def prefix(self, executable: str | None) -> str:
        text: str = self.function._get_process_prefix(executable)
        return text

    def format(self, template: str, values: Mapping[str, Any]) -> str:
        text: str = self._formatter.vformat(template, (), values)
        return text

    def plain_texts(self, files: Any) -> Any:
        """The files of a job as plain texts, without Snakemake's annotations."""
        return files._plainstrings()


def _missing_parts(workflow: Any) -> list[str]:
    missing = []
    for module, name in _SHELL_PARTS:
        try:
            _get(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            missing.append(f"{module}.{name}")
    for name in _WORKFLOW_PARTS:
        try:
            _get(workflow, name)
        except AttributeError:
            missing.append(f"workflow.{name}")
    return missing


def _get(start: Any, path: str) -> Any:
    for name in path.split("."):
        start = getattr(start, name)
    return start


# ---- placeholders of shell commands; fall-back (UnclearError): another runner

_ROOT = re.compile(r"[^.\[]*")
_RESOURCE = re.compile(r"resources\.([A-Za-z_]\w*)")
# With these formats a path that needs no quotes stays as it is.
_AS_IT_IS = ("", "q", "u")
# Methods of a job's resources object through which a function may read any resource.
_METHODS = frozenset(dir(list)) | frozenset(dir(dict))


def find_placeholders(template: str) -> tuple[set[str], set[str]]:
    """The beginnings of a command's fields, as `input` in `{input.first}`, and its resources.

    Raises UnclearError for fields whose value could depend on more than the named object.
    """
    names, resources = set[str](), set[str]()
    for field, spec, conversion in _fields(template):
        match = _ROOT.match(field)
        name = match[0] if match else ""
        if not name.isidentifier():
            raise UnclearError("unnamed {}")
        names.add(name)
        if name == "resources":
            found = _RESOURCE.fullmatch(field)
            if found is None:
                raise UnclearError("all resources in {}")
            if found[1] == "tmpdir" and (spec not in _AS_IT_IS or conversion not in (None, "s")):
                raise UnclearError("tmpdir")
            resources.add(found[1])
    return names, resources


def _fields(template: str) -> Iterator[tuple[str, str, str | None]]:
    """Field, format and conversion of each placeholder, also of those within formats."""
    try:
        for _, field, spec, conversion in string.Formatter().parse(template):
            if field is not None:
                yield field, spec or "", conversion
                yield from _fields(spec or "")
    except ValueError as error:
        raise UnclearError("unbalanced {}") from error


def resources_taken(
    params: Iterable[Any], parameters_of: Callable[[Any], Collection[str]]
) -> frozenset[str]:
    """The resources, by name, that functions among a rule's params read.

    `parameters_of` gives the arguments that Snakemake passes to a function. Raises UnclearError if
    they are not certain.
    """
    taken: set[str] = set()
    for value in params:
        function = getattr(value, "callable", None) or value
        if (said := getattr(function, "reads_resources", None)) is not None:
            taken |= said  # a function of our library
        elif callable(function) and _takes_resources(parameters_of(function)):
            taken |= _attributes_of_resources(function)
    return frozenset(taken)


def _takes_resources(parameters: Collection[str]) -> bool:
    kinds = parameters.values() if isinstance(parameters, Mapping) else ()
    return "resources" in parameters or any(kind.kind == kind.VAR_KEYWORD for kind in kinds)


def _attributes_of_resources(function: Callable[..., Any]) -> set[str]:
    """The attributes that a function uses of the argument, if it uses it for nothing else.

    Raises UnclearError otherwise.
    """
    if (
        not isinstance(function, FunctionType)
        or function.__code__.co_flags & inspect.CO_VARKEYWORDS
    ):
        raise UnclearError("params of resources")
    taken = set()
    instructions = list(dis.get_instructions(function))
    for instruction, following in zip(instructions, [*instructions[1:], None], strict=True):
        if not _names_resources(instruction.argval):
            continue
        attribute = following.argval if following and following.opname == "LOAD_ATTR" else None
        is_plain = instruction.opname.startswith("LOAD_FAST") and instruction.argval == "resources"
        if not is_plain or not isinstance(attribute, str) or attribute in _METHODS:
            raise UnclearError("params of resources")
        taken.add(attribute)
    return taken


def _names_resources(argument: object) -> bool:
    return argument == "resources" or (isinstance(argument, tuple) and "resources" in argument)


# Snakemake's text for a value that depends on files that do not exist yet.
TO_BE_DETERMINED = "<TBD>"


# ---- source files; fall-back (an exception): a job without identity, which is done again


def source_of_script(job: Any) -> Any:
    """The source file of a job's `script:` or `notebook:`, or None."""
    path = job.rule.script or job.rule.notebook
    return None if path is None else job._path_to_source_file(path)


def path_of_source(source: Any, workflow: Any) -> str:
    """The path of a source file on this computer, wherever Snakemake has it from."""
    try:
        path = str(source.get_path_or_uri(secret_free=True))
    except TypeError:  # an older Snakemake
        path = str(source.get_path_or_uri())
    # Of a repository, for example: the copy that Snakemake fetched.
    return path if os.path.isabs(path) else str(workflow.sourcecache.get_path(source))


# ---- the working directory; fall-back: Snakemake's locks alone, and its own tidying up


def locks_of_run(workflow: Any, directory: str) -> tuple[str, ...]:
    """The files with which a run's Snakemake prevents other runs from making the same files.

    None of them if they cannot be determined, for example if it locks in a database.
    """
    try:
        files = workflow.persistence._lockfile.values()
        return tuple(os.path.join(directory, file) for file in files)
    except Exception:
        return ()


def marks_are_files(workflow: Any) -> bool:
    """Whether Snakemake marks each output of a running job by a file of its own.

    Such marks may be made at the same time; marks in a database may not.
    """
    return hasattr(workflow.persistence, "_incomplete_path")


def keep_empty_directories(workflow: Any) -> None:
    """Keep the directories for the outputs of jobs that go on.

    At its end Snakemake would remove them.
    """
    workflow.dag.cleanup_workdir = _do_nothing


def leave_to_adopter(workflow: Any) -> None:
    """Keep Snakemake from tidying up in a directory that another run has adopted.

    It would remove the empty directories for the outputs of that run's jobs, and its lock.
    """
    keep_empty_directories(workflow)
    workflow.persistence.unlock = _do_nothing


def _do_nothing() -> None:
    pass


# ---- the scheduler; fall-back: it looks at all ready jobs once per report, and awaits all jobs

_SCHEDULER_MODULES: Sequence[str] = ("snakemake.scheduling.job_scheduler", "snakemake.scheduler")


class SchedulerWakes:
    """Lets the scheduler handle in one pass everything that was reported since its last one.

    Each report wakes it once, and at each wake it looks at all ready jobs. With thousands of them,
    and many short ones that end, it would do nothing else.
    """

    def __init__(self, workflow: Any) -> None:
        self._workflow = workflow
        settings = getattr(workflow, "remote_execution_settings", None)
        # With immediate_submit, reports of ends do not wake the scheduler.
        self._is_woken = not getattr(settings, "immediate_submit", True)

    def drop(self) -> None:
        """Drop the pending wakes; to be called before a report.

        The report wakes the scheduler again, and a pass then handles everything: what was reported,
        stopped or has become possible before.
        """
        wakes = getattr(getattr(self._workflow, "scheduler", None), "_open_jobs", None)
        if self._is_woken and isinstance(wakes, threading.Semaphore):
            while wakes.acquire(blocking=False):
                pass

    def end_timers(self) -> None:
        """End the scheduler's timers; to be called at its end.

        It sets a timer with each pass, as long as the period of --max-jobs-per-timespan, and Python
        would wait for the last of them.
        """
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                module = getattr(getattr(thread, "function", None), "__module__", None)
                if module in _SCHEDULER_MODULES:
                    thread.cancel()


def is_told_to_end(workflow: Any) -> bool:
    """Whether Snakemake was told, by SIGTERM, to start nothing more."""
    return getattr(getattr(workflow, "scheduler", None), "_user_kill", None) is not None


def without_jobs(workflow: Any, jobs: Collection[Any]) -> None:
    """Let a scheduler that `is_told_to_end` await these jobs no longer: they have not begun."""
    scheduler = workflow.scheduler
    with scheduler._lock:
        scheduler.running.difference_update(jobs)
    scheduler._open_jobs.release()
