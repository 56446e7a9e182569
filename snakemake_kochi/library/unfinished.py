"""The batches that a run of Snakemake did not finish, because something failed: their tables.

Snakemake does not run a batch's `collect_*` when a run of it failed. So at the end of the process
it is done for what there is, with the runs that failed named; and the files are dated back, so that
the next run of Snakemake makes them anew. Which jobs have ended how Snakemake says itself: its DAG
and what it logs of errors, as for a logger plugin, all of which is taken here. Where a Snakemake
has no such parts, there is no table of what there is.
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

from snakemake_kochi.files import last_lines
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.phases.products import LAST_LINES, Failure, forget_failure, read_failure

_NOT_BEGUN = "not run: something else failed before"
_NO_REASON = "failed"
# Without it, what a hundred runs have in common is told once.
_OF_ONE_JOB = re.compile(r"kochi job \d+ on node \S+: ")


class _Errors(logging.Handler):
    """What Snakemake logs of failed jobs, by output: what the executor said, and their logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: dict[str, tuple[str, Sequence[str]]] = {}
        # Where the jobs' files are: with `-d` Snakemake is elsewhere again when the process ends.
        self.directory = Path()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(getattr(record, "event", None), "name", "") != "JOB_ERROR":
            return
        with suppress(OSError):
            self.directory = Path.cwd()
        said = getattr(record, "rule_msg", None) or ""
        logs = [str(log) for log in getattr(record, "log", None) or ()]
        for output in getattr(record, "output", None) or ():
            # A job of a group is told once more, without a word.
            if said or str(output) not in self.said:
                self.said[str(output)] = (said, logs)


def collect_at_exit(workflow: Any, batches: Callable[[], Sequence[BatchRules]]) -> None:
    """Have this process, when it ends, make the tables of the batches that jobs of `workflow` have
    failed of. Call while the workflow is parsed."""
    from snakemake.logging import logger

    errors = _Errors()
    logger.addHandler(errors)

    def collect_rest() -> None:
        # The run has failed, whatever comes; a second interrupt is to end it.
        with suppress(AttributeError, OSError, KeyboardInterrupt):
            dag = workflow.dag
            if errors.said and not workflow.dryrun and dag is not None:
                unfinished = {str(path): job for job in dag.needrun_jobs() for path in job.output}
                by_name = defaultdict(list)
                for path in unfinished:
                    by_name[os.path.basename(path)].append(path)
                with chdir(errors.directory):
                    for batch in batches():
                        alike = by_name[os.path.basename(batch.files.markdown)]
                        found = [path for path in alike if _is(path, batch.files.markdown)]
                        if found:
                            _collect(workflow, batch, found[0], unfinished, errors.said)
                    for output in errors.said:
                        # It is not to be the reason of a later job that says none.
                        forget_failure(Path(output))

    atexit.register(collect_rest)


def _collect(
    workflow: Any,
    batch: BatchRules,
    markdown: str,
    unfinished: Mapping[str, Any],
    said: Mapping[str, tuple[str, Sequence[str]]],
) -> None:
    """`markdown`: the batch's, as Snakemake names it; `unfinished`: jobs by their outputs."""
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
                # With what it knows of those of before, their dates would not count for Snakemake.
                workflow.persistence.cleanup_metadata(path)
    options = (
        *(f"--batch={batch.grid.batch}", f"--table={table}", f"--markdown={markdown}"),
        *(f"--plot={plot}", "--left-out"),
    )
    # A process of its own: this one is on its way out, and starts no threads any more.
    subprocess.run(
        [sys.executable, "-P", "-m", "snakemake_kochi.results", batch.experiment.file, *options],
        input=json.dumps({record: asdict(why) for record, why in left_out.items()}).encode(),
        check=False,
    )


def _is(path: str, file: str) -> bool:
    # Below another directory, for a module with a `prefix:`.
    return path == file or path.endswith(f"/{file}")


def _why(dag: Any, job: Any, said: Mapping[str, tuple[str, Sequence[str]]]) -> Failure:
    """Why a job has not been done: it, or one that it needs, failed."""
    for each in _with_what_it_needs(dag, job):
        if (failure := _failure(each, said)) is not None:
            if each is job:
                return failure
            return Failure(
                f"not run, for {each.rule.name} failed: {failure.reason}", failure.output
            )
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


def _failure(job: Any, said: Mapping[str, tuple[str, Sequence[str]]]) -> Failure | None:
    outputs = [str(path) for path in job.output]
    told = next((said[output] for output in outputs if output in said), None)
    if told is None:
        return None
    noted = next(filter(None, (read_failure(Path(output)) for output in outputs)), None)
    message, logs = told
    # As executors of clusters put it, it ends with a log.
    first = _OF_ONE_JOB.sub("", message.strip().partition("\n")[0])
    if noted is None:
        output = next(filter(None, (last_lines(Path(log), LAST_LINES) for log in logs)), [])
        return Failure(first or _NO_REASON, tuple(output))
    if first and "exit status" not in first:
        # A timeout, say, of which the phase knew only that it was to end.
        return Failure(f"{first} ({noted.reason})", noted.output)
    return noted
