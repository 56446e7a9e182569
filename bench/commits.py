"""How many results per second reach the artifact branch?

`python -m bench.commits REPOSITORY ROOT NAME COUNT` is one of several committing processes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench.measure import REPOSITORY, Row, Size
from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal, pending
from snakemake_kochi.artifacts.published import branch_called, published_name
from snakemake_kochi.paths import ProjectPaths, Root

_MACHINE = "local"
_AT_ONCE = 4


def measure(directory: Path, size: Size) -> list[Row]:
    """A result is a file of one line and its record.

    Raises RuntimeError if results are missing in the branch afterwards.
    """
    count, runs = size.number(1000, 20), size.runs(5)
    together: list[float] = []
    alone: list[float] = []
    several: list[float] = []
    journaled: list[float] = []
    for run in range(runs):
        for into, measurement in ((together, _together), (alone, _alone), (several, _several)):
            own = directory / f"{measurement.__name__}-{run}"
            seconds = measurement(own, count, journaled)
            _check(own, count)
            into.append(count / seconds)
    return [
        Row(f"journaling {count:,} results one by one", journaled, "1/s"),
        Row("committing all journaled results at once", together, "1/s"),
        Row("journaling and committing one by one", alone, "1/s"),
        Row(f"{_AT_ONCE} processes that journal and commit one by one", several, "1/s"),
    ]


def _together(directory: Path, count: int, journaled: list[float]) -> float:
    repository, root = _repository(directory)
    paths = root.project(repository)
    began = time.perf_counter()
    for number in range(count):
        _journal(directory / "work", paths, f"result{number}")
    journaled.append(count / (time.perf_counter() - began))
    began = time.perf_counter()
    commit_pending(repository, paths, _MACHINE)
    return time.perf_counter() - began


def _alone(directory: Path, count: int, _: list[float]) -> float:
    repository, root = _repository(directory)
    began = time.perf_counter()
    _produce(repository, root, "result", count)
    return time.perf_counter() - began


def _several(directory: Path, count: int, _: list[float]) -> float:
    """The seconds from the release of the processes, after their imports, to the last exit."""
    repository, root = _repository(directory)
    command = [sys.executable, "-m", "bench.commits", str(repository), str(root.directory)]
    shares = [len(range(first, count, _AT_ONCE)) for first in range(_AT_ONCE)]
    processes = [
        subprocess.Popen(
            [*command, f"p{number}-", str(share)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number, share in enumerate(shares)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    began = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    statuses = [process.wait() for process in processes]
    if any(statuses):
        raise RuntimeError("a committing process failed")
    seconds = time.perf_counter() - began
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    return seconds


def _produce(repository: Path, root: Root, name: str, count: int) -> None:
    """Journal and commit results one by one, as runs that end one after the other do."""
    paths = root.project(repository)
    for number in range(count):
        _journal(repository.parent / "work", paths, f"{name}{number}")
        commit_pending(repository, paths, _MACHINE)


def _journal(work: Path, paths: ProjectPaths, identity: str) -> None:
    source = work / identity
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(f"{identity}\n")
    files = {f"bench/{identity}.log": source}
    journal(paths, _MACHINE, Result(identity, files, {"identity": identity, "exit_status": 0}))


def _repository(directory: Path) -> tuple[Path, Root]:
    repository = directory / "project"
    repository.mkdir(parents=True)
    _git(repository, "init", "--quiet")
    return repository, Root(directory / "root")


def _check(directory: Path, count: int) -> None:
    repository = directory / "project"
    left = pending(Root(directory / "root").project(repository), _MACHINE)
    branch = branch_called(published_name(repository, _MACHINE))
    names = _git(repository, "ls-tree", "-r", "--name-only", branch).splitlines()
    logs = sum(name.endswith(".log") for name in names)
    if left or (logs, len(names)) != (count, 2 * count):
        raise RuntimeError(
            f"{logs} of {count} results are in the branch, {len(left)} are in the journal"
        )


def _git(repository: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=repository, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def main() -> None:
    repository, root, name, count = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.read()
    _produce(Path(repository), Root(Path(root)), name, int(count))


if __name__ == "__main__":
    main()
