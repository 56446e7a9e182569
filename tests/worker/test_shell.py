"""Plain shell jobs: their preparation, and the command itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from snakemake_kochi.queue import Benchmark, JobView, Queue, Resources, ShellJob, Ticket, cancel_all


def submit(site: Any, script: str, **fields: Any) -> Ticket:
    """A ticket whose command only records that it was executed."""
    own = {name: fields.pop(name) for name in ShellJob.__dataclass_fields__ if name in fields}
    shell = ShellJob(script=script, **{"executable": "/bin/bash", **own})
    ticket = Ticket(
        name="one",
        command=("bash", "-c", "echo by command > by-command"),
        directory=str(fields.pop("directory", site.directory)),
        shell=shell,
        **fields,
    )
    return Queue(site.machine, "q").submit([ticket])[0]


def run(site: Any, script: str, **fields: Any) -> JobView:
    """The ended job, executed by a worker that leaves."""
    ticket = submit(site, script, **fields)
    worker = site.start()
    view: JobView = site.ended(ticket.job)
    assert worker.wait(60) == 0
    return view


def result_of(view: JobView) -> Any:
    assert view.result is not None
    return view.result


def test_the_command_is_executed_in_its_directory_without_its_inner_command(site):
    view = run(site, "pwd; echo $0 $#; exit 7")
    result = result_of(view)
    assert (result.runner, result.reason, result.exit_status) == ("shell", "failed", 7)
    assert site.log(0) == f"{site.directory}\n/bin/bash 0\n"
    assert not (site.directory / "by-command").exists()


def test_old_outputs_and_logs_are_gone_and_directories_are_there(site):
    here = site.directory
    for name in ("a/old.txt", "many/inside/old", "logs/one.log", "kept/other", "absolute"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("old")
    (here / "empty" / "sub").mkdir(parents=True)
    (here / "dangling").symlink_to("nowhere")
    (here / "to-directory").symlink_to("kept")
    relative = ("a/old.txt", "many", "kept", "empty/sub", "dangling", "to-directory", "new/b/c.txt")
    view = run(
        site,
        "true",
        outputs=(*relative, str(here / "absolute"), "/dev/null"),
        logs=("logs/one.log", "logs/deep/two.log"),
        directories=("many",),
        benchmark=Benchmark("bm/b.tsv"),
    )
    assert result_of(view).reason == "success"
    found = {str(path.relative_to(here)) for path in here.rglob("*")}
    expected = {"a", "bm", "bm/b.tsv", "empty", "kept", "kept/other", "logs", "logs/deep"}
    expected |= {"new", "new/b"}
    assert {name for name in found if not name.startswith("root")} == expected
    # A directory that is not declared as one is removed only if it is empty.
    assert site.log(0) == "kochi: the directory kept was not removed: not empty\n"
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("benchmark", [None, Benchmark("one.tsv")])
def test_a_write_protected_output_is_refused(site, benchmark):
    kept = site.directory / "kept.txt"
    kept.write_text("precious")
    # Only this attribute protects a file from root.
    protect = f"mount --bind {kept} {kept} && mount -o remount,bind,ro {kept}"
    submit(site, "echo new", outputs=("kept.txt", "new.txt"), benchmark=benchmark)
    site.start(prefix=("unshare", "--mount", "bash", "-c", f'{protect} && exec "$@"', "-"))
    result = result_of(site.ended(0))
    assert (result.reason, result.exit_status) == ("failed", 1)
    assert "write-protected output files: kept.txt" in site.log(0)
    assert kept.read_text() == "precious"


def test_a_failed_preparation_is_a_sentence_in_the_log(site):
    (site.directory / "file").write_text("")
    view = run(site, "echo never", outputs=("file/below.txt",))
    assert result_of(view).exit_status == 1
    assert "kochi: job 0 (one): [Errno 20] Not a directory: 'file/below.txt'" in site.log(0)
    assert "never" not in site.log(0)


def test_a_job_waits_for_its_inputs(site):
    submit(site, "cat late.txt", inputs=("late.txt",), latency_wait=50)
    site.start()
    site.wait_until(lambda: "waiting at most 50 seconds" in log_of(site, 0))
    (site.directory / "late.txt").write_text("here\n")
    assert result_of(site.ended(0)).reason == "success"
    assert site.log(0).endswith("here\n")


def log_of(site: Any, job: int) -> str:
    path: Path = site.machine.job(job).log
    return path.read_text() if path.exists() else ""


def test_an_input_that_never_comes_is_named(site):
    (site.directory / "there.txt").write_text("")
    view = run(site, "echo never", inputs=("there.txt", "missing.txt"), latency_wait=0.1)
    assert result_of(view).exit_status == 1
    last = site.log(0).splitlines()[-1]
    assert "missing files after 0.1 seconds: missing.txt." in last
    assert "there.txt" not in last


TMPDIR_NAMES = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "/tmp"),
        ({"TMPDIR": "first", "TEMP": "second", "TMP": "third"}, "first"),
        ({"TEMP": "second", "TMP": "third"}, "second"),
        ({"TMPDIR": "missing", "TMP": "third"}, "third"),
        ({"TEMPDIR": "first"}, "/tmp"),
    ],
)
def test_the_temporary_directory_is_the_nodes(site, monkeypatch, given, expected):
    for name in TMPDIR_NAMES:
        monkeypatch.delenv(name, raising=False)
    for name in ("first", "second", "third"):
        (site.directory / name).mkdir()
    environment = {name: str(site.directory / path) for name, path in given.items()}
    script = "echo TOKEN ${TMPDIR} ${TMP} ${TEMP} ${TEMPDIR} TOKEN/x"
    run(site, script, temporary_directory="TOKEN", environment=environment)
    path = str(site.directory / expected)  # which "/tmp" replaces
    assert site.log(0).split() == [path] * 5 + [f"{path}/x"]


def test_without_a_temporary_directory_none_is_set(site, monkeypatch):
    for name in TMPDIR_NAMES:
        monkeypatch.delenv(name, raising=False)
    run(site, "echo none${TMPDIR-}${TMP-}${TEMP-}${TEMPDIR-}")
    assert site.log(0) == "none\n"


def test_libraries_get_the_number_of_threads(site):
    names = ["OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR"]
    script = " ".join(f"${name}_NUM_THREADS" for name in names)
    threads = len(os.sched_getaffinity(0))
    run(
        site,
        f"echo {script} $VECLIB_MAXIMUM_THREADS",
        threads=threads,
        resources=Resources(cores=threads),
    )
    assert site.log(0).split() == [str(threads)] * 6


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"executable": "/no/such/shell"}, "no /no/such/shell on this node"),
        ({"executable": "no-such-shell"}, "no no-such-shell on this node"),
        (
            {"script": "echo T", "temporary_directory": "T", "environment": {"TMP": "/a b"}},
            "TMP is '/a b', which needs quotes",
        ),
    ],
)
def test_a_job_that_this_node_cannot_execute_as_snakemake_goes_to_the_next_runner(
    site, fields, why
):
    given = {"script": "echo by shell", **fields}
    view = run(site, given.pop("script"), **given)
    assert result_of(view).runner == "command"
    assert (site.directory / "by-command").exists()
    assert why in site.machine.worker(0).log.read_text()


def test_a_shell_without_a_path_is_found_by_the_jobs_environment(site):
    place = site.directory / "bin"
    place.mkdir()
    (place / "my-shell").write_text('#!/bin/sh\necho "my shell: $1 $2"\n')
    (place / "my-shell").chmod(0o755)
    path = f"{place}:{os.environ['PATH']}"
    run(site, "the script", executable="my-shell", environment={"PATH": path})
    assert site.log(0) == "my shell: -c the script\n"


HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time"


def test_a_benchmark_is_written_with_a_line_for_each_repetition(site):
    script = "echo run >> runs; sleep 1"
    view = run(site, script, benchmark=Benchmark("bm/one.tsv", 2), outputs=("out/x",))
    assert result_of(view).reason == "success"
    assert (site.directory / "runs").read_text() == "run\n" * 2
    header, *lines = (site.directory / "bm" / "one.tsv").read_text().splitlines()
    assert header == HEADER
    assert len(lines) == 2
    assert all(float(line.split("\t")[0]) > 0.5 for line in lines), "seconds"
    assert all(float(line.split("\t")[2]) > 0 for line in lines), "memory of the command"


def test_a_benchmark_of_a_command_that_fails_stops_and_is_not_written(site):
    script = "echo run >> runs; [ $(wc -l < runs) -lt 2 ] || exit 5"
    view = run(site, script, benchmark=Benchmark("one.tsv", 3))
    assert result_of(view).exit_status == 5
    assert (site.directory / "runs").read_text() == "run\n" * 2
    assert not (site.directory / "one.tsv").exists()


def test_a_worker_loads_the_benchmarks_only_for_a_job_with_a_benchmark(site):
    script = f"grep -c psutil /proc/$PPID/maps; {sys.executable} -c 'pass'"
    run(site, script)
    assert site.log(0) == "0\n"


def test_without_snakemakes_benchmarks_the_next_runner_serves(site):
    change = "import sys; sys.modules['snakemake.benchmark'] = type(sys)('snakemake.benchmark')"
    submit(site, "true", benchmark=Benchmark("one.tsv"))
    site.start_changed(change)
    assert result_of(site.ended(0)).runner == "command"
    assert "snakemake.benchmark has no BenchmarkRecord" in site.machine.worker(0).log.read_text()


WAITING = "echo $$ > pid; echo partial > out.txt; sleep 100; echo whole > out.txt"


@pytest.mark.parametrize("benchmark", [None, Benchmark("one.tsv")])
def test_a_cancelled_job_ends_with_its_command(site, benchmark):
    submit(site, WAITING, benchmark=benchmark)
    site.start(grace=1)
    pid = int(site.wait_for("pid"))
    cancel_all(site.machine, [0])
    assert result_of(site.ended(0)).reason == "cancelled"
    assert not Path(f"/proc/{pid}").exists()
    assert not (site.directory / "one.tsv").exists()


def test_a_job_that_takes_too_long_is_ended(site):
    submit(site, WAITING, benchmark=Benchmark("one.tsv"), resources=Resources(runtime_seconds=1))
    site.start(grace=1)
    assert result_of(site.ended(0)).reason == "timeout"


def test_a_job_that_was_requeued_begins_again_without_what_it_had_written(site):
    # The second attempt does not sleep.
    script = (
        f"[ -e out.txt ] && exit 9; if [ $KOCHI_ATTEMPT = 1 ]; then {WAITING}; fi; echo 2 > out.txt"
    )
    submit(site, script, outputs=("out.txt",))
    first = site.start(grace=1)
    pid = int(site.wait_for("pid"))
    first.send_signal(signal.SIGTERM)
    first.wait(60)
    assert not Path(f"/proc/{pid}").exists()
    assert site.job(0).state == "waiting"
    site.start()
    result = result_of(site.ended(0))
    assert (result.reason, result.attempt) == ("success", 2)
    assert (site.directory / "out.txt").read_text() == "2\n"


def test_a_killed_worker_takes_a_measured_command_with_it(site):
    submit(site, WAITING, benchmark=Benchmark("one.tsv"))
    worker = site.start()
    pid = int(site.wait_for("pid"))
    site.kill_worker(worker)
    site.wait_until(lambda: not Path(f"/proc/{pid}").exists())
    time.sleep(0.1)
    assert not (site.directory / "one.tsv").exists()
