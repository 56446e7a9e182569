"""Plain shell jobs: their commands, as Snakemake itself would execute them.

The controller makes the text, not a worker, because the controller has the DAG already. The text
leaves open the temporary directory, which only the node knows. A command that might differ from
Snakemake's own is refused, and another runner executes the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from snakemake_interface_executor_plugins.settings import SharedFSUsage

from snakemake_kochi.executor.internals import (
    TO_BE_DETERMINED,
    SnakemakeShell,
    UnclearError,
    find_placeholders,
    resources_taken,
)
from snakemake_kochi.files import random_word
from snakemake_kochi.tickets.ticket import Benchmark, ShellJob

# Variables of a shell rule's function with the same values here and in a job's process.
_OF_JOB = ("input", "output", "log", "params", "wildcards", "threads", "resources", "rule")
_BENCH_ITERATION = "bench_iteration"
# Flags of files that do not change the command, or that the controller handles.
_HARMLESS = frozenset(
    (
        *("temp", "protected", "touch", "directory", "report", "ensure", "multiext", "ancient"),
        *("access_pattern", "repeat", "unpack"),
        "path_modified",  # of a module: the path itself contains it already
        "kochi_artifact",  # what the main process does after the job
    )
)
_KINDS = ("script", "notebook", "wrapper", "cwl", "template_engine")
_TMPDIR = "system_tmpdir"
# A command that does nothing but run a phase, with words that every shell takes as they are or that
# are quoted as by shlex.quote.
_WORD = r"""(?:[\w@%+=:,./-]|'[^']*'|"'")+"""
_PHASE = re.compile(
    rf"""set -euo pipefail; +"\$KOCHI_PYTHON" -P -m snakemake_kochi\.phases((?: +{_WORD})+) *""",
    re.ASCII,
)
_WORDS = re.compile(_WORD, re.ASCII)
_QUOTED = re.compile(r"""'([^']*)'|"(')\"""")
# The longest path, with quotes around it.
_LONGEST_PATH = 4096 + 2


@dataclass(frozen=True)
class _Plan:
    """The facts that all jobs of a rule share."""

    template: str
    names: set[str]  # in placeholders: of the job, and of variables
    resources: set[str]
    variables: Mapping[str, Any]


