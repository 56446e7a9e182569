"""The states of a batch's points, runs of a part of it, and pausing it: real runs and workers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import git, wait_until

from .conftest import COMMAND, Outcome, make_repository

_ISOLATED = "isolation of the run changed"
Kochi = Callable[..., Outcome]

# A run waits while there is a file `hold`, and fails for n=10, t=4 while there is a file `broken`.
# Of 9 combinations of n and t, 3 are skipped; of each point, there are two duplicates.
EXPERIMENT = """\
depends: [{{name: tool, recipe: plain}}]
default_params: {{n: 1, t: 1, flags: -O2}}
default_name: sweep
metrics: {{time: 'time: ([0-9]+)'}}
batches:
  grid:
    duplicates: 2
    params: {{n: [1, 2, 10], t: [1, 2, 4]}}
    skip_if: {{condition: $t > $n, reason: "`$t - $n` threads too many"}}
    artifacts: [{{type: stdout, dest: "sweep/${{n}}_${{t}}_${{duplicate}}.log"}}]
  none: {{params: {{n: [1, 2]}}, skip_if: {{condition: $n > 0, reason: n is positive}}}}
build:
  depend_params: [flags]
  script: "true"
run:
  depend_params: [n, t]
  exclusive: false
  script: |
    while [ -e {0}/hold ]; do sleep 0.1; done
    if [ $KOCHI_PARAM_N = 10 ] && [ $KOCHI_PARAM_T = 4 ] && [ -e {0}/broken ]; then
      echo no more beans; exit 3
    fi
    echo "time: $KOCHI_PARAM_N"
"""
KOCHI_YAML = """\
dependencies:
  tool:
    mirror_dir: tool
    mirror: true
    script: cp tool.sh "$KOCHI_INSTALL_PREFIX"
    recipes: [{name: plain}, {name: other}]
