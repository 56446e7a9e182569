"""Snakemake's own tests for executor plugins."""

import subprocess
import sys

import pytest
from snakemake.common.tests import TestWorkflowsLocalStorageBase

from snakemake_kochi.executor.plugin import ExecutorSettings

pytestmark = pytest.mark.compatibility


class TestKochiExecutor(TestWorkflowsLocalStorageBase):
    __test__ = True

    def get_executor(self) -> str:
        return "kochi"

    def get_executor_settings(self) -> ExecutorSettings:
        return ExecutorSettings()


def test_a_snakemake_with_another_executor_imports_few_of_our_modules() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import sys, snakemake.cli; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert "snakemake_kochi.executor.plugin" in said
    ours = {each for each in said if each.startswith("snakemake_kochi.")}
    assert {each.split(".")[1] for each in ours} == {"executor"}
    assert "snakemake_kochi.executor.executor" not in ours
