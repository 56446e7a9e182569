"""`artifact()` marks an output of a rule, which is then kept in the artifact branch: the main
process of a run notes its jobs with marked outputs, and keeps these at its end.

Outputs of a rule carry Snakemake's flags, which stay when wildcards are replaced. Every process
that reads the Snakefile calls the function, so it imports little.

A job is noted when it begins, with the code of the run, and kept when the process ends; what a
killed process has left, the next one in the directory keeps. Whether a job has succeeded, its
outputs' times and its inputs' checksums are in Snakemake's metadata.

.snakemake/kochi/<machine>/own-jobs/<run>.jsonl
    {"freeze": the file with the code of the run, "process": `processes.this_process`}
    a job per line (`described` in `record.py`)

Notes are deleted when all in them is kept and their process is dead. Kept twice, a result is the
same: the identity of a record depends only on what its job did.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from snakemake.io import flag, is_flagged

from snakemake_kochi.errors import ConfigError, GitError, KochiError, for_snakemake
from snakemake_kochi.paths import WorkingPaths

if TYPE_CHECKING:
    from snakemake_kochi.phases.freeze import Freeze

_WATCH = "kochi_own_rules"  # attribute of the workflow
_FLAG = "kochi_artifact"
# What cannot be kept, and why.
_REFUSED = {
    "temp": "temporary: Snakemake deletes it, so it cannot be kept",
    "directory": "a directory: only files can be kept; name the files in it",
    "pipe": "a pipe: only files can be kept",
    "service": "a service: only files can be kept",
    "storage_object": "in remote storage: only files of this computer can be kept",
}
# A wildcard, of which the constraint may contain braces.
_WILDCARD = re.compile(r"\{(?:[^{}]|\{[^{}]*\})*\}")
Job = Mapping[str, Any]


@for_snakemake
def artifact(files: Any) -> Any:
    """Mark an output of a rule: when its job has succeeded, the file is kept in the artifact branch
    with a record.

    `files` is a path relative to the working directory, with or without wildcards and flags of
    Snakemake, or several of them (`expand`, `multiext`). Raises ConfigError for what cannot be
    kept, and outside of a Snakefile.
    """
    for file in files if isinstance(files, (list, tuple)) else (files,):
        if not isinstance(file, (str, Path)):
            raise ConfigError(
                f"artifact({files!r}): the path of an output was expected, or a list of paths",
                'Write, for example: output: artifact("counts/{sample}.csv")',
            )
        check_output(str(file), getattr(file, "flags", {}))
    workflow = _workflow()
    if workflow.is_main_process:
        watch(workflow)
    return flag(files, _FLAG)


def artifacts_of(outputs: Any) -> list[str]:
    """The marked ones among the outputs of a rule or a job. Raises ConfigError for one that cannot
    be kept."""
    found = [output for output in outputs if is_flagged(output, _FLAG)]
    for output in found:
        check_output(str(output), getattr(output, "flags", {}))
    return list(map(str, found))


def check_output(path: str, flags: Mapping[str, Any]) -> None:
    """Raise ConfigError for an output that cannot be kept. `path` may contain wildcards."""
    for name, why in _REFUSED.items():
        if flags.get(name):
            raise ConfigError(f'artifact("{path}"): this output is {why}')
    components = _WILDCARD.sub("x", path).split("/")
    if path.startswith("/") or {"", ".", ".."}.intersection(components):
        raise ConfigError(
            f'artifact("{path}"): a path relative to the working directory was expected, without '
            "'..', without empty parts and without '.'",
            "The file has the same path in the branch.",
        )


def _workflow() -> Any:
    """The workflow whose Snakefile calls, directly or by functions of the user."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        # Snakemake's own functions, such as `exists`, find it in the same way.
        workflow = frame.f_globals.get("workflow")
        if hasattr(workflow, "is_main_process"):
            return workflow
        frame = frame.f_back
    raise ConfigError(
        "artifact() was called outside of a Snakefile", "Call it around an output of a rule."
    )


