"""What a person reads of the end of a job."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from snakemake_kochi.files import last_lines, show_new_files
from snakemake_kochi.hints import typed
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import this_node
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


def described(end: End) -> str:
    """The end in a few words: "exit status 1", "killed by SIGKILL"."""
    details = details_of(end)
    status = details.get("exit_status")
    text = {
        "failed": "failed" if status is None else f"exit status {status}",
        "signal": f"killed by {_name_of(details.get('signal'))}",
        "memory": "out of memory",
        "node": "node failed",
        "lost": "lost: its workers died",
    }.get(end.name.state, end.name.state)
    return f"{text}: {details['detail']}" if details.get("detail") else text


def _name_of(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def why_lost(machine: MachinePaths, end: End) -> str:
    """What the allocation of the last worker printed about a kill for its memory, and what to do
    about that; "" for nothing."""
    facts = None
    if end.name.state == "lost":
        with suppress(OSError):
            facts = facts_in(str(machine.worker(int(end.name.worker)).state))
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
    ending = last_lines(Path(log), 2 * _LAST_LINES)
    node = details_of(end).get("node", "(none)")
    lines = [f"kochi job {number_of(end)} on node {node}: {typed(described(end) + why)}"]
    # The ended process is the inner Snakemake, which always ends with 1. The exit status of the
    # rule's own command is in its log.
    if own := _COMMAND_STATUS.search("\n".join(ending)):
        lines.append(f"the rule's command: {own[0]}")
    if wildcards := ticket.labels.get("wildcards"):
        lines.append(f"wildcards: {wildcards}")
    lines += [f"    {line}" for line in _without_report(ending)[-_LAST_LINES:]]
    return "\n        ".join(lines)


def _without_report(lines: Sequence[str]) -> Sequence[str]:
    """Without the messages of the inner Snakemake, among which the job's output would be lost."""
    stop = next((i for i, line in enumerate(lines) if line == "RuleException:"), len(lines))
    return [line for line in lines[:stop] if not line.startswith(_INNER_WORDS)] or lines


def note_end(job: Any, queue: str, end: End) -> None:
    """Note at Snakemake's job how it succeeded, for the records of `own_rules`."""
    from snakemake_kochi.executor.tickets import single_jobs  # of Snakemake

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


def seen_outputs(ticket: Ticket, paths: Iterable[str]) -> dict[str, list[int]]:
    """The state of files as the details of an end have it: those that are visible here."""
    seen = {}
    for path in paths:
        with suppress(OSError):
            found = os.stat(os.path.join(ticket.directory, path))
            seen[path] = [found.st_mtime_ns, found.st_size]
    return seen


def show_outputs(ended: Iterable[tuple[Ticket, End]]) -> None:
    """Make the outputs of jobs on other nodes visible here before Snakemake looks for them."""
    hidden = set()
    for ticket, end in ended:
        details = details_of(end)
        if details.get("node") in (None, this_node().host):
            continue
        outputs = details.get("outputs") or {}
        seen = seen_outputs(ticket, outputs)
        late = (path for path in outputs if seen.get(path) != outputs[path])
        hidden |= {os.path.dirname(os.path.join(ticket.directory, path)) for path in late}
    for directory in hidden:
        show_new_files(directory)
