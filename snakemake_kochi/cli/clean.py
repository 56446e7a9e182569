"""`kochi clean`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import click
from humanfriendly import format_size
from humanfriendly.text import pluralize

from snakemake_kochi.cleaning.clean import Report, clean
from snakemake_kochi.cli.options import json_option, machine_option, yes_option
from snakemake_kochi.cli.output import agreed, print_json, print_table, remark, say, shown
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_there
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.paths import InstalledPaths, SentPaths
from snakemake_kochi.project.clean_rules import KINDS, Rules, read_rule
from snakemake_kochi.project.sent import sent_note

_MOST_FAULTS = 5  # that are shown
# Seconds after which a project that another computer sent may be one that nobody works on.
_OLD = 30 * 24 * 3600.0


def _checked(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The value, which has the same form as in kochi.yaml."""
    try:
        return None if value is None else read_rule(str(param.name), value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}", ctx, param) from error


def _age_option(name: str, what: str, default: str) -> Callable[[Any], Any]:
    return click.option(
        f"--{name}",
        metavar="AGE",
        callback=_checked,
        help=f"{what} By default {default}, or as in kochi.yaml.",
    )


@click.command()
@machine_option
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be deleted.")
@yes_option
@click.option(
    "--after",
    metavar="AGE",
    callback=_checked,
    help="The age for everything that has no option of its own here.",
)
@_age_option("jobs", "Delete ended jobs, with their logs, that old.", "30d")
@_age_option("runs", "Delete records of runs, launches and workers that old.", "30d")
@_age_option("builds", "Delete builds that were not used for so long.", "30d")
@_age_option(
    "installs",
    "Delete installations, and versions of kochi, that are not current or used for so long.",
    "30d",
)
@_age_option("snapshots", "Delete freezes and snapshots that were not used for so long.", "7d")
@click.option(
    "--builds-above",
    metavar="SIZE",
    callback=_checked,
    help="If the builds of a project have more than this, delete those first that were not used "
    "for longest.",
)
@click.option(
    "--keep",
    metavar="[KIND:]PATTERN",
    multiple=True,
    callback=_checked,
    help="Keep what has a matching name: a job's name or number, a build's experiment, "
    "DEPENDENCY:RECIPE, a directory of runs. May be given several times. Kinds: "
    f"{', '.join(kind for kind in KINDS if KINDS[kind])}.",
)
@json_option
def command(machine: str | None, dry_run: bool, yes: bool, as_json: bool, **written: Any) -> int:
    """Delete what nothing needs any more below KOCHI_ROOT.

    Ended jobs with their logs, builds, installations, snapshots, and what dead processes have left,
    of all projects. They grow there, by default in ~/.kochi, until this is typed, or until a
    section 'clean' of the machine in kochi.yaml lets each run delete them at its end. It shows
    first what it would delete, and asks. An AGE is a time like 12h or 30d, 0, or 'never'. Runs and
    workers may go on meanwhile. Projects that other computers sent stay, because their results may
    not be at home.
    """
    location = find_location(machine)
    status = _clean(location, dry_run, yes, as_json, written)
    if status == 0:
        _say_sent(location.root.directory)
    return status


def _clean(
    location: Location, dry_run: bool, yes: bool, as_json: bool, written: Mapping[str, Any]
) -> int:
    paths = location.machine_paths
    rules = (location.machine.clean or Rules()).changed_by(written)
    installed = InstalledPaths(PurePosixPath(location.root.directory))
    root = location.root
    if not (is_there(paths.directory) or is_there(Path(installed.directory)) or root.projects()):
        say(f"There is nothing of machine {paths.name} in {location.root.directory}.")
        return 0
    with location.root.explaining():
        if dry_run or not yes:
            plan = clean(location.root, paths, rules, is_dry=True)
            if dry_run or not plan.freed:
                _show(plan, as_json, is_dry=True)
                return 0
            if not as_json:
                _show(plan, as_json, is_dry=True)
        if not agreed(f"Delete this below {location.root.directory}?", yes):
            return 1
        location.prepare_machine()
        _show(clean(location.root, paths, rules), as_json, is_dry=False)
    return 0


def _say_sent(root: Path) -> None:
    """Name the projects from other computers for which no command was typed for long."""
    for place in SentPaths.all_below(root):
        try:
            used = place.note(place.project).stat().st_mtime
            home = (sent_note(place.project) or {}).get("directory")
        except (OSError, DamagedFileError):
            continue
        if time.time() - used > _OLD:
            day = datetime.fromtimestamp(used).date()
            typed = f"rm -rf {shlex.quote(str(place.directory))}"
            said = f"The project {home} of another computer was last used on {day}. If its results"
            remark(shown(f"{said} are at home (kochi artifact sync), type: {typed}"))


def _show(report: Report, as_json: bool, is_dry: bool) -> None:
    total = report.total
    if as_json:
        print_json(
            {
                "deleted": not is_dry,
                "freed": {kind: asdict(each) for kind, each in report.freed.items()},
                "total": {"inodes": total.inodes, "bytes": total.bytes},
                "kept": list(report.faults),
            }
        )
        return
    rows: list[tuple[object, ...]] = [
        (kind, each.count, each.inodes, format_size(each.bytes, binary=True))
        for kind, each in report.freed.items()
    ]
    if len(rows) > 1:
        rows.append(("total", "", total.inodes, format_size(total.bytes, binary=True)))
    headers = ("Would delete" if is_dry else "Deleted", "Number", "Inodes", "Size")
    print_table(headers, rows, "There is nothing to delete.")
    for fault in report.faults[:_MOST_FAULTS]:
        remark(f"Kept, because it cannot be looked at or deleted now: {fault}")
    if len(report.faults) > _MOST_FAULTS:
        remark(f"And {pluralize(len(report.faults) - _MOST_FAULTS, 'more error')} like these.")
