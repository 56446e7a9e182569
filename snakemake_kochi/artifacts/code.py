"""The code of records: the snapshot of each run, and the sources of its recipes, in the repository.

`snapshot/publication.py` says where they are. Code is published before the commit with the record,
so a record in the branch has its code. If the code cannot be published now, the result is committed
all the same, and `kochi artifact push` tries again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
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

_IDENTITY = re.compile(r"[0-9a-f]{40}")  # of a tree or commit of the store

_logger = logging.getLogger(__name__)


def publish_code(
    repository: Path,
    paths: ProjectPaths,
    records: Iterable[Mapping[str, Any]],
    objects: Path | None = None,
    are_own: bool = True,
) -> list[GitError]:
    """Publish the code of records, unless it is there; return what went wrong.

    `objects`: the repository's directory of objects, if known; then a ref in a file of its own is
    found without git. `are_own`: the records come from runs here. Of other records only what the
    store has is published: they could name any repository of this computer. Raises GitError if the
    refs cannot be read.
    """
    wanted: dict[str, Callable[[], None]] = {}
    for record in records:
        with suppress(KeyError, TypeError, AttributeError):  # edited by hand
            wanted |= dict(_from_store(repository, paths.store, record))
            wanted |= dict(_from_repositories(repository, record)) if are_own else {}
    wanted = {name: publish for name, publish in wanted.items() if _IDENTITY.fullmatch(name)}
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


def _from_store(
    repository: Path, store: Path, record: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The names of the code of a record that is in the store, and how to publish it."""
    if snapshot := record.get("snapshot"):
        tree, base = snapshot["tree"], snapshot["base"]
        if base is None or _IDENTITY.fullmatch(base):
            yield tree, partial(publish_snapshot, repository, store, tree, base)
    for recipe, source in _sources(record):
        if "tree" in source:
            yield source["tree"], partial(publish_mirror, repository, store, source, recipe)


def _from_repositories(
    repository: Path, record: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The same of sources in other repositories on this computer."""
    for recipe, source in _sources(record):
        if "git" in source:
            local = repository / os.path.expanduser(source["git"].removeprefix("file://"))
            if os.path.isdir(local):  # the record of a remote source has its address and commit
                commit = source["commit"]
                yield commit, partial(publish_commit, repository, local, commit, recipe)


def _sources(record: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for recipe in record.get("recipes", ()):
        yield f"{recipe['dependency']}:{recipe['recipe']}", recipe.get("source") or {}
