"""The next run in a directory adopts the jobs of a killed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from run_helpers import background, our_processes, results
from support import (
    cancel_orders,
    job_of_run,
    open_runs,
    wait_until,
    write,
)

RUN = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "8")
IN_QUEUE = (*RUN, "--kochi-queue", "q")
AGAIN = (*IN_QUEUE, "--rerun-incomplete")

# Each job notes its start, waits for `go-<name>`, and fails if another job writes beside it.
STEP = (
    "mkdir {wildcards.name}.writer || echo >> trouble; echo >> {wildcards.name}.starts;"
    "until [ -e go-{wildcards.name} ]; do sleep 0.1; done;"
    "rmdir {wildcards.name}.writer; cat {input} > {output}"
)
TWO = f"""
    rule all:
        input: "a.txt", "b.txt"
    rule one:
        input: "in.txt"
        output: "{{name}}.txt"
        wildcard_constraints: name="[ab]"
        shell: "{STEP}"
    rule other:
        output: "c.txt"
        shell: "echo > {{output}}"
    """


def machine() -> Path:
    return Path(os.environ["KOCHI_ROOT"]) / "machines" / "local"


def starts(directory: Path) -> dict[str, int]:
    return {path.stem: len(path.read_text()) for path in sorted(directory.glob("*.starts"))}


@contextmanager
def worker(directory: Path, cores: int = 4) -> Iterator[subprocess.Popen[str]]:
    work = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "q", "-b")
    with background(*work, "--cores", str(cores), cwd=directory) as process:
        yield process
        # In order: it would leave a supervisor of its jobs, or their files, to the next test.
        process.terminate()
        process.wait(30)


def kill_when(condition: Callable[[], Any], directory: Path, *command: str) -> None:
    """Run a controller until something is so, then kill it and remove Snakemake's own lock."""
    with background(*command, cwd=directory) as controller:
        wait_until(lambda: condition() or controller.poll() is not None)
        assert controller.poll() is None, "it ended by itself"
        controller.kill()
        controller.wait()
    for lock in (directory / ".snakemake" / "locks").iterdir():
        lock.unlink()


def let_go(directory: Path, *names: str) -> None:
    """Let jobs end, and wait until they have."""
    before = len(results())
    for name in names:
        (directory / f"go-{name}").touch()
    wait_until(lambda: len(results()) == before + len(names))


@pytest.fixture
def two(tmp_path: Path) -> Path:
    write(tmp_path / "Snakefile", TWO)
    write(tmp_path / "in.txt", "input\n")
    return tmp_path


def read_until(controller: subprocess.Popen[str], words: str) -> str:
    assert controller.stdout is not None
    output = ""
    while words not in output:
        line = controller.stdout.readline()
        assert line, output
        output += line
    return output


@pytest.mark.compatibility
def test_running_jobs_are_adopted_and_ended_jobs_are_not_repeated(
    two: Path, snakemake: Any
) -> None:
    with worker(two):
        kill_when(lambda: starts(two) == {"a": 1, "b": 1}, two, *IN_QUEUE)
        # One at a time: the other one ends while it is still to be asked for.
        with background(*AGAIN, "--jobs", "1", cwd=two) as controller:
            output = read_until(controller, "still runs")
            first, second = ("a", "b") if "output: a.txt" in output else ("b", "a")
            let_go(two, second)
            (two / f"go-{first}").touch()
            output += controller.communicate(timeout=60)[0]
        print(output)
        assert controller.returncode == 0
        assert "It left 2 running and 0 finished kochi jobs" in output
        assert output.count("still runs and is not started again") == 1
        assert output.count("has finished and is not started again") == 1
        assert starts(two) == {"a": 1, "b": 1}
        assert (two / "b.txt").read_text() == "input\n"
        assert open_runs(machine()) == []
        assert "Nothing to be done" in snakemake("-n", cwd=two).stdout


def test_a_result_whose_delivery_was_read_but_not_reported_is_adopted(two: Path) -> None:
    with worker(two):
        kill_when(lambda: starts(two) == {"a": 1, "b": 1}, two, *IN_QUEUE)
        with background(*AGAIN, "--jobs", "1", cwd=two) as controller:
            output = read_until(controller, "still runs")
            first, second = ("a", "b") if "output: a.txt" in output else ("b", "a")
            let_go(two, second)
            # What the dead run was told is kept as long as it may be needed.
            kept = "runs/2/jobs.jsonl"
            wait_until(lambda: any(path.read_bytes() for path in machine().glob(kept)))
            controller.kill()
            controller.wait()
        for lock in (two / ".snakemake" / "locks").iterdir():
            lock.unlink()
        with background(*AGAIN, cwd=two) as controller:
            (two / f"go-{first}").touch()
            output = controller.communicate(timeout=60)[0]
        print(output)
        assert controller.returncode == 0
    assert starts(two) == {"a": 1, "b": 1}


