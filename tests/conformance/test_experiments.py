"""A batch has the same points, files, numbers and messages with each runner as with the local
executor."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support import git, printed, run, write

from snakemake_kochi.artifacts.published import choose_name

# What once differed: values that look like others, a copy that is still written when the script
# ends, what a trap prints, a metric with one value that is no number, runs in rounds after builds.
EXPERIMENT = r"""
    default_params: {mode: "on", version: "1.10", n: 7}
    default_duplicates: 2
    seed: 4
    metrics: {total: 'total (\S+)', left: 'left (\d+)'}
    batches:
      all:
        params: {mode: ["on", "off"], version: ["1.10", "1.1"], n: 010}
        when: $mode == 'on' or $version != '1.1'
        artifacts:
          - {type: stdout, dest: 'out/${mode}_${version}_${n}_${duplicate}.txt'}
          - {type: file, src: copy, dest: 'copy/${mode}_${version}_${n}_${duplicate}.txt'}
    build:
      depend_params: [mode]
      script: |
        echo "build $KOCHI_PARAM_MODE" >> "$RAN"
        echo "$KOCHI_PARAM_MODE" > mode
    run:
      depend_params: [mode, version, n]
      script: |
        trap 'echo "left ${#KOCHI_PARAM_N}"' EXIT
        echo "run $KOCHI_PARAM_MODE $KOCHI_PARAM_VERSION $KOCHI_PARAM_N" >> "$RAN"
        seq 300 | tee >(sleep 0.2; sort -rn > copy) > /dev/null
        value=$KOCHI_PARAM_N
        [ "$KOCHI_PARAM_MODE $KOCHI_PARAM_VERSION" != "off 1.10" ] || value=1,502.1
        echo "$(cat mode) total $value"
    """
SNAKEFILE = """
    from snakemake_kochi import snakefile

    module kochi:
        snakefile: snakefile()
        config: config

    use rule * from kochi
    """
COLUMNS = ("mode", "version", "n", "duplicate", "total", "left")


def observe(directory: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    """What a run of the batch left, and what the next would do."""
    monkeypatch.setenv("RAN", str(directory / "ran"))
    monkeypatch.setenv("KOCHI_ROOT", str(directory / "root"))
    project = directory / "project"
    write(project / "kochi.yaml", "{}\n")
    write(project / "values.yaml", EXPERIMENT)
    write(project / "Snakefile", SNAKEFILE)
    write(project / ".gitignore", "/results/\n/.snakemake/\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "values")
    choose_name(project, "local", "local")
    # One job at a time: what starts when is compared, too.
    command = (sys.executable, "-m", "snakemake", *options, "--cores", "1", "--jobs", "1")
    done = run(*command, "values_all", cwd=project)
    assert done.returncode == 0, done.stdout
    results = project / "results" / "local"
    files = {
        str(path.relative_to(results)): printed(path.read_text())
        if kind == "out"
        else path.read_text()
        for kind in ("out", "copy")
        for path in sorted((results / kind).iterdir())
    }
    [table] = results.rglob("*.csv")
    with table.open() as stream:
        rows = [{key: row[key] for key in COLUMNS} for row in csv.DictReader(stream)]
    started = (directory / "ran").read_text().splitlines()
    again = run(*command, "values_all", "-n", cwd=project)
    return {
        "files": files,
        "rows": rows,
        "builds": sorted(started[:2]),
        "runs": started[2:],
        "next": re.findall("Nothing to be done", again.stdout),
    }


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        return observe(tmp_path_factory.mktemp("local"), patch, "--executor", "local")


def test_values_are_kept_and_a_file_is_whole(local: dict[str, Any]) -> None:
    points = {(row["mode"], row["version"], row["n"]) for row in local["rows"]}
    assert points == {("on", "1.10", "010"), ("on", "1.1", "010"), ("off", "1.10", "010")}
    copy = "".join(f"{number}\n" for number in range(300, 0, -1))
    copies = [text for name, text in local["files"].items() if name.startswith("copy/")]
    assert copies == [copy] * 6
    totals = [row["total"] for row in local["rows"]]
    assert sorted(totals) == ["", "", *["10.0"] * 4]
    assert local["builds"] == ["build off", "build on"]
    assert sorted(local["runs"][:3]) == sorted(local["runs"][3:])
    assert local["next"] == ["Nothing to be done"]


@pytest.mark.parametrize("runner", ["phase", "zygote", "command"])
def test_a_batch_is_as_with_the_local_executor(
    local: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    options = ("--executor", "kochi", "--kochi-runner", runner)
    assert observe(tmp_path, monkeypatch, *options) == local
