"""Quantities as people write them, for the `type` of an option."""

from __future__ import annotations

import click


def duration(text: str) -> float:
    """ "2h" in seconds."""
    from snakemake_kochi.quantities import seconds_of

    try:
        return seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error


def memory(text: str) -> int:
    """ "16G" in MiB; units are powers of 1024."""
    from snakemake_kochi.quantities import memory_of

    try:
        return memory_of(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error
