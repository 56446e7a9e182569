"""The locks of a machine: all its processes use the same ones, or none."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem
from support import write

from snakemake_kochi.errors import ConfigError, DamagedFileError, KochiError
from snakemake_kochi.location import find_location
from snakemake_kochi.locks import settle_locks
from snakemake_kochi.locks.lock import Forsaken, LockBusyError, hold
from snakemake_kochi.locks.settings import find_lock_settings
from snakemake_kochi.paths import MachinePaths, Root


@pytest.fixture
def lock_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    return directory


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_first_process_settles_the_locks_and_others_find_them(machine: MachinePaths) -> None:
    assert settle_locks(machine, kind="lease").kind == "lease"
    found = find_lock_settings(machine)
    assert (found.kind, found.paths) == ("lease", machine.locks)
    assert settle_locks(machine, None, "lease") == found, "the same again changes nothing"


def test_without_configuration_it_is_flock_below_the_root(machine: MachinePaths) -> None:
    locks = find_lock_settings(machine)
    with locks.hold(locks.paths.launches):
        pass
    assert json.loads(machine.lock_settings.read_text())["kind"] == "flock"
    assert set(machine.locks.directory.iterdir()) == {machine.locks.launches}
    settle_locks(machine)  # the default, and the same said in kochi.yaml, are one thing
    settle_locks(machine, kind="flock")


@pytest.mark.parametrize("order", ["first", "then"])
def test_other_locks_than_those_in_use_are_refused(
    machine: MachinePaths, lock_dir: Path, order: str
) -> None:
    ways: list[tuple[Path | None, str | None]] = [(None, None), (None, "lease"), (lock_dir, None)]
    if order == "then":
        ways.reverse()
    settled = settle_locks(machine, *ways[0])
    for lock_directory, kind in ways[1:]:
        with pytest.raises(KochiError, match="would write to one build") as caught:
            settle_locks(machine, lock_directory, kind)
        assert str(settled) in caught.value.message, "what is used"
        wanted = f"{kind or 'flock'} in {lock_directory or machine.locks.directory}"
        assert f"its configuration says {wanted}" in caught.value.message
        assert f"rm {machine.lock_settings}" in str(caught.value.hint)
    machine.lock_settings.unlink()
    assert settle_locks(machine, *ways[-1]).kind == (ways[-1][1] or "flock"), (
        "as the message advises"
    )


def test_a_kind_that_does_not_exist_is_refused(machine: MachinePaths) -> None:
    with pytest.raises(ConfigError, match=r"lock_kind 'leases' .* did you mean 'lease'"):
        settle_locks(machine, kind="leases")
    assert not machine.directory.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "locks.json"),
        ("[]", "locks.json"),
        ('{"version": 3, "directory": "locks"}', "kind"),
        ('{"version": 3, "directory": "locks", "kind": "magic"}', "'magic'"),
        ('{"version": 3, "kind": "flock"}', "key 'directory'"),
    ],
)
def test_without_readable_settings_nothing_is_locked(
    machine: MachinePaths, text: str, said: str
) -> None:
    write(machine.lock_settings, text)
    for use in (lambda: settle_locks(machine), lambda: find_lock_settings(machine)):
        with pytest.raises(DamagedFileError, match=said) as caught:
            use()
        assert str(machine.lock_settings) in caught.value.message
        assert f"rm {machine.lock_settings}" in str(caught.value.hint)
    assert machine.lock_settings.read_text() == text
    assert not machine.locks.directory.exists()


def test_a_directory_of_an_earlier_layout_is_refused(machine: MachinePaths) -> None:
    write(machine.lock_settings, '{"version": 2, "directory": "locks", "kind": "flock"}')
    for use in (lambda: settle_locks(machine), lambda: find_lock_settings(machine)):
        with pytest.raises(DamagedFileError, match="by an earlier snakemake_kochi") as caught:
            use()
        assert str(machine.directory) in caught.value.message
        assert "another KOCHI_ROOT" in str(caught.value.hint)


def test_locks_may_be_in_another_directory_which_is_private(
    machine: MachinePaths, lock_dir: Path
) -> None:
    locks = settle_locks(machine, lock_dir)
    with locks.hold(locks.paths.launches):
        pass
    (own,) = lock_dir.iterdir()
    assert mode(own) == 0o700
    assert {"launches"} < {path.name for path in own.iterdir()}
    assert not machine.locks.directory.exists()
    other = Root(machine.directory.parent / "other").machine("local")
    settle_locks(other, lock_dir)
    assert len(list(lock_dir.iterdir())) == 2, "another root's are others"


def test_a_missing_lock_dir_is_not_made(machine: MachinePaths, tmp_path: Path) -> None:
    with pytest.raises(KochiError, match=r"there is no directory .*/nothing"):
        settle_locks(machine, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    assert not machine.lock_settings.exists()


def test_a_directory_that_others_can_use_holds_no_locks(
    machine: MachinePaths, lock_dir: Path, tmp_path: Path
) -> None:
    own = machine.locks_in(lock_dir).directory
    own.mkdir(mode=0o755)
    with pytest.raises(KochiError, match="not a directory that only you can use"):
        settle_locks(machine, lock_dir)
    own.rmdir()
    (tmp_path / "target").mkdir(mode=0o700)
    own.symlink_to(tmp_path / "target")
    with pytest.raises(KochiError, match="not a directory that only you can use"):
        settle_locks(machine, lock_dir)
    assert not machine.lock_settings.exists()


def test_a_directory_of_the_same_name_on_another_node_is_noticed(
    machine: MachinePaths, lock_dir: Path
) -> None:
    settle_locks(machine, lock_dir)
    code = (
        "import sys, pathlib\nfrom snakemake_kochi.paths import Root\n"
        "from snakemake_kochi.locks import find_lock_settings\n"
        "find_lock_settings(Root(pathlib.Path(sys.argv[1])).machine('local'))"
    )
    root = str(machine.directory.parent.parent)
    mounted = 'mount -t tmpfs none "$0" && exec "$@"'
    elsewhere = ["unshare", "--mount", "sh", "-c", mounted, str(lock_dir)]
    done = subprocess.run(
        [*elsewhere, sys.executable, "-c", code, root], capture_output=True, text=True
    )
    assert "is not the directory of locks that" in done.stderr, done.stderr
    assert "the same directory on all nodes" in done.stderr


def test_the_root_may_be_known_under_another_path(machine: MachinePaths, tmp_path: Path) -> None:
    settle_locks(machine)
    (tmp_path / "alias").symlink_to(tmp_path / "root")
    alias = Root(tmp_path / "alias").machine("local")
    settle_locks(alias)
    locks = find_lock_settings(machine)
    with locks.hold(locks.paths.launches):
        assert find_lock_settings(alias).is_held(alias.locks.launches)


def test_the_configuration_says_where_the_locks_are(
    lock_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root.find()
    conf = "machines:\n  local:\n    lock_dir: $LOCKS_OF_MINE/elsewhere\n    lock_kind: lease\n"
    write(root.configuration, conf)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    location = find_location(start=tmp_path)
    with pytest.raises(KochiError, match=r"LOCKS_OF_MINE .* is not set") as caught:
        location.prepare_machine()
    assert "lock_dir of local" in caught.value.message
    assert not (root.directory / "machines").exists()
    monkeypatch.setenv("LOCKS_OF_MINE", str(lock_dir.parent))
    found = find_lock_settings(location.prepare_machine())
    assert (found.kind, found.paths.directory.parent) == ("lease", lock_dir)


@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_the_wait_for_a_lock_can_be_limited(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    with (
        hold(path, kind),  # type: ignore[arg-type]
        pytest.raises(LockBusyError),
        hold(path, kind, patience=0),  # type: ignore[arg-type]
    ):
        pytest.fail("two had it")
    with hold(path, kind, patience=0):  # type: ignore[arg-type]
        pass


def test_a_lock_that_another_node_has_just_made_is_held_where_making_it_says_it_exists(
    tmp_path: Path,
) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as shared:
        # As FUSE filesystems that make and open a file by two calls: one mount makes it in between.
        with shared.fault("create", errno.EEXIST, times=1, done=True) as made_by_another:
            with hold(shared.path / "lock", "flock") as held:
                held.require()
            assert shared.count(made_by_another) == 1
        assert mode(shared.path / "lock") == 0o600


FORSAKEN = """\
import logging, os, pathlib, sys
from snakemake_kochi.locks import lock
logging.basicConfig()
path = pathlib.Path("lock")
if os.fork() == 0:
    with lock.hold(path, "lease", lease_duration=0.5):
        os._exit(0)
