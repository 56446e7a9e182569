"""The code of records: the snapshot of each run, and the sources of its recipes, in the repository.

`snapshot/publication.py` says where they are. Code is published before the commit with the record,
so a record in the branch has its code. If the code cannot be published now, the result is committed
all the same, and `kochi artifact push` tries again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import GitError
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.snapshot import (
    CODE,
    publish_commit,
    publish_mirror,
    publish_snapshot,
    unpublished,
)

_logger = logging.getLogger(__name__)


def publish_code(
    repository: Path,
    paths: ProjectPaths,
    records: Iterable[Mapping[str, Any]],
    objects: Path | None = None,
) -> list[GitError]:
    """Publish the code of records, unless it is there; return what went wrong.

    `objects`: the repository's directory of objects, if known; then a ref in a file of its own is
    found without git. Raises GitError if the refs cannot be read.
    """
    wanted: dict[str, Callable[[], None]] = {}
    for record in records:
        wanted |= dict(_code_of(repository, paths, record))
    refs = None if objects is None else objects.parent / CODE
    names = {name for name in wanted if refs is None or not (refs / name).is_file()}
    failed = []
    for name in sorted(unpublished(repository, names)):
        try:
            wanted[name]()
        except GitError as error:
            failed.append(error)
            _logger.warning("the code %s of results is not in the repository yet: %s", name, error)
    return failed


def _code_of(
    repository: Path, paths: ProjectPaths, record: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The names of the code of a record, and how to publish it."""
    if snapshot := record.get("snapshot"):
        tree, base = snapshot["tree"], snapshot["base"]
        yield tree, partial(publish_snapshot, repository, paths.store, tree, base)
    for recipe in record.get("recipes", ()):
        name, source = f"{recipe['dependency']}:{recipe['recipe']}", recipe.get("source") or {}
        if "tree" in source:
            yield (
                source["tree"],
                partial(publish_mirror, repository, paths.store, source, name),
            )
        elif "git" in source:
            local = repository / os.path.expanduser(source["git"].removeprefix("file://"))
            if os.path.isdir(local):  # the record of a remote source has its address and commit
                commit = source["commit"]
                yield commit, partial(publish_commit, repository, local, commit, name)
