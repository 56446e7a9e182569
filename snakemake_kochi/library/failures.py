"""Why jobs of our rules failed, noted beside the places of their outputs; and the table of a batch
that `kochi batch` did not finish.

A phase notes why it failed (`phases/products.py`). What only the executor knows, such as a timeout,
and that a run waited for a phase that failed, is noted here, from Snakemake's log events.
"""

from __future__ import annotations

import atexit
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from snakemake_kochi.files import last_lines
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.phases.products import (
    LAST_LINES,
    NEEDLESS,
    Failure,
    is_of_our_rules,
    read_failure,
    write_failure,
)

# `kochi batch` names the target of the batch whose table it wants in any case.
BATCH = "kochi_batch"
# Without it, a message that a hundred runs share is printed once.
_OF_ONE_JOB = re.compile(r"kochi job (\d+) on node \S+: ")


class _Failures(logging.Handler):
    """Notes each failure when it is logged: others look at the batch meanwhile. `rules`: those of
    the failed phases, by output."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.rules: dict[Path, str] = {}
        self.has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(getattr(record, "event", None), "name", "") != "JOB_ERROR":
            return
        self.has_failed = True
        # A job of a group is reported once more, without a message.
        message = str(getattr(record, "rule_msg", None) or "").strip()
        logs = [Path(str(log)) for log in getattr(record, "log", None) or ()]
        for output in map(Path, map(str, getattr(record, "output", None) or ())):
            if is_of_our_rules(str(output)) and (message or output not in self.rules):
                self.rules[output] = str(getattr(record, "rule_name", ""))
                write_failure(output, _failure(read_failure(output), message, logs))


def _failure(noted: Failure | None, message: str, logs: Sequence[Path]) -> Failure:
    """`noted`: by the phase, if it began."""
    # Messages of executors for clusters end with a log.
    first = _OF_ONE_JOB.sub("", message.partition("\n")[0])
    if noted is None or noted.told:
        lines = next(filter(None, (last_lines(log, LAST_LINES) for log in logs)), [])
        job = _OF_ONE_JOB.match(message)
        return Failure(first or "failed", tuple(lines), job=int(job[1]) if job else None)
    if first and "exit status" not in first and not noted.reason.startswith(first):
        # A timeout, for example, of which the phase knew only that it had to end.
        return Failure(f"{first} ({noted.reason})", noted.output, job=noted.job)
    return replace(noted, stopped=False)


def note_failures(
    workflow: Any,
    batches: Callable[[], Sequence[BatchRules]],
    wanted: str | None,
    is_part: bool,
) -> None:
    """Note failures of jobs while this process runs, and at its end those of the runs that waited
    for them; then make the table of the batch whose target is `wanted`, if a run of it failed or
    only a part was asked for. Call while the workflow is parsed."""
    from snakemake.logging import logger

    failures, directory = _Failures(), Path.cwd()
    logger.addHandler(failures)

    def finish() -> None:
        # A second interrupt must end the run. Of Snakemake's parts, the DAG is looked at here only.
        with suppress(AttributeError, OSError, KeyboardInterrupt), chdir(directory):
            if workflow.dryrun or workflow.dag is None:
                return
            why = _noted(failures.rules, batches())
            is_over = not any(True for _ in workflow.dag.needrun_jobs())
            has_run = any(True for _ in workflow.dag.needrun_jobs(exclude_finished=False))
            if not failures.has_failed and not (has_run and is_over):
                return  # it was interrupted
            for batch in batches():
                if batch.name == wanted and (failures.has_failed or is_part):
                    _make_table(workflow, batch, why)

    atexit.register(finish)


def _noted(rules: Mapping[Path, str], batches: Collection[BatchRules]) -> dict[Path, Failure]:
    """Note that failures were told, and the failures of runs that waited for a failed phase;
    returns the latter, by record."""
    known = {file: failure for file in rules if (failure := read_failure(file)) is not None}
    for file, failure in known.items():
        write_failure(file, replace(failure, told=True))
    waited: dict[Path, Failure] = {}
    for batch in batches if known else ():
        for place in batch.files_now().places:
            needed = [batch.build_file(place.point), batch.prepared_for(place.point)]
            needed += batch.variants.at(place.point).installs
            failed = next((Path(f) for f in needed if f is not None and Path(f) in known), None)
            if failed is None or place.record in known or known[failed].reason.endswith(NEEDLESS):
                continue
            reason = f"not run because {rules[failed]} failed: {known[failed].reason}"
            waited[place.record] = Failure(reason, known[failed].output, told=True)
            write_failure(place.record, waited[place.record])
    return waited


def _make_table(workflow: Any, batch: BatchRules, why: Mapping[Path, Failure]) -> None:
    """The table of all results that the batch has by now, with the reasons why others are missing.

    A stale result is none of them: in one table it would be taken for a result of this code.
    """
    # Imported here: most runs are complete.
    from snakemake.io import IOFile

    from snakemake_kochi.library.states import BatchStates

    left_out = {}
    for state in BatchStates(batch).look():
        if state.state not in ("done", "skipped"):
            failure = why.get(Path(state.record)) or Failure(state.why, state.output)
            left_out[state.record] = {
                "reason": failure.reason,
                "output": failure.output,
                "stale": state.state == "stale",
            }
    files = batch.files
    for path in (files.table, files.markdown, *(each for two in files.figures for each in two)):
        with suppress(AttributeError, AssertionError, TypeError, OSError):
            # If Snakemake's metadata knew the older files, it would ignore their dates.
            workflow.persistence.cleanup_metadata(IOFile(path))
    # A process of its own: this one is ending, and starts no more threads.
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "snakemake_kochi.tables", batch.experiment.file),
            *(batch.grid.batch, files.table, "--left-out"),
        ],
        input=json.dumps(left_out).encode(),
        check=False,
    )
