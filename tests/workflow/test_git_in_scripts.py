"""Scripts that ask git which code they are, as many makefiles do."""

from __future__ import annotations

from typing import Any

import pytest
from support import git, write

from .conftest import results

pytestmark = pytest.mark.phases

ASK = "git describe --tags --dirty; git log -1 --format=%s; echo $KOCHI_COMMIT $KOCHI_DIRTY"


def test_git_in_a_build_and_in_a_run_says_what_it_says_in_the_working_tree(
    finished_project: Any,
) -> None:
    project = finished_project
    top = project.directory
    project.edit("sum.yaml", "cp code.txt built.txt", f"({ASK}) > built.txt")
    project.edit("sum.yaml", "cat built.txt $KOCHI_INSTALL_PREFIX_TOOL/level", f"({ASK})")
    project.edit("sum.yaml", "src: out.txt", "src: both.txt")
    project.edit("sum.yaml", "> out.txt", "> out.txt; cat built.txt out.txt > both.txt")
    project.edit("sum.yaml", "n: [1, 2]", "n: [1]")
    project.commit("clean")
    git(top, "tag", "-a", "v1", "-m", "first")
    project.snakemake(*results(1), executor="kochi")
    first = git(top, "rev-parse", "HEAD").strip()
    clean = f"v1\nclean\n{first} false\n"
    assert (top / "results/local/sum/first/1_0.txt").read_text() == clean * 2
    project.take_ran()

    # The code is the same, and so is the build; the run is of a later commit, and of no commit.
    project.edit("sum.yaml", "n: [1]", "n: [1, 2]")
    project.commit("later")
    project.snakemake(*results(1, 2))
    head = git(top, "rev-parse", "HEAD").strip()
    later = f"v1-1-g{head[:7]}\nlater\n{head} false\n"
    assert (top / "results/local/sum/first/2_0.txt").read_text() == clean + later
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    project.commit("later")
    write(top / "README.md", "changed\n")
    before = (top / ".git" / "index").read_bytes()
    project.snakemake(*results(1, 2, 3))
    head = git(top, "rev-parse", "HEAD").strip()
    changed = f"v1-2-g{head[:7]}-dirty\nlater\n{head} true\n"
    assert (top / "results/local/sum/first/3_0.txt").read_text() == clean + changed
    assert (top / ".git" / "index").read_bytes() == before
    assert project.take_ran() == ["run sum 2", "run sum 3"]
