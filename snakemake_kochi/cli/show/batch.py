"""`kochi show batch`."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from humanfriendly.text import pluralize
from tabulate import tabulate

from snakemake_kochi.cli.options import (
    COUNT,
    default_batch,
    json_option,
    machine_option,
    where_option,
)
from snakemake_kochi.cli.output import (
    clock_duration,
    coloured,
    local_time,
    print_json,
    remark,
    say,
    shown,
)
from snakemake_kochi.errors import shortened
from snakemake_kochi.project.grid import ROUNDS
from snakemake_kochi.quantities import rough_duration

if TYPE_CHECKING:
    from snakemake_kochi.cli.show.points import Points, Seen
    from snakemake_kochi.library.states import PointState
    from snakemake_kochi.location import Location
    from snakemake_kochi.project.grid import Point

_LIMIT = 30
_FEW = 10  # runs that a dry run lists, and points that are still repeated
_MOST_REASONS = 5  # of one state
_LEAST = 30  # columns of a reason, also on a narrow terminal
_INTERVAL = 1.0  # seconds between two looks
_PAUSE_PER_COST = 10  # a look is repeated after so many times its own time at the earliest
_PATIENCE = 30.0  # seconds within which a run must begin that is followed
# A run ends in steps: its last notes come after its jobs.
_LOOKS_AT_THE_END = 2
_ORDER = {s: n for n, s in enumerate(("running", "failed", "stale", "waiting", "skipped", "done"))}


@click.command("batch")
@machine_option
@where_option
@click.option(
    *("-s", "--state", "wanted"),
    type=click.Choice(sorted(_ORDER)),
    multiple=True,
    help="Only list runs in this state. May be given several times.",
)
@click.option(
    *("-l", "--limit"),
    type=COUNT,
    help=f"How many runs to list; by default {_LIMIT}, of those that are not done.",
)
@click.option("-a", "--all", "is_all", is_flag=True, help="List all runs, in the batch's order.")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Show changes until the run of the batch has ended. Ctrl-C ends only this command.",
)
@json_option
@click.argument("file", metavar="FILE.yaml")
@click.argument("batch", metavar="BATCH", required=False)
def batch_command(
    machine: str | None,
    conditions: tuple[str, ...],
    wanted: tuple[str, ...],
    limit: int | None,
    is_all: bool,
    follow: bool,
    as_json: bool,
    file: str,
    batch: str | None,
) -> int:
    """Show the state of each run of a batch, and why.

    A run is skipped, waiting, running, done, failed or stale: its result is of other code,
    parameters or recipes than a run would use now. With --follow on a pipe, each change is a line,
    with --json a document.
    """
    from snakemake_kochi.cli.show.points import Points
    from snakemake_kochi.enqueue.experiment_files import load, path_in_project
    from snakemake_kochi.location import find_location

    location = find_location(machine)
    project = location.require_project()
    path = path_in_project(project, file)
    batch = batch or default_batch("BATCH", load(project, path))
    points = Points(location, path, batch, conditions)
    page = _Page(points, path, wanted, limit, is_all)
    if not follow:
        seen = points.look()
        if as_json:
            print_json(page.as_json(seen))
        else:
            for line in page.lines(seen):
                say(line)
        return 0
    try:
        _follow(points, page, as_json)
    except KeyboardInterrupt:
        remark("\nThe run goes on." if points.look().is_going_on else "")
    return 0


def say_states(location: Location, file: str, batch: str, conditions: Sequence[str]) -> None:
    """Show the states of the selected points before a run that is not begun, the first of them one
    by one. The working directory becomes the project's. Raises KochiError."""
    from snakemake_kochi.cli.show.points import Points

    points = Points(location, file, batch, conditions)
    to_list_all = f"type: {location.typed('show batch', file, batch, '-a')}"
    for line in _Page(points, file, (), _FEW, False, to_list_all).lines(points.look()):
        say(line)