def test_an_output_that_was_touched_is_made_again(two: Path) -> None:
    with worker(two):
        kill_when(lambda: starts(two) == {"a": 1, "b": 1}, two, *IN_QUEUE)
        with background(*AGAIN, "--jobs", "1", cwd=two) as controller:
            output = read_until(controller, "still runs")
            first, second = ("a", "b") if "output: a.txt" in output else ("b", "a")
            let_go(two, second)
            (two / f"{second}.txt").touch()
            (two / f"go-{first}").touch()
            output += controller.communicate(timeout=60)[0]
        print(output)
        assert controller.returncode == 0
    assert starts(two) == {first: 1, second: 2}


def test_jobs_outlive_two_controllers_and_are_reported_to_the_third(two: Path) -> None:
    with worker(two):
        kill_when(lambda: starts(two) == {"a": 1, "b": 1}, two, *IN_QUEUE)
        (first,) = open_runs(machine())
        adopted = (first.parent / "own.2").exists
        kill_when(adopted, two, *AGAIN)
        let_go(two, "a")
        with background(*AGAIN, cwd=two) as controller:
            output = read_until(controller, "still runs")
            (two / "go-b").touch()
            output += controller.communicate(timeout=60)[0]
        print(output)
        assert controller.returncode == 0
    assert "It left 1 running and 1 finished kochi jobs" in output
    assert starts(two) == {"a": 1, "b": 1}
    assert open_runs(machine()) == []


def edit_snakefile(directory: Path) -> None:
    with (directory / "Snakefile").open("a") as stream:
        stream.write("\n# a comment\n")


def change_input_of_b(directory: Path) -> None:
    write(directory / "b.in", "changed\n")


@pytest.mark.parametrize(
    ("change", "options"),
    [(edit_snakefile, ()), (change_input_of_b, ("--forcerun", "a.txt"))],
    ids=["Snakefile", "forced and input"],
)
def test_a_running_job_whose_rule_has_changed_ends_before_the_new_job_starts(
    two: Path, change: Callable[[Path], None], options: tuple[str, ...]
) -> None:
    for name in "ab":
        write(two / f"{name}.in", "input\n")
    write(two / "Snakefile", TWO.replace('"in.txt"', '"{name}.in"'))
    with worker(two):
        kill_when(lambda: starts(two) == {"a": 1, "b": 1}, two, *IN_QUEUE)
        change(two)
        for name in "ab":
            (two / f"{name}.writer").rmdir()  # a job that is ended does not come to do it
        with background(*AGAIN, *options, cwd=two) as controller:
            wait_until(lambda: starts(two) == {"a": 2, "b": 2})
            assert [result["reason"] for result in results()] == ["cancelled"] * 2
            for name in "ab":
                (two / f"go-{name}").touch()
            output = controller.communicate(timeout=60)[0]
        print(output)
        assert controller.returncode == 0
    assert not (two / "trouble").exists()
    assert "they write the same files" in output


def test_an_orphaned_job_that_is_not_needed_continues_and_is_named_and_kept_for_a_later_run(
    two: Path, snakemake: Any
) -> None:
    with worker(two):
        kill_when(lambda: starts(two) == {"a": 1, "b": 1}, two, *IN_QUEUE)
        (two / "go-a").touch()
        done = snakemake(*AGAIN[3:], "a.txt", "c.txt", cwd=two)
        assert done.returncode == 0
        assert "Jobs of a killed run still run, and this run did not need them" in done.stdout
        assert "kochi cancel " in done.stdout
        (two / "go-b").touch()
        assert snakemake(*AGAIN[3:], cwd=two).returncode == 0
    assert starts(two) == {"a": 1, "b": 1}
    assert open_runs(machine()) == []


def test_jobs_of_the_workers_of_a_killed_run_are_repeated_after_their_end(two: Path) -> None:
    kill_when(lambda: starts(two) == {"a": 1, "b": 1}, two, *RUN)
    for name in "ab":
        (two / f"{name}.writer").rmdir()
    with background(*RUN, "--rerun-incomplete", cwd=two) as controller:
        wait_until(lambda: starts(two) == {"a": 2, "b": 2})
        for name in "ab":
            (two / f"go-{name}").touch()
        output = controller.communicate(timeout=60)[0]
    print(output)
    assert controller.returncode == 0
    assert not (two / "trouble").exists()
    assert open_runs(machine()) == [] == list(machine().glob("queues/*"))
    wait_until(lambda: our_processes() == [])


