"""What happens to the jobs of users' own rules in this Snakemake.

Jobs that begin and end are read from Snakemake's log events, as a logger plugin does, their
descriptions from its DAG, and when they ended from its metadata: all of them here only. With
`--quiet progress` there are no events of the ends; then the DAG is asked at the end of the process.
With a Snakemake without these parts, a message says that nothing is kept.
"""

from __future__ import annotations

import atexit
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import ConfigError, GitError, KochiError, for_snakemake
from snakemake_kochi.own_rules.flag import check_output, is_artifact
from snakemake_kochi.paths import WorkingPaths

if TYPE_CHECKING:
    from snakemake_kochi.own_rules.keeper import Keeper
    from snakemake_kochi.own_rules.record import Ending, Job
    from snakemake_kochi.phases.freeze import Freeze

_CLOCKS = 2.0  # seconds by which two clocks may differ
_WATCH = "kochi_own_rules"  # attribute of the workflow


def watch(workflow: Any) -> None:
    """Watch the jobs of a workflow from now on, and keep the artifacts of its own rules.

    Call while the workflow is parsed, as often as you like. Nothing happens before jobs are run.
    """
    if getattr(workflow, _WATCH, None) is None:
        from snakemake.logging import logger

        watcher = _Watch(workflow)
        setattr(workflow, _WATCH, watcher)
        logger.addHandler(watcher)
        atexit.register(watcher.end_of_process)


class _Watch(logging.Handler):
    def __init__(self, workflow: Any) -> None:
        super().__init__(logging.INFO)
        self._workflow = workflow
        # With `-d`, Snakemake has left the directory of the files when the process ends.
        self._directory = Path.cwd()
        self._keeper: Keeper | None = None
        self._jobs: dict[int, Any] = {}  # with artifacts, by Snakemake's numbers
        self._begun: dict[int, Job] = {}
        self._rules: frozenset[str] = frozenset()

    def emit(self, record: logging.LogRecord) -> None:
        name = getattr(getattr(record, "event", None), "name", "")
        if name == "RUN_INFO" and self._keeper is None:
            self._run_begins()
        elif name == "JOB_INFO" and getattr(record, "rule_name", None) in self._rules:
            self._trying(self._job_begins, getattr(record, "jobid", None))
        elif name == "JOB_FINISHED":
            self._trying(self._job_ends, getattr(record, "job_id", None))

    @for_snakemake
    def _run_begins(self) -> None:
        """Check the outputs and take the code of the run, before any job begins.

        Raises ConfigError for what cannot be kept, KochiError without a project.
        """
        try:
            if self._workflow.dryrun or self._workflow.touch:
                return
            self._find_jobs()
            dag = self._workflow.dag
            # Jobs with artifacts may become known when a checkpoint has ended.
            is_wanted = any(map(dag.needrun, self._jobs.values())) or (
                bool(self._rules) and any(job.is_checkpoint for job in dag.needrun_jobs())
            )
        except (AttributeError, TypeError) as error:
            _say_without(error)
            return
        if is_wanted:
            outputs = [output for job in self._jobs.values() for output in _artifacts(job)]
            self._directory = Path.cwd()
            self._trying(self._keep_left)
            self._keeper = _keeper(self._workflow, self._directory, outputs)

    def _find_jobs(self) -> None:
        rules, dag = self._workflow.rules, self._workflow.dag
        self._rules = frozenset(rule.name for rule in rules if any(map(is_artifact, rule.output)))
        self._jobs = {dag.jobid(job): job for job in dag.jobs if job.rule.name in self._rules}

    def _job_begins(self, number: int) -> None:
        if self._keeper is not None:
            if number not in self._jobs:  # of a checkpoint that has ended
                self._find_jobs()
            self._begun[number] = _described(self._jobs[number], self._directory)
            self._keeper.begin(self._begun[number])

    def _job_ends(self, number: int) -> None:
        if self._keeper is not None and (job := self._begun.pop(number, None)) is not None:
            self._keeper.end(job, self._ending(job, self._jobs[number]))

    def end_of_process(self) -> None:
        with suppress(KeyboardInterrupt):
            self._trying(self._end_of_process)

    def _end_of_process(self) -> None:
        workflow = self._workflow
        if workflow.executor_plugin is None or workflow.dryrun or workflow.touch:
            return
        if self._keeper is None:
            self._keep_left()
            return
        for number in list(self._begun):
            if workflow.dag.finished(self._jobs[number]):
                # The others are committed, too, if one cannot be kept.
                self._trying(self._job_ends, number)
        self._keeper.finish()

    def _keep_left(self) -> None:
        """Keep what killed processes have left here."""
        if any(WorkingPaths.all_own_jobs(self._directory)):
            from snakemake_kochi.own_rules.keeper import keep_left

            keep_left(self._directory, self._ending_of_left)

    def _ending_of_left(self, job: Job) -> Ending | None:
        """None for a job that did not end: an earlier one may have metadata."""
        ending = self._ending(job)
        # The clock of the filesystem may be behind ours.
        ended = [when for when in ending.ended.values() if when > job["begun"] - _CLOCKS]
        return ending if len(ended) == len(job["artifacts"]) else None

    def _ending(self, described: Job, job: Any = None) -> Ending:
        """How a job ended, according to the metadata, which the user may have turned off."""
        from snakemake.io import IOFile

        from snakemake_kochi.own_rules.record import Ending

        ending = Ending({}, {}, {} if job is None else _worker(self._workflow, job))
        persistence = self._workflow.persistence
        # It remembers that there was none before the job.
        persistence.deactivate_cache()
        for output in described["artifacts"]:
            if noted := persistence.metadata(IOFile(output, rule=None)):
                if (when := noted.get("endtime")) is not None:
                    ending.ended[output] = float(when)
                ending.checksums.update(noted.get("input_checksums") or {})
        return ending

    def _trying(self, action: Callable[..., None], *arguments: Any) -> None:
        """A run must not fail, after hours maybe, for a result that cannot be kept."""
        try:
            action(*arguments)
        except (KochiError, OSError) as error:
            print(f"kochi: {error}", file=sys.stderr)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            _say_without(error)


