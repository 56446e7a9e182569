"""The isolation of a script, if it has one. Most have none, and load nothing of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snakemake_kochi.phases.isolation import Enclosure
    from snakemake_kochi.phases.products import Install
    from snakemake_kochi.project.isolation import Isolation, MachineIsolation


def enclosure_of(
    isolation: Isolation | None,
    machine: MachineIsolation | None,
    directory: Path,
    scratch: Path,
    installs: Sequence[Install],
    trees: Sequence[Path],
    variables: Mapping[str, str],
    key: str,
) -> Enclosure | None:
    """The isolation of a script in `directory`, with the private directory `scratch`; None without
    one. `trees` are other directories that it sees; `variables` and `key`: see `Enclosure`.

    Raises PhaseError if no program here can make it, or if a path is missing.
    """
    if isolation is None:
        return None
    from snakemake_kochi.phases.isolation import Enclosure
    from snakemake_kochi.phases.isolation_view import Place

    place = Place.of(directory, scratch, installs, *trees)
    return Enclosure(isolation, machine, place, variables, key)
