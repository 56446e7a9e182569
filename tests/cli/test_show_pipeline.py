"""`kochi show pipeline`: its texts are those that a real run executes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import write

from .conftest import Outcome, make_repository

Kochi = Callable[..., Outcome]

# The run prints the file by which it was started, its environment, and its launcher.
EXPERIMENT = """\
depends: [{name: tool, recipe: plain}]
default_name: sum_${n}
batches:
  all:
    params: {n: [1, 2], even: ["`$n % 2 == 0`"]}
    when: $n < 9
    artifacts: [{type: stdout, dest: "sum/${n}_${duplicate}.log"}]
  none:
    params: {n: [9]}
    when: $n < 9
prepare: {script: 'echo data > "$KOCHI_PREPARED/data"'}
build:
  script: echo built > program
run:
  depend_params: [n]
  launcher: wrap
  resources: {tasks_per_node: 2, cpus_per_task: 1}
  isolate: [environment]
  script: |
    private=${KOCHI_HOSTFILE%/hosts}
    printf "bash --norc -c '%s' %s\\n" "$BASH_EXECUTION_STRING" "$0"
    cat "$private/environment.sh" "$private/run_sum.sh"
    echo "launch=$KOCHI_LAUNCH"
    env | grep ^KOCHI_ | sort
"""
KOCHI_YAML = """\
machines:
  local:
    load_env_script: export LOADED=1
    launchers: {wrap: "env TASKS={tasks} NODES={nodes}"}
  away:
    launchers: {wrap: srun}
    scheduler: slurm
    allocation: {cores: 8, memory: 16G, time: 1h}
dependencies:
  tool:
    script: echo tool > "$KOCHI_INSTALL_PREFIX/tool"
    activate_script: export TOOL=$KOCHI_RECIPE_TOOL
    recipes: [{name: plain}]
"""

# Nobody listens there.
UNREACHABLE = """\
ClusterName=away
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
NodeName=node1
PartitionName=main Nodes=ALL
MessageTimeout=1
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = make_repository(
        tmp_path / "proj",
        {
            "kochi.yaml": KOCHI_YAML,
            "sum.yaml": EXPERIMENT,
            ".gitignore": "/results/\n/.snakemake/\n",
        },
    )
    monkeypatch.chdir(directory)
    return directory


def _stages(kochi: Kochi, *words: str) -> tuple[Any, dict[str, str]]:
    outcome = kochi("show", "pipeline", "sum.yaml", "all", "--json", *words)
    assert outcome.status == 0, outcome.err
    return outcome.data, {each["name"]: each["text"] for each in outcome.data["stages"]}


def test_the_texts_are_those_that_a_run_executes(project: Path, kochi: Kochi) -> None:
    _stages(kochi, "-w", "n=2")
    assert not (project / ".snakemake").exists()  # nothing was executed
    command = [sys.executable, "-m", "snakemake", "--executor", "local", "--cores", "1"]
    assert (outcome := kochi("init")).status == 0, outcome.err
    done = subprocess.run([*command, "sum_all"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    data, now = _stages(kochi, "-w", "n=2")
    printed = (project / "results/local/sum/2_0.log").read_text()
    # Each line was in the command and in the files of the run, in this order.
    preamble = now["environment"].splitlines()
    *preamble, mode = preamble[preamble.index("export LOADED=1") :]
    lines = iter(printed.replace("'", "").splitlines())
    for line in (mode, *preamble, *now["script"].splitlines()):
        assert line.replace("'", "") in lines, line
    line = "env TASKS=2 NODES=1"
    assert f"export KOCHI_LAUNCH='{line}'\n" in now["environment"]
    assert f"\nlaunch={line}\n" in printed
    environment = set(printed.splitlines())
    for line in now["environment"].splitlines():
        if line.startswith("export KOCHI_") and "<" not in line and "PREFIX" not in line:
            assert line.removeprefix("export ").replace("'", "") in environment
    # The identity is that of the record; the index by readable names is results/.
    assert data["results"] == ["results/local/sum/2_0.log"]
    shown = kochi("show", "record", "results/local/sum/2_0.log")
    assert f"\nrun: {data['identity']}\n" in shown.out


def test_the_stages_are_those_of_one_point_and_say_how_often_each_is_executed(
    project: Path, kochi: Kochi
) -> None:
    data, stages = _stages(kochi)
    assert list(stages) == ["install tool:plain", "prepare", "build", "environment", "script"]
    assert stages["install tool:plain"] == 'echo tool > "$KOCHI_INSTALL_PREFIX/tool"\n'
    assert "echo built > program\n" in stages["build"]
    assert data["parameters"]["n"] == "1"
    outcome = kochi("show", "pipeline", "sum.yaml", "all")
    assert "\n2. prepare (once per batch)\n" in outcome.out
    assert "\n5. script (isolated: environment)\n" in outcome.out
    assert "the first of 2 runs" in outcome.err


def test_a_scheduler_that_does_not_answer_ends_nothing(
    project: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(write(tmp_path / "slurm.conf", UNREACHABLE)))
    outcome = kochi("show", "pipeline", "sum.yaml", "all", "-m", "away", "--json")
    assert outcome.status == 0, outcome.err
    found = {each["name"]: each for each in outcome.data["stages"]}
    assert found["allocation"]["note"].startswith("not known now: ")
    assert found["allocation"]["text"] == ""
    assert found["script"]["text"].startswith("private=")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sum.yaml", "al"], "did you mean 'all'?"),
        (["sums.yaml", "all"], "did you mean 'sum.yaml'?"),
        (["sum.yaml", "none"], "all points are skipped on machine local"),
        (["sum.yaml", "all", "-w", "n=3"], "n=3"),
        (["sum.yaml", "all", "-w", "m=1"], "known: duplicate, even, n"),
    ],
)
def test_what_cannot_be_shown(words: list[str], expected: str, project: Path, kochi: Kochi) -> None:
    outcome = kochi("show", "pipeline", *words)
    assert outcome.status != 0
    assert expected in outcome.err
    assert "Traceback" not in outcome.err
