"""A KOCHI_ROOT in which nothing can be written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY, git, write

SNAKEFILE = """
    rule one:
        output: "one"
        shell: "touch {output}"
    """
# Nobody, not even root, makes a directory there.
NOWHERE = "/proc/self/nowhere"
LIBRARY = str(REPOSITORY / "workflow" / "Snakefile")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "begin")
    write(tmp_path / "Snakefile", SNAKEFILE)
    own = f"{{kochi_root: {NOWHERE}, scheduler: slurm}}"
    write(tmp_path / "kochi.yaml", f"machines: {{own: {own}}}\n")
    return tmp_path


CHANGE = "Change machines: own: kochi_root in "
WANTED = "a directory that you may write to and that all nodes of a cluster see"
TYPE = f"Choose {WANTED}, and type: export "


@pytest.mark.parametrize(
    ("environment", "directory", "hint", "snakefile"),
    [
        ({"KOCHI_DEFAULT_MACHINE": "own"}, NOWHERE, CHANGE, "Snakefile"),
        ({"KOCHI_ROOT": NOWHERE}, NOWHERE, f"It is set by $KOCHI_ROOT. {TYPE}", LIBRARY),
        (
            *({"KOCHI_ROOT": "", "HOME": NOWHERE}, f"{NOWHERE}/.kochi"),
            *(f"This is the default. {TYPE}", "Snakefile"),
        ),
    ],
)
def test_a_run_says_which_directory_cannot_be_used_who_chose_it_and_what_to_type(
    project: Path,
    snakemake: Any,
    environment: dict[str, str],
    directory: str,
    hint: str,
    snakefile: str,
) -> None:
    cache = {"XDG_CACHE_HOME": str(project / "cache")}  # Snakemake's own
    words = ("--executor", "kochi", "-j1", "--kochi-where", "here", "--snakefile", snakefile)
    done = snakemake(*words, cwd=project, env={**cache, **environment})
    assert done.returncode == 1
    why = os.strerror(2)
    assert f"KOCHI_ROOT {directory} cannot be used: {NOWHERE}: {why}" in done.stdout
    assert hint in done.stdout
    assert ".py" not in done.stdout.partition("KOCHI_ROOT")[2]
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    "command", [("launch", "-m", "own", "--", "one"), ("alloc", "-m", "own", "-q", "q")]
)
def test_commands_print_the_same_message(
    project: Path, kochi: Any, command: tuple[str, ...]
) -> None:
    done = kochi(*command, cwd=project)
    assert done.returncode == 1
    assert f"kochi: KOCHI_ROOT {NOWHERE} cannot be used: {NOWHERE}: " in done.stdout
    assert "Change machines: own: kochi_root in kochi.yaml to " in done.stdout


def test_a_queue_that_becomes_unwritable_ends_the_run_with_one_message(
    tmp_path: Path, snakemake: Any
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule all:
            input: "b", "slow"
        rule slow:
            output: "slow"
            shell: "touch began; sleep 300; touch {output}"
        rule a:
            output: "a"
            shell:
                "while [ ! -e began ]; do sleep 0.1; done;"
                "cd $KOCHI_ROOT/machines/local/queues/$KOCHI_QUEUE;"
                "rm -r waiting; touch waiting; cd - ; touch {output}"
        rule b:
            input: "a"
            output: "b"
            shell: "touch {output}"
        """,
    )
    done = snakemake("--executor", "kochi", "-j2", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.count("no ticket was submitted: cannot write below") == 1
    assert "Traceback" not in done.stdout
    assert done.stdout.count("kochi ran 1 job: 1 by shell") == 1
    assert done.stdout.count("Cancelled 1 kochi job") == 1
