"""Results of a machine behind a login host come home, and count as done here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from other_computer import MACHINE, RECEIVE, OtherComputer
from ssh_host import SshHost
from support import REPOSITORY, git, run, write

from snakemake_kochi.artifacts.branches import initialise, synchronise
from snakemake_kochi.artifacts.large import Store, parse_pointer
from snakemake_kochi.cli.restore import restore_batches
from snakemake_kochi.errors import GitError
from snakemake_kochi.library.restoring import Asked
from snakemake_kochi.location import find_location
from snakemake_kochi.remote import results
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.project import send_project
from snakemake_kochi.remote.results import Brought, bring_results
from snakemake_kochi.remote.script import Script
from snakemake_kochi.remote.there import prologue

CONFIGURATION = f"""{MACHINE}large_files: 1M
dependencies:
  library:
    git: ../library
    script: mkdir -p "$KOCHI_INSTALL_PREFIX"; cp library.txt "$KOCHI_INSTALL_PREFIX"
    recipes: [{{name: here}}]
  mirrored:
    mirror: true
    mirror_dir: ../mirrored
    depends: [{{name: library, recipe: here}}]
    script: |
      mkdir -p "$KOCHI_INSTALL_PREFIX"
      cat mirrored.txt "$KOCHI_INSTALL_PREFIX_LIBRARY/library.txt" > "$KOCHI_INSTALL_PREFIX/text"
    recipes: [{{name: now}}]
"""
SQUARE = """
depends: [{name: mirrored, recipe: now}]
default_params: {n: 1}
batches:
  first:
    params: {n: [1, 2]}
    artifacts:
      - {type: file, src: out.txt, dest: 'square/${n}_${duplicate}.txt'}
      - {type: file, src: large.bin, dest: 'square/${n}_${duplicate}.bin'}
build:
  script: cat square.txt "$KOCHI_INSTALL_PREFIX_MIRRORED/text" > built.txt
run:
  depend_params: [n]
  script: |
    (cat built.txt; echo "$KOCHI_PARAM_N $KOCHI_COMMIT $KOCHI_DIRTY") > out.txt
    head -c 2000000 /dev/zero | tr '\\000' "$KOCHI_PARAM_N" > large.bin
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("library", "mirrored"):
        write(tmp_path / name / f"{name}.txt", f"{name}\n")
        git(tmp_path / name, "init", "-q", "-b", "main")
        git(tmp_path / name, "add", "-A")
        git(tmp_path / name, "commit", "-qm", "first")
    top = tmp_path / "project"
    write(top / "kochi.yaml", CONFIGURATION)
    write(top / "square.yaml", SQUARE)
    write(top / "square.txt", "committed\n")
    write(top / ".gitignore", "/results/\n/.snakemake/\n")
    git(top, "init", "-q", "-b", "main")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "first")
    write(top / "square.txt", "changed\n")
    monkeypatch.chdir(top)
    initialise(top, tmp_path / "artifacts")
    return top


@pytest.fixture
def there(tmp_path: Path) -> OtherComputer:
    return OtherComputer(tmp_path / "there")


def snakemake(project: Path, *words: str) -> str:
    file = REPOSITORY / "workflow" / "Snakefile"
    command = (sys.executable, "-m", "snakemake", "--snakefile", str(file), "--cores", "2", *words)
    done = run(*command, cwd=project, env={**os.environ, "KOCHI_DEFAULT_MACHINE": "spica"})
    assert done.returncode == 0, done.stdout
    return done.stdout


def bring(there: OtherComputer) -> Brought | None:
    return bring_results(there, find_location("spica"))  # type: ignore[arg-type]


