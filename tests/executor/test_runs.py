"""`snakemake --executor kochi` with any Snakefile, in any directory."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from run_helpers import background, nothing_is_left, our_processes, results
from seen import FIRST
from support import cancel_orders, servers, wait_until, write

from snakemake_kochi.paths import Root

THREE_JOBS = """
    rule all:
        input: "a.txt", "b.txt", "c.txt"
    rule one:
        output: "{name}.txt"
        shell: "echo worker $KOCHI_WORKER_ID > {output}"
    """


@pytest.mark.compatibility
def test_a_directory_without_git_or_configuration_runs_and_nothing_is_left(
    tmp_path: Path, snakemake: Any, kochi: Any
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt", "c.txt", "elsewhere.txt", "large.txt"
        rule one:
            output: "{name}.txt"
            shell: "echo worker $KOCHI_WORKER_ID > {output}"
        rule elsewhere:
            output: "elsewhere.txt"
            resources: kochi_queue="mine"
            shell: "echo said by the job; echo $KOCHI_QUEUE > {output}"
        rule large:
            output: "large.txt"
            threads: 500
            shell: "echo $KOCHI_QUEUE > {output}"
        ruleorder: elsewhere > large > one
        """,
    )
    run = ("--executor", "kochi", "--jobs", "4", "--kochi-cores", "1")
    # With the timers that Snakemake has set by then it would stay for twenty minutes.
    done = snakemake(*run, "--max-jobs-per-timespan", "9/20m", cwd=tmp_path)
    assert done.returncode == 0
    assert [result["reason"] for result in results()] == ["success"] * 5
    # A job that requests more cores than exist runs on all of them, and one worker has all queues.
    assert {result["worker"] for result in results()} == {FIRST}
    assert {(tmp_path / f"{name}.txt").read_text() for name in "abc"} == {f"worker {FIRST}\n"}
    assert (tmp_path / "elsewhere.txt").read_text() == "mine\n"
    assert (tmp_path / "large.txt").read_text().startswith("run-")
    machine = Path(os.environ["KOCHI_ROOT"]) / "machines" / "local"
    left = [path.name for path in (*machine.glob("queues/*"), *machine.glob("runs/*/own*"))]
    assert (left, our_processes()) == (["mine"], [])
    # The log of each job is named.
    (line,) = [line for line in done.stdout.splitlines() if "in queue mine, log: " in line]
    name, *words = line.split("log: ")[1].split()
    assert name == "kochi"
    assert "said by the job" in kochi(*words, cwd=tmp_path).stdout
    again = snakemake(*run, cwd=tmp_path)
    assert "Nothing to be done" in again.stdout


def test_a_worker_of_the_users_outlives_runs_and_none_is_started(
    tmp_path: Path, snakemake: Any
) -> None:
    write(tmp_path / "Snakefile", THREE_JOBS)
    work = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "test", "-b")
    with background(*work, cwd=tmp_path) as worker:
        for _ in range(2):
            done = snakemake(
                "--executor", "kochi", "--kochi-queue", "test", "--jobs", "4", "-F", cwd=tmp_path
            )
            assert done.returncode == 0
        assert worker.poll() is None
    assert {result["worker"] for result in results()} == {FIRST}
    assert len(results()) == 6


def test_a_queue_without_a_worker_is_reported_once(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", THREE_JOBS)
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "4")
    said = "No worker serves queue test yet; start one with: kochi work -q test -b"
    work = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "test", "-b")
    with background(*run, "--kochi-queue", "test", cwd=tmp_path) as controller:
        assert controller.stdout is not None
        before = []
        while said not in (line := controller.stdout.readline()):
            assert line, f"it ended: {before}"
            before.append(line)
        with background(*work, cwd=tmp_path):
            output, _ = controller.communicate(timeout=120)
    assert controller.returncode == 0
    assert said not in output


def test_what_a_run_says_to_type_works_in_a_shell_that_has_another_machine(
    tmp_path: Path, snakemake: Any, kochi: Any
) -> None:
    write(Root.find().configuration, "machines: {vega: {}}")
    write(
        tmp_path / "Snakefile",
        """
        rule fails:
            output: "out"
            shell: "echo here I am; exit 3"
        """,
    )
    call = ("--executor", "kochi", "--jobs", "4", "--logger", "kochi", "-p")
    done = snakemake(*call, cwd=tmp_path, env={"KOCHI_DEFAULT_MACHINE": "vega"})
    assert done.returncode == 1
    said = re.findall(r"kochi show log job [-\w. ]*\d\b", done.stdout)
    assert len(said) >= 2, done.stdout  # of the submission, and of the failure
    for command in said:
        assert "here I am" in kochi(*command.split()[1:], cwd=tmp_path).stdout