def watch(workflow: Any) -> None:
    """Keep the marked outputs of the jobs that a workflow runs from now on.

    Call while the workflow is parsed, as often as you like. Nothing happens before jobs are run.
    """
    if getattr(workflow, _WATCH, None) is None:
        from snakemake.logging import logger

        watcher = _Watch(workflow)
        setattr(workflow, _WATCH, watcher)
        logger.addHandler(watcher)
        atexit.register(watcher.end_of_process)


class _Watch(logging.Handler):
    """Gets Snakemake's log events, as a logger plugin does."""

    def __init__(self, workflow: Any) -> None:
        super().__init__(logging.INFO)
        self._workflow = workflow
        # With `-d`, Snakemake has left the directory of the files when the process ends.
        self._directory = Path.cwd()
        self._freeze: Freeze | None = None
        self._notes: Path | None = None
        self._rules: frozenset[str] = frozenset()  # with marked outputs
        self._jobs: dict[int, Any] = {}  # of these rules, by Snakemake's numbers

    def emit(self, record: logging.LogRecord) -> None:
        name = getattr(getattr(record, "event", None), "name", "")
        is_dry = self._workflow.dryrun or self._workflow.touch
        if name == "RUN_INFO" and self._freeze is None and not is_dry:
            self._run_begins()
        elif name == "JOB_INFO" and getattr(record, "rule_name", None) in self._rules:
            with _saying_errors():
                self._job_begins(getattr(record, "jobid", 0))

    @for_snakemake
    def _run_begins(self) -> None:
        """Check the outputs and take the code of the run, before any job begins.

        Raises ConfigError for what cannot be kept, KochiError without a project.
        """
        dag = self._workflow.dag
        marked = (rule.name for rule in self._workflow.rules if artifacts_of(rule.output))
        self._rules = frozenset(marked)
        jobs = self._find_jobs()
        # More may become known when a checkpoint has ended.
        grows = self._rules and any(job.is_checkpoint for job in dag.needrun_jobs())
        if grows or any(map(dag.needrun, jobs)):
            outputs = [output for job in jobs for output in artifacts_of(job.output)]
            self._directory = Path.cwd()
            with _saying_errors():
                self._keep_noted()
            self._freeze = _code_of_run(self._workflow, self._directory, outputs)

    def _find_jobs(self) -> Iterable[Any]:
        dag = self._workflow.dag
        self._jobs = {dag.jobid(job): job for job in dag.jobs if job.rule.name in self._rules}
        return self._jobs.values()

    def _job_begins(self, number: int) -> None:
        from snakemake_kochi.own_rules.record import described

        if self._freeze is None:
            return
        if number not in self._jobs:  # of a checkpoint that has ended
            self._find_jobs()
        if self._notes is None:
            self._notes = begin_notes(self._freeze, self._directory)
        note(self._notes, {**described(self._jobs[number], self._directory), "number": number})

    def end_of_process(self) -> None:
        workflow = self._workflow
        if workflow.executor_plugin and not (workflow.dryrun or workflow.touch):
            with suppress(KeyboardInterrupt), _saying_errors():
                self._keep_noted()

    def _keep_noted(self) -> None:
        """Keep and commit what is noted in the directory, by this process or by others."""
        for notes in sorted(WorkingPaths.all_own_jobs(self._directory)):
            with _saying_errors(f"{notes}: outputs are not kept", "\nRemove this file."):
                text = notes.read_text("utf-8", errors="surrogateescape")
                # It is empty for a moment, or for ever on a disk that was full.
                if text:
                    header, *lines = text.splitlines()
                    self._keep(notes, json.loads(header), lines)

    def _keep(self, notes: Path, header: dict[str, Any], lines: Iterable[str]) -> None:
        """Raises KeyError, TypeError and ValueError for a file that is not ours."""
        from snakemake_kochi.artifacts.code import publish_code
        from snakemake_kochi.own_rules.record import keep
        from snakemake_kochi.phases.freeze import load_freeze
        from snakemake_kochi.phases.outputs import commit_journal
        from snakemake_kochi.processes import is_dead

        freeze = load_freeze(Path(header["freeze"]))
        every: dict[int, Job] = {}  # a job may begin again
        for line in lines:
            with suppress(json.JSONDecodeError):  # the last line of a killed process
                noted = json.loads(line)
                every[noted["number"]] = noted
        own = self._jobs if notes == self._notes else {}
        is_whole = True
        for number, noted in every.items():
            try:
                keep(freeze, self._directory, noted, self._workflow, own.get(number))
            except (OSError, GitError) as error:
                is_whole = False
                _say(f"not kept yet: {error}\nThe next run of snakemake here tries again.")
            except KochiError as error:
                _say(f"not kept: {error}")
        large = freeze.project.large_files
        commit_journal(freeze.directory, freeze.paths, freeze.machine_name, large)
        # Ctrl-C may have ended git while it published the code for an earlier commit.
        with suppress(KochiError, OSError, KeyboardInterrupt):
            publish_code(freeze.directory, freeze.paths, [{"snapshot": asdict(freeze.snapshot)}])
        if is_whole and (notes == self._notes or is_dead(header["process"])):
            notes.unlink(missing_ok=True)