class _Page:
    """What is shown of a batch."""

    def __init__(
        self,
        points: Points,
        file: str,
        wanted: Sequence[str],
        limit: int | None,
        is_all: bool,
        to_list_all: str = "add: -a",
    ) -> None:
        self._to_list_all = to_list_all
        self._grid = points.grid
        self._order = points.order
        self._file = file
        self._wanted = wanted
        self._limit = limit
        self._is_all = is_all

    def listed(self, seen: Seen) -> list[PointState]:
        """The runs to list, all of them."""
        states = list(seen.states)
        if self._wanted:
            return [each for each in states if each.state in self._wanted]
        if self._is_all:
            return states
        shown = [each for each in states if each.state != "done"]
        return sorted(shown, key=lambda each: _ORDER[each.state])

    # ---- for people

    def lines(self, seen: Seen, height: int | None = None) -> Iterator[str]:
        """`height`: so many lines at most."""
        head = list(self.head(seen))
        yield from head
        limit = self._limit or (len(seen.states) if self._is_all else _LIMIT)
        if height is not None:
            limit = min(limit, max(0, height - len(head) - 5))
        found = self.listed(seen)
        if found and limit:
            yield ""
            yield from self._table(found[:limit])
        if len(found) > limit:
            yield f"... and {len(found) - limit} more; to list all, {self._to_list_all}"

    def head(self, seen: Seen) -> Iterator[str]:
        grid = self._grid
        yield f"Batch {grid.batch} of {self._file} on machine {grid.machine}: {_count(seen)}"
        yield from tabulate(
            list(_reasons(seen.states)), tablefmt="plain", colalign=("right", "left", "left")
        ).splitlines()
        if seen.looked is not None:
            yield "Repeat: " + "\n    ".join(seen.looked.told(grid, _FEW))
        if self._order == ROUNDS and (seeds := _seeds(seen)):
            yield f"Order: rounds, seed {', '.join(map(str, seeds))}"
        if seen.paused is not None:
            again = ["kochi", "batch", self._file, grid.batch, "--resume"]
            since = local_time(seen.paused.since)
            yield f"Paused since {since}; to resume it, type: {shlex.join(again)}"
        for run in seen.runs:
            yield f"Run {run.controller}: {run.who}, since {local_time(run.started)}"
        if seen.is_locked:
            yield "Snakemake has locked the directory: a run goes on, or was killed"
        if left := _told_eta(seen):
            yield f"ETA: {left}"

    def _table(self, found: Sequence[PointState]) -> list[str]:
        names = list(dict.fromkeys(name for each in found for name in each.parameters))
        varying = [name for name in names if name in self._grid.varying or _varies(found, name)]
        has_duplicates = any(each.duplicate for each in found)
        headers = ["State", *varying, *(["duplicate"] if has_duplicates else [])]
        headers += ["Job", "Seconds", "Why"]
        rows = [
            [
                coloured(each.state),
                *(shown(each.parameters.get(name)) for name in varying),
                *([str(each.duplicate)] if has_duplicates else []),
                shown(each.job),
                "" if each.seconds is None else f"{each.seconds:.3f}",
            ]
            for each in found
        ]
        left = _columns_beside(headers[:-1], rows)
        for row, each in zip(rows, found, strict=True):
            row.append(shown(each.why) if left is None else shortened(shown(each.why), left))
        table = tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True)
        return [line.rstrip() for line in table.splitlines()]

    # ---- for programs

    def as_json(self, seen: Seen) -> dict[str, Any]:
        kept = {_key(each): [kept.dest for kept in each.artifacts] for each in self._grid.points}
        points = [
            {**_to_dict(each), "artifacts": kept.get(_key(each), [])} for each in self._chosen(seen)
        ]
        return {**self.summary(seen), "metrics": list(self._grid.metrics), "points": points}

    def _chosen(self, seen: Seen) -> list[PointState]:
        """For programs, all of them unless some were asked for."""
        return self.listed(seen) if self._wanted else list(seen.states)

    def summary(self, seen: Seen) -> dict[str, Any]:
        from snakemake_kochi.cli.show.points import seconds_left

        left = seconds_left(seen)
        return {
            "experiment": self._file,
            "batch": self._grid.batch,
            "machine": self._grid.machine,
            "counts": seen.counts,
            "order": self._order,
            "repeat": None if seen.looked is None else [vars(each) for each in seen.looked.points],
            "repeat_seconds": None if seen.looked is None else seen.looked.seconds,
            "seeds": _seeds(seen),
            "runs": [
                {
                    "controller": run.controller,
                    "host": run.node.host,
                    "process": run.process.pid,
                    "started": run.started,
                }
                for run in seen.runs
            ],
            "locked": seen.is_locked,
            "paused": None if seen.paused is None else seen.paused.since,
            "seconds_left": None if left is None else round(left, 1),
            "eta": None if left is None else _moment_in(left).isoformat(timespec="seconds"),
        }


def _seeds(seen: Seen) -> list[int]:
    """Those of the rounds in which the results were made."""
    return sorted({each.seed for each in seen.states if each.seed is not None})


def _count(seen: Seen) -> str:
    """ "28 points", or "28 points, 56 runs" if they have duplicates."""
    points = len({tuple(each.parameters.items()) for each in seen.states})
    count = pluralize(points, "point")
    runs = len(seen.states)
    return count if runs == points else f"{count}, {pluralize(runs, 'run')}"


