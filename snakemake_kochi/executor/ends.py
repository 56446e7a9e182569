"""What a person reads of the end of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from snakemake_kochi.executor.tickets import single_jobs
from snakemake_kochi.files import last_lines, show_new_files, times_and_sizes
from snakemake_kochi.hints import typed
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.views import Attempt
from snakemake_kochi.tickets.run import End
from snakemake_kochi.tickets.ticket import Ticket
from snakemake_kochi.tickets.watching import facts_in

SUCCESS, CANCELLED = "success", "cancelled"
_LAST_LINES = 20
_INNER_WORDS = (
    "Building DAG of jobs...",
    "Using shell: ",
    "Select jobs to execute...",
    "Execute 1 jobs...",
)
# What Slurm, PBS and LSF write into the output of an allocation that they end for its memory, also
# where the kernel counts no such kill (Slurm: JobAcctGatherParams=OverMemoryKill). Jobs may print
# there, too, so a line has to begin as theirs do.
_MEMORY = re.compile(
    r"^slurmstepd\b.*(exceeded memory limit|out.of.memory|oom.?kill)"
    r"|^=>> PBS: job killed: v?mem|^TERM_MEMLIMIT",
    re.IGNORECASE,
)
# The wording of subprocess.CalledProcessError.
_COMMAND_STATUS = re.compile(r"non-zero exit status \d+|died with <Signals\.\w+: \d+>")


def number_of(end: End) -> str:
    """The number of a job, for people."""
    return f"{end.name.run}.{end.name.job}"


def details_of(end: End) -> dict[str, Any]:
    """What the worker said; empty if it could not, or if there was none."""
    return end.line.get("details") or {}


def why_lost(machine: MachinePaths, end: End) -> str:
    """What the allocation of the last worker printed about a kill for its memory, and what to do
    about that; "" for nothing."""
    facts = None
    if end.name.state == "lost":
        with suppress(OSError):
            facts = facts_in(machine.layout.worker(end.name.worker).facts)
    if not facts or facts["allocation"] is None:
        return ""
    log = machine.allocation_log(facts["controller"], facts["allocation"])
    show_new_files(log.parent)
    lines = (line for path in (log, log.with_suffix(".out")) for line in last_lines(path, 20))
    found = next((line.strip() for line in lines if _MEMORY.search(line)), "")
    advice = "request more with the resource mem_mb; see: kochi show log worker"
    out = "its allocation ran out of memory"
    return found and f'; {out}: "{found}"; {advice} {end.name.worker}'


def failure_message(ticket: Ticket, end: End, log: str, why: str = "") -> str:
    """How and where a job failed, and the end of its log; `why`: see `why_lost`."""
    text = last_lines(Path(log), 2 * _LAST_LINES)
    node = details_of(end).get("node", "(none)")
    name = end.name
    ending = Attempt.of_line(end.line, name.attempt, name.worker, name.state).ending
    why = f": its workers died{why}" if name.state == "lost" else why
    lines = [f"kochi job {number_of(end)} on node {node}: {typed(f'{ending}{why}')}"]
    # The ended process is the inner Snakemake, which always ends with 1. The exit status of the
    # rule's own command is in its log.
    if own := _COMMAND_STATUS.search("\n".join(text)):
        lines.append(f"the rule's command: {own[0]}")
    if wildcards := ticket.labels.get("wildcards"):
        lines.append(f"wildcards: {wildcards}")
    lines += [f"    {line}" for line in _without_report(text)[-_LAST_LINES:]]
    return "\n        ".join(lines)


def _without_report(lines: Sequence[str]) -> Sequence[str]:
    """Without the messages of the inner Snakemake, among which the job's output would be lost."""
    stop = next((i for i, line in enumerate(lines) if line == "RuleException:"), len(lines))
    return [line for line in lines[:stop] if not line.startswith(_INNER_WORDS)] or lines


def note_end(job: Any, queue: str, end: End) -> None:
    """Note at Snakemake's job how it succeeded, for the records of `own_rules`."""
    details = details_of(end)
    noted = {"node": details.get("node", ""), "worker": end.name.worker, "queue": queue}
    noted |= {"job": number_of(end), "attempt": end.name.attempt}
    noted |= {"runner": details.get("runner", ""), "nonce": details.get("nonce", "")}
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        for key in ("started", "ended"):
            noted[key] = datetime.fromisoformat(details[key]).timestamp()
    with suppress(AttributeError):
        for each in single_jobs(job):
            each.kochi_result = noted


def show_outputs(ended: Iterable[tuple[Ticket, End]]) -> None:
    """Make the outputs of jobs on other nodes visible here before Snakemake looks for them."""
    hidden = set()
    for ticket, end in ended:
        details = details_of(end)
        if details.get("node") in (None, this_node().host):
            continue
        outputs = details.get("outputs") or {}
        seen = times_and_sizes(ticket.directory, outputs)
        late = (path for path in outputs if seen.get(path) != outputs[path])
        hidden |= {os.path.dirname(os.path.join(ticket.directory, path)) for path in late}
    for directory in hidden:
        show_new_files(directory)
