"""Runs that end by themselves, one after the other, or side by side, and their tickets."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from executor.run_helpers import background, our_processes
from support import Process, wait_until, write

from snakemake_kochi.paths import Root
from snakemake_kochi.tickets import history
from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.names import Layout, Name
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.settings import WorkerSettings, save_settings

OURS = ("--executor", "kochi", "--jobs", "8", "--kochi-cores", "2")
IN_QUEUE = (*OURS, "--kochi-queue", "mine")
AGAIN = ("--rerun-incomplete", "--nolock")

# Each job notes its start and waits for `go-<name>`.
STEPS = """
    rule all:
        input: "a.txt", "b.txt"
    rule one:
        output: "{name}.txt"
        shell:
            "echo >> {wildcards.name}.starts;"
            "until [ -e go-{wildcards.name} ]; do sleep 0.05; done; echo done > {output}"
    """


def run_of(*options: str, cwd: Path) -> AbstractContextManager[Process]:
    return background(sys.executable, "-m", "snakemake", *options, cwd=cwd)


def worker_of(queue: str, cwd: Path, cores: int = 2) -> AbstractContextManager[Process]:
    """A worker that outlives runs."""
    machine = Root.find().machine("local")
    Root.find().secure(machine.directory)
    settings = WorkerSettings(
        str(Root.find().directory), "local", queues=(queue,), cores=cores, stay=True
    )
    return background(*start_command(save_settings(settings)), cwd=cwd)


def read_to(run: Process, text: str) -> str:
    """What a run has said when it has said this."""
    assert run.stdout is not None
    said = ""
    while text not in said:
        line = run.stdout.readline()
        assert line, f"it ended: {said}"
        said += line
    return said


def layout() -> Layout:
    return Root.find().machine("local").layout


def ends() -> list[Name]:
    """How jobs have ended, by the journals of their runs."""
    if not Path(layout().runs).exists():
        return []
    return [view.name for view in history.ended(layout())]


def states() -> Counter[str]:
    return Counter(name.state for name in ends())


def tokens() -> Iterator[str]:
    """Who owns each run: all are `ended` when nothing is left to adopt."""
    for path in Path(layout().runs).iterdir():
        yield from (e.name for e in path.iterdir() if e.name.startswith(("own", "ended")))


def nothing_is_left() -> bool:
    queues = [path.name for path in Path(layout().queues).glob("run-*")]
    assert (queues, [*tokens()].count("ended")) == ([], len([*tokens()]))
    return our_processes() == []


def test_what_a_killed_run_left_in_a_worker_goes_on_and_is_done_once(
    tmp_path: Path, snakemake: Any
) -> None:
    write(tmp_path / "Snakefile", STEPS.replace('"b.txt"', '"b.txt", "c.txt", "d.txt"'))
    with worker_of("mine", tmp_path):
        with run_of(*IN_QUEUE, cwd=tmp_path) as run:
            wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 2)
            run.kill()
            run.wait()
        first = next(path.stem for path in tmp_path.glob("*.starts"))
        (tmp_path / f"go-{first}").touch()
        inbox = Path(layout().run(1).inbox)
        wait_until(lambda: [path for path in inbox.iterdir() if "success" in path.name])
        # Of two cores one is free: the third job runs, the fourth one waits.
        wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 3)
        with run_of(*IN_QUEUE, *AGAIN, cwd=tmp_path) as run:
            output = read_to(run, "of a killed run still runs")
            for name in "abcd":
                (tmp_path / f"go-{name}").touch()
            output += run.communicate(timeout=120)[0]
    print(output)
    assert run.returncode == 0
    assert "It left 2 running and 1 finished kochi jobs" in output
    assert "of a killed run has finished" in output
    assert states() == {"success": 4, "cancelled": 1}
    starts = {path.stem: path.read_text() for path in tmp_path.glob("*.starts")}
    assert starts == dict.fromkeys("abcd", "\n")
    assert nothing_is_left()


def test_a_job_that_writes_the_same_files_starts_after_the_one_of_the_killed_run(
    tmp_path: Path,
) -> None:
    write(tmp_path / "Snakefile", STEPS)
    with worker_of("mine", tmp_path, cores=4):
        with run_of(*IN_QUEUE, cwd=tmp_path) as run:
            wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 2)
            run.kill()
            run.wait()
        write(tmp_path / "Snakefile", STEPS.replace("echo done", "echo other"))
        for name in "ab":
            (tmp_path / f"{name}.starts").unlink()
        with run_of(*IN_QUEUE, *AGAIN, cwd=tmp_path) as run:
            wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 2)
            assert states() == {"cancelled": 2}
            for name in "ab":
                (tmp_path / f"go-{name}").touch()
            output, _ = run.communicate(timeout=120)
    print(output)
    assert run.returncode == 0
    assert "they write the same files, but do other work" in output
    assert {(tmp_path / f"{name}.txt").read_text() for name in "ab"} == {"other\n"}
    assert nothing_is_left()


def test_a_run_of_which_another_one_took_over_stops(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", STEPS)
    with run_of(*OURS, cwd=tmp_path) as run:
        wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 2)
        paths = layout().run(1)
        Path(paths.token("own")).rename(paths.token("own.2"))
        output, _ = run.communicate(timeout=120)
    print(output)
    assert run.returncode != 0
    assert output.count(" took over (no heartbeat for 60 s); stopping") == 1
    assert "Traceback" not in output
    assert ends() == []
    wait_until(lambda: our_processes() == [])


def test_two_runs_that_make_the_same_files_do_not_run_side_by_side(
    tmp_path: Path, snakemake: Any
) -> None:
    write(tmp_path / "Snakefile", STEPS)
    with run_of(*OURS, cwd=tmp_path) as run:
        wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 2)
        done = snakemake(*OURS, *AGAIN, "b.txt", cwd=tmp_path)
        assert done.returncode != 0
        assert "another run in this directory is alive" in done.stdout
        assert f"kill -INT {run.pid}" in done.stdout
        for name in "ab":
            (tmp_path / f"go-{name}").touch()
        output, _ = run.communicate(timeout=120)
    print(output)
    assert run.returncode == 0
    assert states() == {"success": 2}
    assert nothing_is_left()


def test_workers_that_keep_ending_end_the_run_with_what_they_said(
    tmp_path: Path, snakemake: Any
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule one:
            output: "a.txt"
            shell: "touch {output}"
        """,
    )
    # In place of the interpreter's modules: the worker cannot start, and a Snakemake can.
    write(tmp_path / "broken" / "sitecustomize.py", BROKEN)
    done = snakemake(*OURS, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "broken")})
    assert done.returncode != 0
    assert "local workers keep ending, 3 in a row" in done.stdout
    assert "no module for workers" in done.stdout
    assert our_processes() == []


