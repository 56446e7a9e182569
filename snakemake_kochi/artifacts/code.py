"""The code of records, in refs of the user's repository, where it can be pushed with the results.

refs/kochi/code/<name>   a commit with the code (`snapshot/publication.py`); <name> is the id of the
                         tree of a snapshot, or of a commit of another repository

Code is published before the commit with the record, so a record in the branch has its code. If the
code cannot be published now, the result is committed all the same, and `kochi artifact push` tries
again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from snakemake_kochi.errors import GitError
from snakemake_kochi.git import FULL_IDENTITY, read_objects, run_git
from snakemake_kochi.paths import ProjectPaths

CODE = "refs/kochi/code"

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
    wanted = {n: publish for n, publish in wanted.items() if FULL_IDENTITY.fullmatch(str(n))}
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


def read_code(repository: Path, name: str, path: str) -> bytes | None:
    """A file of the code called `name`; None if this clone does not have it."""
    if not FULL_IDENTITY.fullmatch(name) or not path.isprintable():
        return None
    return next(read_objects(repository, [f"{CODE}/{name}:{path}"]), None)


def unpublished(repository: Path, names: Collection[str]) -> set[str]:
    """The names among these that have no code in a repository. Raises GitError."""
    if not names:
        return set()
    refs = [f"{CODE}/{name}" for name in names]
    listed = run_git(repository, "for-each-ref", "--format=%(refname)", "--", *refs)
    known = set(listed.decode().splitlines())
    return {name for name in names if f"{CODE}/{name}" not in known}


def _from_store(
    repository: Path, store: Path, record: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The names of the code of a record that is in the store, and how to publish it."""
    for snapshot in filter(None, (record.get("snapshot"), record.get("configuration"))):
        tree, base = snapshot["tree"], snapshot["base"]
        if base is None or FULL_IDENTITY.fullmatch(base):
            yield (
                tree,
                partial(_publish, "snapshot", repository, f"{CODE}/{tree}", store, tree, base),
            )
    for recipe, source in _sources(record):
        if "tree" in source and (not source["base"] or FULL_IDENTITY.fullmatch(source["base"])):
            ref = f"{CODE}/{source['tree']}"
            yield (
                source["tree"],
                partial(_publish, "mirror", repository, ref, store, source, recipe),
            )


def _from_repositories(
    repository: Path, record: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The same of sources in other repositories on this computer."""
    for recipe, source in _sources(record):
        if "git" in source:
            local = repository / os.path.expanduser(source["git"].removeprefix("file://"))
            if os.path.isdir(local):  # the record of a remote source has its address and commit
                commit, ref = source["commit"], f"{CODE}/{source['commit']}"
                yield commit, partial(_publish, "commit", repository, ref, local, commit, recipe)


def _publish(what: Literal["snapshot", "mirror", "commit"], *arguments: Any) -> None:
    """Call a function of `snapshot/publication.py`. Raises GitError."""
    # Imported here: it loads much, and most commits have no new code.
    from snakemake_kochi.snapshot import publish_commit, publish_mirror, publish_snapshot

    publish: dict[str, Callable[..., None]]
    publish = {"snapshot": publish_snapshot, "mirror": publish_mirror, "commit": publish_commit}
    publish[what](*arguments)


def _sources(record: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for recipe in record.get("recipes", ()):
        yield f"{recipe['dependency']}:{recipe['recipe']}", recipe.get("source") or {}
