"""What all tests share: a home and a KOCHI_ROOT of their own, and ways to run the real commands."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
import pytest_timeout
import support
from slurm_cluster import SlurmCluster
from support import PROGRAMS, PYTHON_PATH, run

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.tickets.ticket import Ticket

Run = Callable[..., subprocess.CompletedProcess[str]]

# The directories whose modules take longest. Begun last, each would run alone at the end.
_FIRST = (
    *("conformance", "workflow", "faults", "bench", "docs", "executor", "remote", "terminal"),
    *("worker", "cli", "snapshot"),
)
# The directory whose modules mostly wait. Side by side, they would leave the processors idle.
_WAITING = "slurm"
_BETWEEN = 3  # modules that compute, between two that wait

# The directories whose tests have a real cluster, terminal or network, as have those that use this
# fixture.
_REAL = ("remote", "slurm", "terminal")
_REAL_FIXTURE = "slurm"

# Seconds after which a test is said to hang. None takes half as long on two busy cores; the first
# of those that share a finished project waits until it has been made.
_LIMIT = 400
_REAL_LIMIT = 480
_TEARDOWN_LIMIT = 120

# A shell that starts the tests in the background makes them ignore these signals. Every process
# that they start would ignore them, too, and no interrupt would reach it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup


# Some thousand processes would compile the same modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--executor",
        choices=("local", "kochi"),
        default="local",
        help="the executor of those runs of the rule library for which a test names none: with "
        "local, each phase is a process of its own, with kochi a copy of one",
    )


def pytest_configure(config: pytest.Config) -> None:
    support.default_executor = config.getoption("--executor")
    # Each process is a computer of its own, also for fixtures that several tests share: else the
    # exclusive jobs of all of them would take turns.
    os.environ["KOCHI_NODE_LOCK"] = tempfile.mkdtemp(prefix="kochi-lock-")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Directories with the longest tests come first; the order within a module stays. Modules that
    wait are spread among those that compute. Each test gets the limit of its tier."""
    for item in items:
        is_real = item.path.parent.name in _REAL or _REAL_FIXTURE in getattr(
            item, "fixturenames", ()
        )
        item.add_marker(pytest.mark.timeout(_REAL_LIMIT if is_real else _LIMIT))
        if is_real:
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.flaky(reruns=1))

    def order(item: pytest.Item) -> int:
        directory = item.path.parent.name
        return _FIRST.index(directory) if directory in _FIRST else len(_FIRST)

    waiting: dict[Path, list[pytest.Item]] = {}
    computing: dict[Path, list[pytest.Item]] = {}
    for item in sorted(items, key=order):
        modules = waiting if item.path.parent.name == _WAITING else computing
        modules.setdefault(item.path, []).append(item)
    columns = [list(computing.values())[first::_BETWEEN] for first in range(_BETWEEN)]
    rows = zip_longest(*columns, waiting.values(), fillvalue=[])
    items[:] = [item for row in rows for module in row for item in module]


def pytest_collection_finish() -> None:
    """What was collected stays: to look for garbage in it costs each process, and each fork of a
    test, as much as some tests."""
    gc.collect()
    gc.freeze()


def limit(item: pytest.Item, seconds: float) -> None:
    settings = pytest_timeout.Settings(seconds, "signal", False, False)
    item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A repetition has the limit of its test, not what its first teardown has left."""
    if getattr(item, "execution_count", 1) > 1:
        limit(item, _REAL_LIMIT)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The teardown has a limit of its own: after a failed test, pytest-timeout has ended its."""
    limit(item, _TEARDOWN_LIMIT)


def pytest_unconfigure() -> None:
    PROGRAMS.close()
    shutil.rmtree(os.environ["KOCHI_NODE_LOCK"], ignore_errors=True)


@pytest.fixture(autouse=True)
def isolated_environment(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """An empty HOME and a fresh KOCHI_ROOT: nothing of the user's is read or written."""
    base = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(("KOCHI_", "GIT_", "SNAKEMAKE_", "XDG_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(base))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = base / "kochi-root"
    monkeypatch.setenv("KOCHI_ROOT", str(root))
    monkeypatch.setenv("KOCHI_SITE_CONF", "")
    # Exclusive jobs of other tests, which run at the same time, do not count.
    monkeypatch.setenv("KOCHI_NODE_LOCK", str(base))
    # Or each plot would begin with a search for fonts.
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path_factory.getbasetemp() / "matplotlib"))
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{PYTHON_PATH}{os.pathsep}{path}" if path else PYTHON_PATH)
    return root


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """The one Slurm of this process: use `cluster`."""
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, slurm: SlurmCluster) -> SlurmCluster:
    """A Slurm without jobs, of two nodes with two cores, or with what a module says in SLURM:
    arguments of SlurmCluster."""
    slurm.reset(**getattr(request.module, "SLURM", {}))
    return slurm


@pytest.fixture
def snakemake() -> Run:
    """Run snakemake with arguments in a directory (`cwd=`); the output has both streams."""

    def call(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return run(sys.executable, "-m", "snakemake", *arguments, **options)  # type: ignore[arg-type]

    return call


@pytest.fixture
def kochi() -> Run:
    """Run kochi with arguments in a directory (`cwd=`)."""

    def call(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return run(sys.executable, "-m", "snakemake_kochi.cli", *arguments, **options)  # type: ignore[arg-type]

    return call


@pytest.fixture
def machine(tmp_path: Path) -> MachinePaths:
    return Root(tmp_path / "root").machine("local")


@pytest.fixture
def ticket(tmp_path: Path) -> Callable[..., Ticket]:
    def make(name: str = "job", **fields: object) -> Ticket:
        given = {"command": ("true",), "directory": str(tmp_path), **fields}
        return Ticket(name=name, **given)  # type: ignore[arg-type]

    return make