def test_jobs_of_rules_with_any_feature_are_adopted(tmp_path: Path, snakemake: Any) -> None:
    write(
        tmp_path / "Snakefile",
        f"""
        rule all:
            input: "p.done", "g2.txt", "s.out"
        rule t:
            output: temp("{{name}}.tmp")
            wildcard_constraints: name="t"
            shell: "{STEP.replace("cat {input}", "echo t")}"
        rule p:
            input: "t.tmp"
            output: protected("{{name}}.done")
            wildcard_constraints: name="p"
            params: factors=[1, 2], names={{"x": "y"}}
            shell: "{STEP}"
        rule g1:
            output: temp("{{name}}1.txt")
            group: "g"
            wildcard_constraints: name="g"
            shell: "{STEP.replace("cat {input}", "echo g")}"
        rule g2:
            input: "{{name}}1.txt"
            output: "{{name}}2.txt"
            group: "g"
            wildcard_constraints: name="g"
            shell: "cat {{input}} > {{output}}"
        rule s:
            output: "{{name}}.out"
            wildcard_constraints: name="s"
            script: "script.py"
        """,
    )
    write(
        tmp_path / "script.py",
        """
        import pathlib, time
        with open("s.starts", "a") as stream:
            print(file=stream)
        while not pathlib.Path("go-s").exists():
            time.sleep(0.05)
        pathlib.Path(snakemake.output[0]).write_text("s")
        """,
    )
    (tmp_path / "go-t").touch()
    with worker(tmp_path):
        once = {"g": 1, "p": 1, "s": 1, "t": 1}
        kill_when(lambda: starts(tmp_path) == once, tmp_path, *IN_QUEUE)
        with background(*AGAIN, cwd=tmp_path) as controller:
            read_until(controller, "still runs")
            let_go(tmp_path, "g", "p", "s")
            output = controller.communicate(timeout=60)[0]
        print(output)
    assert controller.returncode == 0
    assert starts(tmp_path) == once
    assert not (tmp_path / "t.tmp").exists() and not (tmp_path / "g1.txt").exists()
    assert not os.stat(tmp_path / "p.done").st_mode & 0o222
    assert "Nothing to be done" in snakemake("-n", cwd=tmp_path).stdout


def test_the_next_run_waits_for_a_job_that_outlives_its_cancelled_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule one:
            output: "a.txt"
            shell:
                "mkdir a.writer || echo >> trouble; echo >> a.starts;"
                "until [ -e go-a ]; do sleep 0.1; done; touch a.txt"
        """,
    )
    # Of the worker: its supervisor waits for six of them.
    monkeypatch.setenv("KOCHI_HEARTBEAT", "60")
    with worker(tmp_path):
        monkeypatch.delenv("KOCHI_HEARTBEAT")
        with background(*IN_QUEUE, cwd=tmp_path) as controller:
            wait_until(lambda: starts(tmp_path) == {"a": 1})
            # As one whose node hangs.
            (state,) = machine().glob("workers/*/worker.json")
            # Of its supervisor, with tickets: nobody else can end the job.
            pid = json.loads(state.read_text())["process"]["pid"]
            os.kill(pid, signal.SIGSTOP)
            controller.send_signal(signal.SIGINT)
            wait_until(lambda: cancel_orders(machine()))
            controller.send_signal(signal.SIGINT)
            output = controller.communicate(timeout=60)[0]
        print(output)
        assert f"Cancelled, but not ended yet: kochi jobs {job_of_run(0)}" in output
        assert results() == []
        assert len(open_runs(machine())) == 1
        with background(*AGAIN, cwd=tmp_path) as controller:
            said = "still runs"
            output = read_until(controller, said)
            os.kill(pid, signal.SIGCONT)
            wait_until(results, "it is cancelled, and not adopted")
            assert starts(tmp_path) == {"a": 1}
            (tmp_path / "a.writer").rmdir()
            (tmp_path / "go-a").touch()
            output += controller.communicate(timeout=60)[0]
        print(output)
        assert controller.returncode == 0
        assert starts(tmp_path) == {"a": 2}
        assert not (tmp_path / "trouble").exists()
        assert open_runs(machine()) == []
