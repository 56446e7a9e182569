"""All checks, one after the other, each where it can be given up."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path

from snakemake_kochi.doctor.between_nodes import Pair
from snakemake_kochi.doctor.child import Measurements
from snakemake_kochi.doctor.finding import Finding, Outcome
from snakemake_kochi.doctor.others import OtherNodes, examine_others
from snakemake_kochi.paths import MachinePaths


@dataclass(frozen=True)
class Patient:
    """What is examined: a machine with the locks that are configured, a project if there is one,
    and a queue with a worker on another node, if there is one; `has_others`: whether it has a
    scheduler that gives other nodes."""

    machine: MachinePaths
    lock_dir: Path | None = None
    lock_kind: str | None = None
    project: Path | None = None
    queue: str | None = None
    has_others: bool = False


def diagnose(
    patient: Patient,
    deadline: float,
    remark: Callable[[str], None],
    others: OtherNodes | None = None,
) -> Generator[Finding]:
    """The findings, as they come. `deadline`: seconds for a check to answer, before it is said to
    hang; checks between nodes have more. `remark` is given what people should know meanwhile.
    `others`: nodes to be had for the time of the tests, which are asked for if this one is fit.

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
    of_all = {"of_all": patient.has_others and patient.queue is None and others is None}
    fine = True
    for finding in measurements.run("machine", machine | of_all):
        fine = fine and finding.verdict != "failed"
        yield finding
    lock_dir = None if patient.lock_dir is None else str(patient.lock_dir)
    locks = {"lock_dir": lock_dir, "lock_kind": patient.lock_kind}
    for finding in measurements.run("locks", machine | locks):
        fine = fine and finding.verdict != "failed"
        yield finding
    if patient.project is not None:
        project = {"nonce": nonce, "project": str(patient.project)}
        yield from measurements.run("project", project | of_all)
    if patient.queue is None and others is None:
        start = "start a worker on another node (kochi work -q QUEUE -b)"
        yield _untested("", "--allocations") if patient.has_others else _untested(start, "-q QUEUE")
    elif not fine:
        option = "--allocations" if patient.queue is None else f"-q {patient.queue}"
        yield _untested("first mend what failed on this node", option)
    elif others is not None:
        yield from examine_others(measurements, machine, others)
    else:
        pair = Pair(str(patient.queue))
        yield from measurements.run("between nodes", machine | {"pair": asdict(pair)})


def _untested(first: str, option: str) -> Finding:
    then = f"{first}, then type here" if first else "type"
    advice = f"{then[0].upper()}{then[1:]}: kochi doctor {option}"
    return Finding("between nodes", "", Outcome("note", "not tested", advice))
