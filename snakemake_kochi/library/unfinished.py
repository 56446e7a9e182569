"""The tables of batches that a run of Snakemake did not finish because something failed.

Snakemake does not run a batch's `collect_*` when one of its runs failed. So the end of the process
makes the table of the existing results and names the failed runs. The files get an old date, so
that the next run of Snakemake makes them again.

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from snakemake_kochi.files import last_lines, make_directory, to_json, write_atomically
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.phases.products import LAST_LINES, Failure, forget_failure, read_failure

# By output: the executor's message, and the job's logs.
_Said = Mapping[str, tuple[str, Sequence[str]]]
_NOT_BEGUN = "not run: something else failed before"
_NO_REASON = "failed"
# Without it, a message that a hundred runs share is printed once.
_OF_ONE_JOB = re.compile(r"kochi job \d+ on node \S+: ")


class _Errors(logging.Handler):
    """Snakemake's log events of failed jobs, by output: the executor's message, and their logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: dict[str, tuple[str, Sequence[str]]] = {}
        # The directory of the jobs' files: with `-d`, Snakemake has left it when the process ends.
        self.directory = Path()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(getattr(record, "event", None), "name", "") != "JOB_ERROR":
            return
        with suppress(OSError):
            self.directory = Path.cwd()
        said = getattr(record, "rule_msg", None) or ""
        logs = [str(log) for log in getattr(record, "log", None) or ()]
        for output in getattr(record, "output", None) or ():
            # A job of a group is reported once more, without a message.
            if said or str(output) not in self.said:
                self.said[str(output)] = (said, logs)


def collect_at_exit(workflow: Any, batches: Callable[[], Sequence[BatchRules]]) -> None:
    """When this process ends, make the tables of the batches in which jobs of `workflow` failed.
    Call while the workflow is parsed."""

    def collect_all(unfinished: Mapping[str, Any], said: _Said) -> None:
        by_name = defaultdict(list)
        for path in unfinished:
            by_name[os.path.basename(path)].append(path)
        for batch in batches():
            alike = by_name[os.path.basename(batch.files.markdown)]
            found = [path for path in alike if _is(path, batch.files.markdown)]
            if found:
                _collect(workflow, batch, found[0], unfinished, said)

    _at_exit(workflow, collect_all)


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

    _at_exit(workflow, note)


def _at_exit(workflow: Any, finish: Callable[[Mapping[str, Any], _Said], None]) -> None:
    """Call a function at the end of this process if jobs failed, with the jobs that were not done
    and the errors, both by output."""
    from snakemake.logging import logger

    errors = _Errors()
    logger.addHandler(errors)

    def finish_rest() -> None:
        # The run has failed in any case; a second interrupt must end it.
        with suppress(AttributeError, OSError, KeyboardInterrupt):
            dag = workflow.dag
            if errors.said and not workflow.dryrun and dag is not None:
                unfinished = {str(path): job for job in dag.needrun_jobs() for path in job.output}
                with chdir(errors.directory):
                    finish(unfinished, errors.said)
                    for output in errors.said:
                        # It must not become the reason of a later job without one.
                        forget_failure(Path(output))

    atexit.register(finish_rest)


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
    of_table = _failure(unfinished[markdown], said)
    is_concerned = of_table or any(why.reason != _NOT_BEGUN for why in left_out.values())
    if not is_concerned and len(left_out) == len(batch.files.records):
        return
    table, plot = f"{top}{batch.files.table}", f"{top}{batch.files.plot}"
    if len(left_out) < len(batch.files.records):
        with suppress(AttributeError, AssertionError, TypeError, OSError):
            for path in unfinished[markdown].output:
                # If Snakemake's metadata knew the older files, it would ignore their dates.
                workflow.persistence.cleanup_metadata(path)
    options = (
        *(f"--batch={batch.grid.batch}", f"--table={table}", f"--markdown={markdown}"),
        *(f"--plot={plot}", "--left-out"),
    )
    # A process of its own: this one is ending, and starts no more threads.
    subprocess.run(
        [sys.executable, "-P", "-m", "snakemake_kochi.tables", batch.experiment.file, *options],
        input=json.dumps({record: asdict(why) for record, why in left_out.items()}).encode(),
        check=False,
    )


def _is(path: str, file: str) -> bool:
    # Below another directory, for a module with a `prefix:`.
    return path == file or path.endswith(f"/{file}")


def _why(dag: Any, job: Any, said: _Said) -> Failure:
    """Why a job was not done: it, or one that it needs, failed."""
    for each in _with_what_it_needs(dag, job):
        if (failure := _failure(each, said)) is not None:
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


def _failure(job: Any, said: _Said) -> Failure | None:
    outputs = [str(path) for path in job.output]
    told = next((said[output] for output in outputs if output in said), None)
    if told is None:
        return None
    noted = next(filter(None, (read_failure(Path(output)) for output in outputs)), None)
    message, logs = told
    # Messages of executors for clusters end with a log.
    first = _OF_ONE_JOB.sub("", message.strip().partition("\n")[0])
    if noted is None:
        output = next(filter(None, (last_lines(Path(log), LAST_LINES) for log in logs)), [])
        return Failure(first or _NO_REASON, tuple(output))
    if first and "exit status" not in first:
        # A timeout, for example, of which the phase knew only that it had to end.
        return Failure(f"{first} ({noted.reason})", noted.output)
    return noted
