"""`kochi install`, through Snakemake."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import git

from .conftest import Outcome

Kochi = Callable[..., Outcome]

SNAKEFILE = """\
import os
import sys

from snakemake_kochi import snakefile

print("the root is", os.environ["KOCHI_ROOT"], file=sys.stderr)

module kochi:
    snakefile: snakefile()
    config: config

use rule * from kochi
"""


def state(kochi: Kochi, recipe: str) -> str:
    return str(kochi("show", "install", recipe, "--json").data["state"])


def prefix(kochi: Kochi, recipe: str) -> str:
    return str(kochi("show", "install", recipe, "--json").data["prefix"])


def test_a_recipe_is_installed_with_what_it_depends_on(
    project: Path, kochi: Kochi, shell: Kochi
) -> None:
    outcome = shell("install", "-d", "user:plain")
    assert outcome.status == 0, outcome.err
    line, *said = outcome.err.splitlines()
    assert "snakemake install_user_plain --snakefile" in line
    # No more than what was to be done, what was done, and where more is said.
    assert len([each for each in said if each]) <= 12
    assert "2 of 2 steps (100%) done" in said
    assert state(kochi, "user:plain") == state(kochi, "tool:release") == "installed"
    assert git(project, "status", "--porcelain") == ""


def test_a_failure_is_the_exit_status_and_the_good_one_stays(
    installed: Path, kochi: Kochi, shell: Kochi
) -> None:
    before = prefix(kochi, "tool:release")
    assert shell("install", "-d", "tool:broken").status == 1
    assert state(kochi, "tool:broken") == "not_installed"
    text = (installed / "kochi.yaml").read_text()
    (installed / "kochi.yaml").write_text(text.replace("cp tool.sh", "false; cp tool.sh"))
    assert shell("install", "-d", "tool:release").status == 1
    assert prefix(kochi, "tool:release") == before
    assert (Path(before) / "tool").exists()


def test_again_makes_a_new_one_also_on_a_worker_started_before(
    installed: Path, kochi: Kochi, shell: Kochi, worker: Callable[..., object]
) -> None:
    first = prefix(kochi, "tool:release")
    assert shell("install", "-d", "tool:release", "--again").status == 0
    second = prefix(kochi, "tool:release")
    worker("installs")
    outcome = shell("install", "-d", "tool:release", "--again", "-q", "installs")
    assert outcome.status == 0, outcome.err
    assert len({first, second, prefix(kochi, "tool:release")}) == 3
    (job,) = kochi("show", "jobs", "-t", "--json").data
    assert job["queue"] == "installs"


def test_it_is_installed_in_another_root_too(
    project: Path, kochi: Kochi, shell: Kochi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("install", "-d", "tool:release").status == 0
    monkeypatch.setenv("KOCHI_ROOT", str(tmp_path / "root2"))
    assert state(kochi, "tool:release") == "not_installed"
    assert shell("install", "-d", "tool:release").status == 0
    assert state(kochi, "tool:release") == "installed"


def test_the_branch_of_a_remote_is_looked_up_when_the_newest_is_asked_for(
    project: Path, tmp_path: Path, kochi: Kochi, shell: Kochi
) -> None:
    # A URL as far as anybody can tell; only git knows where it leads.
    git(project, "config", "--global", f"url.{tmp_path}/tool.insteadOf", "remote://tool")
    git(project, "config", "--global", "protocol.file.allow", "always")
    text = (project / "kochi.yaml").read_text()
    (project / "kochi.yaml").write_text(text.replace("../tool", "remote://tool"))
    assert shell("install", "-d", "tool:release").status == 0
    before = prefix(kochi, "tool:release")
    (tmp_path / "tool" / "tool.sh").write_text("echo newer\n")
    git(tmp_path / "tool", "commit", "--quiet", "--all", "--message", "newer")
    assert shell("install", "-d", "tool:release").status == 0
    assert prefix(kochi, "tool:release") == before
    newer = shell("install", "--newest", "-d", "tool:release")
    assert newer.status == 0
    commit = git(tmp_path / "tool", "rev-parse", "HEAD").strip()
    assert f"kochi.lock: tool:release is at commit {commit[:10]}" in newer.err
    assert f"commit: {commit}\n" in (project / "kochi.lock").read_text()
    assert prefix(kochi, "tool:release") != before


def test_unknown_recipes_are_refused_before_snakemake_starts(project: Path, kochi: Kochi) -> None:
    outcome = kochi("install", "-d", "tool:relaese")
    assert outcome.status == 1
    assert "did you mean 'release'?" in outcome.err
    outcome = kochi("install", "-d", "tool")
    assert "The recipes of 'tool' are: tool:release, tool:debug, tool:broken" in outcome.err
    assert kochi("install", "-d", "tool:release", "-d", "tool:debug").status == 1
    assert kochi("install", "-d", "tool:release", "-q", "a/b").status == 1
    assert kochi("install").status == 2
    assert not (project / ".snakemake").exists()


def test_how_to_start_a_worker_is_told_when_the_queue_has_none(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Kochi
) -> None:
    # In this profile Snakemake runs nothing: no worker would ever come for the job.
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "config.yaml").write_text("dry-run: true\n")
    monkeypatch.setenv("SNAKEMAKE_PROFILE", str(profile))
    (project / "Snakefile").write_text(SNAKEFILE)
    outcome = shell("install", "-d", "tool:release", "-q", "nobody", "--cores", "3")
    assert "kochi work -q nobody" in outcome.err
    assert "--kochi-queue nobody --jobs 3" in outcome.err
    assert f"the root is {os.environ['KOCHI_ROOT']}\n" in outcome.err