BROKEN = """
import sys

if "snakemake_kochi.worker" in sys.orig_argv:
    sys.exit("no module for workers")
"""


def test_out_of_memory_and_timeout_count_as_retries_with_more_resources_and_a_drain_does_not(
    tmp_path: Path,
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule a:
            output: "a.txt"
            retries: 2
            resources:
                mem_mb=lambda wildcards, attempt: 100 * attempt,
                runtime=lambda wildcards, attempt: 10 * attempt,
            shell: "exit 1"
        """,
    )
    asked = []
    with run_of(*IN_QUEUE, cwd=tmp_path) as run:
        wait_until(Path(layout().queue("mine").waiting).exists)
        claims = Claims(layout(), "mine", WorkerLife(layout(), "7"))
        for end in ("drained", "node failed", "memory", "drained", "timeout", "success"):
            (name,) = wait_until(lambda: claims.claim(lambda *_: True))
            ticket = json.loads(claims.read(name).split(b"\n", 1)[0])["resources"]
            asked.append((end, ticket["memory_mb"], ticket["runtime_seconds"]))
            if end in ("drained", "node failed"):
                claims.put_back(name, {"reason": end})
                continue
            if end == "success":
                (tmp_path / "a.txt").touch()
            assert claims.finish(name, end, {"detail": "seen"})
        output, _ = run.communicate(timeout=120)
    print(output)
    assert run.returncode == 0
    assert asked == [
        ("drained", 100, 600),
        ("node failed", 100, 600),
        ("memory", 100, 600),
        ("drained", 200, 1200),
        ("timeout", 200, 1200),
        ("success", 300, 1800),
    ]
    assert "out of memory: seen" in output and "timeout: seen" in output


def test_a_thousand_jobs(tmp_path: Path, snakemake: Any) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: expand("{n}.txt", n=range(1000))
        rule one:
            output: "{n}.txt"
            shell: "echo {wildcards.n} >> {output}"
        """,
    )
    done = snakemake(*OURS, "--jobs", "1000", "--quiet", "all", cwd=tmp_path)
    assert done.returncode == 0
    assert states() == {"success": 1000}
    assert all((tmp_path / f"{n}.txt").read_text() == f"{n}\n" for n in range(1000))
    assert nothing_is_left()