def test_a_queue_is_left_to_the_users_worker_until_that_leaves(tmp_path: Path) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt"
        rule one:
            output: "{name}.txt"
            resources: kochi_queue="mine", kochi_exclusive=1
            shell:
                "mkdir alone; echo $KOCHI_WORKER_ID >> workers;"
                "until [ -e go ]; do sleep 0.1; done; rmdir alone; touch {output}"
        """,
    )
    work = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "mine", "-b")
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "4")
    machine = Path(os.environ["KOCHI_ROOT"]) / "machines" / "local"
    workers = tmp_path / "workers"
    with background(*work, cwd=tmp_path) as worker:
        wait_until(lambda: servers(machine, "mine"))
        with background(*run, cwd=tmp_path) as controller:
            wait_until(lambda: workers.exists() and workers.read_text())
            time.sleep(2)  # for a worker that should not come
            assert workers.read_text() == f"{FIRST}\n"
            (tmp_path / "alone").rmdir()  # the job that is requeued will not
            worker.terminate()
            wait_until(lambda: workers.read_text() == f"{FIRST}\n{FIRST + 1}\n")
            (tmp_path / "go").touch()
            output, _ = controller.communicate(timeout=120)
    print(output)
    assert controller.returncode == 0
    said = f"This run leaves queue mine to worker {FIRST}, which serves it here."
    assert output.count(said) == 1
    assert workers.read_text() == f"{FIRST}\n{FIRST + 1}\n{FIRST + 1}\n"
    assert our_processes() == []


def test_a_queue_name_that_leaves_its_directory_is_refused(tmp_path: Path, snakemake: Any) -> None:
    write(tmp_path / "Snakefile", THREE_JOBS)
    done = snakemake("--executor", "kochi", "--kochi-queue", "../../x", "--jobs", "4", cwd=tmp_path)
    assert done.returncode != 0
    assert "--kochi-queue: queue name '../../x' cannot be used" in done.stdout
    assert "Traceback" not in done.stdout
    assert results() == []
    assert nothing_is_left()


STATE = """
    import os, resource
    os.umask(0o077)
    os.nice(3)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    rule one:
        output: "state"
        shell: "(umask; nice; ulimit -n) > {output}"
    """


@pytest.mark.compatibility
def test_what_the_snakefile_sets_for_its_process_holds_in_a_worker_of_another_one(
    tmp_path: Path, snakemake: Any
) -> None:
    work = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "q", "-b")
    ours = ("--executor", "kochi")
    states = {}
    with background(*work, cwd=tmp_path):
        for runner, options in {
            "local": ("--executor", "local"),
            "shell": ours,
            "zygote": (*ours, "--kochi-queue", "q"),
            "command": (*ours, "--kochi-queue", "q", "--kochi-runner", "command"),
        }.items():
            directory = tmp_path / runner
            write(directory / "Snakefile", STATE)
            done = snakemake("--jobs", "1", *options, cwd=directory)
            assert done.returncode == 0
            assert runner == "local" or f"1 by {runner}" in done.stdout
            states[runner] = (directory / "state").read_text().split()
    assert states == {runner: ["0077", states["local"][1], "200"] for runner in states}


@pytest.mark.compatibility
def test_jobs_that_fail_or_cannot_run_are_named_and_fail_alone(
    tmp_path: Path, snakemake: Any
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "none.txt", "negative.txt", "late.txt", "bad.txt", "x_7.txt", "other.txt"
        rule none:
            output: "none.txt"
            resources: gpu=2
            shell: "touch {output}"
        rule negative:
            output: "negative.txt"
            resources: runtime=-1
            shell: "touch {output}"
        rule other:
            input: "Snakefile"
            output: "other.txt"
            resources: runtime=lambda wildcards, input, attempt: int(input.size_mb) * 7 * attempt
            shell: "touch {output}"
        rule late:
            input: "other.txt"
            output: "late.txt"
            resources: gpu=3
            shell: "touch {output}"
        rule bad:
            input: "other.txt"
            output: "bad.txt"
            resources: kochi_queue="../../x"
            shell: "touch {output}"
        rule broken:
            output: "x_{number}.txt"
            shell: "echo before the end; exit 3"
        """,
    )
    options = ("--executor", "kochi", "--jobs", "4", "--keep-going")
    done = snakemake(*options, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1
    for rule, needed in (("none", "resource gpu: 2 GPUs"), ("negative", "resource runtime: -1")):
        assert f"Error in rule {rule}:" in done.stdout
        assert done.stdout.count(f"rule {rule}, {needed}") == 1
    # A job that is not ready is named before anything runs, too.
    for rule, said in (
        ("late", "resource gpu: 3 GPUs needed"),
        ("bad", "resource kochi_queue: queue name '../../x' cannot be used"),
    ):
        told, between, _ = done.stdout.split(f"rule {rule}, {said}")
        assert "These jobs will fail:" in told and "rule other:" not in told
        assert f"Error in rule {rule}:" in between
    assert sorted(result["reason"] for result in results()) == ["failed", "success"]
    assert (tmp_path / "other.txt").exists()
    # A failed job shows its node, status, wildcards and log.
    after = done.stdout[done.stdout.index("Error in rule broken") :]
    (failed,) = [result for result in results() if result["reason"] == "failed"]
    for part in (
        "exit status 3",
        f"node {failed['node']['host']}",
        "number=7",
        failed["log"],
        "before the end",
    ):
        assert part in after, part
    assert "Traceback" not in done.stdout and 'File "' not in done.stdout
    assert nothing_is_left()


@pytest.mark.compatibility
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kochi-workers", "-1"), "--kochi-workers -1: a number from 0 was expected"),
        (("--kochi-cores", "0"), "--kochi-cores 0: a number from 1 was expected"),
        (("--kochi-workers", "0"), "rule one names no queue, and with --kochi-workers 0"),
    ],
)
def test_options_that_let_no_job_run_are_refused_by_one_message(
    tmp_path: Path, snakemake: Any, options: tuple[str, ...], said: str
) -> None:
    write(tmp_path / "Snakefile", THREE_JOBS)
    done = snakemake("--executor", "kochi", "--jobs", "4", *options, cwd=tmp_path)
    assert done.returncode != 0
    assert done.stdout.count(said) == 1
    assert ("... and 2 more of rule one, 3 in all" in done.stdout) is said.startswith("rule")
    assert "Traceback" not in done.stdout
    assert results() == []
    assert nothing_is_left()


