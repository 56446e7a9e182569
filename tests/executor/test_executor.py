"""`snakemake --executor kochi`: tickets."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
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


@pytest.fixture(autouse=True)
def next_executor(isolated_environment: Path) -> Iterator[None]:
    """Jobs that wait for a test wait for ever when it fails: they are ended."""
    yield
    left = our_processes()
    for process in left:
        with suppress(psutil.NoSuchProcess):  # it may end by itself
            process.kill()
    psutil.wait_procs(left, timeout=10)


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
    return Layout(str(Root.find().machine("local").directory))


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


def test_jobs_run_in_queues_of_the_run_and_of_rules_and_nothing_is_left(
    tmp_path: Path, snakemake: Any
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt", "elsewhere.txt", "large.txt"
        rule one:
            output: "{name}.txt"
            shell: "echo $KOCHI_QUEUE $KOCHI_WORKER_ID > {output}"
        rule elsewhere:
            output: "elsewhere.txt"
            resources: kochi_queue="mine"
            shell: "echo said by the job; echo $KOCHI_QUEUE $KOCHI_WORKER_ID > {output}"
        rule large:
            output: "large.txt"
            threads: 500
            shell: "echo $KOCHI_QUEUE > {output}"
        ruleorder: elsewhere > large > one
        """,
    )
    done = snakemake(*OURS, cwd=tmp_path)
    assert done.returncode == 0
    assert "kochi ran 4 jobs: 4 by shell" in done.stdout
    assert states() == {"success": 4}
    assert {(tmp_path / f"{name}.txt").read_text() for name in "ab"} == {"run-1 1\n"}
    assert (tmp_path / "elsewhere.txt").read_text() == "mine 1\n"
    (line,) = (line for line in done.stdout.splitlines() if "in queue mine, log: " in line)
    number = line.split()[-1].partition(".")[2]
    assert history.log_of(layout().run(1), Name(1, int(number))) == b"said by the job\n"
    assert nothing_is_left()


def test_a_failure_says_where_and_how_and_what_the_job_said(tmp_path: Path, snakemake: Any) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "x_7.txt", "killed.txt", "other.txt"
        rule broken:
            output: "x_{number}.txt"
            shell: "echo before the end; exit 3"
        rule killed:
            output: "killed.txt"
            shell: "kill -KILL $$"
        rule other:
            output: "other.txt"
            shell: "touch {output}"
        """,
    )
    done = snakemake(*OURS, "--keep-going", cwd=tmp_path)
    assert done.returncode == 1
    assert states() == {"failed": 1, "signal": 1, "success": 1}
    after = done.stdout[done.stdout.index("Error in rule broken") :]
    for part in (": exit status 3", "number=7", "before the end", f"{layout().runs}/1/logs/"):
        assert part in after, part
    assert "killed by SIGKILL" in done.stdout
    assert "Traceback" not in done.stdout
    assert nothing_is_left()


def test_an_interrupt_cancels_all_jobs(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", STEPS.replace('"b.txt"', 'expand("{n}.txt", n=range(50))'))
    with run_of(*OURS, "--jobs", "100", cwd=tmp_path) as run:
        wait_until(lambda: list(tmp_path.glob("*.starts")))
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=120)
    print(output)
    assert run.returncode != 0
    assert "Cancelled 51 kochi jobs; nothing of this run is left." in output
    assert "Error in rule" not in output and "Traceback" not in output
    assert states() == {"cancelled": 51}
    assert nothing_is_left()


def test_a_second_interrupt_shortens_the_end_and_leaves_nothing(tmp_path: Path) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt", "c.txt"
        rule one:
            output: "{name}.txt"
            shell: "trap '' TERM; touch {wildcards.name}.starts; while :; do sleep 1; done"
        """,
    )
    with run_of(*OURS, cwd=tmp_path) as run:
        wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 2)
        run.send_signal(signal.SIGINT)
        wait_until(lambda: list(Path(layout().workers).glob("*/cancel.*")))
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=120)
    print(output)
    assert run.returncode != 0
    assert "Traceback" not in output
    assert "Cancelled 3 kochi jobs; nothing of this run is left." in output
    assert states() == {"cancelled": 3}
    assert nothing_is_left()


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


