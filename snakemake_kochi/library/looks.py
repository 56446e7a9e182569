"""How often each point of a batch with `repeat` runs.

A look is a job of Snakemake, a checkpoint: it reads the results so far, and its file says how often
each point is to have run at the next look. The first one is when each point has run `min` times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from humanfriendly.text import pluralize

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.project.grid import Grid, Point
from snakemake_kochi.quantities import percent, rough_duration

_MOST_NAMED = 3


@dataclass(frozen=True)
class LookedAt:
    """A point at a look: `identity` is that of its first run, `runs` how often it has run, `wanted`
    how often it is to have run at the next look, `width` half of the width of its interval as a
    fraction of the median, None if there is none. `why`: it gets no more runs, though this is too
    wide."""

    parameters: Mapping[str, str]
    identity: str
    runs: int
    wanted: int
    width: float | None
    why: str = ""

    def named(self, grid: Grid) -> str:
        return grid.named(self.parameters) or "the point"


@dataclass(frozen=True)
class Look:
    """All points at a look. `seconds`: those that the runs until the next one are expected to take,
    one after the other."""

    points: Sequence[LookedAt]
    seconds: float

    @property
    def is_last(self) -> bool:
        return all(each.wanted <= each.runs for each in self.points)

    def told(self, grid: Grid, most: int = _MOST_NAMED) -> Iterator[str]:
        """For people: how many points of the grid are known, and those that are not, the worst
        first. Those of the look are some of the grid's."""
        assert grid.repeat is not None
        wide = [each for each in self.points if each.wanted > each.runs or each.why]
        count = len({*map(key_of, grid.points)})
        known = f"{len(self.points) - len(wide)} of {count} points are known"
        of = f"ratios by {grid.repeat.by}" if grid.repeat.by else "median"
        until = f"within {percent(grid.repeat.until)} of their {of} {grid.repeat.metric}"
        yield f"after {max(each.runs for each in self.points)} runs {known} {until}"
        for each in sorted(wide, key=lambda each: -(each.width or math.inf))[:most]:
            width = "no interval" if each.width is None else f"± {percent(each.width)}"
            more = each.why or f"{each.wanted - each.runs} more"
            yield f"{each.named(grid)}: {width} after {each.runs} runs: {more}"
        if len(wide) > most:
            yield f"and {len(wide) - most} more"
        if new := count - len(self.points):
            yield f"{pluralize(new, 'point')} without a look: {grid.repeat.least} runs of each"
        if not self.is_last:
            yield f"expected until the next look: {rough_duration(self.seconds)} of runs"

    @classmethod
    def read(cls, file: Path) -> Look:
        """Raises OSError, and DamagedFileError for what is no look."""
        try:
            data = json.loads(file.read_bytes())
            return cls([LookedAt(**each) for each in data["points"]], data["seconds"])
        except (ValueError, KeyError, TypeError):
            raise DamagedFileError(f"{file}: not what a look has found") from None

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1))


def read_looks(pattern: str, directory: Path) -> list[Look]:
    """The looks of a batch below a directory up to the last one, `pattern`: of their files."""
    looks: list[Look] = []
    while not looks or not looks[-1].is_last:
        try:
            looks.append(Look.read(directory / pattern.format(look=len(looks))))
        except (OSError, DamagedFileError):
            break
    return looks


def is_needed(grid: Grid, looks: Sequence[Look]) -> Mapping[int, bool]:
    """Whether each point of a batch with `repeat`, by id, is to run after these looks."""
    wanted = {key_of(each): each.wanted for each in looks[-1].points} if looks else {}
    return {
        id(point): point.duplicate < wanted.get(key_of(point), grid.least) for point in grid.points
    }


def key_of(point: Point | LookedAt) -> tuple[tuple[str, str], ...]:
    """What its runs share."""
    return tuple(sorted(point.parameters.items()))
