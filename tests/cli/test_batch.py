"""`kochi batch`, through Snakemake and real workers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import git, printed

from .conftest import Outcome

Kochi = Callable[..., Outcome]


def test_a_batch_runs_and_its_results_are_in_git(project: Path, kochi: Kochi, shell: Kochi) -> None:
    outcome = shell("batch", "fib.yaml", "test")
    assert outcome.status == 0, outcome.err
    assert "snakemake fib_test --snakefile" in outcome.err
    assert "--executor kochi --jobs 100" in outcome.err
    log = project / "results/local/fib/2_0.log"
    assert printed(log.read_text()) == "Compiling with debug=0\nfib of 2\n"
    assert git(project, "show", "kochi_artifacts_local:local/fib/2_0.log") == log.read_text()
    assert git(project, "status", "--porcelain") == ""
    names = {job["queue"] for job in kochi("show", "jobs", "-t", "--json").data}
    assert "fib-queue" in names
    # What is done is not done again.
    again = shell("batch", "fib.yaml", "test")
    assert again.status == 0
    assert "Nothing to be done" in again.err


def test_its_exit_status_is_snakemake_s(project: Path, shell: Kochi) -> None:
    text = (project / "fib.yaml").read_text()
    (project / "fib.yaml").write_text(text.replace("{n: [1, 2]}", "{n: [1, 13]}"))
    assert shell("batch", "fib.yaml", "test").status == 1
    # The other point was run all the same.
    assert (project / "results/local/fib/1_0.log").exists()
    assert not (project / "results/local/fib/13_0.log").exists()


def test_mistakes_in_other_experiments_stop_no_batch_and_are_told_in_a_line_each(
    project: Path, shell: Kochi
) -> None:
    text = (project / "fib.yaml").read_text()
    (project / "broken.yaml").write_text("run:\n  script: [\n")
    (project / "unknown.yaml").write_text(text.replace("recipe: release", "recipe: relase"))
    (project / "unread.yaml").write_bytes(b"run: {script: caf\xe9}\n")
    (project / "warned.yaml").write_text("default_params: {nobody: 1}\nrun: {script: echo}\n")
    outcome = shell("batch", "fib.yaml", "test", "--", "--dry-run")
    assert outcome.status == 0, outcome.err
    said = outcome.out + outcome.err
    lines = [line for line in said.splitlines() if line.startswith("Left out: ")]
    assert [re.search(r": (\w+)\.yaml:\d+: ", line)[1] for line in lines] == ["broken", "unknown"]  # type: ignore[index]
    assert "nobody" not in said
    assert "run_fib_test" in said
    # Snakemake does not say for which experiment it reads them.
    outcome = shell("batch", "unread.yaml", "test")
    assert outcome.status == 1
    assert "unread.yaml:1: UTF-8 was expected" in outcome.err


def test_a_dry_run_is_a_page_and_runs_nothing(project: Path, shell: Kochi) -> None:
    text = (project / "fib.yaml").read_text()
    (project / "fib.yaml").write_text(text.replace("n: [1, 2]", "n: {range: [1, 41]}"))
    outcome = shell("batch", "fib.yaml", "test", "--dry-run", "-w", "n>3")
    assert outcome.status == 0, outcome.err
    shown = f"{outcome.out}\n{outcome.err}"
    assert len(shown.splitlines()) < 60
    assert "37  waiting  not run yet\n" in outcome.out
    assert "... and 27 more; to list all, type: kochi show batch fib.yaml test -a" in outcome.out
    assert re.search(r"^install_tool_release +1$", shown, re.M)
    assert re.search(r"^run_fib_test +37$", shown, re.M)
    assert not (project / "results").exists()
    # The long form, as the page says.
    option = re.search(r"For each job and its reason, add: (.*)", outcome.out)
    assert option is not None
    words = ("batch", "fib.yaml", "test", "-n", "-w", "n=4", *option[1].split())
    assert "    reason: Missing output files: " in shell(*words).out


def test_it_works_from_a_subdirectory_and_with_an_experiment_in_it(
    project: Path, shell: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "fib.yaml").rename(project / "sub" / "fib.yaml")
    monkeypatch.chdir(project / "sub")
    outcome = shell("batch", "fib.yaml", "test", "--dry-run")
    assert outcome.status == 0, outcome.err
    assert "run_fib_test" in outcome.out


@pytest.mark.parametrize(
    ("snakefile", "own"),
    [
        ("rule all:\n", False),
        ("from snakemake_kochi import snakefile\nuse rule * from kochi as kochi_*\n", False),
        ("from snakemake_kochi import snakefile\nuse rule * from kochi\n", True),
    ],
)
def test_the_project_s_snakefile_is_used_if_it_has_the_rules(
    snakefile: str, own: bool, project: Path, shell: Kochi
) -> None:
    (project / "Snakefile").write_text(snakefile)
    command = shell("batch", "fib.yaml", "test", "--dry-run").err.splitlines()[0]
    assert command.startswith("$ cd ")
    assert ("--snakefile" not in command) == own


@pytest.mark.parametrize(
    ("closed", "options"),
    [(".", []), (".", ["-n"]), (".snakemake/locks", []), ("results/local", [])],
)
def test_a_directory_that_cannot_be_written_is_told_before_snakemake_starts(
    closed: str, options: list[str], project: Path, shell: Kochi
) -> None:
    directory = project / closed
    directory.mkdir(parents=True, exist_ok=True)
    # Also root may not write there.
    subprocess.run(["mount", "--bind", "-o", "ro", directory, directory], check=True)
    try:
        failed = shell("batch", "fib.yaml", "test", *options)
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)
    assert failed.status == 1
    first, second = failed.err.splitlines()
    assert first.startswith(f"kochi: you may not write to {directory}, where Snakemake writes")
    assert second == f"Work in a clone of your own. Type: git clone {project} DIRECTORY"


def test_errors_are_told_before_snakemake_starts(project: Path, kochi: Kochi) -> None:
    (project / "sub.yaml").mkdir()
    for words, status, message in (
        (("fib.yaml", "tset"), 1, "there is no batch 'tset', did you mean 'test'?"),
        (("fob.yaml", "test"), 1, "did you mean 'fib.yaml'?"),
        (("sub.yaml", "test"), 1, "sub.yaml is a directory, not an experiment file"),
        (("sub.yml", "test"), 1, "there is no file sub.yml, did you mean 'fib.yaml'?"),
        (("latin.yaml", "test"), 1, "latin.yaml:1: UTF-8 was expected, not the byte 0xe9"),
        (("fib.yaml",), 2, "Missing argument"),
        (("fib.yaml", "test", "--dry"), 2, "--dry"),
    ):
        if words[0] == "latin.yaml":
            (project / "latin.yaml").write_bytes(b"default_name: caf\xe9\nrun: {script: x}\n")
        outcome = kochi("batch", *words)
        assert outcome.status == status, words
        assert message in outcome.err, words
        assert not (project / ".snakemake").exists(), words


def test_batches_that_would_overwrite_each_other_are_told_before_snakemake_starts(
    project: Path, kochi: Kochi
) -> None:
    text = (project / "fib.yaml").read_text()
    other = "  other:\n    artifacts: [{type: stdout, dest: fib/2_0.log}]\n"
    (project / "fib.yaml").write_text(text.replace("batches:\n", f"batches:\n{other}"))
    outcome = kochi("batch", "fib.yaml", "test")
    assert outcome.status == 1
    assert "'fib/2_0.log' is also written by batch 'other'" in outcome.err
    assert not (project / ".snakemake").exists()


def test_artifacts_that_would_overwrite_each_other_are_told_before_snakemake_starts(
    project: Path, kochi: Kochi
) -> None:
    text = (project / "fib.yaml").read_text()
    (project / "fib.yaml").write_text(text.replace("${n}_", ""))
    outcome = kochi("batch", "fib.yaml", "test")
    assert outcome.status == 1
    assert "fib/0.log" in outcome.err
    assert not (project / ".snakemake").exists()


MISTAKEN = """\
default_params: {n: 1, inverse: "`1 / $n`"}
default_name: run_${x}
default_queue: "${n}/${n}"
batches:
  a:
    params: {n: [0, 1], x: 1, loop: $loop}
    artifacts: [{type: stdout, dest: "a/${n}_${duplicate}.log"}]
  b:
    params: {n: [0, 2], y: 1}
    artifacts: [{type: stdout, dest: "b/${n}_${duplicate}.log"}]
  c:
    params: {n: [0, 3]}
    artifacts: [{type: stdout, dest: "c/${n}_${duplicate}.log"}]
