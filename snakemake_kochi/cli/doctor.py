"""`kochi doctor`."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from snakemake_kochi.cli.options import duration, json_option, machine_option
from snakemake_kochi.cli.output import coloured, print_json, remark, say, shown
from snakemake_kochi.location import Location, find_location

if TYPE_CHECKING:
    from snakemake_kochi.doctor import Finding, OtherNodes

_DEADLINE = "10s"
_WAIT = "10m"


@click.command()
@machine_option
@click.option(
    *("-q", "--queue"),
    metavar="QUEUE",
    help="A queue with a worker on another node, to test with that node, too.",
)
@click.option(
    "--allocations",
    is_flag=True,
    help="Ask the machine's scheduler for two nodes, a core on each, and test with them, too; they "
    "are given back.",
)
@click.option(
    "--wait",
    type=duration,
    default=_WAIT,
    show_default=True,
    help="With --allocations: how long to wait for each node.",
)
@click.option(
    "--deadline",
    type=duration,
    default=_DEADLINE,
    show_default=True,
    help="How long a check may take before it is said to hang; with another node they have more.",
)
@json_option
def command(
    machine: str | None,
    queue: str | None,
    allocations: bool,
    wait: float,
    deadline: float,
    as_json: bool,
) -> int:
    """Measure whether this node, its filesystems and their locks are fit for queues.

    One line for each check: ok, note, warning or failed, what was measured, and what to do. The
    exit status is 1 if anything failed. Whatever is made for it is removed again.
    """
    from snakemake_kochi.doctor import Patient, diagnose

    if allocations and queue is not None:
        raise click.UsageError("--allocations and -q: one of them was expected")
    location = find_location(machine)
    location.require_here()
    if queue is not None:
        location.machine_paths.queue(queue)
    project = None if location.project is None else location.project.directory
    patient = Patient(
        location.machine_paths,
        location.machine.lock_directory,
        location.machine.lock_kind,
        project,
        queue,
        location.machine.has_allocations,
    )
    findings: list[Finding] = []
    with contextlib.ExitStack() as stack:
        others = stack.enter_context(_other_nodes(location, wait)) if allocations else None
        # Closed at once after Ctrl-C, so that what was made is removed.
        found = stack.enter_context(contextlib.closing(diagnose(patient, deadline, remark, others)))
        for finding in found:
            findings.append(finding)
            if not as_json:
                say(_line(finding))
    failed = any(finding.verdict == "failed" for finding in findings)
    if as_json:
        checks = [finding.to_dict() for finding in findings]
        print_json({"machine": location.machine.name, "failed": failed, "checks": checks})
    return int(failed)


@contextlib.contextmanager
def _other_nodes(location: Location, wait: float) -> Iterator[OtherNodes]:
    """From the machine's scheduler; given back whatever happens."""
    from snakemake_kochi.allocation.trial import TrialAllocations
    from snakemake_kochi.cli.other_nodes import NodesOfScheduler

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    with TrialAllocations(location, wait, remark) as allocations:
        yield NodesOfScheduler(allocations)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _line(finding: Finding) -> str:
    outcome = finding.outcome
    where = f" in {finding.directory}" if finding.directory else ""
    advice = f". To do: {outcome.advice}" if outcome.advice else ""
    text = " ".join(f"{finding.check}{where}: {outcome.measured}{advice}".splitlines())
    return f"{coloured(outcome.verdict)}{' ' * (8 - len(outcome.verdict))}{shown(text)}"