def test_results_come_home_and_are_done_here(project: Path, there: OtherComputer) -> None:
    there.home.mkdir()
    assert bring(there) is None
    there.receive(
        there.send(), [*there.python, "-m", "snakemake_kochi.cli", "batch", "square.yaml", "first"]
    )
    before = git(project, "for-each-ref")
    brought = bring(there)
    assert brought is not None and (brought.name, brought.large) == ("spica", 2)
    assert "refs/heads/kochi_artifacts_spica" not in before
    location = find_location("spica")
    report = synchronise(project, location.project_paths, "spica", is_here=False)
    assert report.commits > 0
    assert Path(report.directory, "spica/square/1_0.txt").read_text().splitlines() == [
        "changed",
        "mirrored",
        "library",
        f"1 {git(project, 'rev-parse', 'HEAD').strip()} true",
    ]
    pointer = parse_pointer(Path(report.directory, "spica/square/2_0.bin").read_bytes())
    assert pointer is not None and Store.of(project).has(pointer)
    assert "Nothing to be done" not in snakemake(project, "-n", "square_first")
    batches = restore_batches(location, Asked("", "", "", "", False))
    assert [batch.there for batch in batches] == [2]
    assert "Nothing to be done" in snakemake(project, "-n", "square_first")
    assert Path("results/spica/square/2_0.bin").read_bytes() == b"2" * 2000000
    # After a change the results of the present code take the place of those that came before.
    write(project / "square.txt", "changed again\n")
    there.receive(
        there.send(), [*there.python, "-m", "snakemake_kochi.cli", "batch", "square.yaml", "first"]
    )
    assert bring(there) is not None
    synchronise(project, location.project_paths, "spica", is_here=False)
    batches = restore_batches(location, Asked("", "", "", "", False))
    assert [len(batch.outcome.restored) for batch in batches] == [2]
    assert Path("results/spica/square/1_0.txt").read_text().startswith("changed again\n")
    assert "Nothing to be done" in snakemake(project, "-n", "square_first")


def test_a_large_content_that_was_deleted_there_keeps_no_other_result_there(
    project: Path, there: OtherComputer
) -> None:
    there.home.mkdir()
    words = ["-m", "snakemake_kochi.cli", "batch", "square.yaml", "first"]
    there.receive(there.send(), [*there.python, *words])
    objects = [each for each in there.root.rglob("lfs/objects/*/*/*") if each.is_file()]
    assert len(objects) == 2
    objects[0].unlink()
    brought = bring(there)
    assert brought is not None and (brought.large, brought.lost) == (1, 1)
    report = synchronise(project, find_location("spica").project_paths, "spica", is_here=False)
    assert sorted(each.name for each in Path(report.directory, "spica/square").glob("*.txt")) == [
        "1_0.txt",
        "2_0.txt",
    ]
    # And it is not asked for again.
    assert bring(there) == Brought("spica")


def test_a_command_that_brings_the_same_at_once_does_not_fail_this_one(
    project: Path, there: OtherComputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = [*there.python, "-m", "snakemake_kochi.cli", "batch", "square.yaml", "first"]
    there.receive(there.send(), run)
    fetches = []

    def run_git(directory: Path, *words: str, **given: Any) -> bytes:
        if "fetch" in words and not fetches.append(words) and len(fetches) == 1:
            raise GitError("error: cannot lock ref 'refs/kochi/there/spica': reference exists")
        return git_here(directory, *words, **given)

    git_here = results.run_git
    monkeypatch.setattr(results, "run_git", run_git)
    brought = bring(there)
    assert brought is not None and brought.large == 2
    assert len(fetches) == 2


def test_through_ssh_with_a_banner_and_a_path_with_spaces(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SshHost("spica", tmp_path) as host:
        host.use(monkeypatch)
        host.banner("echo welcome to spica; echo be careful >&2")
        root = host.home / "kochi root"
        machine = host.machine(kochi_root="~/kochi root")
        write(project / "kochi.yaml", CONFIGURATION.replace(MACHINE, machine))
        location = find_location("spica")
        variables = {"KOCHI_ROOT": str(root), "KOCHI_MACHINE": "spica"}
        with Connection("spica") as connection:
            sent = send_project(connection, location, str(root), prologue(location.machine))
            place = [sent.place, sent.parcel, sent.working_directory]
            words = [sys.executable, "-P", "-c", RECEIVE, *place, "kochi", "batch"]
            script = Script.of(
                [*words, "square.yaml", "first"], None, {**sent.variables, **variables}
            )
            connection.run(script, what="the batch")
        for _ in range(2):
            kochi = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
            done = run(*kochi, "artifact", "sync", "-m", "spica", cwd=project)
            assert done.returncode == 0
        assert "2 of 2 results in results/" in done.stdout
        assert "Nothing to be done" in snakemake(project, "-n", "square_first")
        Path("results/spica/square/1_0.txt").write_text("edited\n")
        done = run(*kochi, "artifact", "sync", "-m", "spica", cwd=project)
        assert "type: kochi artifact restore -m spica --force\n" in done.stdout
        done = run(*kochi, "artifact", "restore", "-m", "spica", "--force", cwd=project)
        assert done.returncode == 0
        assert Path("results/spica/square/1_0.txt").read_text() != "edited\n"
        assert host.logins == 1
