"""Runs whose controller is on a login host, followed from a laptop; batches on several machines."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from laptop import EXPERIMENT, SNAKEFILE
from laptop import Laptop as AnyLaptop
from ssh_host import SshHost
from support import git, wait_until, write

from snakemake_kochi.detached.launches import Found, all_launches
from snakemake_kochi.paths import Root


@dataclass
class Laptop(AnyLaptop):
    """With two machines behind login hosts."""

    hosts: dict[str, SshHost]
    go: Path

    @property
    def begun(self) -> set[str]:
        return {path.name.removeprefix("go.") for path in self.go.parent.glob("go.*")}

    def launches(self, machine: str) -> list[Found]:
        return list(all_launches(Root(self.hosts[machine].root).machine(machine)))


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    go = tmp_path / "go"
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("KOCHI_ROOT", str(tmp_path / "root"))
    top = tmp_path / "fib"
    git(tmp_path, "init", "-q", "--initial-branch=main", str(top))
    with ExitStack() as stack:
        hosts = {}
        for name in ("spica", "vega"):
            host = SshHost(name, tmp_path, variables={"GO": str(go)})
            hosts[name] = stack.enter_context(host)
            host.use(monkeypatch)
        sections = [host.machine().removeprefix("machines:\n") for host in hosts.values()]
        write(top / "kochi.yaml", "machines:\n" + "".join(sections))
        write(top / "wait.yaml", EXPERIMENT.replace("MACHINES", "spica, vega"))
        write(top / ".gitignore", "/results/\n/.snakemake/\n")
        git(top, "add", ".")
        git(top, "commit", "-q", "-m", "first")
        laptop = Laptop(top, hosts, go)
        yield laptop
        go.touch()
        for host in hosts.values():
            machine = Root(host.root).machine(host.name)
            wait_until(lambda machine=machine: all(each.is_over for each in all_launches(machine)))


def test_a_batch_runs_there_and_its_status_and_results_come_home(laptop: Laptop) -> None:
    assert laptop.kochi("artifact", "init", "../collected").returncode == 0
    laptop.go.touch()
    done = laptop.kochi("batch", "-m", "spica", "wait.yaml", "test")
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("Launched ") and " on spica, output there: " in first
    assert "5 of 5 steps (100%) done" in rest
    assert "kochi launch -m spica --follow" in done.stderr
    log = laptop.top.parent / "collected/spica/wait/2.log"
    assert "time 2\n" in log.read_text()
    assert git(laptop.top, "status", "--porcelain") == ""
    again = laptop.kochi("batch", "-m", "spica", "wait.yaml", "test")
    assert "Nothing to be done" in again.stdout
    failing = (laptop.top / "wait.yaml").read_text().replace("echo", "exit 3; echo")
    (laptop.top / "wait.yaml").write_text(failing)
    failed = laptop.kochi("batch", "-m", "spica", "wait.yaml", "test")
    assert failed.returncode == 1
    assert "see: kochi show log job -m spica " in failed.stdout
    # Nothing was run, so nothing comes home after the message.
    wrong = laptop.kochi("batch", "-m", "spica", "wait.yaml", "tset")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.endswith("there is no batch 'tset', did you mean 'test'?\n")
    listed = laptop.kochi("show", "runs", "-m", "spica")
    assert [line.split()[1] for line in listed.stdout.splitlines()[2:]] == [
        "failed:",
        "done",
        "done",
    ]


def test_a_run_has_the_files_of_its_launch_and_its_results_are_run_again_from_here(
    laptop: Laptop,
) -> None:
    assert laptop.kochi("artifact", "init", "../collected").returncode == 0
    laptop.go.touch()
    assert laptop.kochi("batch", "-m", "spica", "--launch", "wait.yaml", "test").returncode == 0
    # Whatever is sent after it.
    changed = (laptop.top / "wait.yaml").read_text().replace("echo", "exit 3; echo")
    (laptop.top / "wait.yaml").write_text(changed)
    assert laptop.kochi("run", "-m", "spica", "--", "true").returncode == 0
    assert laptop.kochi("launch", "-m", "spica", "--follow").returncode == 0
    log = laptop.top.parent / "collected/spica/wait/1.log"
    assert "time 1\n" in log.read_text()
    git(laptop.top, "checkout", "-q", "wait.yaml")
    traced = laptop.kochi("trace", "-m", "spica")
    assert traced.returncode == 0, traced.stderr
    assert [each for each in json.loads(traced.stdout)["traceEvents"] if each["ph"] == "X"]
    again = laptop.kochi("rerun", "-m", "spica", "results/spica/wait/1.log")
    assert again.returncode == 0, again.stderr
    compared = laptop.kochi("reproduce", "-m", "spica", "results/spica/wait/2.log")
    assert compared.returncode == 0, compared.stderr
    for command in ("rerun", "reproduce"):
        wrong = laptop.kochi(command, "-m", "spica", "results/spica/wait/3.log")
        assert wrong.returncode == 1
        assert wrong.stderr.startswith("kochi: ") and "Traceback" not in wrong.stderr


def test_the_run_goes_on_without_the_laptop_and_the_same_line_follows_it(laptop: Laptop) -> None:
    line = ("batch", "-m", "spica", "wait.yaml", "test")
    process = laptop.start(*line)
    wait_until(lambda: laptop.begun == {"spica.1", "spica.2"})
    process.kill()
    process.communicate()
    process = laptop.start(*line)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("This batch runs already, launched at ")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The run goes on on spica. To follow it again, type: kochi launch -m spica" in err
    (found,) = laptop.launches("spica")
    assert found.state == "running"
    status = laptop.kochi("launch", "-m", "spica", "--status")
    assert "State: running" in status.stdout
    other = laptop.kochi("launch", "-m", "spica", "--", "another")
    assert other.returncode == 1
    assert "to stop it: kochi launch -m spica --stop" in other.stderr
    joining = laptop.start(*line)
    assert joining.stdout is not None
    assert joining.stdout.readline().startswith("This batch runs already, launched at ")
    laptop.go.touch()
    out, err = joining.communicate(timeout=120)
    assert joining.returncode == 0
    assert "5 of 5 steps (100%) done" in out
    assert "type: kochi artifact init DIR && kochi artifact sync -m spica" in err


def test_a_run_there_is_stopped_from_here(laptop: Laptop) -> None:
    write(laptop.top / "Snakefile", SNAKEFILE)
    begun = laptop.kochi("launch", "-m", "spica", "--", "out")
    assert begun.returncode == 0
    assert "to stop it: kochi launch -m spica --stop" in begun.stderr
    wait_until(lambda: laptop.begun == {"rule"})
    refused = laptop.kochi("launch", "-m", "spica", "--", "other")
    assert "a run launched in this directory goes on" in refused.stderr
    assert "kochi launch -m spica --follow" in refused.stderr
    assert refused.returncode == 1
    stopped = laptop.kochi("launch", "-m", "spica", "--stop")
    assert "has ended." in stopped.stdout
    assert "kochi launch -m spica --stop" in stopped.stderr
    for command in ("launch", "show runs"):
        followed = laptop.kochi(*command.split(), "-m", "spica", "--follow")
        assert followed.returncode != 0
        assert "Building DAG of jobs" in followed.stdout


def test_the_options_of_a_run_that_is_followed_at_once_are_those_that_were_typed(
    laptop: Laptop,
) -> None:
    write(laptop.top / "Snakefile", SNAKEFILE)
    laptop.go.touch()
    for _ in range(2):
        # The last -f is one of Snakemake's: the second time, too, the rule is executed.
        done = laptop.kochi("launch", "-fm", "spica", "--name", "-f", "--", "out", "-f")
        assert done.returncode == 0
        assert "1 of 1 steps (100%) done" in done.stdout
    assert {each.launch.name for each in laptop.launches("spica")} == {"-f"}
    shown = laptop.kochi("show", "runs", "--stop", "-m", "spica")
    assert "has ended already" in shown.stdout


def test_one_line_runs_a_batch_on_two_machines_and_makes_one_table(laptop: Laptop) -> None:
    assert laptop.kochi("artifact", "init", "../collected").returncode == 0
    laptop.go.touch()
    done = laptop.kochi("batch", "wait.yaml", "test")
    assert done.returncode == 0, done.stderr
    for machine in ("spica", "vega"):
        assert "5 of 5 steps (100%) done" in done.stdout
        assert (laptop.top.parent / f"collected/{machine}/wait/1.log").exists()
    with (laptop.top / "results/plots/wait/test.csv").open() as file:
        rows = [(row["machine"], row["n"], row["run_machine"]) for row in csv.DictReader(file)]
    assert rows == [(name, n, name) for name in ("spica", "vega") for n in ("1", "2")]
    assert (laptop.top / "results/plots/wait/test.png").exists()


def test_a_machine_that_is_away_does_not_hold_up_the_other(laptop: Laptop) -> None:
    laptop.hosts["vega"].stop()
    laptop.go.touch()
    done = laptop.kochi("batch", "wait.yaml", "test")
    assert done.returncode == 75
    assert "vega is away. What was begun there goes on." in done.stderr
    assert "spica | 5 of 5 steps (100%) done" in done.stdout
    vega = laptop.hosts["vega"]
    vega.start(vega.port)
    later = laptop.kochi("batch", "wait.yaml", "test")
    assert later.returncode == 0, later.stderr
    assert "vega  | 5 of 5 steps (100%) done" in later.stdout
    assert "spica | Nothing to be done" in later.stdout
    table = laptop.kochi("table", "wait.yaml", "test")
    assert table.stdout.count("vega |") == 2
