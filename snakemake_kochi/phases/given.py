"""What determines the points of experiments besides their texts: facts of the machine, CSV files.

Only what the texts use is looked up, because a scheduler may take seconds to answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from snakemake_kochi.errors import ConfigError, KochiError, NameNotFoundError
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import decode_text, read_yaml
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.project.sweeps import CSV, STANDARD_FACTS, Given

_FACT = re.compile(r"(?<!\$)(?:\$\$)*\$\{?machine\.([A-Za-z_][A-Za-z0-9_]*)")
_MAY_USE_CSV = re.compile(r"\bcsv\b")
# A file of a million rows with a few columns; a freeze contains it.
_MOST_BYTES = 50 * 2**20


def given_now(file: str, text: str, machine: Machine, directory: Path) -> Given:
    """What an experiment of the working tree of a project uses, without a freeze. Raises as
    `given_in`."""

    def read(path: str) -> bytes:
        place = directory / path
        if not os.path.isfile(place):  # or a device, which has no end
            raise NameNotFoundError(f"{path}: no such file")
        try:
            return place.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error

    return given_of(machine, **given_in({file: text}, machine, read))


def given_of(
    machine: Machine,
    facts: Mapping[str, str] = FrozenDict(),
    without_facts: str = "",
    tables: Mapping[str, str] = FrozenDict(),
) -> Given:
    """What determines points, from what `given_in` has found; facts that the machine's definition
    tells come first."""
    return Given(machine.name, {**facts, **machine.facts}, without_facts, tables)


def given_in(
    experiments: Mapping[str, str], machine: Machine, read: Callable[[str], bytes]
) -> dict[str, Any]:
    """The keys of a freeze about what the texts of experiments, by their paths, use.

    `facts`: those of the machine that its scheduler or this computer knows, as texts by name;
    `without_facts`: why some are not known; `tables`: the texts of CSV files, by path. A key with
    nothing in it is left out. `read` gives the content of a file of the project, and raises
    NameNotFoundError without it. Raises ConfigError for a CSV file that is no text, or too large.
    """
    found: dict[str, Any] = {}
    used = {name for text in experiments.values() for name in _FACT.findall(text)}
    wanted = used & {*STANDARD_FACTS} - {"name", *machine.facts}
    if wanted:
        try:
            known = _known_facts(machine)
        except KochiError as error:
            known, found["without_facts"] = {}, error.message
        found["facts"] = {name: str(known[name]) for name in sorted(wanted) if name in known}
    tables = {}
    for file, text in experiments.items():
        for path in _csv_files(file, text):
            try:
                content = read(path)
            except NameNotFoundError:
                continue  # told with the key that names it
            if len(content) > _MOST_BYTES:
                raise ConfigError(f"{path}: values come from files of at most {_MOST_BYTES} bytes")
            tables[path] = decode_text(content, path)
    if tables:
        found["tables"] = tables
    return {key: value for key, value in found.items() if value}


def _known_facts(machine: Machine) -> Mapping[str, int]:
    # Imported here: few experiments use facts.
    if machine.scheduler is not None:
        from snakemake_kochi.schedulers.native import system

        return system(machine.scheduler).node_facts(machine.allocation, machine.allocation_at)
    if machine.alloc_script:
        raise ConfigError("its alloc_script says nothing about nodes")
    from snakemake_kochi.phases.node import hardware
    from snakemake_kochi.worker.node.capacity import capacity_of_this_node, gpus_of_this_node

    here = capacity_of_this_node(gpus=gpus_of_this_node())
    found = {"cores": here.cores, "memory_mb": here.memory_mb, "gpus": here.gpus, "nodes": 1}
    sockets = hardware()["sockets"]
    return found if sockets is None else {**found, "sockets": sockets}


def _csv_files(file: str, text: str) -> Iterator[str]:
    """The paths in the project from which an experiment takes values."""
    if not _MAY_USE_CSV.search(text):
        return
    try:
        data = read_yaml(file, text).data
    except ConfigError:
        return  # told when it is read as an experiment
    for named in _named(data):
        path = PurePosixPath(named)
        if named and not path.is_absolute() and ".." not in path.parts:
            yield named


def _named(data: Any) -> Iterator[str]:
    # With a column it is a metric, which reads a file that the run writes.
    if isinstance(data, dict) and "column" not in data:
        value = data.get(CSV)
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, str):
            yield str(first)
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for part in parts:
        yield from _named(part)
