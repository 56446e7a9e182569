"""A run of a part of a batch: the points that `config` selects.

`kochi_where` is a list of conditions that must all hold, or a list of such lists, of which one must
hold. `kochi_retry: failed` selects the points that failed and have no result since. Only the target
of a batch depends on it, so a job is the same job whichever part asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.files import is_there
from snakemake_kochi.library.files import BatchFiles, Place
from snakemake_kochi.phases.products import read_failure
from snakemake_kochi.project.conditions import Where
from snakemake_kochi.project.grid import Grid

if TYPE_CHECKING:
    from snakemake_kochi.library.batch import BatchRules

WHERE, RETRY = "kochi_where", "kochi_retry"
FAILED = "failed"


@dataclass(frozen=True)
class Part:
    """What is selected."""

    where: Where | None
    failed: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Part | None:
        """None for whole batches. Raises ConfigError."""
        where, retry = config.get(WHERE), config.get(RETRY)
        if retry not in (None, FAILED):
            raise ConfigError(f"config {RETRY}: '{FAILED}' was expected, not {retry!r}")
        if where is None and retry is None:
            return None
        return cls(None if where is None else _where(where), retry == FAILED)

    def files(self, batch: BatchRules) -> list[str]:
        """The files of the selected points. Raises ConfigError."""
        grid = batch.grid
        if self.where is not None:
            check_part(self.where, grid)
        selected = self.places(batch.files_now(), Path())
        if not selected:
            said = f"{name_of(grid)} has the selected points, but needs fewer runs of them"
            if self.failed:
                among = " among the selected ones" if self.where else ""
                said = f"no point of {name_of(grid)} has failed{among}"
            hint = f"kochi show batch {batch.experiment.file} {grid.batch}"
            raise ConfigError(said, f"To see the states of its points, type: {hint}")
        return [str(each) for place in selected for each in (place.record, *place.files)]

    def places(self, files: BatchFiles, directory: Path) -> list[Place]:
        """The selected points of `files` in a working directory; none if none has failed."""
        return [
            place
            for place in files.places
            if (self.where is None or self.where.has(place.point.parameters, place.point.duplicate))
            and (not self.failed or _has_failed(directory / place.record))
        ]


def _has_failed(record: Path) -> bool:
    """Whether the last attempt of the point with this record failed, and left no result."""
    failure = None if is_there(record) else read_failure(record)
    return failure is not None and not failure.stopped


def check_part(where: Where, grid: Grid) -> None:
    """Raise NameNotFoundError or ConfigError if no point of a batch is selected, or only points
    that the experiment skips."""
    points = [(point.parameters, point.duplicate) for point in grid.points]
    duplicates = range(1 + max((duplicate for _, duplicate in points), default=0))
    skipped = [(each.parameters, number) for each in grid.skipped for number in duplicates]
    where.check([*points, *skipped], name_of(grid))
    for conditions in where.alternatives:
        own = Where((conditions,))
        if any(own.has(*point) for point in points):
            continue
        reasons = [
            each.reason
            for each in grid.skipped
            if any(own.has(each.parameters, number) for number in duplicates)
        ]
        what = f"all {len(reasons)} points" if len(reasons) > 1 else "the point"
        raise ConfigError(
            f"{name_of(grid)} skips {what} with {' and '.join(map(str, conditions))}: "
            f"{_joined(list(dict.fromkeys(reasons)))}",
            "To run what is skipped, change 'when', 'skip_if' or the values in the experiment.",
        )


def _joined(reasons: Sequence[str]) -> str:
    if len(reasons) > 2:
        return f"{reasons[0]}, and {len(reasons) - 1} other reasons"
    return "; ".join(reasons)


def name_of(grid: Grid) -> str:
    """A batch in a message."""
    return f"batch {grid.batch} of {grid.experiment}"


def _where(value: Any) -> Where:
    texts = [value] if isinstance(value, str) else value
    if texts and _is_list_of_texts(texts):
        return Where.parse(texts)
    if isinstance(texts, list) and texts and all(map(_is_list_of_texts, texts)):
        return Where.parse(*texts)
    raise ConfigError(
        f'config {WHERE}: a list of conditions such as "n=100" was expected, not {value!r}'
    )


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
