"""`kochi init`: files that the user then owns."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from full_disk import mounted
from slurm_fake import FakeSlurm, says
from support import git

from snakemake_kochi.cli.init import with_machine
from snakemake_kochi.project.configuration import load_project

from .conftest import Outcome, make_repository

Kochi = Callable[..., Outcome]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = make_repository(tmp_path / "mine", {"code.c": "int main;\n"})
    monkeypatch.chdir(directory)
    return directory


def test_a_repository_becomes_a_project(repository: Path, kochi: Kochi) -> None:
    outcome = kochi("init")
    assert outcome.status == 0
    assert git(repository, "status", "--porcelain").split() == [
        "??",
        ".gitignore",
        "??",
        "Snakefile",
        "??",
        "kochi.yaml",
    ]
    assert (repository / ".gitignore").read_text() == "/results/\n/.snakemake/\n"
    assert "snakemake --list-target-rules" in outcome.out
    # An empty kochi.yaml, all of it comments, is a valid one.
    assert kochi("show", "installs").status == 0


def test_what_is_commented_out_is_valid_when_it_counts(repository: Path, kochi: Kochi) -> None:
    kochi("init")
    file = repository / "kochi.yaml"
    _, *lines = file.read_text().splitlines()
    file.write_text("\n".join(line.removeprefix("# ").removeprefix("#") for line in lines))
    machine = load_project(repository).machine("spica")
    assert machine.scheduler == "slurm"
    assert machine.allocation.constraints == {"partition": "short"}


def test_snakemake_understands_the_snakefile_that_is_written(
    repository: Path, kochi: Kochi
) -> None:
    kochi("init")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "snakemake", "--list-target-rules"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "experiments" in done.stdout


def test_nothing_is_overwritten(repository: Path, kochi: Kochi) -> None:
    mine = {
        "kochi.yaml": "dependencies: {}\n",
        "Snakefile": "rule all:\n",
        ".gitignore": "results",
    }
    for name, text in mine.items():
        (repository / name).write_text(text)
    outcome = kochi("init")
    assert outcome.status == 0
    assert (repository / "kochi.yaml").read_text() == mine["kochi.yaml"]
    assert (repository / "Snakefile").read_text() == mine["Snakefile"]
    assert (repository / ".gitignore").read_text() == "results\n/.snakemake/\n"
    # A Snakefile written by hand stays, and is told what it lacks.
    assert "Add these lines" in outcome.out
    assert "use rule * from kochi" in outcome.out


def test_a_second_time_nothing_changes(repository: Path, kochi: Kochi) -> None:
    kochi("init")
    before = {path: path.read_bytes() for path in repository.iterdir() if path.is_file()}
    outcome = kochi("init")
    assert outcome.status == 0
    assert "Add these lines" not in outcome.out
    assert {p: p.read_bytes() for p in repository.iterdir() if p.is_file()} == before


def test_the_files_go_to_the_top_of_the_repository(repository: Path, kochi: Kochi) -> None:
    (repository / "sub").mkdir()
    assert kochi("init", repository / "sub").status == 0
    assert (repository / "kochi.yaml").exists()
    assert not (repository / "sub" / "kochi.yaml").exists()


def test_outside_of_a_repository_it_says_git_init(own_surroundings: Path, kochi: Kochi) -> None:
    outcome = kochi("init")
    assert outcome.status == 1
    assert "git init" in outcome.err
    assert list(own_surroundings.iterdir()) == []


def test_without_a_slurm_no_machine_is_written(repository: Path, kochi: Kochi) -> None:
    outcome = kochi("init", "--machine")
    assert outcome.status == 1
    # Its programs may be installed.
    assert "there is no program sbatch here" in outcome.err or "refused" in outcome.err
    assert "Is this a login node of" in outcome.err
    assert not (repository / "kochi.yaml").exists()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with the machine `own`."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("git", "mount", "umount"):
        (programs / name).symlink_to(str(shutil.which(name)))
    fake = FakeSlurm(programs, monkeypatch)
    fake.answers("sbatch", "exit 1")
    fake.answers("sacctmgr", "exit 1")
    fake.answers("scontrol", says("ClusterName = own"))
    main, short = "main*|1-00:00:00|4|4096|(null)|(null)|2", "short|30:00|4|4096|(null)|(null)|2"
    fake.answers("sinfo", says(f"{main}\n{short}"))


@pytest.mark.usefixtures("slurm")
def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(tmp_path / "disk") as disk:
        make_repository(disk.directory / "mine", {"code.c": "int main;\n"})
        monkeypatch.chdir(disk.directory / "mine")
        file = Path("kochi.yaml")
        # It fills its pages: with the machine it needs more than it would give back.
        before = f"dependencies: {{}}\n#{'x' * 8170}\n"
        file.write_text(before)
        disk.fill()
        outcome = kochi("init", "--machine")
        assert outcome.status == 1
        assert "No space left on device" in outcome.err
        assert file.read_text() == before
        file.unlink()
        disk.fill()
        assert kochi("init").status == 1
        assert {each.name for each in Path().iterdir()} == {".git", "code.c"}
        monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("slurm")
def test_a_file_keeps_its_mode_and_its_place_when_a_machine_is_added(
    repository: Path, kochi: Kochi
) -> None:
    there = repository / "config" / "mine.yaml"
    there.parent.mkdir()
    there.write_text("dependencies: {}\n")
    there.chmod(0o664)
    file = repository / "kochi.yaml"
    file.symlink_to("config/mine.yaml")
    assert kochi("init", "--machine").status == 0
    assert file.is_symlink()
    assert "scheduler: slurm" in there.read_text()
    assert there.stat().st_mode & 0o777 == 0o664
    assert [each.name for each in there.parent.iterdir()] == ["mine.yaml"]


@pytest.mark.usefixtures("slurm")
def test_the_example_of_a_time_limit_suits_every_partition(repository: Path, kochi: Kochi) -> None:
    assert kochi("init", "--machine").status == 0
    assert "    # time: 0:30:00  # by default" in (repository / "kochi.yaml").read_text()


ENTRY = "own:\n  scheduler: slurm\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "machines:\n  own:\n    scheduler: slurm\n"),
        ("# mine", "# mine\n\nmachines:\n  own:\n    scheduler: slurm\n"),
        ("machines:\n", "machines:\n  own:\n    scheduler: slurm\n"),
        (
            "machines: # all\n vega:\n  hosts: v\ndependencies: {}\n",
            "machines: # all\n own:\n   scheduler: slurm\n vega:\n  hosts: v\ndependencies: {}\n",
        ),
        ("machines: {vega: {}}\n", None),
        ("{dependencies: {}}\n", None),
    ],
)
def test_a_machine_is_added_and_all_else_stays_as_it_was(
    tmp_path: Path, before: str, after: str | None
) -> None:
    assert with_machine(tmp_path / "kochi.yaml", before, "own", ENTRY) == after
