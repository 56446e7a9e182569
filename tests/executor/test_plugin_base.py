"""Snakemake's own tests for executor plugins."""

import pytest
from snakemake.common.tests import TestWorkflowsLocalStorageBase

from snakemake_kochi.executor import ExecutorSettings

pytestmark = pytest.mark.compatibility


class TestKochiExecutor(TestWorkflowsLocalStorageBase):
    __test__ = True

    def get_executor(self) -> str:
        return "kochi"

    def get_executor_settings(self) -> ExecutorSettings:
        return ExecutorSettings()