def _columns_beside(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int | None:
    """The columns that are left on each line of the terminal, None if there is no terminal."""
    # Of COLUMNS, or of the terminal. A file has lines of any length.
    columns = shutil.get_terminal_size((0, 0)).columns
    cells = zip(*[headers, *rows], strict=True)
    taken = sum(max(len(click.unstyle(cell)) for cell in column) + 2 for column in cells)
    return max(_LEAST, columns - 1 - taken) if columns else None


def _reasons(states: Sequence[PointState]) -> Iterator[tuple[str, str, str]]:
    """The count of each state, and of its reasons. Reasons are complete, in several lines."""
    found = [(str(count), coloured(state), why) for count, state, why in _counted(states)]
    left = _columns_beside(("", ""), [each[:2] for each in found])
    for count, state, why in found:
        lines = textwrap.wrap(why, left) if left else [why]
        yield count, state, lines[0] if lines else ""
        yield from (("", "", line) for line in lines[1:])


def _counted(states: Sequence[PointState]) -> Iterator[tuple[int, str, str]]:
    counts = Counter(each.state for each in states)
    for state in sorted(counts, key=lambda each: -_ORDER[each]):
        whys = Counter(each.why for each in states if each.state == state and state != "running")
        found = whys.most_common() or [("", counts[state])]
        for index, (why, count) in enumerate(found[:_MOST_REASONS]):
            yield count, state, shown(why)
            if index == _MOST_REASONS - 1 and len(found) > _MOST_REASONS:
                rest = sum(count for _, count in found[_MOST_REASONS:])
                yield rest, state, "for other reasons"


def _told_eta(seen: Seen) -> str:
    from snakemake_kochi.cli.show.points import seconds_left

    left = seconds_left(seen)
    if left is None:
        return ""
    return f"{_moment_in(left):%Y-%m-%d %H:%M:%S}, in about {rough_duration(left)}"


def _moment_in(seconds: float) -> datetime:
    return datetime.now().astimezone() + timedelta(seconds=seconds)


def _varies(found: Sequence[PointState], name: str) -> bool:
    return len({each.parameters.get(name) for each in found}) > 1


def _key(run: Point | PointState) -> tuple[object, ...]:
    return (*run.parameters.items(), run.duplicate)


def _to_dict(state: PointState) -> dict[str, Any]:
    return {
        "parameters": dict(state.parameters),
        "duplicate": state.duplicate,
        "state": state.state,
        "why": state.why,
        "seconds": state.seconds,
        "started": state.started or None,
        "ended": state.ended or None,
        "job": state.job,
        "record": state.record or None,
        "output": list(state.output),
    }


# ---- following


def _follow(points: Points, page: _Page, as_json: bool) -> None:
    """Show the batch until its run has ended, or, if none begins within a while, until then."""
    is_live = sys.stdout.isatty() and not as_json
    view: _Live | _Changes = _Live(page) if is_live else _Changes(page, as_json)
    if not points.look().is_going_on:
        remark(f"Waiting {_PATIENCE:.0f} s for a run of this batch to begin ...")
    deadline = time.monotonic() + _PATIENCE
    has_run, looks = False, 0
    while True:
        began = time.monotonic()
        seen = points.look()
        has_run = has_run or seen.is_going_on
        looks = 0 if seen.is_going_on else looks + 1
        is_late = not has_run and time.monotonic() >= deadline
        is_over = (
            (has_run and looks > _LOOKS_AT_THE_END)
            or is_late
            or (not seen.is_going_on and seen.is_complete)
        )
        view.show(seen, is_over)
        if is_over:
            if not has_run and not seen.is_complete:
                remark("No run of this batch goes on.")
            return
        time.sleep(max(_INTERVAL, _PAUSE_PER_COST * (time.monotonic() - began)))


class _Live:
    """Shows the present page in place of the one before."""

    def __init__(self, page: _Page) -> None:
        self._page = page
        self._height = 0

    def show(self, seen: Seen, is_over: bool) -> None:
        width, height = shutil.get_terminal_size()
        lines = list(self._page.lines(seen, height - 1))[: height - 1]
        # Longer lines would be two on the screen; the codes of colours have no width.
        lines = [line if len(click.unstyle(line)) < width else _cut(line, width) for line in lines]
        above = f"\x1b[{self._height}F\x1b[J" if self._height else ""
        click.echo(above + "\n".join(lines))
        self._height = len(lines)


def _cut(line: str, width: int) -> str:
    return f"{click.unstyle(line)[: max(1, width - 4)]}..."


def _differs(state: PointState, before: Mapping[str, PointState]) -> bool:
    old = before.get(state.point)
    return old is None or (old.state, old.why) != (state.state, state.why)


class _Changes:
    """Prints each change: as a line, or as a JSON document of one line."""

    def __init__(self, page: _Page, as_json: bool) -> None:
        self._page = page
        self._as_json = as_json
        self._before: Mapping[str, PointState] | None = None

    def show(self, seen: Seen, is_over: bool) -> None:
        now = {each.point: each for each in seen.states}
        before = self._before
        changed = [each for each in seen.states if before is None or _differs(each, before)]
        self._before = now
        moment = datetime.now().astimezone()
        if self._as_json:
            if changed or is_over:
                found = {"time": moment.isoformat(timespec="milliseconds")}
                points = [_to_dict(each) for each in changed]
                click.echo(json.dumps({**found, **self._page.summary(seen), "points": points}))
            return
        if before is not None:
            for each in changed:
                if each.point not in before or before[each.point].state != each.state:
                    why = f": {shown(each.why)}" if each.why else ""
                    took = f" in {clock_duration(each.seconds, 3)}" if each.state == "done" else ""
                    click.echo(f"{moment:%H:%M:%S} {shown(each.point)} {each.state}{took}{why}")
        if before is None or is_over:
            counts = ", ".join(f"{count} {state}" for state, count in seen.counts.items() if count)
            click.echo(f"{moment:%H:%M:%S} {_count(seen)}: {counts}")
        sys.stdout.flush()