class PlainShells:
    """Makes the plain shell jobs of one workflow.

    It determines only once what depends on the rule or the run alone, because it works in
    Snakemake's main thread, and everything waits for that thread.
    """

    def __init__(self, workflow: Any, finds_phases: bool = True) -> None:
        """Prepare the plain shell jobs; call it when the Snakefile has been read.

        `finds_phases`: whether a job that runs a phase has its arguments. Raises MissingPartsError.
        """
        self._finds_phases = finds_phases
        self._shell = SnakemakeShell(workflow)
        self._workflow = workflow
        self._token = f"kochi_tmpdir_{random_word(8)}"
        self._environment: Mapping[str, str] = {}
        self._why_none = self._of_run()
        self._latency_wait = float(workflow.execution_settings.latency_wait)
        self._prefixes: dict[str, str] = {}
        self._plans: dict[Any, _Plan | str] = {}

    def of(self, job: Any) -> tuple[ShellJob, str]:
        """The plain shell job for a job, and its rule's command as Snakemake displays it.

        Raises UnclearError, which says in a word or two what is not plain about the job. It lets
        through any other exception, which Snakemake will meet, too.
        """
        if self._why_none or job.is_group():
            raise UnclearError(self._why_none or "group")
        rule = job.rule
        if (plan := self._plans.get(rule)) is None:
            plan = self._plans[rule] = self._plan(rule)
        if isinstance(plan, str):
            raise UnclearError(plan)
        for path in job.input:
            if path.is_storage:
                raise UnclearError("storage")
        resources = job.resources
        temporary = resources.get("tmpdir")
        if temporary not in (None, TO_BE_DETERMINED):
            raise UnclearError("tmpdir")
        # Not its truth value: Snakemake's value for "to be determined" counts as false.
        token = "" if temporary is None else self._token
        text = self._render(plan, job, token)
        made = self._shell_job(job, text, resources.get("shell_exec"), token)
        return made, text.replace(self._token, TO_BE_DETERMINED)

    def _of_run(self) -> str:
        """The reason why the whole run has no plain shell jobs, or ""."""
        workflow = self._workflow
        if not SharedFSUsage.all() <= set(workflow.storage_settings.shared_fs_usage):
            return "no shared filesystem"
        if workflow.output_settings.benchmark_extended:
            return "extended benchmark"
        if self._shell.has_arguments:
            return "arguments of the shell"
        if os.getcwd() != workflow.workdir_init:
            # A job's process begins in that directory. The Snakefile has changed the directory, and
            # changes it there, too.
            return "workdir"
        try:
            self._environment = _environment_of_snakefile()
        except UnclearError as error:
            return str(error)
        return ""

    # ---- what depends on the rule

    def _plan(self, rule: Any) -> _Plan | str:
        try:
            return self._plain_plan(rule)
        except UnclearError as error:
            return str(error)
        except AttributeError as error:
            # Rules of another Snakemake.
            return f"no {error.name}"

    def _plain_plan(self, rule: Any) -> _Plan:
        self._require_plain(rule)
        template = self._template(rule)
        names, resources = find_placeholders(template)
        taken = set(resources)
        if "params" in names:
            of_params = resources_taken(rule.params, self._shell.parameters_of)
            if "tmpdir" in of_params:
                raise UnclearError("params of tmpdir")
            taken |= of_params
        self._require_known(rule, taken)
        function = rule.run_func
        variables = function.__globals__
        for name in sorted(names - {*_OF_JOB, _BENCH_ITERATION}):
            # The values of these variables belong to the process: another process has others.
            is_strange = name == "workflow" or isinstance(variables.get(name), ModuleType)
            if is_strange or name not in variables or name in function.__code__.co_varnames:
                raise UnclearError(f"{name} in {{}}")
        return _Plan(template, names, resources, variables)

    def _require_plain(self, rule: Any) -> None:
        if not rule.is_shell:
            kind = next((name for name in _KINDS if getattr(rule, name) is not None), "run")
            raise UnclearError(kind.replace("_", " "))
        deployment = self._workflow.deployment_settings.deployment_method
        methods = {str(method.name) for method in deployment}
        image = rule.container_img or rule.is_containerized
        image = image or getattr(self._workflow, "global_container_img", None)
        for word, is_so in (
            ("checkpoint", rule.is_checkpoint),
            ("shadow", rule.shadow_depth is not None),
            ("handover", rule.is_handover),
            ("cache", self._is_cached(rule)),
            ("conda", "CONDA" in methods and rule.conda_env is not None),
            ("container", "APPTAINER" in methods and image),
            ("envmodules", "ENV_MODULES" in methods and rule.env_modules is not None),
        ):
            if is_so:
                raise UnclearError(word)
        for path in (*rule.input, *rule.output, *rule.log, rule.benchmark):
            strange = {name for name, value in getattr(path, "flags", {}).items() if value}
            if strange := strange - _HARMLESS:
                raise UnclearError(min(strange).removesuffix("_object"))

    def _is_cached(self, rule: Any) -> bool:
        if self._workflow.workflow_settings.cache is None:
            return False
        # Older versions have the second attribute.
        if hasattr(rule, "cache"):
            return bool(rule.cache and rule.cache.output)
        return bool(self._workflow.cache_rules.get(rule.name))

    def _template(self, rule: Any) -> str:
        """The command as the rule's function passes it to `shell`.

        The expression behind `shell:` is evaluated once more when a job runs, after the whole
        Snakefile has been read.
        """
        given: list[Any] = []

        def take(*arguments: Any, **named: Any) -> None:
            given.append((arguments, set(named)))

        function = rule.run_func
        if not isinstance(function, FunctionType):
            raise UnclearError("decorated function")
        known = function.__globals__
        if known.get("shell") is not self._shell.function:
            raise UnclearError("shell is redefined")
        code = function.__code__
        evaluate = FunctionType(code, {**known, "shell": take}, "shell", function.__defaults__)
        evaluate(*[None] * (code.co_argcount - len(function.__defaults__ or ())))
        expected = [((rule.shellcmd,), {"bench_record", _BENCH_ITERATION})]
        if given != expected or not isinstance(rule.shellcmd, str) or not rule.shellcmd:
            raise UnclearError("changed since it was read")
        return rule.shellcmd

    def _require_known(self, rule: Any, taken: set[str]) -> None:
        """Require that the resources of these names are the same in a job's own process."""
        # Only the controller knows the limits of --resources, and lowers its jobs' resources to
        # them.
        limited = {_base(name) for name in self._workflow.global_resources if name[0] != "_"}
        if any(_base(name) in limited for name in taken):
            raise UnclearError("limited resource")
        if (given := rule.resources.get("tmpdir")) is None:
            return
        if getattr(given, "raw", None) == _TMPDIR and given.is_evaluable():
            return
        default = self._workflow.resource_settings.default_resources
        parsed = getattr(default, "parsed", {})  # in older versions, where `default` is a function
        if parsed.get("tmpdir") is not given or f"tmpdir={_TMPDIR}" not in default.args:
            raise UnclearError("tmpdir")

    # ---- what depends on the job

    def _render(self, plan: _Plan, job: Any, token: str) -> str:
        values = {name: self._value_of(plan, job, name, token) for name in plan.names}
        text = self._shell.format(plan.template, values)
        if TO_BE_DETERMINED in text:
            raise UnclearError("value not known yet")
        return text

    def _value_of(self, plan: _Plan, job: Any, name: str, token: str) -> Any:
        if name == _BENCH_ITERATION:
            if job.benchmark is not None and job.benchmark_repeats != 1:
                raise UnclearError("bench_iteration in {}")
            return None if job.benchmark is None else 0
        if name == "resources":
            taken = {resource: job.resources.get(resource) for resource in plan.resources}
            if "tmpdir" in taken:
                taken["tmpdir"] = token or None
            if None in taken.values():
                raise UnclearError("resource that is not there")
            return SimpleNamespace(**taken)
        if name == "rule":
            return job.rule.name
        if name not in _OF_JOB:
            return plan.variables[name]
        value = getattr(job, name)
        is_files = name in ("input", "output", "log")
        return self._shell.plain_texts(value) if is_files else value

    def _shell_job(self, job: Any, text: str, chosen: Any, token: str) -> ShellJob:
        executable = self._shell.default_executable if chosen is None else chosen
        if (prefix := self._prefixes.get(executable or "")) is None:
            prefix = self._prefixes[executable or ""] = self._shell.prefix(executable)
        script = " ".join((prefix, text, self._shell.suffix)).strip()
        if len(script) + 3 * script.count("'") > self._shell.longest_argument - _LONGEST_PATH:
            raise UnclearError("long")
        directory = self._workflow.workdir_init
        directories = [path for path in job.output if path.is_directory]
        # Such a path means something else once it has been shortened.
        if any(path.endswith("/") or ".." in path for path in (*job.output, *job.log)):
            raise UnclearError("path")
        benchmark = job.benchmark
        # Only in the script is the temporary directory of the node put in its place.
        is_fixed = not (token and token in script)
        return ShellJob(
            script=script,
            executable=executable or "/bin/sh",
            threads=job.threads,
            inputs=tuple(map(str, job.input)),
            latency_wait=self._latency_wait,
            directories=tuple(relative_to(str(path), directory) for path in directories),
            benchmark=benchmark and Benchmark(str(benchmark), job.benchmark_repeats or 1),
            temporary_directory=token,
            environment=self._environment,
            phase=phase_in(script, executable) if is_fixed and self._finds_phases else (),
        )


