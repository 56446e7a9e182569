"""Data on a node's own storage: who may have made the directory, and how long the data stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snakemake_kochi.node_storage import (
    Place,
    StorageError,
    hold,
    hold_for_worker,
    is_held_by_processes,
    own_directory,
    remove,
    sweep,
    take_over,
)
from snakemake_kochi.processes import ProcessIdentity

ANOTHER_USER = 12345


def this_process() -> ProcessIdentity:
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    return own


def held(storage: Path, digest: str = "d", holder: ProcessIdentity | None = None) -> Place:
    return hold(storage, "", digest, holder or this_process())


@pytest.fixture
def dead() -> ProcessIdentity:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessIdentity.of(process.pid)
    process.communicate(b"\n")
    assert identity is not None
    return identity


def names(storage: Path) -> list[str]:
    return sorted(path.name for path in own_directory(storage).iterdir() if path.name != "lock")


def test_data_stay_while_one_of_their_holders_lives(tmp_path: Path, dead: ProcessIdentity) -> None:
    place = held(tmp_path, holder=dead)
    assert held(tmp_path) == place
    other = held(tmp_path, "of the dead alone", dead)
    place.new_data().joinpath("file").touch()
    sweep(tmp_path)
    assert names(tmp_path) == [place.directory.name]
    assert not other.directory.exists()
    sweep(tmp_path, this_process())
    assert names(tmp_path) == []


def test_the_last_holder_hands_its_data_over_before_they_are_removed(tmp_path: Path) -> None:
    another = ProcessIdentity.of(os.getppid())
    assert another is not None
    last, shared = held(tmp_path, "last"), held(tmp_path, "shared")
    assert held(tmp_path, "shared", another) == shared
    assert take_over(tmp_path, this_process(), another) == [last]
    sweep(tmp_path, this_process())
    assert names(tmp_path) == sorted([last.directory.name, shared.directory.name])
    sweep(tmp_path, another)
    assert names(tmp_path) == sorted([last.directory.name, shared.directory.name])
    sweep(tmp_path, another, this_process())
    assert names(tmp_path) == []


def test_the_next_process_removes_what_a_killed_one_has_left(
    tmp_path: Path, dead: ProcessIdentity
) -> None:
    old = held(tmp_path, "old", dead)
    old.new_data()
    new = held(tmp_path, "new")
    assert names(tmp_path) == [new.directory.name]


def test_allocations_share_nothing(tmp_path: Path) -> None:
    first = hold(tmp_path, "12_1", "d", this_process())
    second = hold(tmp_path, "12_2", "d", this_process())
    assert first.directory != second.directory
    assert hold(tmp_path, "12_1", "d", this_process()) == first


def test_data_of_other_hosts_and_containers_stay(tmp_path: Path, dead: ProcessIdentity) -> None:
    top = held(tmp_path, holder=dead).directory
    host, boot, namespace, rest = top.name.split("-", 3)
    for other in (f"00000000-{boot}-{namespace}-{rest}", f"{host}-{boot}-1-{rest}"):
        top.with_name(other).mkdir()
    rebooted = top.with_name(f"{host}-99999999-{namespace}-{rest}")
    rebooted.mkdir()
    sweep(tmp_path)
    assert len(names(tmp_path)) == 2
    assert not rebooted.exists()


def test_half_of_the_data_of_a_killed_process_are_removed_by_the_next(tmp_path: Path) -> None:
    place = held(tmp_path)
    half = place.new_data()
    (half / "file").touch()
    whole = place.new_data()
    assert whole != half
    assert not half.exists()


def test_the_data_of_a_worker_on_another_node_stay_until_it_has_left_or_is_presumed_dead(
    tmp_path: Path,
) -> None:
    storage, state, dead = tmp_path / "storage", tmp_path / "worker.json", tmp_path / "dead.json"
    storage.mkdir()
    top = held(storage, "gone").directory
    sweep(storage, this_process())
    other = top.with_name("00000000" + top.name[8:])

    def stays() -> bool:
        hold_for_worker(Place(other), {"state": str(state), "presumed_dead": str(dead)})
        sweep(storage)
        return other.exists()

    state.write_text('{"state": "running"}')
    assert stays()
    assert not is_held_by_processes(Place(other))
    dead.touch()
    assert not stays()
    dead.unlink()
    state.write_text('{"state": "left"}')
    assert not stays()
    # Not readable now is not gone.
    state.write_text("{")
    assert stays()
    state.unlink()
    assert not stays()
    state.write_text('{"state": "running"}')
    assert stays()
    remove(Place(other))
    assert names(storage) == []


def test_a_directory_that_another_user_has_made_is_refused(tmp_path: Path) -> None:
    storage = tmp_path / "tmp"
    storage.mkdir(mode=0o777)
    storage.chmod(0o1777)
    trap = own_directory(storage)
    trap.mkdir()
    os.chown(trap, ANOTHER_USER, ANOTHER_USER)
    with pytest.raises(StorageError, match=f"cannot be used: .*{trap} belongs to"):
        held(storage)
    sweep(storage)
    assert take_over(storage, this_process(), this_process()) == []
    assert list(trap.iterdir()) == []
    trap.rmdir()
    target = tmp_path / "target"
    target.mkdir()
    trap.symlink_to(target)
    with pytest.raises(StorageError, match=f"{trap} is not a directory"):
        held(storage)
    sweep(storage)
    assert take_over(storage, this_process(), this_process()) == []
    assert list(target.iterdir()) == []
    trap.unlink()
    # Without the sticky bit, others could put another directory in its place.
    storage.chmod(0o777)
    with pytest.raises(StorageError, match="everybody may write to"):
        held(storage)
    storage.chmod(0o1777)
    assert held(storage).directory.stat().st_mode & 0o777 == 0o700
    own_directory(storage).chmod(0o777)
    with pytest.raises(StorageError, match="everybody may write to"):
        held(storage)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(StorageError, match=f"{name} is not a directory on this node"):
            held(tmp_path / name)
