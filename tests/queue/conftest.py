from __future__ import annotations

from collections.abc import Iterator

import pytest
from file_calls import Calls, note_calls


@pytest.fixture
def calls() -> Iterator[Calls]:
    with note_calls() as found:
        yield found
