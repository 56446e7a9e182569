"""The output of build and run, as it is kept."""

from __future__ import annotations

import os
from pathlib import Path

from support import write

from snakemake_kochi.phases.outputs import MOST_OF_BUILD, write_printed


def printed(tmp_path: Path, log: Path) -> bytes:
    """The file, of which the record has to say where the run's own part is."""
    captured = write(tmp_path / "captured", "total 10\n")
    place = write_printed(tmp_path / "printed", "sum", "7", log, captured)
    content = (tmp_path / "printed").read_bytes()
    assert content[place["start"] :][: place["size"]] == b"total 10\n"
    return content


def test_a_finished_run_is_kept_though_the_output_of_its_build_cannot_be_read(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    assert (
        f"[the build's output, {log}, cannot be read now: Is a" in printed(tmp_path, log).decode()
    )


def test_the_output_of_a_long_build_is_cut_in_a_root_of_any_name(tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"latin-\xe9")
    log = write(root / "log", "line\n" * MOST_OF_BUILD)
    content = printed(tmp_path, log)
    assert b" bytes before this are in " + os.fsencode(log) + b"]\nline\n" in content
    assert len(content) < MOST_OF_BUILD + 1000
