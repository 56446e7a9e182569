"""The tables of batches that a run of Snakemake did not finish, because something failed or because
it was to run a part of them only.

Snakemake does not run a batch's `collect_*` then. So the end of the process makes the table of the
existing results and names the missing ones. The files get an old date, so that the next run of
Snakemake makes them again. Why runs failed is noted beside the places of their records.

Which jobs ended how is read from Snakemake's DAG and from its log events, like a logger plugin
does, and only here. With a Snakemake without these parts, there is no such table.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from snakemake_kochi.files import last_lines, make_directory, to_json, write_atomically
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.part import Part
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.products import (
    LAST_LINES,
    Failure,
    forget_failure,
    read_failure,
    write_failure,
)

# By output: the executor's message, and the job's logs.
_Said = Mapping[str, tuple[str, Sequence[str]]]
_NOT_BEGUN = "not run: something else failed before"
_NO_REASON = "failed"
_RECORD = re.compile(r"(.*/)?\.snakemake/kochi/.*/record\.json", re.DOTALL)  # of a run of ours
# Without it, a message that a hundred runs share is printed once.
_OF_ONE_JOB = re.compile(r"kochi job (\d+) on node \S+: ")


class _Errors(logging.Handler):
    """Snakemake's log events of failed jobs, by output: the executor's message, and their logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: dict[str, tuple[str, Sequence[str]]] = {}
        # The directory of the jobs' files: with `-d`, Snakemake has left it when the process ends.
        self.directory = Path.cwd()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(getattr(record, "event", None), "name", "") != "JOB_ERROR":
            return
        with suppress(OSError):
            self.directory = Path.cwd()
        said = getattr(record, "rule_msg", None) or ""
        logs = [str(log) for log in getattr(record, "log", None) or ()]
        for output in map(str, getattr(record, "output", None) or ()):
            # A job of a group is reported once more, without a message.
            if said or output not in self.said:
                self.said[output] = (said, logs)
            if _RECORD.fullmatch(output):
                # Those who look at the batch meanwhile know by this that the run has failed.
                failure = _failure([output], self.said) or Failure(_NO_REASON)
                write_failure(Path(output), replace(failure, stopped=False))


def collect_at_exit(
    workflow: Any,
    freeze: Freeze,
    batches: Callable[[], Sequence[BatchRules]],
    part: Part | None,
) -> None:
    """When this process ends, make the tables of the batches in which jobs of `workflow` failed, or
    of which it ran a `part`. Call while the workflow is parsed."""

    def collect_all(unfinished: Mapping[str, Any], said: _Said) -> None:
        if part is not None:
            _note_runs(workflow.dag, unfinished, said)
            for batch in batches():
                if batch.name in part.asked:
                    _collect_part(freeze, batch)
            return
        by_name = defaultdict(list)
        for path in unfinished:
            by_name[os.path.basename(path)].append(path)
        for batch in batches():
            alike = by_name[os.path.basename(batch.files.markdown)]
            found = [path for path in alike if _is(path, batch.files.markdown)]
            if found:
                _collect(workflow, batch, found[0], unfinished, said)
        _note_runs(workflow.dag, unfinished, said)

    _at_exit(workflow, collect_all, lambda: part is not None and bool(part.asked))


def note_failures_at_exit(
    workflow: Any, batches: Callable[[], Sequence[BatchRules]], file: Path
) -> None:
    """When this process ends, write why runs were not done, by their records: JSON objects with
    "reason" and "output". Call while the workflow is parsed."""

    def note(unfinished: Mapping[str, Any], said: _Said) -> None:
        records = (record for batch in batches() for record in batch.files.records)
        why = {
            record: asdict(_why(workflow.dag, unfinished[record], said))
            for record in records
            if record in unfinished
        }
        make_directory(file.parent)
        write_atomically(file, to_json(why))
        _note_runs(workflow.dag, unfinished, said)

    _at_exit(workflow, note)


def _at_exit(
    workflow: Any,
    finish: Callable[[Mapping[str, Any], _Said], None],
    even_so: Callable[[], bool] = lambda: False,
) -> None:
    """Call a function at the end of this process if jobs failed, with the jobs that were not done
    and the errors, both by output; `even_so`: also if all jobs that ran were done."""
    from snakemake.logging import logger

    errors = _Errors()
    logger.addHandler(errors)

    def finish_rest() -> None:
        # The run has failed in any case; a second interrupt must end it.
        with suppress(AttributeError, OSError, KeyboardInterrupt):
            dag = workflow.dag
            if workflow.dryrun or dag is None or not (errors.said or even_so()):
                return
            unfinished = {str(path): job for job in dag.needrun_jobs() for path in job.output}
            has_run = any(True for _ in dag.needrun_jobs(exclude_finished=False))
            if errors.said or (has_run and not unfinished):  # else it was interrupted
                with chdir(errors.directory):
                    finish(unfinished, errors.said)
                    for output in errors.said:
                        if not _RECORD.fullmatch(output):
                            # It must not become the reason of a later job without one.
                            forget_failure(Path(output))

    atexit.register(finish_rest)


