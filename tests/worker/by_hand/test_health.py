"""A worker on a node on which everything fails is set aside; the failures do not count."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from snakemake_kochi.queue.views import find_worker
from tests.worker.by_hand.conftest import Site

Mount = Callable[[Path, str], Path]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts an empty filesystem of a size such as "64k" on a directory."""
    mounted: list[Path] = []

    def make(directory: Path, size: str) -> Path:
        directory.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={size},mode=700", "kochi-test"]
        subprocess.run(["mount", *options, str(directory)], check=True)
        mounted.append(directory)
        return directory

    yield make
    for directory in mounted:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Fill a filesystem; return the file that takes the space."""
    path = directory / "fill"
    for size in (1 << 16, 1 << 10, 1):
        with path.open("ab", buffering=0) as stream:
            try:
                while stream.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return path


def test_a_removed_directory_is_not_the_nodes_fault(site: Site) -> None:
    site.submit("", directory=site.directory / "removed" / "below")
    site.submit("true")
    assert site.start(cores=1).wait() == 0
    assert site.job(0).result.exit_status == 126  # type: ignore[union-attr]
    assert site.job(1).result.ok  # type: ignore[union-attr]


def test_the_removed_last_entry_of_a_directory_is_not_the_nodes_fault(site: Site) -> None:
    place = site.directory / "experiments"
    (place / "one").mkdir(parents=True)
    site.submit("true", directory=place / "one")
    site.submit("true")
    (place / "one").rmdir()
    assert site.start(cores=1).wait() == 0
    assert [site.job(n).result.describe() for n in (0, 1)] == ["exit status 126", "succeeded"]  # type: ignore[union-attr]


def test_a_worker_goes_on_while_jobs_fail_everywhere(site: Site) -> None:
    site.submit(*["exit 1"] * 15)
    assert site.start(cores=1).wait() == 0
    assert [site.job(n).result.describe() for n in range(15)] == ["exit status 1"] * 15  # type: ignore[union-attr]
    assert find_worker(site.machine, 1).failed == 15