os.wait()
with lock.hold(path, "lease", lease_duration=0.5):
    print("held")
"""


@pytest.mark.parametrize("can_exchange", [True, False])
def test_the_lease_of_a_dead_process_is_taken_also_where_names_cannot_be_exchanged(
    tmp_path: Path, can_exchange: bool
) -> None:
    """As on NFS, which has no RENAME_EXCHANGE."""
    fault = ["-e", "inject=renameat2:error=EINVAL"]
    strace = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=renameat2", *fault]
    command = [*([] if can_exchange else strace), sys.executable, "-c", FORSAKEN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "held\n"
    # Otherwise it depends on the version of filelock who does it.
    assert not (can_exchange and "its holder no longer renewed it" in done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_lease_is_removed_only_when_it_was_not_renewed_for_long(tmp_path: Path) -> None:
    path = write(tmp_path / "lock", "held\n")
    forsaken = Forsaken(path, duration=30.0)
    forsaken.look()
    forsaken.look()
    assert path.exists(), "that is not long"
    forsaken = Forsaken(path, duration=0.0)
    for renewal in range(5):
        os.utime(path, (renewal, renewal))
        forsaken.look()
        assert path.exists()
    forsaken.look()
    assert list(tmp_path.iterdir()) == []
    forsaken.look()


def test_a_new_lease_in_the_place_of_a_dead_one_is_restored(tmp_path: Path) -> None:
    path = write(tmp_path / "lock", "dead\n")
    with open(path) as dead:
        path.unlink()
        write(path, "new\n")
        new = path.stat()
        Forsaken(path, duration=30.0).remove(os.fstat(dead.fileno()))
    assert os.path.samestat(path.stat(), new)
    assert list(tmp_path.iterdir()) == [path]