@contextmanager
def _saying_errors(
    what: str = "outputs marked with artifact() are not kept", hint: str = ""
) -> Iterator[None]:
    """A run must not fail, after hours maybe, for a result that cannot be kept."""
    try:
        yield
    except (KochiError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        _say(f"{what}: {error if isinstance(error, KochiError | OSError) else repr(error)}{hint}")


def begin_notes(freeze: Freeze, directory: Path) -> Path:
    """The file for the jobs of a run in a directory. Raises OSError."""
    from snakemake_kochi.artifacts.agreement import note_directory
    from snakemake_kochi.files import make_directory, random_word
    from snakemake_kochi.processes import this_process

    place = WorkingPaths(directory, freeze.machine_name).own_jobs
    note_directory(freeze.paths, freeze.machine_name, directory)
    notes = make_directory(place) / f"{os.getpid()}-{random_word()}.jsonl"
    note(notes, {"freeze": str(freeze.file), "process": this_process()})
    return notes


def note(notes: Path, line: Job) -> None:
    with notes.open("a", encoding="utf-8", errors="surrogateescape") as file:
        print(json.dumps(line), file=file)


def _code_of_run(workflow: Any, directory: Path, outputs: Sequence[str]) -> Freeze:
    from snakemake_kochi.library.library import chosen_machine, freeze_of
    from snakemake_kochi.phases.freeze import have_read, take_freeze
    from snakemake_kochi.project.checks import check_own_outputs

    freeze = freeze_of(workflow) or take_freeze(directory, chosen_machine())
    have_read()
    experiments = []
    for file in freeze.experiments:
        with suppress(ConfigError):  # its mistakes concern whoever runs it
            experiments.append(freeze.experiment(file))
    check_own_outputs(outputs, experiments)
    _remark_code(freeze, directory, outputs)
    return freeze


def _remark_code(freeze: Freeze, directory: Path, outputs: Sequence[str]) -> None:
    """Say that outputs are or will be in a snapshot, which is not what anybody wants."""
    from snakemake_kochi.git import run_git

    # Results of batches are never code; for what is outside of the project git has no rules.
    paths = [path for path in outputs if not path.startswith("results/")]
    if not paths or not directory.resolve().is_relative_to(freeze.directory.resolve()):
        return
    asked = b"\0".join(map(os.fsencode, paths))
    with suppress(GitError):  # in no repository, or in a submodule
        said = run_git(directory, "check-ignore", "-z", "--stdin", stdin=asked, accept=(0, 1))
        if code := [path for path in paths if os.fsencode(path) not in said.split(b"\0")]:
            first, slash, _ = code[0].partition("/")
            _say(
                f"git does not ignore {code[0]}, so these outputs count as code: the next run has "
                "other code, though nobody has edited any\n"
                f"Type in {directory}: echo {shlex.quote(f'/{first}{slash}')} >> .gitignore"
            )


def _say(text: str) -> None:
    print(f"kochi: {text}", file=sys.stderr)
