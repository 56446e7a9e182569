from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test modules are imported one by one, so modules of here and of the executor's tests are found
# this way only.
sys.path.insert(0, str(Path(__file__).parents[1] / "executor"))
sys.path.insert(0, str(Path(__file__).parent))

from workflow_runs import WorkflowRuns


@pytest.fixture(scope="session")
def workflow_runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkflowRuns]:
    """All workflows by all runners that tests ask for: each made once, for the first of them."""
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    runners = {call.params.get("runner", "") for call in calls if call is not None}
    runs = WorkflowRuns(tmp_path_factory.mktemp("conformance"), runners)
    yield runs
    runs.close()
