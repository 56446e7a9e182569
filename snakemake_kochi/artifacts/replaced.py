"""Newer results that a commit has replaced, as one of an old worktree does: said once, with where
they are.

A result counts as newer when its run ended later, or had a descendant of the same commit checked
out. Noted below artifacts/<machine>/ until somebody is told, a file for each commit that did so:
  replaced/<random>.json   {"version", "count", "example": for people}
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.attempts import is_redone
from snakemake_kochi.artifacts.journal import JournalEntry
from snakemake_kochi.artifacts.recorded import (
    Branch,
    is_ancestor,
    last_change,
    paths_in,
    records_of,
)
from snakemake_kochi.errors import DamagedFileError, GitError
from snakemake_kochi.files import list_names, make_directory, read_json, to_json, write_atomically
from snakemake_kochi.paths import ProjectPaths

VERSION = 1
_MOST_COMMITS = 20  # how many past commits are examined
_MOST_PATHS = 500  # per command
_MOST_RECORDS = 20_000  # how many are read completely

_IsAncestor = Callable[[str, str], bool]


@dataclass(frozen=True)
class Replaced:
    """`example`: one of them, in a sentence."""

    count: int
    example: str

    def describe(self) -> str:
        results = "a newer result" if self.count == 1 else f"{self.count} newer results"
        return f"{results} replaced by older work. {self.example}"


def note_replaced(
    repository: Path,
    paths: ProjectPaths,
    state: Branch,
    machine: str,
    entries: Sequence[JournalEntry],
) -> None:
    """Note the newer results that the entries, committed on top of `state.start`, have replaced.

    Of many commits or records only some are examined. Needs no lock: with large commits it takes a
    second, for which others must not wait.
    """
    with suppress(OSError, GitError):  # they are committed, whatever can be said of them
        if (found := _find(repository, state, entries)) is None:
            return
        file = make_directory(paths.replaced(machine)) / f"{secrets.token_hex(8)}.json"
        content = {"version": VERSION, "count": found.count, "example": found.example}
        write_atomically(file, to_json(content))


def take_replaced(paths: ProjectPaths, machine: str) -> Replaced | None:
    """The notes, for a process that tells the user now; None if there are none."""
    place = paths.replaced(machine)
    try:
        files = [place / name for name in sorted(list_names(place)) if name.endswith(".json")]
    except OSError:
        return None
    found = []
    for file in files:
        if (noted := _noted(file)) is not None:
            found.append(noted)
        with suppress(OSError):
            file.unlink(missing_ok=True)
    return Replaced(sum(each.count for each in found), found[0].example) if found else None


def _noted(file: Path) -> Replaced | None:
    try:
        content = read_json(file, VERSION)
        return Replaced(int(content["count"]), str(content["example"]))
    except (OSError, DamagedFileError, KeyError, TypeError, ValueError):
        return None


def _find(repository: Path, state: Branch, entries: Sequence[JournalEntry]) -> Replaced | None:
    by_path = {f"{state.name}/{dest}": entry for entry in entries for dest in entry.files}
    left = paths_in(repository, state.start, list(by_path))
    is_part = cache(partial(is_ancestor, repository))  # most runs have the same commit
    count, example, records = 0, "", _MOST_RECORDS
    for _ in range(_MOST_COMMITS):
        commit = last_change(repository, state.start, left[:_MOST_PATHS])
        if not commit:
            break
        seen = set()
        for record, its in records_of(repository, state, commit, left):
            seen |= its
            for path in sorted(its)[:1]:
                if _is_newer(record, by_path[path].record, is_part):
                    count += 1
                    example = example or _told(path, commit, record)
            if not (records := records - 1):
                left = []
                break
        remaining = [path for path in left if path not in seen]
        if len(remaining) == len(left):
            break  # changed by hand, without a record; or more than are examined
        left = remaining
    return Replaced(count, example) if count else None


def _is_newer(record: Mapping[str, Any], ours: Mapping[str, Any], is_part: _IsAncestor) -> bool:
    if is_redone(record, ours) or is_redone(ours, record):
        return False  # attempts of one job
    if _moment(record) > _moment(ours):
        return True
    base, our_base = _base(record), _base(ours)
    return bool(base and our_base) and base != our_base and is_part(our_base, base)


def _told(path: str, commit: str, record: Mapping[str, Any]) -> str:
    made = f"The one in {path} was made at {record.get('ended')}"
    of = f" from commit {base[:12]}" if (base := _base(record)) else ""
    return f"{made}{of}; to see it, type: git show {shlex.quote(f'{commit[:12]}:{path}')}"


def _moment(record: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(record["ended"])).timestamp()
    except (KeyError, ValueError):
        return 0.0


def _base(record: Mapping[str, Any]) -> str:
    snapshot = record.get("snapshot")
    return str(snapshot.get("base") or "") if isinstance(snapshot, Mapping) else ""
