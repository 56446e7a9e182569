"""Numbers at the axes of figures: in full, without an offset or a factor beside the axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise

from matplotlib.ticker import Formatter

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TIMES = "\u00d7"
_MINUS = "\u2212"
_NARROW_SPACE = "\u202f"  # between groups of three digits, as ISO 80000 has it
# If an axis has numbers outside of this range, they are written with powers of ten ...
_LARGEST, _SMALLEST = 1e7, 1e-4
# ... unless more digits than these tell them apart.
_MOST_WITH_POWER = 6
_MOST_DIGITS = 15  # that a float has
_MOST_PLACES = 21  # of a value of a parameter that is written in full


class Numbers(Formatter):
    """Labels for ticks: as many digits as tell the ticks apart, and no more."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return labels([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        return labels(values)


def labels(values: Sequence[float]) -> list[str]:
    """Texts for some numbers of one axis, all different if the numbers are."""
    digits = next(
        (n for n in range(1, _MOST_DIGITS) if all(_is_near(v, n, values) for v in values)),
        _MOST_DIGITS,
    )
    power = _common_power(values, digits)
    return [_text(value, digits, power) for value in values]


def exact_labels(values: Sequence[str]) -> list[str]:
    """Texts for values of a parameter, which are numbers, with all digits that they have."""
    # Not as floats, which would change an integer of many digits.
    found = [Decimal(value) for value in values]
    written = ["".join(map(str, each.as_tuple().digits)).rstrip("0") for each in found]
    digits = max((1, *map(len, written)))
    power = _common_power(found, digits)
    if power == 0 and any(each and abs(each.adjusted()) >= _MOST_PLACES for each in found):
        power = None
    return [_text(value, digits, power) for value in found]


def _is_near(value: float, digits: int, values: Sequence[float]) -> bool:
    """Whether a number with so many significant digits is where its tick is."""
    distances = [abs(value - other) for other in values if other != value]
    scale = min(distances) if distances else abs(value)
    return abs(float(f"{value:.{digits - 1}e}") - value) <= scale / 100


def _common_power(values: Sequence[float | Decimal], digits: int) -> int | None:
    """The power of ten, a multiple of 3, of all numbers of an axis; None if each has its own, as
    on a logarithmic axis."""
    sizes = [value if value > 0 else -value for value in values if value and math.isfinite(value)]
    is_plain = all(_SMALLEST <= size < _LARGEST for size in sizes)
    if is_plain or digits > _MOST_WITH_POWER:
        return 0
    written = [f"{size:.{digits - 1}e}".partition("e") for size in sizes]
    powers = [int(power) for _, _, power in written]
    if max(powers) - min(powers) > 2 or {mantissa for mantissa, _, _ in written} == {"1"}:
        return None
    return 3 * (max(powers) // 3)


def _text(value: float | Decimal, digits: int, power: int | None) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{float(value):g}"
    mantissa, _, exponent = f"{abs(value):.{digits - 1}e}".partition("e")
    sign = _MINUS if value < 0 else ""
    own = int(exponent)
    if power is None:
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        factor = "" if mantissa == "1" and own else mantissa
        times = _TIMES if factor and own else ""
        return f"{sign}{factor}{times}{_ten_to(own)}"
    # Decimal, because a float times a power of ten has digits of its own.
    scaled = Decimal(f"{mantissa}e{own - power}")
    whole, _, part = f"{scaled:.{max(digits - 1 - own + power, 0)}f}".partition(".")
    part = part.rstrip("0")
    grouped = f"{int(whole):,}" if len(whole) > 4 else whole
    text = grouped.replace(",", _NARROW_SPACE)
    return f"{sign}{text}{f'.{part}' if part else ''}{_TIMES if power else ''}{_ten_to(power)}"


def _ten_to(power: int) -> str:
    return f"10{str(power).translate(_SUPERSCRIPTS)}" if power else ""


def spans_decades(low: float, high: float) -> bool:
    """Whether small values would be lost on a linear axis."""
    return 0 < 100 * low <= high


def is_geometric(values: Sequence[float]) -> bool:
    """Whether numbers, in their order, grow by a factor rather than by a difference: 1, 2, 4, 8."""
    if len(values) < 3 or values[0] <= 0:
        return False
    # Three values say less: 1, 2, 3 must not be one.
    tolerance = 1.5 if len(values) > 3 else 1.1
    factors = [after / before for before, after in pairwise(values)]
    return min(factors) >= 1.5 and max(factors) / min(factors) <= tolerance


def thinned(
    texts: Mapping[float, str], is_log: bool, width: float, size: float
) -> dict[float, str]:
    """Those of some labels that do not overlap on an axis, by their values, which are sorted.

    `width`: of the axis, `size`: of a character, both in points.
    """
    places = [math.log(value) for value in texts] if is_log else list(texts)
    extent = (places[-1] - places[0]) or 1.0
    kept: dict[float, str] = {}
    end = -math.inf
    for (value, label), place in zip(texts.items(), places, strict=True):
        middle = (place - places[0]) / extent * width
        half = len(label) * size / 2
        if middle - half >= end:
            kept[value] = label
            end = middle + half + size
    return kept