def _note_runs(dag: Any, unfinished: Mapping[str, Any], said: _Said) -> None:
    """Note why runs have failed or were not begun, for those who look at the batch later."""
    for output, job in unfinished.items():
        if _RECORD.fullmatch(output):
            why = _why(dag, job, said)
            if why.reason != _NOT_BEGUN:
                write_failure(Path(output), replace(why, told=True, stopped=False))


def _collect(
    workflow: Any,
    batch: BatchRules,
    markdown: str,
    unfinished: Mapping[str, Any],
    said: _Said,
) -> None:
    """`markdown`: that of the batch, as Snakemake names it; `unfinished`: jobs by their outputs."""
    dag = workflow.dag
    top = markdown.removesuffix(batch.files.markdown)
    left_out = {
        top + record: _why(dag, unfinished[top + record], said)
        for record in batch.files.records
        if top + record in unfinished
    }
    of_table = _failure(list(map(str, unfinished[markdown].output)), said)
    is_concerned = of_table or any(why.reason != _NOT_BEGUN for why in left_out.values())
    if not is_concerned and len(left_out) == len(batch.files.records):
        return
    table = f"{top}{batch.files.table}"
    if len(left_out) < len(batch.files.records):
        with suppress(AttributeError, AssertionError, TypeError, OSError):
            for path in unfinished[markdown].output:
                # If Snakemake's metadata knew the older files, it would ignore their dates.
                workflow.persistence.cleanup_metadata(path)
    _make_table(
        batch,
        Path(table),
        Path(markdown),
        {
            # Snakemake deletes the old record of a run that it begins.
            record: {"reason": why.reason, "output": why.output, "stale": os.path.exists(record)}
            for record, why in left_out.items()
        },
    )


def _make_table(
    batch: BatchRules,
    table: Path,
    markdown: Path,
    left_out: Mapping[str, Mapping[str, Any]],
) -> None:
    options = (
        *(f"--batch={batch.grid.batch}", f"--table={table}", f"--markdown={markdown}"),
        "--left-out",
    )
    # A process of its own: this one is ending, and starts no more threads.
    subprocess.run(
        [sys.executable, "-P", "-m", "snakemake_kochi.tables", batch.experiment.file, *options],
        input=json.dumps(left_out).encode(),
        check=False,
    )


def _collect_part(freeze: Freeze, batch: BatchRules) -> None:
    """The table of all results that the batch has by now, with the reasons why others are missing.

    A stale result is none of them: in one table it would be taken for a result of this code.
    """
    # Imported here: few runs are of a part.
    from snakemake_kochi.library.states import BatchStates

    left_out = {
        state.record: {
            "reason": state.why,
            "output": state.output,
            "stale": state.state == "stale",
        }
        for state in BatchStates(freeze, batch).look()
        if state.state not in ("done", "skipped")
    }
    files = batch.files
    _make_table(batch, Path(files.table), Path(files.markdown), left_out)


def _is(path: str, file: str) -> bool:
    # Below another directory, for a module with a `prefix:`.
    return path == file or path.endswith(f"/{file}")


def _why(dag: Any, job: Any, said: _Said) -> Failure:
    """Why a job was not done: it, or one that it needs, failed."""
    for each in _with_what_it_needs(dag, job):
        if (failure := _failure(list(map(str, each.output)), said)) is not None:
            if each is job:
                return failure
            reason = f"not run because {each.rule.name} failed: {failure.reason}"
            return Failure(reason, failure.output)
    return Failure(_NOT_BEGUN)


def _with_what_it_needs(dag: Any, job: Any) -> Iterator[Any]:
    seen, following = {job}, [job]
    while following:
        current = following.pop(0)
        yield current
        new = [
            each
            for each in dag.dependencies.get(current, ())
            if each not in seen and dag.needrun(each) and not dag.finished(each)
        ]
        seen.update(new)
        following += new


def _failure(outputs: Sequence[str], said: _Said) -> Failure | None:
    """Why the job with these outputs failed; None if it did not."""
    told = next((said[output] for output in outputs if output in said), None)
    if told is None:
        return None
    found = (read_failure(Path(output)) for output in outputs)
    noted = next((each for each in found if each is not None and not each.told), None)
    message, logs = told
    # Messages of executors for clusters end with a log.
    first = _OF_ONE_JOB.sub("", message.strip().partition("\n")[0])
    if noted is None:
        output = next(filter(None, (last_lines(Path(log), LAST_LINES) for log in logs)), [])
        job = _OF_ONE_JOB.match(message.strip())
        return Failure(first or _NO_REASON, tuple(output), job=int(job[1]) if job else None)
    if first and "exit status" not in first and not noted.reason.startswith(first):
        # A timeout, for example, of which the phase knew only that it had to end.
        return Failure(f"{first} ({noted.reason})", noted.output, job=noted.job)
    return noted
