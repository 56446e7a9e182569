"""Results of runs that have all that is asked for now, but under other names.

An artifact was renamed or dropped since: what Snakemake then has run again would make the same
files. So they are set aside, before it deletes any, and the jobs put them under their new names
(`phases/former.py`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.names import Directories
from snakemake_kochi.phases.former import FORMER_VERSION, Former
from snakemake_kochi.project.grid import Artifact, Point

_Key = tuple[Any, ...]
_Name = tuple[str, str | None]


def set_former_results_aside(batch: BatchRules, directories: Directories) -> None:
    """Do so for the points of one batch. Of a batch whose artifacts are those of the last time
    nothing is looked at but that."""
    artifacts = [[each.type, each.dest, each.src] for each in batch.grid.artifacts]
    noted = directories.artifacts_noted(batch.experiment.name, batch.grid.batch)
    last = None
    with suppress(FileNotFoundError, DamagedFileError):
        last = read_json(noted, FORMER_VERSION).get("artifacts")
    # What is there from before may have been made again, or deleted, since.
    shutil.rmtree(directories.former(batch.experiment.name, batch.grid.batch), ignore_errors=True)
    if last != artifacts and _set_aside(batch, directories):
        # Looked at again until the jobs are done.
        return
    if last != artifacts:
        make_directory(noted.parent)
        write_atomically(noted, to_json({"version": FORMER_VERSION, "artifacts": artifacts}))


def _set_aside(batch: BatchRules, directories: Directories) -> bool:
    """Whether there was anything."""
    points = {_key(p.parameters, p.duplicate): p for p in batch.grid.points}
    finished: set[_Key] = set()
    former: dict[_Key, tuple[Point, Mapping[str, Any], dict[_Name, str]]] = {}
    records = Path(directories.records(batch.experiment.name, batch.grid.batch))
    for file, record in _records(records):
        key = _key(record["parameters"], record["duplicate"])
        point = points.get(key)
        if point is None or record.get("run") != batch.identity_of_run(point):
            continue
        found = _artifacts_of(record, file, directories)
        files = {_name(each): f"{directories.results}/{each.dest}" for each in found}
        is_whole = all(each.type == "stats" or _name(each) in files for each in point.artifacts)
        is_newest = key not in former or former[key][1]["ended"] < record["ended"]
        if set(found) == set(point.artifacts):
            finished.add(key)
        elif is_whole and is_newest:
            former[key] = (point, record, files)
    for key in former.keys() - finished:
        point, record, files = former[key]
        identity = batch.identity_of_run(point)
        names = directories.machine, batch.experiment.name, batch.grid.batch
        place = Former.of(*names, identity, point)
        make_directory(place.directory)
        for artifact in point.artifacts:
            if artifact.type != "stats":
                _link(Path(files[_name(artifact)]), place.file(artifact))
        write_atomically(place.record, to_json(record))
    return bool(former.keys() - finished)


def _key(parameters: Mapping[str, str], duplicate: int) -> _Key:
    return (*sorted(parameters.items()), duplicate)


def _name(artifact: Artifact) -> _Name:
    return artifact.type, artifact.src


def _records(directory: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for parent, _, names in os.walk(directory):
        if "record.json" in names:
            with suppress(DamagedFileError, FileNotFoundError):
                yield Path(parent, "record.json"), read_json(Path(parent, "record.json"))


def _artifacts_of(
    record: Mapping[str, Any], file: Path, directories: Directories
) -> list[Artifact]:
    """Those that are there as the run has left them."""
    # A run writes its record last.
    written = file.stat().st_mtime_ns
    found = []
    for each in record["artifacts"]:
        with suppress(OSError):
            if os.stat(f"{directories.results}/{each['dest']}").st_mtime_ns <= written:
                found.append(Artifact(each["type"], each["dest"], each["src"]))
    return found


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