build: {script: "true"}
run: {depend_params: [n, inverse], script: "true"}
"""


def test_a_mistake_is_told_once_for_all_batches_and_each_line_has_its_prefix(
    project: Path, kochi: Kochi
) -> None:

    def said(*corrections: tuple[str, str]) -> list[str]:
        text = MISTAKEN
        for wrong, right in corrections:
            text = text.replace(wrong, right)
        (project / "fib.yaml").write_text(text)
        outcome = kochi("batch", "fib.yaml", "b")
        assert outcome.status == 1
        return outcome.err.splitlines()

    # Values first, then what they refer to, then the grids.
    assert said() == [
        "kochi: fib.yaml:3: default_queue: '${n}/${n}': the queue's name cannot be used in paths; "
        "1 to 128 letters, digits and any of ._+@=- were expected, not starting with a dot or dash",
    ]
    queue = ("${n}/${n}", "q${n}")
    assert said(queue) == [
        "kochi: fib.yaml:2: default_name: the parameter 'x' has no value in batch 'b'",
        "kochi: fib.yaml:2: default_name: the parameter 'x' has no value in batch 'c'",
        "kochi: fib.yaml:6: batches.a.params: parameters refer to each other in a circle: "
        "loop -> loop; give one of them a value",
    ]
    assert said(queue, ("run_${x}", "run"), ("$loop", "1")) == [
        "kochi: fib.yaml:1: default_params.inverse: `1 / ${n}` with n='0': division by zero",
    ]
    circle = said(queue, ("1 / $n", "1 / $inverse"))
    assert sum("inverse -> inverse" in line for line in circle) == 1
