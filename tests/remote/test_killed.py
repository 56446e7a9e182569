"""The laptop is killed in the middle of each command: the next one like it goes on."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from seen import FIRST
from ssh_host import SshHost
from support import Process, git, run_apart, start, wait_until, write

from snakemake_kochi.detached.launches import Found, all_launches
from snakemake_kochi.paths import Root
from tests.terminal.conftest import PROMPT, Person

KOCHI = (sys.executable, "-m", "snakemake_kochi.cli")
# A program that stops when it is called with certain words, until it may go on.
STOPS = """
if [ -e {place}/stop ]; then
  case "$*" in *"$(cat {place}/stop)"*)
    touch {place}/stopped
    for i in $(seq 1200); do [ -e {place}/go ] && break; sleep 0.05; done
  esac
fi
"""
SLOW = """
script: |
  touch "$AT"; while [ ! -e "$GO" ]; do sleep 0.1; done
  mkdir -p "$KOCHI_INSTALL_PREFIX"; echo whole > "$KOCHI_INSTALL_PREFIX/file"
"""
EXPERIMENT = """
default_params: {n: 1}
batches:
  test:
    params: {n: [1, 2]}
    artifacts: [{type: stdout, dest: "one/${n}.log"}]
run:
  depend_params: [n]
  exclusive: false
  script: |
    while [ ! -e "$GO" ]; do sleep 0.1; done
    echo "n is $KOCHI_PARAM_N"
