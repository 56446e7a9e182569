"""Times and amounts of memory, as people, schedulers and files write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import humanfriendly

# As schedulers write times: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
# days-hours:minutes, days-hours:minutes:seconds.
_SCHEDULERS_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<fields>\d+(?::\d+){0,2})\Z")
# A number with or without a unit.
_AMOUNT = re.compile(r"\s*\d+(?:\.\d+)?\s*(?:b|bytes?|[kmgtpe](?:i?b)?)?\s*\Z", re.IGNORECASE)
_MOST_SECONDS = 366 * 86400.0  # more than any scheduler allows, and less than the limits of dates

A_TIME = "a time like 90s, 30m, 2h or 1.5d was expected, at most a year"
A_WALLTIME = "a time like 90s, 2h or, as Slurm writes it, 1-12:00:00 (a number alone is minutes)"
AN_AMOUNT_OF_MEMORY = "an amount of memory like 512M or 16G was expected"


def seconds_of(text: str) -> float:
    """A time like "2h" in seconds. Raises ValueError for no time, or more than a year."""
    try:
        seconds = float(humanfriendly.parse_timespan(text))
    except (humanfriendly.InvalidTimespan, OverflowError) as error:
        raise ValueError(A_TIME) from error
    if not 0 < seconds <= _MOST_SECONDS:
        raise ValueError(A_TIME)
    return seconds


def walltime_of(text: str, most: float = _MOST_SECONDS) -> float:
    """A time that `seconds_of` understands or that Slurm writes, in seconds.

    "90" and "1:30:00" are both ninety minutes. Raises ValueError, also for more than `most`.
    """
    found = _SCHEDULERS_TIME.match(text.strip())
    try:
        seconds = _schedulers_seconds(found) if found else seconds_of(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{A_WALLTIME} was expected") from error
    if not 0 < seconds <= most:
        raise ValueError(f"{A_WALLTIME} was expected, at most a year")
    return seconds


def _schedulers_seconds(found: re.Match[str]) -> float:
    fields = [int(field) for field in found["fields"].split(":")]
    if found["days"] is not None:  # hours come first
        hours, minutes, seconds = (*fields, 0, 0)[:3]
    elif len(fields) == 3:
        hours, minutes, seconds = fields
    else:  # minutes come first
        hours = 0
        minutes, seconds = (*fields, 0)[:2]
    days = int(found["days"] or 0)
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds


def memory_of(text: str) -> int:
    """An amount like "16G" in MiB; units are powers of 1024. Raises ValueError."""
    # humanfriendly looks only at the first letter of a unit: "1 potato" would be a petabyte.
    if not _AMOUNT.match(text):
        raise ValueError(AN_AMOUNT_OF_MEMORY)
    try:
        size = int(humanfriendly.parse_size(text, binary=True)) // 2**20
    except (humanfriendly.InvalidSize, OverflowError) as error:
        raise ValueError(AN_AMOUNT_OF_MEMORY) from error
    if size < 1:
        raise ValueError(AN_AMOUNT_OF_MEMORY)
    return size


def percent(fraction: float) -> str:
    """0.975 as "97.5 %"."""
    return f"{100 * fraction:.3g} %"


def rough_duration(seconds: float) -> str:
    """An estimated duration, in its largest unit: more digits would suggest too much precision."""
    return str(humanfriendly.format_timespan(max(1, round(seconds)), max_units=1))


def format_duration(seconds: float) -> str:
    """A duration for people, in its two largest units: "2 hours and 5 minutes", "40 seconds"."""
    return str(humanfriendly.format_timespan(int(seconds), max_units=2))


def seconds_since(time: str | None) -> float | None:
    """Seconds from an ISO 8601 time to now, negative for a future time; None for no time."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(time or "")).total_seconds()
    except (ValueError, TypeError):
        return None


def seconds_between(start: str | None, end: str | None) -> float | None:
    """The seconds between two ISO 8601 times, at least 0; None if one is not such a time."""
    try:
        span = datetime.fromisoformat(end or "") - datetime.fromisoformat(start or "")
    except (ValueError, TypeError):
        return None
    return max(0.0, span.total_seconds())