def phase_in(script: str, executable: str | None) -> tuple[str, ...]:
    """The arguments of the phase if that is all that a script runs, else none."""
    found = _PHASE.fullmatch(script)
    if found is None or os.path.basename(executable or "") != "bash":
        return ()
    return tuple(_QUOTED.sub(r"\1\2", word) for word in _WORDS.findall(found[1]))


def relative_to(path: str, directory: str) -> str:
    """A path as tickets have it: relative to the directory if it is below it."""
    prefix = directory.rstrip("/") + "/"
    # Not os.path.relpath: with `..` behind a symbolic link it names another file.
    return os.path.normpath(path.removeprefix(prefix) if path.startswith(prefix) else path)


def _base(resource: str) -> str:
    return resource.removesuffix("_mb").removesuffix("_mib")


def _environment_of_snakefile() -> dict[str, str]:
    """The variables that the Snakefile has set, as it would in the job's process, too.

    Raises UnclearError if it changed an existing variable: the value on the node is not known.
    """
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError as error:
        raise UnclearError("environment") from error
    # The environment with which this process began.
    before = dict(entry.split(b"=", 1) for entry in block.split(b"\0") if b"=" in entry)
    after = dict(os.environb)
    for variables in (before, after):
        variables.pop(b"LC_CTYPE", None)  # Python itself sets it
    if changed := [name for name, value in before.items() if after.get(name) != value]:
        raise UnclearError(f"{os.fsdecode(min(changed))} changed")
    return {
        os.fsdecode(name): os.fsdecode(after[name]) for name in sorted(after.keys() - before.keys())
    }
