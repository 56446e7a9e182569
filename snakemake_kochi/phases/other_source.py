"""Code whose commit comes from another repository, with the changes of the working tree."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from snakemake_kochi.errors import GitError, NoCommitError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.phases.freeze import (
    FREEZE_VERSION,
    Freeze,
    load_freeze,
    own_outputs,
)
from snakemake_kochi.snapshot import (
    Entry,
    Snapshot,
    deleted_files,
    fetch_source,
    freeze,
    list_entries,
    overlay,
    submodules,
)


def with_source_from(frozen: Freeze, git: str) -> Freeze:
    """The same freeze, but with the checked-out commit and its submodules from another repository
    (a URL or a local path), and with the changes of the working tree.

    Raises GitError when the commit is not available there.
    """
    base = frozen.snapshot.base
    if base is None:
        raise GitError(
            f"{frozen.directory} has no commit yet, so {git} cannot have it",
            f"Commit, and push it there: git push {git}",
        )
    data = read_json(frozen.file, FREEZE_VERSION)
    data["snapshot"] = asdict(_fetch(frozen, git, base))
    content = to_json(data)
    file = frozen.paths.freeze(hashlib.sha256(content).hexdigest()[:32])
    make_directory(file.parent)
    write_atomically(file, content)
    return load_freeze(file)


def _fetch(frozen: Freeze, git: str, base: str) -> Snapshot:
    store = frozen.paths.store
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        directory = Path(scratch) / "source"
        try:
            fetch_source(git, None, base, store, directory)
        except NoCommitError as error:
            raise GitError(
                f"the repository {git} does not have the commit that is checked out in "
                f"{frozen.directory}, {base[:12]}",
                f"Push it there: git push {git} HEAD",
            ) from error
        excluded = own_outputs(Path.cwd(), frozen.directory, frozen.root)
        fetched = list_entries(store, freeze(directory, store, excluded).tree)
        modules = submodules(directory)
    # A submodule that is checked out here is not fetched: its files may have been deleted.
    own = [path for path in modules if _has_any_below(frozen.entries, path)]
    gone = [*own, *deleted_files(frozen.directory, base)]
    below = _without(fetched, gone)
    return replace(overlay(store, below, frozen.entries), base=base, dirty=frozen.snapshot.dirty)


def _has_any_below(entries: Sequence[Entry], directory: str) -> bool:
    return any(entry.path.startswith(f"{directory}/") for entry in entries)


def _without(entries: Sequence[Entry], paths: Sequence[str]) -> list[Entry]:
    """The files that are neither at one of the paths nor below one."""
    gone = frozenset(paths)

    def is_gone(path: str) -> bool:
        return path in gone or any(
            path[:end] in gone for end, character in enumerate(path) if character == "/"
        )

    return [entry for entry in entries if not is_gone(entry.path)]
