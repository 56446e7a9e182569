"""A second user of the computer puts tickets where ours are expected."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem
from strangers import GROUP, ORDINARY, STRANGER, as_user
from support import worker_command, write

from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import by_hand
from snakemake_kochi.tickets.ticket import Ticket


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory for everybody, as /tmp is; pytest's own are below one that only we may enter."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o1777)
    yield directory
    shutil.rmtree(directory)


def submit(machine: MachinePaths, mark: Path) -> int:
    ticket = Ticket(name="x", command=("touch", str(mark)), directory="/")
    machine.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return by_hand.submit(machine, "q", ticket).job


@pytest.fixture
def plant(top: Path) -> Callable[..., Path]:
    """Have the stranger submit a ticket to a KOCHI_ROOT, that they make; returns the file that it
    would write."""
    submit(Root(top / "to-import").machine("local"), top / "mark")

    def plant_in(root: Path) -> Path:
        as_user(STRANGER, lambda: submit(Root(root).machine("local"), top / "executed"))
        return top / "executed"

    return plant_in


COMMANDS = {
    "work": ("-m", "snakemake_kochi.cli", "work", "-q", "q"),
    "worker": (),
    "enqueue": ("-m", "snakemake_kochi.cli", "enqueue", "-q", "q", "true"),
    "alloc": ("-m", "snakemake_kochi.cli", "alloc", "-q", "q"),
    "cancel": ("-m", "snakemake_kochi.cli", "cancel", "1"),
    "launch": ("-m", "snakemake_kochi.cli", "launch", "--", "all"),
    "run": ("-m", "snakemake", "--executor", "kochi", "--jobs", "1", "--kochi-queue", "q", "all"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_uses_a_kochi_root_that_a_stranger_made_first(
    command: str, top: Path, tmp_path: Path, plant: Any, shell_command: Any
) -> None:
    executed = plant(top / "root")
    write(tmp_path / "Snakefile", "rule all:\n    output: 'made'\n    shell: 'touch {output}'\n")
    # One that begins on this computer was started by a command that looked.
    worker = worker_command(top / "root", tmp_path, queues=("q",), allocation="7")
    words = COMMANDS[command] or worker[1:]
    done = shell_command(*words, root=top / "root", cwd=tmp_path)
    assert done.returncode == 1
    assert f"KOCHI_ROOT {top}/root cannot be used: {top}/root belongs to user {STRANGER}" in (
        done.stdout
    )
    assert "export KOCHI_ROOT=DIRECTORY" in done.stdout or command == "worker"
    assert "Traceback" not in done.stdout
    assert not executed.exists()
    assert not (tmp_path / "made").exists()


@pytest.fixture
def shell_command() -> Callable[..., Any]:
    from support import run

    def call(*words: str, root: Path, cwd: Path) -> Any:
        return run(sys.executable, *words, cwd=cwd, env={"KOCHI_ROOT": str(root)})

    return call


def give(path: Path, user: int) -> None:
    os.chown(path, user, user)


@pytest.mark.parametrize("part", ["machines", "machines/local", "machines/local/queues"])
def test_a_directory_of_a_stranger_in_kochi_root_is_refused(
    part: str, top: Path, tmp_path: Path, plant: Any, shell_command: Any
) -> None:
    root = top / "root"
    submit(Root(root).machine("local"), top / "mine")
    executed = plant(top / "theirs")
    # As whoever may write to the directory around it can.
    shutil.rmtree(root / part)
    (top / "theirs" / part).rename(root / part)
    done = shell_command(*COMMANDS["work"], root=root, cwd=tmp_path)
    assert done.returncode == 1
    assert f"{root}/{part} belongs to user {STRANGER}, whose jobs would run as you" in done.stdout
    assert not executed.exists()


@pytest.mark.parametrize(
    ("mode", "owner", "said"),
    [
        (0o777, 0, "everybody may write to {}, "),
        (0o775, 0, "group 54321 may write to {}, "),
        (0o755, STRANGER, "{} belongs to user 54321, "),
        (0o1777, STRANGER, "{} belongs to user 54321, "),
    ],
)
def test_root_refuses_a_directory_above_that_others_may_change(
    mode: int, owner: int, said: str, top: Path, tmp_path: Path, shell_command: Any
) -> None:
    above = top / "above"
    above.mkdir()
    os.chown(above, owner, STRANGER)
    above.chmod(mode)
    root = above / "below" / "root"
    done = shell_command(*COMMANDS["enqueue"], root=root, cwd=tmp_path)
    assert done.returncode == 1
    assert f"KOCHI_ROOT {root} cannot be used: {said.format(above)}" in done.stdout
    assert not root.exists()


def test_in_a_directory_for_everybody_what_is_ours_is_used(
    top: Path, tmp_path: Path, shell_command: Any
) -> None:
    done = shell_command(*COMMANDS["enqueue"], root=top / "root", cwd=tmp_path)
    assert done.returncode == 0
    assert "can be replaced" not in done.stdout


def test_a_link_of_a_stranger_on_the_way_is_refused(
    top: Path, tmp_path: Path, shell_command: Any
) -> None:
    (top / "mine").mkdir(mode=0o700)
    (top / "link").symlink_to("mine")
    os.lchown(top / "link", STRANGER, STRANGER)
    done = shell_command(*COMMANDS["enqueue"], root=top / "link" / "root", cwd=tmp_path)
    assert done.returncode == 1
    assert f"{top}/link belongs to user {STRANGER}" in done.stdout


def test_a_link_of_our_own_may_be_on_the_way(top: Path, tmp_path: Path, shell_command: Any) -> None:
    (top / "mine").mkdir(mode=0o700)
    (top / "link").symlink_to("mine/../mine")
    done = shell_command(*COMMANDS["enqueue"], root=top / "link", cwd=tmp_path)
    assert done.returncode == 0
    assert (top / "mine" / "machines").is_dir()


def test_a_root_that_others_may_write_to_is_refused_with_what_to_type(
    top: Path, tmp_path: Path, shell_command: Any
) -> None:
    root = top / "root"
    root.mkdir()
    root.chmod(0o777)
    done = shell_command(*COMMANDS["enqueue"], root=root, cwd=tmp_path)
    assert done.returncode == 1
    assert f"everybody may write to {root}" in done.stdout
    assert f"type: chmod go-w {root}" in done.stdout


@pytest.mark.parametrize(
    ("mode", "owner", "doubts"),
    [
        (0o2775, 0, ["group 54321, which may write to {}"]),
        (0o755, STRANGER, ["user 54321, who owns {}"]),
        (0o2775, STRANGER, ["user 54321, who owns {}"]),
        (0o1775, 0, []),
        (0o755, 0, []),
    ],
)
def test_an_ordinary_user_is_told_who_else_may_change_a_directory_above(
    mode: int, owner: int, doubts: list[str], top: Path
) -> None:
    """A project's directory, which its members share, is where many have KOCHI_ROOT."""
    shared = top / "shared"
    shared.mkdir()
    os.chown(shared, owner, STRANGER)
    shared.chmod(mode)
    top.chmod(0o755)
    (shared / "me").mkdir()
    give(shared / "me", ORDINARY)
    root = Root(shared / "me" / "root")

    def use() -> None:
        told = root.secure(root.machine("local").directory)
        who = f"KOCHI_ROOT {root.directory} can be replaced by "
        assert told == [who + doubt.format(shared) for doubt in doubts]

    as_user(ORDINARY, use)
    assert (shared / "me" / "root" / "machines" / "local").is_dir()