def test_a_killed_run_takes_its_workers_along_and_the_next_one_executes_their_jobs(
    tmp_path: Path, snakemake: Any
) -> None:
    write(tmp_path / "Snakefile", STEPS)
    with run_of(*OURS, cwd=tmp_path) as run:
        wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 2)
        run.kill()
        run.wait()
        (tmp_path / "go-a").touch()
        (tmp_path / "go-b").touch()
        done = snakemake(*OURS, *AGAIN, cwd=tmp_path)
    assert done.returncode == 0
    assert {(tmp_path / f"{name}.txt").read_text() for name in "ab"} == {"done\n"}
    assert states()["success"] == 2
    wait_until(lambda: our_processes() == [])  # the first worker looks for its run now and then
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


def test_two_runs_share_a_queue_and_each_works_on_its_own_jobs(
    tmp_path: Path, snakemake: Any
) -> None:
    for name in ("long", "short"):
        write(tmp_path / name / "Snakefile", STEPS)
    shared = (*OURS, "--default-resources", "kochi_queue='shared'")
    with run_of(*shared, "--kochi-cores", "1", cwd=tmp_path / "long") as long:
        wait_until(lambda: list((tmp_path / "long").glob("*.starts")))
        for name in "ab":
            (tmp_path / "short" / f"go-{name}").touch()
        assert snakemake(*shared, cwd=tmp_path / "short").returncode == 0
        for name in "ab":
            (tmp_path / "long" / f"go-{name}").touch()
        output, _ = long.communicate(timeout=120)
    print(output)
    assert long.returncode == 0
    assert [(name.attempt, name.state) for name in ends()] == [(1, "success")] * 4
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


def test_a_job_of_a_killed_worker_is_done_by_another_one(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", STEPS)
    with run_of(*OURS, cwd=tmp_path) as run:
        wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 2)
        for process in our_processes():
            with suppress(psutil.NoSuchProcess):
                if "supervisor.py" in " ".join(process.cmdline()):
                    process.kill()
        wait_until(lambda: (tmp_path / "a.starts").read_text() == "\n\n")
        for name in "ab":
            (tmp_path / f"go-{name}").touch()
        output, _ = run.communicate(timeout=120)
    print(output)
    assert run.returncode == 0
    assert output.count("Worker 1 died; its jobs are requeued, and a new worker is started") == 1
    assert [(name.attempt, name.losses, name.worker) for name in ends()] == [(2, 1, "2")] * 2
    assert nothing_is_left()


def test_a_run_that_is_told_to_end_withdraws_what_has_not_begun(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", STEPS.replace('"b.txt"', 'expand("{n}.txt", n=range(5))'))
    with run_of(*OURS, cwd=tmp_path) as run:
        wait_until(lambda: len(list(tmp_path.glob("*.starts"))) == 2)
        run.terminate()
        wait_until(lambda: states()["cancelled"] == 4)
        for name in "a01234":
            (tmp_path / f"go-{name}").touch()
        output, _ = run.communicate(timeout=120)
    print(output)
    assert run.returncode != 0
    assert "Withdrew 4 jobs that had not begun, because of SIGTERM." in output
    assert "Error in rule" not in output
    assert states() == {"cancelled": 4, "success": 2}
    assert nothing_is_left()


def test_a_queue_without_a_worker_is_told_once(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", STEPS)
    for name in "ab":
        (tmp_path / f"go-{name}").touch()
    said = "No worker serves queue mine yet; start one with: kochi work -q mine -b"
    with run_of(*IN_QUEUE, cwd=tmp_path) as run:
        read_to(run, said)
        with worker_of("mine", tmp_path):
            output, _ = run.communicate(timeout=120)
    assert run.returncode == 0
    assert said not in output


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