@pytest.mark.parametrize("killed", ["supervisor", "worker"])
def test_a_job_of_a_killed_worker_is_done_by_another_one(tmp_path: Path, killed: str) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule one:
            output: "out.txt"
            retries: 0
            resources: tried=lambda wildcards, attempt: attempt
            shell:
                "echo {resources.tried} >> tries;"
                "test -e go || {{ touch waits; sleep 300; }}; echo done > {output}"
        """,
    )
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "1")
    with background(*run, cwd=tmp_path) as controller:
        wait_until((tmp_path / "waits").exists)
        # The worker is the child of its supervisor.
        words = ("snakemake_kochi.worker", "worker/supervisor.py")
        supervisor, worker, *_ = sorted(
            (p for p in our_processes() if any(word in " ".join(p.cmdline()) for word in words)),
            key=lambda process: process.create_time(),
        )
        assert worker.ppid() == supervisor.pid
        (tmp_path / "go").touch()
        (worker if killed == "worker" else supervisor).kill()
        output, _ = controller.communicate(timeout=120)
    print(output)
    assert controller.returncode == 0
    assert f"Worker {FIRST} died" in output
    assert (tmp_path / "tries").read_text() == "1\n1\n"
    (result,) = results()
    assert (result["attempt"], result["worker"]) == (2, FIRST + 1)
    assert our_processes() == []


@pytest.mark.compatibility
def test_an_interrupt_ends_all_jobs_and_prints_one_line(tmp_path: Path) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt", "c.txt"
        rule one:
            output: "{name}.txt"
            shell: "touch started; sleep 300 & sleep 300"
        """,
    )
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "4")
    with background(*run, "--kochi-cores", "1", cwd=tmp_path) as controller:
        wait_until((tmp_path / "started").exists)
        controller.send_signal(signal.SIGINT)
        output, _ = controller.communicate(timeout=120)
    print(output)
    assert controller.returncode != 0
    assert "Cancelled 3 kochi jobs; nothing of this run is left." in output
    assert "Error in rule" not in output
    assert {result["reason"] for result in results()} == {"cancelled"}
    assert nothing_is_left()


