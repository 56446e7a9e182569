"""A project with a dependency, apart from whatever the computer has configured."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from seen import list_queues
from support import Outcome, git, run_apart, wait_until

from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.cli.main import run
from snakemake_kochi.paths import Root

COMMAND = [sys.executable, "-P", "-m", "snakemake_kochi.cli"]

KOCHI_YAML = """\
dependencies:
  tool:
    git: ../tool
    script: cp tool.sh "$KOCHI_INSTALL_PREFIX/tool"
    activate_script: export TOOL_IS=$KOCHI_RECIPE_TOOL
    recipes:
      - name: release
      - name: debug
      - {name: broken, script: 'echo trying; exit 3'}
  user:
    depends: [{name: tool, recipe: release}]
    script: "true"
    recipes: [{name: plain}]
"""
EXPERIMENT = """\
depends: [{name: tool, recipe: release}]
default_params: {n: 1, debug: 0}
default_name: fib
default_queue: fib-queue
batches:
  test:
    params: {n: [1, 2]}
    artifacts: [{type: stdout, dest: "fib/${n}_${duplicate}.log"}]
build:
  depend_params: [debug]
  script: |
    echo Compiling with debug=$KOCHI_PARAM_DEBUG
    cat code > program
run:
  depend_params: [n]
  script: |
    sh program $KOCHI_PARAM_N
    exit $((KOCHI_PARAM_N == 13))
"""


def make_repository(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir()
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    git(directory, "init", "--quiet", "--initial-branch", "main")
    choose_name(directory, "local", "local")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", "first")
    return directory


@pytest.fixture(autouse=True)
def own_surroundings(
    isolated_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """An empty home, which is the working directory, and a KOCHI_ROOT beside it."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("KOCHI_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project beside the repository of what it depends on; the current directory."""
    make_repository(tmp_path / "tool", {"tool.sh": "echo the tool\n"})
    directory = make_repository(
        tmp_path / "proj",
        {
            "kochi.yaml": KOCHI_YAML,
            "fib.yaml": EXPERIMENT,
            "code": "echo fib of $1\n",
            "sub/data": "1\n",
            ".gitignore": "/results/\n/.snakemake/\n/ignored/\n",
        },
    )
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def installed(project: Path) -> Path:
    """The project with tool:release installed."""
    install("tool:release")
    return project


def install(text: str, again: bool = False) -> None:
    """As `kochi install`, but without the seconds that Snakemake takes to start."""
    from snakemake_kochi.phases.freeze import take_freeze
    from snakemake_kochi.phases.make import current_installs, install_recipe
    from snakemake_kochi.project.recipes import Requirement

    freeze = take_freeze(Path.cwd(), "local")
    requirement = Requirement.parse(text)
    *below, recipe = freeze.project.resolve([requirement], "local")
    install_recipe(freeze, recipe, current_installs(freeze.paths, freeze.machine, below), again)


@pytest.fixture
def kochi(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Type a command, in this process."""

    def type_command(*words: object) -> Outcome:
        capfd.readouterr()
        status = run(list(map(str, words)))
        return Outcome(status, *capfd.readouterr())

    return type_command


def type_outside(*words: object, cwd: Path | None = None, stdin: str = "") -> Outcome:
    """Type a command in a shell of its own, as those must that become another program."""
    done = run_apart(*COMMAND, *map(str, words), cwd=cwd, given=stdin)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def shell() -> Callable[..., Outcome]:
    return type_outside


@pytest.fixture
def work() -> Callable[..., str]:
    """Work on a queue until it is empty; returns what the worker's terminal shows."""

    def work_on(queue: str = "test") -> str:
        done = type_outside("work", "-q", queue)
        assert done.status == 0, done.err
        return done.out

    return work_on


@pytest.fixture
def worker() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start workers that stay; they are ended with the test."""
    started = []

    def start(queue: str = "test") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, "work", "-q", queue, "-b"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        number = int(process.stdout.readline().split()[2])
        machine = Root.find().machine("local")
        wait_until(lambda: any(number in view.workers for view in list_queues(machine)))
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.communicate()