def _say_without(error: Exception) -> None:
    print(
        "kochi: outputs marked with artifact() are not kept, because this version of Snakemake "
        f"lacks a part that is needed ({type(error).__name__}: {error})",
        file=sys.stderr,
    )


def _keeper(workflow: Any, directory: Path, outputs: Sequence[str]) -> Keeper:
    # Imported here, like all that a dry run and the processes of jobs do not need.
    from snakemake_kochi.library.library import chosen_machine, freeze_of
    from snakemake_kochi.own_rules.keeper import Keeper
    from snakemake_kochi.phases.freeze import have_read, take_freeze
    from snakemake_kochi.project.checks import check_own_outputs

    freeze = freeze_of(workflow) or take_freeze(directory, chosen_machine())
    have_read()
    experiments = []
    for file in freeze.experiments:
        with suppress(ConfigError):  # its mistakes concern whoever runs it
            experiments.append(freeze.experiment(file))
    check_own_outputs(outputs, experiments, freeze.machine_name)
    _remark_code(freeze, directory, outputs)
    keeper = Keeper(freeze, directory)
    keeper.promise()
    return keeper


def _remark_code(freeze: Freeze, directory: Path, outputs: Sequence[str]) -> None:
    """Say that outputs are or will be in a snapshot, which is not what anybody wants."""
    from snakemake_kochi.git import run_git

    # Results of batches are never code; for what is outside of the project git has no rules.
    paths = [path for path in outputs if not path.startswith("results/")]
    if not paths or not directory.resolve().is_relative_to(freeze.directory.resolve()):
        return
    try:
        asked = b"\0".join(map(os.fsencode, paths))
        said = run_git(directory, "check-ignore", "-z", "--stdin", stdin=asked, accept=(0, 1))
    except GitError:  # in no repository, or in a submodule
        return
    ignored = {os.fsdecode(path) for path in said.split(b"\0")}
    if code := [path for path in paths if path not in ignored]:
        more = f" and {len(code) - 1} more" if len(code) > 1 else ""
        first, slash, _ = code[0].partition("/")
        print(
            f"kochi: git does not ignore {code[0]}{more}, so these outputs count as code: the next "
            "run has other code, though nobody has edited any\n"
            f"Type in {directory}: echo {shlex.quote(f'/{first}{slash}')} >> .gitignore",
            file=sys.stderr,
        )


def _artifacts(job: Any) -> list[str]:
    """The outputs of a job to keep. Raises ConfigError for one that cannot be kept."""
    outputs = [output for output in job.output if is_artifact(output)]
    for output in outputs:
        check_output(str(output), getattr(output, "flags", {}))
    return list(map(str, outputs))


def _described(job: Any, directory: Path) -> Job:
    from snakemake_kochi.own_rules.record import shown_command, shown_params

    return {
        "rule": job.rule.name,
        "command": shown_command(_command(job, directory)),
        "wildcards": {name: str(value) for name, value in job.wildcards_dict.items()},
        **shown_params(dict(_named(job.params))),
        "inputs": list(_inputs(job)),
        "log": list(map(str, job.log)),
        "artifacts": _artifacts(job),
        "begun": time.time(),
    }


def _named(params: Any) -> Iterator[tuple[str, Any]]:
    """The params of a job with their names, or their positions."""
    named: set[int] = set()
    for name, (first, end) in params._get_names():
        named.update(range(first, first + 1 if end is None else end))
        yield name, getattr(params, name)
    for position, value in enumerate(params):
        if position not in named:
            yield str(position), value


def _command(job: Any, directory: Path) -> str:
    rule = job.rule
    if rule.shellcmd is not None:
        return str(job.shellcmd)
    for kind in ("script", "notebook", "wrapper", "template_engine", "cwl"):
        if (file := getattr(rule, kind, None)) is not None:
            return f"{kind}: {file}"
    file = str(rule.snakefile)
    return f"run: {os.path.relpath(file, directory)}" if os.path.isabs(file) else f"run: {file}"


def _inputs(job: Any) -> Iterator[str]:
    for file in job.input:
        flags = getattr(file, "flags", {})
        if flags.get("storage_object"):
            yield str(flags["storage_object"].query)
        elif not flags.get("pipe") and not flags.get("service"):
            yield str(flags.get("sourcecache_entry") or file)


def _worker(workflow: Any, job: Any) -> dict[str, Any]:
    """What is known of the execution of a job: from our executor, or of one on this node."""
    if noted := getattr(job, "kochi_result", None):
        return dict(noted)
    if job.is_local or workflow.executor_plugin.common_settings.local_exec:
        return {"node": platform.node()}
    return {}