@pytest.mark.compatibility
def test_a_second_interrupt_shortens_the_end_and_leaves_nothing(tmp_path: Path) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt"
        rule one:
            output: "{name}.txt"
            shell: "trap '' TERM; touch started; while :; do sleep 1; done"
        """,
    )
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "4")
    machine = Path(os.environ["KOCHI_ROOT"]) / "machines" / "local"
    with background(*run, "--kochi-cores", "1", cwd=tmp_path) as controller:
        wait_until((tmp_path / "started").exists)
        controller.send_signal(signal.SIGINT)
        wait_until(lambda: cancel_orders(machine))
        for _ in range(2):
            controller.send_signal(signal.SIGINT)
        output, _ = controller.communicate(timeout=120)
    print(output)
    assert controller.returncode != 0
    assert "Traceback" not in output
    assert "Cancelled 2 kochi jobs; nothing of this run is left." in output
    assert {result["reason"] for result in results()} == {"cancelled"}
    assert nothing_is_left()


@pytest.mark.compatibility
def test_a_terminated_controller_lets_running_jobs_finish_and_starts_no_others(
    tmp_path: Path,
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt"
        rule one:
            output: "{name}.txt"
            shell: "touch started; until [ -e go ]; do sleep 0.1; done; touch {output}"
        """,
    )
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "1")
    with background(*run, cwd=tmp_path) as controller:
        wait_until((tmp_path / "started").exists)
        controller.terminate()
        (tmp_path / "go").touch()
        output, _ = controller.communicate(timeout=120)
    print(output)
    assert controller.returncode != 0
    assert [result["reason"] for result in results()] == ["success"]
    assert our_processes() == []


@pytest.mark.compatibility
@pytest.mark.parametrize("options", [(), ("--kochi-queue", "nobody")])
def test_a_terminated_controller_withdraws_the_jobs_that_have_not_begun(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: expand("{n}.txt", n=range(9))
        rule one:
            output: "{n}.txt"
            retries: 2
            shell: "touch started; until [ -e go ]; do sleep 0.1; done; touch {output}"
        """,
    )
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "9")
    machine = Root.find().machine("local")
    with background(*run, "--kochi-cores", "1", *options, cwd=tmp_path) as controller:
        if options:
            wait_until(lambda: len(list(machine.queues.glob("*/waiting/*"))) > 0)
        else:
            wait_until((tmp_path / "started").exists)
        controller.terminate()
        wait_until(lambda: [result["reason"] for result in results()].count("cancelled") > 0)
        (tmp_path / "go").touch()
        output, _ = controller.communicate(timeout=120)
    print(output)
    assert controller.returncode != 0
    assert "not begun, because of SIGTERM." in output
    assert "Error in rule" not in output and "restart" not in output
    ends = [result["reason"] for result in results()]
    assert len(ends) == 9
    assert set(ends) == ({"cancelled"} if options else {"cancelled", "success"})
    assert our_processes() == []


def test_only_the_waiting_jobs_of_a_killed_controller_are_submitted_again(
    tmp_path: Path, snakemake: Any
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt"
        rule one:
            output: "{name}.txt"
            shell:
                "echo >> {wildcards.name}.started;"
                "until [ -e go ]; do sleep 0.1; done; touch {output}"
        """,
    )
    work = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "mine", "-b", "--cores", "1")
    run = ("--executor", "kochi", "--kochi-queue", "mine", "--jobs", "4")
    again = (sys.executable, "-m", "snakemake", *run, "--rerun-incomplete")
    with background(*work, cwd=tmp_path):
        with background(sys.executable, "-m", "snakemake", *run, cwd=tmp_path) as controller:
            wait_until(lambda: list(tmp_path.glob("*.started")))
            controller.kill()
            controller.wait()
        snakemake("--unlock", cwd=tmp_path)
        with background(*again, cwd=tmp_path) as controller:
            wait_until(lambda: [result["reason"] for result in results()] == ["cancelled"])
            (tmp_path / "go").touch()
            output, _ = controller.communicate(timeout=50)
    print(output)
    assert controller.returncode == 0
    assert "It left 1 running and 0 finished kochi jobs" in output
    assert "1 of its jobs is cancelled, and starts again if this run needs it." in output
    assert {path.read_text() for path in tmp_path.glob("*.started")} == {"\n"}
    assert sorted(result["reason"] for result in results()) == ["cancelled"] + ["success"] * 2


