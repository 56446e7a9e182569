"""Series of values: `range`, `linspace`, `geom`, `igeom`, `pow2`, and the columns of CSV files.

`range` is Python's, without its end. The others have both ends, and `geom` and `igeom` are those of
execo (execo_engine.sweep), which takes the number of values, too.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.evaluation import TemplateError
from snakemake_kochi.project.values import value_problem

# of a value that is not exact: the last digits of a power are noise, and would be in file names
_DIGITS = 12
_LONGEST_FIELD = 200  # characters shown of a CSV file
# of the steps of a series of which fewer values may be left
_MOST_STEPS = 1_000_000

USAGE = {
    "range": "[END], [START, END] or [START, END, STEP]",
    "linspace": "[FIRST, LAST, NUMBER]",
    "geom": "[FIRST, LAST, NUMBER]",
    "igeom": "[FIRST, LAST, NUMBER]",
    "pow2": "[LAST] or [FIRST, LAST]",
    "csv": "FILE or [FILE, COLUMN]",
}
_COUNTS = {"range": (1, 3), "linspace": (3, 3), "geom": (3, 3), "igeom": (3, 3), "pow2": (1, 2)}


@dataclass(frozen=True)
class Series:
    """The number of values, at most, and what makes their texts."""

    count: int
    values: Callable[[], Iterable[str]]


def number_of_arguments_problem(kind: str, count: int) -> str | None:
    """Why a series cannot have so many arguments, or None."""
    least, most = _COUNTS[kind]
    if least <= count <= most:
        return None
    return f"{kind}: {USAGE[kind]} was expected, not {count} value{'s' if count > 1 else ''}"


def make_series(kind: str, arguments: Sequence[Any]) -> Series:
    """A series of numbers, one of USAGE without `csv`. Raises TemplateError."""
    for each in arguments:
        is_number = isinstance(each, int | float) and not isinstance(each, bool)
        if not is_number or (isinstance(each, float) and not math.isfinite(each)):
            raise TemplateError(f"{kind}: a number was expected, not {_shown(each)}")
    made = _MAKERS[kind](*arguments)
    if not made.count:
        given = ", ".join(map(str, arguments))
        raise TemplateError(f"{kind}: there is no value in [{given}], which is {USAGE[kind]}")
    return made


def _range(*bounds: Any) -> Series:
    _whole("range", bounds)
    if len(bounds) == 3 and bounds[2] == 0:
        raise TemplateError("range: a STEP other than 0 was expected")
    found = range(*bounds)
    # Not len(): it fails for objects that are larger than an index.
    count = (found[-1] - found[0]) // found.step + 1 if found else 0
    return Series(count, lambda: map(str, found))


def _linspace(first: Any, last: Any, number: Any) -> Series:
    number = _number("linspace", number)
    start, end = Fraction(str(first)), Fraction(str(last))
    step = (end - start) / max(1, number - 1)
    return Series(number, lambda: (_text(start + step * index) for index in range(number)))


def _geom(first: Any, last: Any, number: Any) -> Series:
    number = _number("geom", number)
    ratio = _ratio("geom", first, last)
    return Series(number, lambda: map(_text, _progression(first, last, ratio, number)))


def _igeom(first: Any, last: Any, number: Any) -> Series:
    """Whole numbers, each once: there may be fewer than `number`."""
    _whole("igeom", (first, last))
    number = _number("igeom", number)
    if number > _MOST_STEPS:
        raise TemplateError(f"igeom: a NUMBER of at most {_MOST_STEPS} was expected, not {number}")
    ratio = _ratio("igeom", first, last)
    count = min(number, abs(last - first) + 1)
    return Series(
        count,
        lambda: map(str, dict.fromkeys(map(round, _progression(first, last, ratio, number)))),
    )


def _ratio(kind: str, first: Any, last: Any) -> float:
    if first <= 0 or last <= 0:
        raise TemplateError(f"{kind}: two numbers above 0 were expected, not {first} and {last}")
    try:
        return float(last / first)
    except OverflowError:
        raise TemplateError(f"{kind}: the numbers are too large") from None


def _progression(first: Any, last: Any, ratio: float, number: int) -> Iterator[Any]:
    yield first
    for index in range(1, number - 1):
        yield float(f"{first * ratio ** (index / (number - 1)):.{_DIGITS}g}")
    if number > 1:
        yield last


def _pow2(*bounds: Any) -> Series:
    first, last = (1, *bounds) if len(bounds) == 1 else bounds
    if first <= 0:
        raise TemplateError(f"pow2: a FIRST above 0 was expected, not {first}")
    if last < 1:
        return Series(0, tuple)
    least = max(0, math.ceil(first) - 1).bit_length()
    most = math.floor(last).bit_length() - 1
    return Series(max(0, most - least + 1), lambda: (str(2**n) for n in range(least, most + 1)))


_MAKERS: dict[str, Callable[..., Series]] = {
    "range": _range,
    "linspace": _linspace,
    "geom": _geom,
    "igeom": _igeom,
    "pow2": _pow2,
}


def _whole(kind: str, bounds: Iterable[Any]) -> None:
    for each in bounds:
        if not isinstance(each, int):
            said = "; for steps such as 0.5, use linspace" if kind == "range" else ""
            raise TemplateError(f"{kind}: a whole number was expected, not {each}{said}")


def _number(kind: str, number: Any) -> int:
    if not isinstance(number, int) or number < 1:
        raise TemplateError(f"{kind}: a NUMBER of values of 1 or more was expected, not {number}")
    return number


def _text(value: Fraction | float) -> str:
    """The shortest exact form; whole numbers without a point."""
    return str(int(value)) if value == int(value) else str(float(value))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_FIELD else f"{text[:_LONGEST_FIELD]}..."


# ---- CSV


def column_of(file: str, text: str, column: str) -> tuple[str, ...]:
    """The texts in a column of a CSV file, whose first row has the names of its columns.

    Empty lines are ignored. Raises TemplateError, with the line, for a file that is not CSV, has no
    such column, or has rows of different lengths.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [(reader.line_num, [field.strip() for field in row]) for row in reader if row]
    except csv.Error as error:
        raise TemplateError(f"{file}:{reader.line_num}: not valid CSV: {error}") from error
    names = rows[0][1] if rows else []
    if column not in names and rows:
        said = nearest(column, names)
        raise TemplateError(f"{file}:1: there is no column '{column}', {said}")
    if names.count(column) > 1:
        raise TemplateError(f"{file}:1: there are several columns '{column}'")
    if len(rows) < 2:
        raise TemplateError(f"{file}: there is no row with values below the names of the columns")
    found = []
    for line, row in rows[1:]:
        if len(row) != len(names):
            said = f"{len(names)} fields were expected as in the first line, not {len(row)}"
            raise TemplateError(f"{file}:{line}: {said}")
        found.append(row[names.index(column)])
        if wrong := value_problem(found[-1]):
            raise TemplateError(f"{file}:{line}: {wrong}")
    return tuple(found)
