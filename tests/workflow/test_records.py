"""What the records of runs say, and whether it is what the published schema describes."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import git, run, write

from snakemake_kochi.artifacts.record import RECORD_VERSION, contradictions, record_schema

from .conftest import results

pytestmark = pytest.mark.phases

BRANCH = "kochi_artifacts_local"


def records_of(project: Any, place: str = "records") -> list[dict[str, Any]]:
    """The records in the branch, of results or of another kind, by `n`."""
    listed = git(project.directory, "ls-tree", "-r", "--name-only", BRANCH).splitlines()
    found = [
        json.loads(git(project.directory, "show", f"{BRANCH}:{file}"))
        for file in listed
        if file.startswith(f"local/.kochi/{place}/")
    ]
    return sorted(found, key=lambda record: record["parameters"]["n"])


def test_records_are_as_the_schema_describes(finished_project: Any) -> None:
    records = records_of(finished_project)
    assert len(records) == 2
    for record in records:
        assert contradictions(record) == []
        # Others, such as those of failed attempts and of rules of one's own, are not required.
        assert record.keys() == {*record_schema()["required"], "output", "seed"}
        assert len(json.dumps(record)) - len(record["snapshot"]["diff"]) < 6000
    # On what node a run was, and what it took.
    record = records[0]
    assert record["outcome"] == "success" and record["reason"] is None
    assert record["hardware"]["threads"] >= 1
    assert record["hardware"]["memory_mb"] > 100
    assert record["system"]["kernel"] == platform.release()
    assert record["system"]["load"] >= 0
    usage = record["usage"]
    assert 0 < usage["user_seconds"] + usage["system_seconds"] < 60
    assert 1 <= usage["peak_memory_mb"] < 1000
    assert record["allocation"] is None and record["earlier_attempts"] == []
    assert record["facts"].keys() == {"cc", "modules"}
    for recipe in record["recipes"]:
        assert recipe["install"]["node"] == record["node"]
        assert recipe["install"]["started"] < record["started"]
    assert record["built"]["started"] < record["started"]


CANCEL = """cd "$KOCHI_ROOT/machines/local"
         ticket=$(ls queues/*/running | grep "^$KOCHI_JOB_ID.a")
         touch workers/$KOCHI_WORKER_ID/cancel.$ticket"""

# By its parameter, a run loses its worker in its first attempt, fails, or leaves no artifact.
ENDS = """\
case $KOCHI_PARAM_N in
          3) worker="$KOCHI_ROOT/machines/local/workers/$KOCHI_WORKER_ID/worker.json"
             test $KOCHI_ATTEMPT != 1 || kill -9 $(grep -o '"pid": *[0-9]*' "$worker" | tr -dc 0-9)
             test $KOCHI_ATTEMPT != 1 || sleep 60 ;;
          4) echo "API_TOKEN=hunter2"; echo "no more beans"; exit 3 ;;
          5) exit 0 ;;
          6) kill -SEGV $$ ;;
          7) CANCEL; kill -TERM $$ ;;
          8) kill -KILL 0 ;;
        esac
        """.replace("CANCEL", CANCEL)


FACTS = """
facts:
  cc: null
  level: cat $KOCHI_INSTALL_PREFIX_TOOL/level built.txt; echo "${KOCHI_PARAM_N-none}"
recorded_variables: KOCHI_TEST_*
"""


def check_failed(project: Any, succeeded: dict[str, Any]) -> None:
    lost, *failed, killed = records_of(project, "failed")
    numbers = [each["parameters"]["n"] for each in (lost, *failed, killed)]
    assert numbers == ["3", "4", "5", "6", "7", "8"]
    # Nobody was left to write these; what was known when they began is in them.
    assert (lost["outcome"], lost["reason"], lost["attempt"]) == ("lost", "lost", "1")
    assert (killed["outcome"], killed["reason"]) == ("failed", "killed by signal 9")
    for each in (lost, killed):
        assert contradictions(each) == []
        assert each["run_script"] == succeeded["run_script"] and each["hardware"]
        assert each["started"] < each["ended"] and each["exit_status"] is None
    for each in failed:
        assert contradictions(each) == []
        assert (each["outcome"], each["artifacts"]) == ("failed", [])
        assert each["run_script"] == succeeded["run_script"] and each["usage"] is not None
    status, without_artifact, signalled, cancelled = failed
    for each in (status, without_artifact, signalled):
        assert each["facts"].keys() == {"level", "modules"}
    assert status["reason"] == "the run script ended with exit status 3"
    assert status["exit_status"] == 3
    assert status["last_lines"] == ["[left out]", "no more beans"]
    assert without_artifact["exit_status"] == 0
    assert "the run left no file out.txt in its workspace" in without_artifact["reason"]
    assert signalled["reason"] == "the run script ended with exit status 139, as after SIGSEGV"
    said = "the run script ended with exit status 143, as after SIGTERM"
    assert cancelled["reason"] == f"cancelled: {said}"


def test_attempts_that_failed_or_were_lost_are_in_records(
    finished_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = finished_project
    write(project.directory / "kochi.yaml", (project.directory / "kochi.yaml").read_text() + FACTS)
    monkeypatch.setenv("OMP_PLACES", "cores")
    monkeypatch.setenv("KOCHI_TEST_LEVEL", "7")
    monkeypatch.setenv("KOCHI_TEST_TOKEN", "hunter2")
    monkeypatch.setenv("UNRELATED", "hunter2")
    project.edit("sum.yaml", 'echo "total', f'{ENDS}echo "total')
    project.edit("sum.yaml", "n: [1, 2]", "n: [3, 4, 5, 6, 7, 8]")
    done = project.try_snakemake(
        *results(3, 4, 5, 6, 7, 8), "--keep-going", "--retries=0", executor="kochi"
    )
    assert done.returncode == 1
    (record,) = [each for each in records_of(project) if each["parameters"]["n"] == "3"]
    assert contradictions(record) == []
    assert record["attempt"] == "2" and record["outcome"] == "success"
    (earlier,) = record["earlier_attempts"]
    assert (earlier["attempt"], earlier["outcome"]) == ("1", "lost")
    assert earlier["reason"] == "lost" and earlier["node"] == record["node"]
    assert earlier["worker"] != record["worker"]

    expected = {"OMP_PLACES": "cores", "KOCHI_TEST_LEVEL": "7"}
    assert expected.items() <= record["environment"].items()
    assert "hunter2" not in record["environment"].values()
    assert record["facts"].keys() == {"level", "modules"}
    level = record["facts"]["level"]
    assert (level["output"], level["exit_status"]) == ("fast\ncode\nnone", 0)

    check_failed(project, record)
    # They are no results.
    listed = git(project.directory, "ls-tree", "-r", "--name-only", BRANCH)
    assert "sum/first/3_0.txt" in listed and "sum/first/4_0" not in listed


def test_facts_and_recorded_variables_determine_nothing(finished_project: Any) -> None:
    project = finished_project
    write(project.directory / "kochi.yaml", (project.directory / "kochi.yaml").read_text() + FACTS)
    project.edit("sum.yaml", "default_name: sum", "default_name: sum\nfacts: {hello: echo hello}")
    assert project.planned_rules("sum_first") == []


KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
FILE = "results/local/sum/first/2_0.txt"


def kochi(directory: Path, *words: str, status: int = 0) -> str:
    done = run(*KOCHI, *words, cwd=directory)
    assert done.returncode == status, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


def test_a_record_is_shown_by_its_file_a_result_or_its_identity(finished_project: Any) -> None:
    top = finished_project.directory
    (record,) = [each for each in records_of(finished_project) if each["parameters"]["n"] == "2"]
    shown = kochi(top, "show", "record", FILE)
    for line in ("outcome: success", "parameters.n: 2", "artifacts[0].type: stdout"):
        assert f"{line}\n" in shown
    assert f"hardware.memory_mb: {record['hardware']['memory_mb']}\n" in shown
    statistics = "results/local/sum/first/2_0.json"
    for name in (statistics, "local/sum/first/2_0.txt", record["identity"]):
        assert kochi(top, "show", "record", name).splitlines()[2:] == shown.splitlines()[2:]
    assert f"{record['hardware']['cpu_model']}, 1 socket" in kochi(top, "why", FILE)

    done = subprocess.run(
        [*KOCHI, "show", "record", "--schema"], cwd=top, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == record_schema()
    (top / statistics).write_text(json.dumps({**record, "duplicate": "no"}))
    shown = kochi(top, "show", "record", statistics, status=1)
    assert "contradicts the schema: duplicate: 'no' is not of type 'integer'" in shown
    assert "neither a file nor the identity of a record" in kochi(
        top, "show", "record", record["identity"][:-1] + "x", status=1
    )


def test_records_of_a_newer_release_get_a_message_and_are_kept(
    finished_project: Any, tmp_path: Path
) -> None:
    project, top = finished_project, finished_project.directory
    for file in (top / ".snakemake/kochi").rglob("record.json"):
        newer = {"version": RECORD_VERSION + 1, "unheard": {"of": 1}}
        record = {**json.loads(file.read_text()), **newer}
        file.write_text(json.dumps(record))
    versions = f"records of version {RECORD_VERSION + 1}; this one reads up to {RECORD_VERSION}"
    said = f"newer snakemake_kochi ({versions})"
    for words in (("why", FILE), ("show", "record", FILE)):
        shown = kochi(top, *words, status=1)
        assert said in shown and "Install a newer snakemake_kochi." in shown
    # The table needs all records of its batch: it fails with that message.
    (top / "results/local/sum/first.csv").unlink()
    done = project.try_snakemake("sum_first")
    assert done.returncode == 1
    assert said in done.stdout and 'File "' not in done.stdout
    # They are committed as they are.
    git(top, "update-ref", "-d", f"refs/heads/{BRANCH}")
    git(tmp_path, "init", "--quiet", "--bare", "elsewhere")
    git(top, "remote", "add", "origin", str(tmp_path / "elsewhere"))
    kochi(top, "artifact", "init", str(tmp_path / "all"))
    assert "Committed 2 results" in kochi(top, "artifact", "sync")
    kochi(top, "artifact", "push")
    assert [each["unheard"] for each in records_of(project)] == [{"of": 1}] * 2
    assert said in kochi(top, "why", "local/sum/first/2_0.txt", status=1)