def test_in_a_directory_for_everybody_ours_may_be_in_one_made_for_a_group_of_ours(
    top: Path,
) -> None:
    """As on scratch filesystems, where who leads a project makes its directory."""
    lab = top / "lab"
    (lab / "me").mkdir(parents=True)
    give(lab / "me", ORDINARY)
    os.chown(lab, STRANGER, GROUP)
    lab.chmod(0o2770)
    root = Root(lab / "me" / "root")

    def use() -> None:
        told = root.secure(root.machine("local").directory)
        who = f"user {STRANGER}, who owns {lab}"
        assert told == [f"KOCHI_ROOT {root.directory} can be replaced by {who}"]

    as_user(ORDINARY, use, [GROUP])
    assert (lab / "me" / "root" / "machines" / "local").is_dir()


def test_what_root_has_put_into_kochi_root_is_used(top: Path) -> None:
    root = Root(top / "root")
    root.directory.mkdir(mode=0o700)
    write(root.configuration, "machines: {}\n")
    os.chown(root.directory, ORDINARY, ORDINARY)

    def use() -> None:
        assert root.has_configuration()

    as_user(ORDINARY, use)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_filesystem_on_which_all_is_shown_as_for_everybody_is_used(
    is_fixed: bool, top: Path, tmp_path: Path, shell_command: Any
) -> None:
    """Inherited access control lists, or as on CIFS the modes that the mount says."""
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "mnt", inherited=0o077) as filesystem:
        root = filesystem.path / "root"
        with filesystem.fault("chmod", errno.EPERM) if is_fixed else contextlib.nullcontext():
            for number in range(2):
                done = shell_command(*COMMANDS["enqueue"], root=root, cwd=tmp_path)
                assert done.returncode == 0, done.stdout
                said = done.stdout.count("does not show who may write")
                assert said == is_fixed, number
        assert root.stat().st_mode & 0o777 == (0o777 if is_fixed else 0o700)


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o2777, STRANGER), (0o1777, STRANGER)])
def test_an_ordinary_user_is_refused_where_anybody_may_have_set_a_trap(
    mode: int, owner: int, top: Path
) -> None:
    trap = top / "trap"
    trap.mkdir()
    (trap / "me").mkdir()
    give(trap / "me", ORDINARY)
    give(trap, owner)
    trap.chmod(mode)
    root = Root(trap / "me" / "root")

    def use() -> None:
        with pytest.raises(KochiError, match="cannot be used"):
            root.secure(root.machine("local").directory)

    as_user(ORDINARY, use)
    assert not (trap / "me" / "root").exists()


def test_a_configuration_that_a_stranger_put_into_kochi_root_is_not_used(
    top: Path, tmp_path: Path, shell_command: Any
) -> None:
    root = top / "root"
    root.mkdir()
    write(root / "conf.yaml", f"machines: {{local: {{load_env_script: touch {top}/executed}}}}\n")
    give(root / "conf.yaml", STRANGER)
    words = ("-m", "snakemake_kochi.cli", "run", "true")
    done = shell_command(*words, root=root, cwd=tmp_path)
    assert not (top / "executed").exists()
    done = shell_command("-m", "snakemake_kochi.cli", "show", "installs", root=root, cwd=tmp_path)
    assert done.returncode == 1
    assert f"{root}/conf.yaml belongs to user {STRANGER}" in done.stdout
