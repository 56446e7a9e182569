"""`kochi doctor`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from snakemake_kochi.cli.options import json_option, machine_option
from snakemake_kochi.cli.output import coloured, print_json, remark, say, shown
from snakemake_kochi.place import find_place

if TYPE_CHECKING:
    from snakemake_kochi.doctor import Finding

_DEADLINE = 10.0


@click.command()
@machine_option
@click.option(
    *("-q", "--queue"),
    metavar="QUEUE",
    help="A queue with a worker on another node, to test with that node, too.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0.1),
    default=_DEADLINE,
    show_default=True,
    metavar="SECONDS",
    help="How long a check may take before it is said to hang; with another node they have more.",
)
@json_option
def command(machine: str | None, queue: str | None, deadline: float, as_json: bool) -> int:
    """Measure whether this node, its filesystems and their locks are fit for queues.

    One line for each check: ok, note, warning or failed, what was measured, and what to do. The
    exit status is 1 if anything failed. Whatever is made for it is removed again.
    """
    from snakemake_kochi.doctor import Patient, diagnose

    place = find_place(machine)
    place.require_here()
    if queue is not None:
        place.machine_paths.queue(queue)
    project = None if place.project is None else place.project.directory
    patient = Patient(place.machine_paths, place.lock_dir, place.machine.lock_kind, project, queue)
    findings: list[Finding] = []
    # Closed at once after Ctrl-C, so that what was made is removed.
    with contextlib.closing(diagnose(patient, deadline, remark)) as found:
        for finding in found:
            findings.append(finding)
            if not as_json:
                say(_line(finding))
    failed = any(finding.verdict == "failed" for finding in findings)
    if as_json:
        checks = [finding.to_dict() for finding in findings]
        print_json({"machine": place.machine.name, "failed": failed, "checks": checks})
    return int(failed)


def _line(finding: Finding) -> str:
    outcome = finding.outcome
    where = f" in {finding.directory}" if finding.directory else ""
    advice = f". To do: {outcome.advice}" if outcome.advice else ""
    text = " ".join(f"{finding.check}{where}: {outcome.measured}{advice}".splitlines())
    return f"{coloured(outcome.verdict)}{' ' * (8 - len(outcome.verdict))}{shown(text)}"