"""


@dataclass
class Laptop:
    """A laptop with a project for a machine behind a login host."""

    top: Path
    host: SshHost
    go: Path
    at: Path
    started: list[Process] = field(default_factory=list)

    def kochi(self, *words: str) -> str:
        """What a command prints that succeeds."""
        done = run_apart(*KOCHI, *words, cwd=self.top)
        print(f"$ kochi {shlex.join(words)}\n{done.stdout}{done.stderr}[{done.returncode}]")
        assert done.returncode == 0
        return done.stdout

    def start(self, *words: str) -> Process:
        """A command in a process group of its own."""
        with open(os.devnull, "wb") as nothing:
            process = start(*(*KOCHI, *words), cwd=self.top, output=nothing, start_new_session=True)
        self.started.append(process)
        return process

    def kill_at(self, side: str, call: str, *words: str) -> None:
        """Kill a command with all that it started here when a git, or kochi, that is called with
        certain words starts `there` or `here`."""
        place = self.place(side)
        (place / "stop").write_text(call)
        process = self.start(*words)
        stopped = place / "stopped"
        try:
            wait_until(lambda: stopped.exists() or process.poll() is not None, "it stops", 120)
            assert stopped.exists(), f"nothing is called with {call!r} {side}"
        finally:
            kill(process)
            (place / "go").touch()
        wait_until(lambda: self.launches() or not self.running(), "what it began there ends", 120)
        for name in ("stop", "stopped", "go"):
            (place / name).unlink(missing_ok=True)

    def place(self, side: str) -> Path:
        """Where programs of the laptop, or of the login host, are told to stop."""
        return self.host.home if side == "there" else self.host.laptop

    def running(self) -> list[str]:
        """What runs on the login host: the numbers of its processes."""
        home, found = f"HOME={self.host.home}".encode(), []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if home in file.read_bytes().split(b"\0"):
                    found.append(file.parent.name)
        return found

    def launches(self) -> list[Found]:
        return list(all_launches(Root(self.host.root).machine("spica")))

    def remains(self) -> list[Path]:
        """What git leaves when it is killed, here and there."""
        roots = (self.host.root, self.top, Path(os.environ["KOCHI_ROOT"]))
        every = [path for root in roots for path in root.rglob("*")]
        return [
            path
            for path in every
            if path.name.startswith(("tmp_objdir", "tmp_pack", ".fib."))
            or (path.suffix == ".lock" and {".git", "store.git"} & set(path.parts))
        ]


def kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # one that has begun only now is not in its group yet
    process.wait()


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    go, at = tmp_path / "go", tmp_path / "at"
    top = tmp_path / "fib"
    found = {"git": str(shutil.which("git"))}
    with SshHost("spica", tmp_path, variables={"GO": str(go), "AT": str(at)}) as host:
        host.use(monkeypatch)
        found["kochi"] = f"{sys.executable} -P -m snakemake_kochi.cli"
        for name, real in found.items():
            host.program(name, f'{STOPS.format(place=host.home)}\nexec {real} "$@"')
        own = write(
            host.laptop / "bin" / "git",
            f'#!/bin/sh\n{STOPS.format(place=host.laptop)}\nexec {found["git"]} "$@"\n',
        )
        own.chmod(0o755)
        write(host.home / ".bashrc", f"PS1='{PROMPT}'\nbind 'set enable-bracketed-paste off'\n")
        git(tmp_path, "init", "-q", "--initial-branch=main", str(top))
        top.mkdir(exist_ok=True)
        recipes = f"dependencies:\n  slow:\n{indented(SLOW)}    recipes: [{{name: release}}]\n"
        (top / "kochi.yaml").write_text(host.machine() + recipes)
        write(top / "one.yaml", EXPERIMENT)
        write(top / "data.txt", "one\n")
        write(top / ".gitignore", "/results/\n/.snakemake/\n")
        git(top, "add", ".")
        git(top, "commit", "-q", "-m", "first")
        write(top / "data.txt", "two\n")
        monkeypatch.chdir(top)
        laptop = Laptop(top, host, go, at)
        yield laptop
        for process in laptop.started:
            if process.poll() is None:
                kill(process)
        go.touch()
        (host.home / "go").touch()
        wait_until(lambda: all(each.is_over for each in laptop.launches()), "runs end")


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip().splitlines())


def test_a_job_is_submitted_after_kills_at_any_step(laptop: Laptop) -> None:
    line = ("enqueue", "-m", "spica", "-q", "mine", "--json", "-c", "--", "cat", "data.txt")
    for side, call in (
        ("there", "init --quiet"),  # nothing is there
        ("here", "write-tree"),  # of the snapshot
        ("here", "mktree"),  # of what is sent
        ("here", "send-pack"),
        ("there", "receive-pack"),
        ("here", "--others --ignored"),  # all has been sent
        ("there", "enqueue -m"),
        ("there", "read-tree --reset -u"),  # the files are made
        ("there", "write-tree"),  # of the freeze
    ):
        laptop.kill_at(side, call, *line)
    job = json.loads(laptop.kochi(*line))["job"]
    listed = json.loads(laptop.kochi("show", "jobs", "-m", "spica", "--json"))
    # Of a command that was killed there is a whole job, or none.
    assert job in [each["job"] for each in listed]
    assert all(each["state"] == "waiting" and each["queue"] == "mine" for each in listed)
    (project,) = laptop.host.root.glob("remote/projects/*/fib")
    assert (project / "data.txt").read_text() == "two\n"
    assert git(project, "status", "--porcelain") == " M data.txt\n"
    assert laptop.remains() == []


def test_an_installation_that_was_killed_is_made_by_the_next_call(laptop: Laptop) -> None:
    line = ("install", "-m", "spica", "-d", "slow:release")
    for _ in range(2):
        process = laptop.start(*line)
        wait_until(laptop.at.exists, "the script runs")
        laptop.at.unlink()
        kill(process)
        wait_until(lambda: not laptop.running(), "it ends there")
    laptop.go.touch()
    laptop.kochi(*line)
    show = ("sh", "-c", 'cat "$KOCHI_INSTALL_PREFIX_SLOW/file"')
    assert laptop.kochi("run", "-m", "spica", "-d", "slow:release", "--", *show) == "whole\n"


def test_a_run_is_launched_once_after_kills_before_and_after(laptop: Laptop) -> None:
    write(
        laptop.top / "Snakefile", 'rule out:\n    shell: "while [ ! -e $GO ]; do sleep 0.1; done"'
    )
    line = ("launch", "-m", "spica", "--", "out")
    for call in ("launch -m", "read-tree --reset -u", "rev-parse --show-toplevel"):
        if not laptop.launches():
            laptop.kill_at("there", call, *line)
    if not laptop.launches():
        laptop.kochi(*line)
    follow = laptop.start("launch", "-m", "spica", "--follow")
    assert "State: running" in laptop.kochi("launch", "-m", "spica", "--status")
    kill(follow)
    laptop.go.touch()
    laptop.kochi("launch", "-m", "spica", "--follow")
    (launch,) = laptop.launches()
    assert launch.state == "ended"


def test_a_batch_goes_on_after_a_kill_and_its_results_come_home_after_kills_at_any_step(
    laptop: Laptop,
) -> None:
    laptop.kochi("artifact", "init", "../collected")
    process = laptop.start("batch", "-m", "spica", "one.yaml", "test")
    wait_until(lambda: [each for each in laptop.launches() if each.state == "running"])
    kill(process)
    laptop.go.touch()
    # Whoever followed it would bring the results home.
    wait_until(lambda: all(each.is_over for each in laptop.launches()), "the run ends", 120)
    assert [each.state for each in laptop.launches()] == ["ended"]
    line = ("artifact", "sync", "-m", "spica")
    for side, call in (
        ("there", "artifact sync"),
        ("here", "fetch --quiet"),
        ("there", "upload-pack"),
        ("here", "update-ref refs/heads/kochi_artifacts_spica"),
        ("here", "merge --quiet"),
        ("here", "ls-tree -z --long"),  # of the files that get the results
    ):
        laptop.kill_at(side, call, *line)
    laptop.kochi(*line)
    for n in (1, 2):
        log = laptop.top.parent / f"collected/spica/one/{n}.log"
        assert f"n is {n}\n" in log.read_text()
    assert git(laptop.top, "status", "--porcelain") == " M data.txt\n"
    assert laptop.remains() == []


@pytest.fixture
def typing(laptop: Laptop) -> Iterator[Callable[..., Person]]:
    """Somebody who types a command."""
    people: list[Person] = []

    def begin(*words: str) -> Person:
        people.append(Person(*words))
        return people[-1]

    yield begin
    for each in people:
        each.child.close(force=True)


def test_an_interactive_job_ends_with_the_laptop_and_the_next_one_begins(
    laptop: Laptop, typing: Callable[..., Person]
) -> None:
    worker = typing("work", "-m", "spica", "-q", "test", "-b")
    worker.sees(f"Kochi worker {FIRST} started")
    line = ("interact", "-m", "spica", "-q", "test")
    for _ in range(2):
        someone = typing(*line)
        someone.sees(PROMPT)
        (shell,) = someone.asks("echo $$").split()
        os.killpg(someone.child.pid, signal.SIGKILL)
        someone.leaves()
        wait_until(lambda pid=int(shell): not psutil.pid_exists(pid), "the shell ends there")
    someone = typing(*line)
    someone.sees(PROMPT)
    someone.types("exit")
    assert someone.leaves()[0] == 0
    listed = json.loads(laptop.kochi("show", "jobs", "-m", "spica", "-t", "--json"))
    assert not [each for each in listed if each["state"] in ("running", "waiting")]
    worker.child.sendintr()
    worker.leaves()
