"""The settings file of a worker."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem
from support import write

from snakemake_kochi.errors import DamagedFileError, WorkerError
from snakemake_kochi.queue.views import find_worker
from snakemake_kochi.tickets.ticket import Kind, Resources
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.settings import WorkerSettings, read_settings, save_settings
from tests.worker.by_hand.conftest import Site

ALL = {
    "queues": ("q", "ä"),
    "cores": 3,
    "memory_mb": 100,
    "most_memory_mb": 90,
    "gpus": "0,1",
    "walltime": 60.5,
    "allocation_seconds": 3600,
    "grace": 1.0,
    "stay": True,
    "idle_timeout": 8,
    "idle_wait": 0.5,
    "controller": "c",
    "first": (Kind(Resources(cores=2), Resources(cores=3, runtime_seconds=60)),),
    "allocation": "7_1",
    "parent": 12,
    "echo": True,
}


def settings(directory: Path, **fields: Any) -> WorkerSettings:
    return WorkerSettings(str(directory / "root"), "own", **fields)


@pytest.mark.parametrize("fields", [{}, ALL, {**ALL, "worker": 5}])
def test_written_settings_are_read(tmp_path: Path, fields: dict[str, Any]) -> None:
    written = settings(tmp_path, **fields)
    path = save_settings(written)
    assert read_settings(path) == written
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.name == "settings.json" or "worker" not in fields


def test_equal_workers_without_a_number_have_one_file(tmp_path: Path) -> None:
    first, second = (save_settings(settings(tmp_path, **ALL)) for _ in range(2))
    other = save_settings(settings(tmp_path, **{**ALL, "cores": 4}))
    assert first == second != other


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "written by a newer snakemake_kochi"),
        ({"corse": 3}, "not the settings of a worker: "),
        ({"first": [1]}, "not the settings of a worker: "),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = save_settings(settings(tmp_path))
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(DamagedFileError, match=re.escape(said)) as caught:
        read_settings(path)
    assert caught.value.message.startswith(str(path))


def test_a_file_without_a_root_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"version": 1, "machine": "own"}')
    with pytest.raises(DamagedFileError, match=r"missing 1 required .* 'root'"):
        read_settings(path)


def test_a_file_is_read_on_a_node_that_has_cached_its_absence(tmp_path: Path) -> None:
    # A client of NFS does so for up to a minute.
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "there", cache_seconds=600) as there:
        written = settings(there.path)
        file = tmp_path / "backing" / written.path.relative_to(there.path)
        file.parent.mkdir(mode=0o700, parents=True)
        assert not written.path.exists()
        write(file, written.to_json().decode())
        assert not written.path.exists()
        assert read_settings(written.path, patience=5.0) == written


def test_a_node_that_does_not_see_the_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=f"this node does not see {tmp_path}/x"):
        read_settings(tmp_path / "x", patience=0.0)


def test_the_options_of_an_allocation_take_precedence(site: Site) -> None:
    file = settings(site.directory, queues=("q",), cores=1)
    command = [*start_command(save_settings(file)), "--worker", "8", "--allocation", "12_1"]
    subprocess.run([*command, "--cores", "3"], check=True)
    worker = find_worker(site.root.machine("own"), 8)
    assert (worker.allocation, worker.capacity.cores) == ("12_1", 3)
