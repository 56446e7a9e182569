"""What a run forgets of earlier builds when it starts."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from snakemake_kochi.library.outputs import Directories, Kept
from snakemake_kochi.phases.products import Build, write_build


@pytest.mark.parametrize(("answer", "is_kept"), [(errno.EIO, True), (errno.ENOENT, False)])
def test_a_build_is_forgotten_when_it_is_gone_and_not_when_that_is_not_known(
    answer: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(Directories("local").builds("b", "key"), "build.json")
    tree = tmp_path / "tree"
    write_build(file, Build("digest", tree))
    real = os.stat

    def stat(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        if os.fspath(path) == os.fspath(tree):
            raise OSError(answer, os.strerror(answer), os.fspath(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "stat", stat)
    assert Kept(forgets=True).is_there(str(file)) == is_kept == file.exists()