@pytest.mark.compatibility
def test_jobs_run_in_parallel_as_far_as_the_cores_allow_and_an_exclusive_job_alone(
    tmp_path: Path, snakemake: Any
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt", expand("{name}.alone", name="abcd")
        rule meet:
            output: "{name}.txt"
            # Both before the exclusive job: what is behind it waits for its turn.
            priority: 1
            shell:
                "touch {wildcards.name}.here; test ! -e claimed;"
                "while ! [ -e a.here -a -e b.here ]; do sleep 0.1; done; touch {output}"
        rule alone:
            output: "{name}.alone"
            resources: kochi_exclusive=1
            shell: "mkdir claimed && sleep 0.2 && rmdir claimed && touch {output}"
        """,
    )
    done = snakemake("--executor", "kochi", "--jobs", "6", "--kochi-cores", "4", cwd=tmp_path)
    assert done.returncode == 0


def test_a_group_with_a_temporary_and_a_protected_output_works(
    tmp_path: Path, snakemake: Any
) -> None:
    # Apart from the checkpoint below: with some versions of Snakemake and any executor, one that
    # ends together with the group keeps it from removing the temporary file.
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "grouped2.txt"
        rule first:
            output: temp("grouped1.txt")
            group: "g"
            benchmark: "bench/first.tsv"
            log: "logs/deep/first.log"
            shell: "echo 1 > {output} 2> {log}"
        rule second:
            input: "grouped1.txt"
            output: protected("grouped2.txt")
            group: "g"
            shell: "cp {input} {output}"
        """,
    )
    done = snakemake("--executor", "kochi", "--jobs", "10", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "bench/first.tsv").exists()
    assert not (tmp_path / "grouped1.txt").exists()
    assert not os.stat(tmp_path / "grouped2.txt").st_mode & 0o222
    assert "Nothing to be done" in snakemake("-n", cwd=tmp_path).stdout


def test_jobs_of_rules_with_any_feature_work(tmp_path: Path, snakemake: Any) -> None:
    write(
        tmp_path / "Snakefile",
        """
        import os
        os.environ["FROM_CONTROLLER"] = "it's set"
        envvars: "FROM_CONTROLLER"
        rule all:
            input: "run.txt", "script.txt", "late.txt", "tried.txt", "env.txt"
        rule run:
            output: "run.txt"
            shadow: "minimal"
            run:
                open(output[0], "w").write(str(threads))
        rule script:
            output: "script.txt"
            script: "script.py"
        checkpoint decide:
            output: directory("decided")
            shell: "mkdir {output}; touch {output}/7"
        rule late:
            input: lambda wildcards: checkpoints.decide.get().output[0] + "/7"
            output: "late.txt"
            shell: "cp {input} {output}"
        rule tried:
            output: "tried.txt"
            retries: 2
            resources: mem_mb=lambda wildcards, attempt: attempt * 10
            shell: "test {resources.mem_mb} -ge 20 && echo {resources.mem_mb} > {output}"
        rule env:
            output: "env.txt"
            shell: 'echo "$FROM_CONTROLLER" > {output}'
        """,
    )
    write(tmp_path / "script.py", "open(snakemake.output[0], 'w').write('scripted')\n")
    done = snakemake("--executor", "kochi", "--jobs", "10", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "script.txt").read_text() == "scripted"
    assert (tmp_path / "tried.txt").read_text() == "20\n"
    assert (tmp_path / "env.txt").read_text() == "it's set\n"
    assert "Nothing to be done" in snakemake("-n", cwd=tmp_path).stdout


def test_two_controllers_share_a_queue_and_each_works_on_its_own_jobs(tmp_path: Path) -> None:
    write(
        tmp_path / "long" / "Snakefile",
        """
        rule all:
            input: "a.txt", "b.txt", "c.txt"
        rule one:
            output: "{name}.txt"
            shell: "touch started; until [ -e go ]; do sleep 0.1; done; touch {output}"
        """,
    )
    write(tmp_path / "short" / "Snakefile", THREE_JOBS)
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "4")
    run += ("--kochi-cores", "2", "--default-resources", "kochi_queue='shared'")
    with background(*run, cwd=tmp_path / "long") as long:
        wait_until((tmp_path / "long" / "started").exists)
        with background(*run, cwd=tmp_path / "short") as short:
            output, _ = short.communicate(timeout=50)
            print(output)
        assert short.returncode == 0
        assert len(results()) == 3
        (tmp_path / "long" / "go").touch()
        output, _ = long.communicate(timeout=120)
        print(output)
    assert long.returncode == 0
    assert [result["attempt"] for result in results()] == [1] * 6
    assert our_processes() == []


def test_a_killed_controller_takes_its_workers_along_and_the_next_run_removes_its_queue(
    tmp_path: Path, snakemake: Any
) -> None:
    write(tmp_path / "Snakefile", 'rule one:\n    shell: "touch started; test -e go || sleep 300"')
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "4")
    with background(*run, cwd=tmp_path) as controller:
        wait_until((tmp_path / "started").exists)
        controller.kill()
        controller.wait()
        wait_until(lambda: our_processes() == [])
    (tmp_path / "go").touch()
    snakemake("--unlock", cwd=tmp_path)
    assert snakemake("--executor", "kochi", "--jobs", "4", cwd=tmp_path).returncode == 0
    assert nothing_is_left()
