"""What a freeze of a project takes for its code."""

from __future__ import annotations

from pathlib import Path

from support import git, write

from snakemake_kochi.phases.freeze import take_freeze


def test_results_and_states_that_are_links_are_no_code(tmp_path: Path) -> None:
    directory = tmp_path / "project"
    write(directory / "kochi.yaml", "")
    write(directory / ".gitignore", "results/\n.snakemake/\n")
    git(directory, "init", "--quiet")
    before = take_freeze(directory, "local").snapshot.tree
    for name in ("results", ".snakemake"):
        (tmp_path / "scratch" / name).mkdir(parents=True)
        (directory / name).symlink_to(tmp_path / "scratch" / name)
    freeze = take_freeze(directory, "local")
    assert freeze.snapshot.tree == before
    assert {entry.path for entry in freeze.entries} == {"kochi.yaml", ".gitignore"}
