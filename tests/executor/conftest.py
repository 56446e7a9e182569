from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

# Test modules are imported one by one, so a module beside them is found this way only.
sys.path.insert(0, str(Path(__file__).parent))

from run_helpers import our_processes


@pytest.fixture(autouse=True)
def nothing_runs_on(isolated_environment: Path) -> Iterator[None]:
    """Jobs that wait for a test wait for ever when it fails."""
    yield
    left = our_processes()
    for process in left:
        # It may end by itself, as those do whose worker or controller the test has killed.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)
