"""A run in a copy of a process that has imported the phases is as in a process of its own."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from seen import list_jobs
from support import PYTHON_PATH, git, run, write

from snakemake_kochi.paths import Root
from snakemake_kochi.queue.views import Attempt

# The runner that is the fastest one allowed: the first one starts a Python for each run.
WAYS = ("shell", "phase")
POINTS = {
    "sees": 1,
    "fails": 2,
    "leaves nothing": 3,
    "takes too long": 4,
    "is killed": 5,
    "is cancelled": 6,
    "kills the phase": 7,
    "sees again": 8,
}
_CANCEL = """ticket=$(ls queues/*/running | grep "^$KOCHI_JOB_ID.a")
         touch workers/$KOCHI_WORKER_ID/cancel.$ticket
         printf x > workers/$KOCHI_WORKER_ID/wake"""
_EXPERIMENT = """
    batches:
      ends:
        params: {{n: [{points}]}}
        artifacts:
          - {{type: stdout, dest: "ends/${{n}}.log"}}
          - {{type: file, src: made, dest: "ends/${{n}} it's.txt"}}
          - {{type: stats, dest: "ends/${{n}}.json"}}
    run:
      depend_params: [n]
      exclusive: false
      # The others, which end by themselves, have all the time that they need.
      timeout: "`5 if $n == 4 else 60`s"
      script: |
        process=/proc/$PPID
        case $KOCHI_PARAM_N in
          1|8) env | sort > made
             umask >> made
             cat $process/limits $process/oom_score_adj >> made
             grep -e ^Sig[BCI] -e ^Umask -e ^Cpus_allowed: $process/status >> made
             cut -d' ' -f 7,19 $process/stat >> made
             readlink $process/cwd $process/fd/0 $process/fd/1 $process/fd/2 >> made
             # Without those that it opens at some time while the script runs: the end of the
             # script's process, and what the kernel says of the load.
             for file in $process/fd/*; do readlink $file || :; done |
               grep -v -e pidfd -e ^/proc/ -e ^/sys/ | sort >> made
             test $(cut -d' ' -f 6 $process/stat) = $PPID && echo leader >> made
             trap >> made
             cat
             export LEFT=behind; cd /; umask 000 ;;
          2) echo "no more beans"; exit 3 ;;
          3) exit 0 ;;
          4) sleep 60 ;;
          5) kill -SEGV $$ ;;
          6) cd "$KOCHI_ROOT/machines/local"
             CANCEL
             sleep 60 ;;
          7) kill -KILL $PPID; sleep 60 ;;
        esac
    """.replace("CANCEL", _CANCEL)
_SNAKEFILE = """
    from snakemake_kochi import snakefile

    module kochi:
        snakefile: snakefile()
        config: config

    use rule * from kochi
    """
# The keys of a record that do not differ from one attempt of a run to another.
_COMPARED = (
    *("outcome", "reason", "exit_status", "parameters", "duplicate", "batch", "experiment", "run"),
    *("cpus", "isolation", "rerun_of", "recipes", "build", "preparation", "launcher", "binding"),
)


@dataclass(frozen=True)
class Runs:
    """What the runs of all points have left, one way."""

    directory: Path
    results: Mapping[int, Attempt]
    logs: Mapping[int, str]
    records: Mapping[int, Mapping[str, Any]]

    def made(self, number: int, way: str) -> str:
        text = (self.directory / f"results/local/ends/{number} it's.txt").read_text()
        return self.plain(text.replace(f"KOCHI_RUNNER={way}", "KOCHI_RUNNER=..."))

    def record(self, number: int) -> dict[str, Any]:
        whole = self.records[number]
        found = {key: whole[key] for key in _COMPARED if key in whole}
        found["keys"] = sorted(whole)
        found["artifacts"] = [each["dest"] for each in whole["artifacts"]]
        if whole["outcome"] == "success":  # a failed one has what others have found before
            facts = whole["facts"].items()
            found["facts"] = {name: fact["output"] for name, fact in facts}
        return found

    def plain(self, text: str) -> str:
        text = text.replace(str(self.directory.parent), "BASE")
        # Names of private directories, and what names the job, the attempt and their run.
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{8}-[0-9a-f]+-\d+-\d+-[0-9a-f]{8}", "SCRATCH", text)
        text = re.sub(
            r"(KOCHI_(?:ATTEMPT_NONCE|WORKER_NONCE|COMMIT|JOB_ID|QUEUE)=).*", r"\1...", text
        )
        text = re.sub(r"(projects/\w+)-[0-9a-f]+", r"\1", text)
        text = re.sub(r"jobs/\d+/\d+/log|runs/\d+/logs/\d+\.a\d+", "LOG", text)
        text = re.sub(r"line \d+: +\d+ ", "line: ", text)
        text = re.sub(r"(pipe|socket):\[\d+\]", r"\1", text)
        return re.sub(r"\b\d+\.\d+ s\b|workers/\d+", "...", text)


def runs_of(base: Path, way: str) -> Runs:
    directory = base / "project with 'quotes'"
    points = ", ".join(map(str, POINTS.values()))
    files = {
        "kochi.yaml": "{}\n",
        "ends.yaml": _EXPERIMENT.format(points=points),
        "Snakefile": _SNAKEFILE,
        ".gitignore": "results/\n.snakemake/\n",
    }
    for name, text in files.items():
        write(directory / name, text)
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "all")
    options = ("--executor", "kochi", "--jobs", "20", "--kochi-cores", "2", "--keep-going")
    command = (sys.executable, "-m", "snakemake", *options, "--kochi-runner", way, "ends_ends")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(base))
        environment.setenv("KOCHI_ROOT", str(base / "root"))
        environment.setenv("PYTHONPATH", PYTHON_PATH)
        environment.setenv("SHLVL", "3")
        environment.delenv("BASH_ENV", raising=False)
        assert run(*command, cwd=directory).returncode != 0
    machine = Root(base / "root").machine("local")
    results, logs = {}, {}
    for view in list_jobs(machine, True):
        if view.ticket is not None and (found := re.search(r"n=(\d)", str(view.ticket.labels))):
            results[int(found[1])] = view.result
            logs[int(found[1])] = view.output.decode()
    records = {}
    branch = git(directory, "for-each-ref", "--format=%(refname)", "refs/heads/kochi_artifacts*")
    for file in git(directory, "ls-tree", "-r", "--name-only", branch.strip()).splitlines():
        if "/.kochi/" in file and file.endswith(".json"):
            record = json.loads(git(directory, "show", f"{branch.strip()}:{file}"))
            records[int(record["parameters"]["n"])] = record
    return Runs(directory, results, logs, records)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Runs]:
    return {way: runs_of(tmp_path_factory.mktemp(way), way) for way in WAYS}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_each_run_ends_as_its_script_does_and_its_log_says_so(
    both: Mapping[str, Runs], way: str
) -> None:
    results = both[way].results
    assert results.keys() == set(POINTS.values())
    found = {name: results[number] for name, number in POINTS.items()}
    assert {each.runner for each in results.values()} == {way}
    assert {name for name, each in found.items() if each.ok} == {"sees", "sees again"}
    assert found["is cancelled"].reason == "cancelled"
    assert found["kills the phase"].signal == 9
    for name in ("fails", "leaves nothing", "takes too long", "is killed"):
        assert (found[name].reason, found[name].exit_status) == ("failed", 1)
    logs = {name: both[way].logs[number] for name, number in POINTS.items()}
    assert "no more beans" in logs["fails"]
    assert "the run left no file made" in logs["leaves nothing"]
    assert "its timeout of 5 s" in logs["takes too long"]
    assert "Traceback" not in "".join(logs.values())


@pytest.mark.parametrize("name", POINTS)
def test_logs_records_and_what_scripts_see_are_the_same_in_both_ways(
    both: Mapping[str, Runs], name: str
) -> None:
    logs = [both[way].plain(both[way].logs[POINTS[name]]) for way in WAYS]
    assert logs[0] == logs[1]
    records = [both[way].record(POINTS[name]) for way in WAYS]
    assert records[0] == records[1]
    assert records[0]["parameters"] == {"n": str(POINTS[name])}
    if not name.startswith("sees"):
        return
    fresh, copied = (both[way].made(POINTS[name], way) for way in WAYS)
    assert fresh.splitlines() == copied.splitlines()
    lines = fresh.splitlines()
    # Of the process of the phase, which the script's own process does not show.
    assert {"leader", "SHLVL=4", "0022", "KOCHI_PARAM_N=" + str(POINTS[name])} <= {*lines}
    assert "LEFT=behind" not in lines
