"""What two nodes can rely on, on each filesystem that the tests have.

Two nodes are two mounts of one filesystem, each with caches of its own. On a local disk they are
one directory. FUSE filesystems stand for what cannot be had here: one whose flock stays on its
node, one that refuses links between directories as BeeGFS before 7 does, one that loses answers of
rename, and one whose names and attributes are cached as on NFS, here for 3 s.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Row, Size, import_of_tests
from snakemake_kochi.files import answered, list_names, move, write_atomically

CACHED = 3.0  # seconds
_POLL = 0.002
_PATIENCE = 60.0


@dataclass(frozen=True)
class Nodes:
    """Where two nodes see the same directory."""

    first: Path
    second: Path


@dataclass(frozen=True)
class Guarantees:
    """What was measured.

    `renamed_once`, `linked_once`: the share of races that exactly one node won. `between`: whether
    links between directories are made. `excludes`: whether a flock of one node keeps the other
    out. The rest are seconds, the longest of some rounds, until the other node sees: a new name in
    a listing, a new name for which it has looked before, and a file that was replaced, by its time
    and by its content.
    """

    renamed_once: float
    linked_once: float
    between: bool
    excludes: bool
    listed: float
    missed: float
    modified: float
    content: float


def measure(directory: Path, size: Size) -> list[Row]:
    races, rounds = (20, 1) if size.quick else (500, 5)
    rows = []
    for name, filesystem in FILESYSTEMS.items():
        with filesystem(directory / name.replace(" ", "-")) as nodes:
            found = examine(nodes, races, rounds)
        rows += [
            Row(f"{name}: races for a rename that one node won", [100 * found.renamed_once], "%"),
            Row(f"{name}: races for a link that one node won", [100 * found.linked_once], "%"),
            Row(f"{name}: links between directories", [found.between], ""),
            Row(f"{name}: a flock keeps the other node out", [found.excludes], ""),
            Row(f"{name}: a new name is listed after", [1000 * found.listed], "ms"),
            Row(f"{name}: a name missing before is found after", [1000 * found.missed], "ms"),
            Row(f"{name}: the time of a replaced file, after", [1000 * found.modified], "ms"),
            Row(f"{name}: its content, after", [1000 * found.content], "ms"),
        ]
    return rows


# ---- the filesystems


@contextlib.contextmanager
def local(directory: Path) -> Iterator[Nodes]:
    directory.mkdir(mode=0o700, parents=True)
    yield Nodes(directory, directory)


@contextlib.contextmanager
def glusterfs(directory: Path) -> Iterator[Nodes]:
    with import_of_tests("gluster").GlusterVolume() as volume:
        yield Nodes(volume.mount("node1"), volume.mount("node2"))


@contextlib.contextmanager
def fuse(directory: Path, cached: float = 0.0, **fault: object) -> Iterator[Nodes]:
    """Two mounts of one directory, each with the `fault`, if any."""
    mount = import_of_tests("faulty_filesystem").FaultyFilesystem
    with contextlib.ExitStack() as stack:
        both = []
        for name in ("node1", "node2"):
            both.append(stack.enter_context(mount(directory / "backing", directory / name, cached)))
            if fault:
                stack.enter_context(both[-1].fault(**fault))
        yield Nodes(*(each.path for each in both))


@contextlib.contextmanager
def refusing_links(directory: Path) -> Iterator[Nodes]:
    with fuse(directory, call="link", error=errno.EXDEV, between_directories=True) as nodes:
        yield nodes


@contextlib.contextmanager
def losing_answers(directory: Path) -> Iterator[Nodes]:
    with fuse(directory, call="rename", error=errno.EIO, done=True) as nodes:
        yield nodes


@contextlib.contextmanager
def caching(directory: Path) -> Iterator[Nodes]:
    with fuse(directory, CACHED) as nodes:
        yield nodes


FILESYSTEMS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Nodes]]] = {
    "local": local,
    "GlusterFS": glusterfs,
    "FUSE": fuse,
    "BeeGFS-like": refusing_links,
    "losing answers": losing_answers,
    "NFS-like": caching,
}


# ---- what they do


def examine(nodes: Nodes, races: int, rounds: int) -> Guarantees:
    # Listing the many names of the races would take long.
    aside = Nodes(*(at / "aside" for at in (nodes.first, nodes.second)))
    aside.first.mkdir()
    _until(lambda: "aside" in list_names(nodes.second))
    return Guarantees(
        renamed_once=_share(races, lambda number: _race_for_rename(nodes, number)),
        linked_once=_share(races, lambda number: _race_for_link(nodes, number)),
        between=_links_between(nodes),
        excludes=_excludes(nodes),
        listed=max(_until_listed(aside, number) for number in range(rounds)),
        missed=max(_until_found(aside, number) for number in range(rounds)),
        modified=max(_until_modified(aside, number) for number in range(rounds)),
        content=max(_until_read(aside, number) for number in range(rounds)),
    )


def _share(races: int, race: Callable[[int], int]) -> float:
    return sum(race(number) == 1 for number in range(races)) / races


def _race(*steps: Callable[[], object]) -> int:
    """How many of the steps, taken at once, succeed."""
    start = threading.Barrier(len(steps))
    won = []

    def take(step: Callable[[], object]) -> None:
        start.wait()
        with contextlib.suppress(OSError):
            step()
            won.append(step)

    threads = [threading.Thread(target=take, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(won)


def _race_for_rename(nodes: Nodes, number: int) -> int:
    """A claim: the same file, to a name of one's own. Winners are those who hold it to be done."""
    name = f"ticket-{number}"
    (nodes.first / name).write_bytes(b"")
    both = enumerate((nodes.first, nodes.second))
    return _race(
        *(lambda n=n, at=at: move(at / name, at / f"claimed-{number}-{n}") for n, at in both)  # type: ignore[misc]
    )


