"""What two nodes can rely on, on each filesystem: the table in docs/protocol.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import REPOSITORY

# By filesystem: whether a flock keeps the other node out, and links between directories are made.
EXPECTED = {
    "local": (True, True),
    "GlusterFS": (True, True),
    "FUSE": (False, True),
    "BeeGFS-like": (False, False),
    "losing answers": (False, True),
    "NFS-like": (False, True),
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))


@pytest.mark.parametrize("name", EXPECTED)
def test_of_two_nodes_one_wins_each_race_and_sees_what_the_other_has_done(
    name: str, tmp_path: Path
) -> None:
    from bench.filesystems import CACHED, FILESYSTEMS, examine

    with FILESYSTEMS[name](tmp_path / "shared") as nodes:
        found = examine(nodes, races=40, rounds=1)
    assert found.renamed_once == found.linked_once == 1.0
    assert (found.excludes, found.between) == EXPECTED[name]
    if name == "NFS-like":
        assert min(found.missed, found.modified) > CACHED / 4, "nothing was cached"


def test_every_filesystem_is_in_the_table_of_the_protocol() -> None:
    from bench.filesystems import FILESYSTEMS

    assert list(FILESYSTEMS) == list(EXPECTED)
    page = (REPOSITORY / "docs" / "protocol.md").read_text()
    for name in FILESYSTEMS:
        assert f"| {name}" in page
