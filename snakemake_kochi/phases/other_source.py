"""A run whose code is that of another repository."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import asdict
from pathlib import Path

from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.phases.freeze import FREEZE_VERSION, Freeze, load_freeze
from snakemake_kochi.snapshot import fetch_source, freeze


def with_source_from(frozen: Freeze, git: str) -> Freeze:
    """The same freeze, but with the default branch of a repository (a URL or a local path), as it
    is now, in place of the project's own files. Raises GitError when it cannot be had."""
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        directory = Path(scratch) / "source"
        commit = fetch_source(git, None, None, frozen.paths.store, directory)
        snapshot = freeze(directory, frozen.paths.store)
    data = read_json(frozen.file, FREEZE_VERSION)
    data["snapshot"] = asdict(snapshot) | {"base": commit}
    content = to_json(data)
    file = frozen.paths.freeze(hashlib.sha256(content).hexdigest()[:32])
    make_directory(file.parent)
    write_atomically(file, content)
    return load_freeze(file)