"""


# A command whose run may begin much later than on a computer that has nothing else to do.
PATIENT = [
    *(sys.executable, "-P", "-c"),
    "import sys\n"
    "from snakemake_kochi.cli.show import batch\n"
    "batch._PATIENCE = 240.0\n"
    "from snakemake_kochi.cli.main import run\n"
    "sys.exit(run(sys.argv[1:]))\n",
]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = make_repository(
        tmp_path / "proj",
        {
            "kochi.yaml": KOCHI_YAML,
            "sweep.yaml": EXPERIMENT.format(tmp_path),
            "code.c": "code\n",
            "tool/tool.sh": "tool\n",
            ".gitignore": "/results/\n/.snakemake/\n",
        },
    )
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def run(*words: str, command: Sequence[str] = COMMAND) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with process:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.communicate(timeout=20)
                except subprocess.TimeoutExpired:  # its jobs wait for a file
                    process.kill()


def seen(kochi: Kochi, *options: str) -> Any:
    outcome = kochi("show", "batch", "sweep.yaml", "grid", "--json", *options)
    assert outcome.status == 0, outcome.err
    return outcome.data


def counts(kochi: Kochi) -> dict[str, int]:
    found: dict[str, int] = seen(kochi)["counts"]
    return {state: count for state, count in found.items() if count}


def await_running(kochi: Kochi, number: int) -> None:
    def is_so() -> bool:
        time.sleep(0.3)  # a look takes longer than a test of a file
        return counts(kochi).get("running", 0) == number

    wait_until(is_so)


def whys(kochi: Kochi, state: str, *options: str) -> set[str]:
    points = seen(kochi, "-s", state, *options)["points"]
    assert points
    return {point["why"] for point in points}


def test_a_batch_is_watched_paused_resumed_and_stopped(
    sweep: Path,
    tmp_path: Path,
    kochi: Kochi,
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    assert counts(kochi) == {"waiting": 12, "skipped": 6}
    assert whys(kochi, "skipped") == {
        "1 threads too many",
        "3 threads too many",
        "2 threads too many",
    }
    outcome = kochi("batch", "sweep.yaml", "grid", "--pause")
    assert outcome.status == 1
    assert "no run of batch grid of sweep.yaml goes on in" in outcome.err

    (tmp_path / "hold").touch()
    follower = start("show", "batch", "sweep.yaml", "grid", "--follow", command=PATIENT)
    said = _read_until(follower, lambda said: " 12 waiting\n" in said)
    run = start("batch", "sweep.yaml", "grid", "--", "--kochi-cores", "2")
    await_running(kochi, 2)
    (live,) = seen(kochi)["runs"]
    assert live["process"] == run.pid
    # The first batch of tickets may run before the next one is in the queue.
    wait_until(lambda: whys(kochi, "waiting") == {f"in queue run-{live['controller']}"})

    done = _is_paused(tmp_path, kochi)
    (tmp_path / "hold").touch()
    # While the experiment is edited, the run that waits has that of before.
    experiment = (sweep / "sweep.yaml").read_text()
    (sweep / "sweep.yaml").write_text("batches: [\n")
    assert kochi("batch", "sweep.yaml", "grid", "--resume").out == (
        "Batch grid of sweep.yaml goes on.\n"
    )
    (sweep / "sweep.yaml").write_text(experiment)
    assert kochi("batch", "sweep.yaml", "grid", "--resume").out == (
        "Batch grid of sweep.yaml is not paused.\n"
    )
    await_running(kochi, 2)
    assert seen(kochi)["eta"] is not None
    # Two ran before the pause. The follower looks now and then.
    said += _read_until(follower, lambda more: (said + more).count(" running: worker ") >= 4)
    # Stopped, what ran waits as before; nothing has failed.
    run.send_signal(signal.SIGINT)
    run.communicate()
    (tmp_path / "hold").unlink()
    assert counts(kochi) == {"waiting": 12 - done, "done": done, "skipped": 6}
    assert whys(kochi, "waiting") == {"not run yet", "interrupted"}
    assert seen(kochi)["runs"] == []
    assert "No point" in kochi("batch", "sweep.yaml", "grid", "--retry", "failed").out
    said += follower.communicate()[0]
    assert follower.returncode == 0
    lines = [line for line in said.splitlines() if not line.startswith("Waiting ")]
    assert lines[0].endswith("9 points, 18 runs: 6 skipped, 12 waiting")
    assert lines[-1].endswith(f"9 points, 18 runs: 6 skipped, {12 - done} waiting, {done} done")
    assert sum(" done in 0:0" in line for line in lines) == done


def _read_until(process: subprocess.Popen[str], is_enough: Callable[[str], bool]) -> str:
    said = ""
    assert process.stdout is not None
    while not is_enough(said):
        line = process.stdout.readline()
        assert line, said
        said += line
    return said


def _is_paused(tmp_path: Path, kochi: Kochi) -> int:
    """No further job starts; those that run end. Returns how many have ended."""
    assert kochi("batch", "sweep.yaml", "grid", "--pause").status == 0
    assert "is paused already" in kochi("batch", "sweep.yaml", "grid", "--pause").out
    page = kochi("show", "batch", "sweep.yaml", "grid").out
    assert "\nPaused since " in page
    assert "; to resume it, type: kochi batch sweep.yaml grid --resume\n" in page
    wait_until(lambda: whys(kochi, "waiting") == {"paused"})
    (tmp_path / "hold").unlink()
    await_running(kochi, 0)
    done: int = counts(kochi)["done"]
    # A worker may have claimed a ticket just before it looked.
    assert 2 <= done <= 4
    job = seen(kochi, "-s", "waiting")["points"][0]["job"]
    assert "batch grid of sweep.yaml has been paused" in kochi("show", "job", job).out
    assert seen(kochi)["eta"] is None
    return done


def test_parts_of_a_batch_are_run_and_the_table_says_what_is_missing(
    sweep: Path, tmp_path: Path, kochi: Kochi, shell: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    assert shell("batch", "sweep.yaml", "grid", "-w", "n>9", "-w", "t!=2").status == 1
    assert counts(kochi) == {"done": 2, "failed": 2, "waiting": 8, "skipped": 6}
    (failed,) = whys(kochi, "failed")
    assert failed == "the run script ended with exit status 3"
    one = seen(kochi, "-s", "failed")["points"][0]
    assert one["output"] == ["no more beans"]
    assert "no more beans" in kochi("show", "log", "job", str(one["job"])).out
    table = sweep / "results/local/sweep/grid.md"
    text = table.read_text()
    assert "10 of 12 runs have no result; to see why, type: kochi show batch sweep.yaml" in text
    # With a parameter, and as a page.
    page = kochi("show", "batch", "sweep.yaml", "grid", "-w", "n=10", "-w", "duplicate=0").out
    assert page.startswith(
        "Batch grid of sweep.yaml on machine local: 3 points\n"
        "1  done\n1  waiting  not run yet\n1  failed   the run script ended with exit status 3\n"
    )

    # What failed, and nothing else; a second time there is nothing.
    broken.unlink()
    assert shell("batch", "sweep.yaml", "grid", "--retry", "failed").status == 0
    assert counts(kochi) == {"done": 4, "waiting": 8, "skipped": 6}
    assert "8 of 12 runs have no result" in table.read_text()
    again = shell("batch", "sweep.yaml", "grid", "--retry", "failed")
    assert again.status == 0
    assert again.out == "No point of batch grid of sweep.yaml has failed.\n"

    # A finished point, though nothing has changed. The old record stays in the history.
    dest = "local/sweep/10_1_0.log"
    records = [point["started"] for point in seen(kochi, "-s", "done")["points"]]
    outcome = shell("batch", "sweep.yaml", "grid", "--again", "n=10,t=1,duplicate=0")
    assert outcome.status == 0, outcome.err
    started = [point["started"] for point in seen(kochi, "-s", "done")["points"]]
    assert sum(old != new for old, new in zip(records, started, strict=True)) == 1
    log = git(sweep, "log", "--format=%H", "kochi_artifacts_local", "--", dest)
    assert len(log.splitlines()) == 2
    _what_changed_is_said(sweep, kochi, monkeypatch)


def _what_changed_is_said(project: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the four results, without a run."""
    experiment = project / "sweep.yaml"
    original = experiment.read_text()

    def stale() -> set[str]:
        return whys(kochi, "stale", "-w", "n=10", "-w", "t!=2")

    for old, new, said in (
        ("time: $KOCHI", "time: 1$KOCHI", "run script changed"),
        ('script: "true"', "script: sleep 0", "build script changed"),
        ("flags: -O2", "flags: -O3", "parameter flags is -O3, was -O2"),
        ("recipe: plain", "recipe: other", "recipe tool is other, was plain"),
        ("  exclusive: false", "  exclusive: false\n  isolate: environment", _ISOLATED),
        ("run:\n", 'prepare: {script: "true"}\nrun:\n', "prepare script changed"),
        ('.log"}]', '.log"}, {type: stats, dest: "${n}${t}${duplicate}"}]', "artifacts changed"),
    ):
        assert old in original
        experiment.write_text(original.replace(old, new))
        assert stale() == {said}
    experiment.write_text(original)
    (project / "README.md").write_text("Documentation is no code.\n")
    assert counts(kochi)["done"] == 4
    (project / "code.c").write_text("other code\n")
    (project / "more.c").write_text("more\n")
    assert stale() == {"code.c changed; more.c is new"}
    git(project, "checkout", "--quiet", "code.c")
    (project / "more.c").unlink()
    (project / "tool/tool.sh").write_text("better\n")
    assert stale() == {"tool/tool.sh changed; recipe tool:plain: directory tool changed"}
    git(project, "checkout", "--quiet", "tool")
    text = (project / "kochi.yaml").read_text()
    (project / "kochi.yaml").write_text(text.replace("cp tool.sh", "cp -v tool.sh"))
    assert stale() == {"recipe tool:plain: its script changed"}
    (project / "kochi.yaml").write_text(f"machines: {{local: {{load_env_script: 'A=1'}}}}\n{text}")
    (said,) = stale()
    assert said.startswith("load_env_script, strict, ")
    for columns in ("70", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        page = kochi("show", "batch", "sweep.yaml", "grid", "-s", "stale").out
        summary, _, table = page.partition("\n\n")
        assert said in " ".join(summary.split())
        assert max(map(len, summary.splitlines())) < int(columns)
        assert (said in table) == (columns == "300")
    monkeypatch.delenv("COLUMNS")
    (project / "kochi.yaml").write_text(text)
    result = project / "results/local/sweep/10_1_0.log"
    result.write_text(result.read_text().replace("time", "TIME"))
    (said,) = stale()
    assert said.startswith("results/local/sweep/10_1_0.log was edited after its run; for a new run")
    result.unlink()
    assert stale() == {"results/local/sweep/10_1_0.log is gone"}
    assert counts(kochi) == {"done": 3, "stale": 1, "waiting": 8, "skipped": 6}


def test_what_is_no_part_of_the_batch_is_one_message(sweep: Path, kochi: Kochi) -> None:
    for words, said in (
        (["batch", "sweep.yaml", "gird"], "there is no batch 'gird', did you mean 'grid'?"),
        (["show", "batch", "sweep.yaml", "gird"], "no batch 'gird', did you mean 'grid'?"),
        (["show", "batch", "swep.yaml", "grid"], "no file swep.yaml, did you mean 'sweep.yaml'?"),
        (["batch", "sweep.yaml", "grid", "-w", "nn=5"], "has no parameter 'nn', did you mean 'n'?"),
        (["show", "batch", "sweep.yaml", "grid", "-w", "nn=5"], "did you mean 'n'?"),
        (["batch", "sweep.yaml", "grid", "-w", "n=5"], "no point with n=5: its values of n are 1"),
        (["batch", "sweep.yaml", "grid", "-w", "n"], "'n' is no condition: n=100"),
        (
            ["batch", "sweep.yaml", "grid", "--again", "n=10,t=3"],
            "no point with t=3: its values of t are 1, 2, 4",
        ),
        (
            ["batch", "sweep.yaml", "grid", "--again", "n=1,t=4"],
            "batch grid of sweep skips what has n=1 and t=4: 3 threads too many",
        ),
        (
            ["batch", "sweep.yaml", "grid", "-w", "t=4", "-w", "n<10"],
            "skips what has t=4 and n<10",
        ),
        (["show", "pipeline", "sweep.yaml", "grid", "-w", "n=1", "-w", "t=2"], "1 threads too"),
        (["batch", "sweep.yaml", "none"], "sweep.yaml:11: batches.none: all 2 points are skipped"),
        (["batch", "sweep.yaml", "none", "-w", "n=1"], "because n is positive; change 'when'"),
        (["batch", "sweep.yaml", "grid", "--again", "n>1"], "NAME=VALUE,... was expected"),
    ):
        outcome = kochi(*words)
        assert outcome.status == 1, words
        assert said in outcome.err, words
        assert "Traceback" not in outcome.err, words
        assert not (sweep / "results").exists(), words


@pytest.mark.parametrize(("words", "argument"), [(["batch"], "NAME"), (["show", "batch"], "BATCH")])
def test_without_a_batch_those_of_the_file_are_named(
    sweep: Path, kochi: Kochi, words: list[str], argument: str
) -> None:
    outcome = kochi(*words, "sweep.yaml")
    assert outcome.status == 2
    assert f"'{argument}', the name of a batch. sweep.yaml has these: grid, none" in outcome.err


def test_options_that_exclude_each_other_are_wrong_usage(sweep: Path, kochi: Kochi) -> None:
    for words in (["--pause", "-w", "n=1"], ["--pause", "--resume"], ["--resume", "-n"]):
        outcome = kochi("batch", "sweep.yaml", "grid", *words)
        assert outcome.status == 2
        assert "cannot be combined with other options" in outcome.err
    outcome = kochi("batch", "sweep.yaml", "grid", "--retry", "failed", "--again", "n=1")
    assert outcome.status == 2
    assert "exclude each other" in outcome.err


def test_a_view_loads_no_workflow_and_takes_no_lock(sweep: Path, kochi: Kochi) -> None:
    # The first freeze of a project settles which locks its machine uses.
    assert counts(kochi) == {"waiting": 12, "skipped": 6}
    code = (
        "import sys; sys.addaudithook(lambda event, arguments: event == 'fcntl.flock' and "
        "print('locked', file=sys.stderr)); from snakemake_kochi.cli.main import run; "
        "status = run(['show', 'batch', 'sweep.yaml', 'grid', '--json']); "
        "assert 'snakemake.workflow' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["points"]) == 18
    assert "locked" not in done.stderr


def test_a_run_that_was_killed_is_given_no_time_of_its_end(
    sweep: Path, tmp_path: Path, kochi: Kochi, start: Callable[..., subprocess.Popen[str]]
) -> None:
    text = (sweep / "sweep.yaml").read_text()
    text = text.replace("while [ -e", "while [ $KOCHI_PARAM_N != 1 ] && [ -e")
    (sweep / "sweep.yaml").write_text(text)
    (tmp_path / "hold").touch()
    run = start("batch", "sweep.yaml", "grid", "-w", "t=1", "--", "--executor", "local")
    await_running(kochi, 4)
    assert seen(kochi)["eta"] is not None
    run.kill()
    run.wait()
    (tmp_path / "hold").unlink()
    await_running(kochi, 0)
    left = seen(kochi)
    assert left["counts"]["done"] >= 2
    assert left["counts"]["waiting"] >= 6
    assert left["locked"]
    assert left["eta"] is left["seconds_left"] is None
    assert "ETA" not in kochi("show", "batch", "sweep.yaml", "grid").out


def test_following_a_batch_that_nobody_runs_ends(
    sweep: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    from snakemake_kochi.cli.show import batch

    monkeypatch.setattr(batch, "_PATIENCE", 0.0)
    outcome = kochi("show", "batch", "sweep.yaml", "grid", "-f", "--json")
    assert outcome.status == 0
    assert outcome.data["counts"]["waiting"] == 12
    assert outcome.err.endswith("\nNo run of this batch goes on.\n")
