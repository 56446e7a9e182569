from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import Ticket


@pytest.fixture
def machine(tmp_path: Path) -> MachinePaths:
    return Root(tmp_path / "root").machine("local")


@pytest.fixture
def ticket(tmp_path: Path) -> Callable[..., Ticket]:
    def make(name: str = "job", **fields: object) -> Ticket:
        given = {"command": ("true",), "directory": str(tmp_path), **fields}
        return Ticket(name=name, **given)  # type: ignore[arg-type]

    return make
