"""Quantities as people write them, for the `type` of an option."""

from __future__ import annotations

import click


def duration(text: str) -> float:
    """ "2h" in seconds."""
    import humanfriendly

    try:
        seconds = float(humanfriendly.parse_timespan(text))
    except humanfriendly.InvalidTimespan:
        seconds = 0.0
    # A year is more than any scheduler gives, and less than what a date can be counted on by.
    if not 0 < seconds <= 366 * 86400:
        raise click.BadParameter(
            f"{text!r}: a time like 90s, 30m, 2h or 1.5d was expected, of a year at most"
        )
    return seconds


def memory(text: str) -> int:
    """ "16G" in MiB; units are powers of 1024."""
    import humanfriendly

    try:
        size = int(humanfriendly.parse_size(text, binary=True)) // 2**20
    except humanfriendly.InvalidSize:
        size = 0
    if size < 1:
        raise click.BadParameter(f"{text!r}: an amount of memory like 512M or 16G was expected")
    return size
