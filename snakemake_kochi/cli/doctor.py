"""`kochi doctor`."""

from __future__ import annotations

import contextlib
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from snakemake_kochi.cli.options import duration, json_option, machine_option
from snakemake_kochi.cli.output import coloured, print_json, remark, say, shown
from snakemake_kochi.location import find_location

if TYPE_CHECKING:
    from snakemake_kochi.doctor import Finding


@click.command()
@machine_option
@click.option(
    *("-q", "--queue"),
    metavar="QUEUE",
    help="A queue with a worker on another node; that node is tested, too.",
)
@click.option(
    "--allocations",
    is_flag=True,
    help="Request two allocations of one core from the machine's scheduler, and test their nodes, "
    "too. The allocations are cancelled at the end.",
)
@click.option(
    "--wait",
    type=duration,
    default="10m",
    show_default=True,
    help="With --allocations: how long to wait for each of them.",
)
@click.option(
    "--deadline",
    type=duration,
    default="10s",
    show_default=True,
    help="How long a check may take before it fails; checks between nodes may take longer.",
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

    Prints one line for each check: ok, note, warning or failed, what was measured, and what to do.
    The exit status is 1 if a check failed. All files made for the checks are removed.
    """
    from snakemake_kochi.doctor import TrialAllocations, diagnose

    if allocations and queue is not None:
        raise click.UsageError("either --allocations or -q was expected, not both")
    location = find_location(machine, asks=True)
    location.require_here()
    if queue is not None:
        location.machine_paths.queue(queue)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Files and allocations of the checks are removed again.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    findings: list[Finding] = []
    with contextlib.ExitStack() as stack:
        others = None
        if allocations:
            others = stack.enter_context(TrialAllocations(location, wait, remark))
        # Closed at once after Ctrl-C, so that the checks clean up.
        found = diagnose(location, deadline, remark, queue, others)
        for finding in stack.enter_context(contextlib.closing(found)):
            findings.append(finding)
            if not as_json:
                say(_line(finding))
    has_failed = any(finding.verdict == "failed" for finding in findings)
    if as_json:
        keys = ("check", "directory", "verdict", "measured", "advice")
        checks = [{key: getattr(finding, key) for key in keys} for finding in findings]
        print_json({"machine": location.machine.name, "failed": has_failed, "checks": checks})
    return int(has_failed)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _line(finding: Finding) -> str:
    where = f" in {finding.directory}" if finding.directory else ""
    advice = f". To do: {finding.advice}" if finding.advice else ""
    text = " ".join(f"{finding.check}{where}: {finding.measured}{advice}".splitlines())
    return f"{coloured(finding.verdict)}{' ' * (8 - len(finding.verdict))}{shown(text)}"
