"""What tasks have printed: in the history of the runs, until it is cleaned up."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.farm.state import Ended
from snakemake_kochi.farm.tasks import Task
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.tickets.history import log_of, logs_of
from snakemake_kochi.tickets.names import Layout, Name


def _name_of(line: bytes) -> Name:
    name = Name.parse(Ended.parse(line).job)
    assert name is not None
    return name


def log_of_end(machine: MachinePaths, line: bytes) -> bytes:
    """What one task printed. Raises KochiError if that is gone."""
    name = _name_of(line)
    found = log_of(Layout(str(machine.directory)).run(name.run), name)
    if found is None:
        raise KochiError(f"the log of job {name.run}.{name.job} was cleaned up")
    return found


def write_archive(
    machine: MachinePaths, directory: Path, ended: Iterable[tuple[Task, bytes]]
) -> Path:
    """Write all logs that are there into one file. Raises OSError."""
    layout = Layout(str(machine.directory))
    names: dict[int, dict[str, int]] = {}  # the task of each log, by run
    for task, line in ended:
        name = _name_of(line)
        names.setdefault(name.run, {})[f"{name.job}.a{name.attempt}"] = task.id
    path = directory / "logs.tar"
    with tarfile.open(path, "w") as archive:
        for run, wanted in names.items():
            for text, content in logs_of(layout.run(run)):
                if text in wanted:
                    member = tarfile.TarInfo(f"logs/log_{wanted[text]}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return path
