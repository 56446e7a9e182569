"""Only the package of the schedulers has knowledge of a batch system."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import snakemake_kochi
from snakemake_kochi.schedulers.native import OPTIONS

PACKAGE = Path(snakemake_kochi.__file__).parent
VARIABLE = re.compile(r"\b(SLURMD?|SBATCH|SQUEUE|SACCT|SINFO|SCANCEL|SRUN|PBS|LSB|SGE)_[A-Z]")
PROGRAMS = ("sbatch", "squeue", "sacct", "sacctmgr", "scancel", "scontrol", "sinfo", "srun")
OF_SBATCH = re.compile(
    r"--(account|array|constraint|cpus-per-task|exclude|exclusive|gres|job-name|mem|mem-per-cpu|"
    r"nodelist|ntasks|ntasks-per-node|open-mode|parsable|partition|qos|requeue|reservation|signal)"
    r"(=.*)?"
)


def texts(tree: ast.Module) -> Iterator[str]:
    """The texts in code: all but docstrings."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


def knowledge(tree: ast.Module) -> Iterator[str]:
    """The knowledge of a batch system in a module."""
    for text in texts(tree):
        is_name = text in (*OPTIONS, *PROGRAMS)
        if is_name or VARIABLE.search(text) or OF_SBATCH.fullmatch(text):
            yield text
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            package, _, inner = node.module.partition("snakemake_kochi.schedulers.")
            if not package and inner.split(".")[0] in OPTIONS:
                yield node.module


def test_no_other_module_knows_a_batch_system() -> None:
    others = [
        path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "schedulers"
    ]
    found = {str(path): list(knowledge(ast.parse(path.read_text()))) for path in others}
    assert len(others) > 100
    own = {str(PACKAGE / "cli/farm.py"): ["--mem"]}  # an option of kochi farm itself
    assert {path: known for path, known in found.items() if known} == own


def test_the_package_of_the_schedulers_has_this_knowledge() -> None:
    found: set[str] = set()
    for path in (PACKAGE / "schedulers").rglob("*.py"):
        found |= set(knowledge(ast.parse(path.read_text())))
    assert {"slurm", "squeue", "SLURM_JOB_ID", "--requeue"} <= found
    assert "snakemake_kochi.schedulers.slurm.answers" in found
