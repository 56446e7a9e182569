"""All checks, one after the other, each where it can be given up."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.doctor.child import Measurements
from snakemake_kochi.doctor.finding import Finding, Outcome
from snakemake_kochi.paths import MachinePaths


@dataclass(frozen=True)
class Patient:
    """What is examined: a machine with the locks that are configured, a project if there is one,
    and a queue with a worker on another node, if there is one."""

    machine: MachinePaths
    lock_dir: Path | None = None
    lock_kind: str | None = None
    project: Path | None = None
    queue: str | None = None


def diagnose(
    patient: Patient, deadline: float, remark: Callable[[str], None]
) -> Generator[Finding]:
    """The findings, as they come. `deadline`: seconds for a check to answer, before it is said to
    hang; checks between nodes have more. `remark` is given what people should know meanwhile.

    Touches none of the directories itself, and leaves nothing in them. To be read to the end, or
    closed.
    """
    measurements = Measurements(deadline, remark)
    nonce = secrets.token_hex(4)
    machine = {
        "nonce": nonce,
        "name": patient.machine.name,
        "machine": str(patient.machine.directory),
    }
    yield from measurements.run("node", {})
    fine = True
    for finding in measurements.run("machine", machine):
        fine = fine and finding.verdict != "failed"
        yield finding
    lock_dir = None if patient.lock_dir is None else str(patient.lock_dir)
    locks = {"lock_dir": lock_dir, "lock_kind": patient.lock_kind}
    for finding in measurements.run("locks", machine | locks):
        fine = fine and finding.verdict != "failed"
        yield finding
    if patient.project is not None:
        yield from measurements.run("project", {"nonce": nonce, "project": str(patient.project)})
    if patient.queue is None:
        yield _untested("start a worker on another node (kochi work -q QUEUE -b)", "-q QUEUE")
    elif not fine:
        yield _untested("first mend what failed on this node", f"-q {patient.queue}")
    else:
        yield from measurements.run("between nodes", machine | {"queue": patient.queue})


def _untested(first: str, option: str) -> Finding:
    advice = f"{first[0].upper()}{first[1:]}, then type here: kochi doctor {option}"
    return Finding("between nodes", "", Outcome("note", "not tested", advice))