def _race_for_link(nodes: Nodes, number: int) -> int:
    """A result: files of one's own, to the same name."""
    steps = []
    for own, at in enumerate((nodes.first, nodes.second)):
        source = at / f"own-{number}-{own}"
        source.write_bytes(b"")
        steps.append(lambda source=source, at=at: os.link(source, at / f"result-{number}"))
    return _race(*steps)


def _links_between(nodes: Nodes) -> bool:
    (nodes.first / "other").mkdir()
    (nodes.first / "source").write_bytes(b"")
    try:
        os.link(nodes.first / "source", nodes.first / "other" / "name")
    except OSError:
        return False
    return True


def _excludes(nodes: Nodes) -> bool:
    with open(nodes.first / "lock", "w") as ours, open(nodes.second / "lock", "r+") as theirs:
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _until(is_seen: Callable[[], bool]) -> float:
    began = time.perf_counter()
    while not is_seen():
        if time.perf_counter() - began > _PATIENCE:
            raise TimeoutError("the other node does not see it")
        time.sleep(_POLL)
    return time.perf_counter() - began


def _until_listed(nodes: Nodes, number: int) -> float:
    name = f"listed-{number}"
    assert name not in list_names(nodes.second)
    (nodes.first / name).write_bytes(b"")
    return _until(lambda: name in list_names(nodes.second))


def _until_found(nodes: Nodes, number: int) -> float:
    name = f"found-{number}"
    assert not (nodes.second / name).exists()
    (nodes.first / name).write_bytes(b"")
    return _until(lambda: (nodes.second / name).exists())


def _until_modified(nodes: Nodes, number: int) -> float:
    ours, theirs = _replaced(nodes, f"modified-{number}")
    before = answered(theirs.stat).st_mtime_ns
    with contextlib.suppress(OSError):
        write_atomically(ours, b"second")
    return _until(lambda: answered(theirs.stat).st_mtime_ns != before)


def _until_read(nodes: Nodes, number: int) -> float:
    ours, theirs = _replaced(nodes, f"read-{number}")
    with contextlib.suppress(OSError):
        write_atomically(ours, b"second")
    return _until(lambda: answered(theirs.read_bytes) == b"second")


def _replaced(nodes: Nodes, name: str) -> tuple[Path, Path]:
    """A file that the second node has read, as the two nodes see it."""
    (nodes.first / name).write_bytes(b"first")
    _until(lambda: name in list_names(nodes.second))
    assert answered((nodes.second / name).read_bytes) == b"first"
    return nodes.first / name, nodes.second / name
