"""Newer results that a commit has replaced, as one of an old worktree does: said once, with where
they are.

A result counts as newer when its run ended later, or had a descendant of the same commit checked
out. Noted below artifacts/<machine>/ until somebody is told:
  replaced.json   {"version", "count", "example": for people}
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.attempts import is_redone
from snakemake_kochi.artifacts.journal import JournalEntry
from snakemake_kochi.artifacts.recorded import (
    Branch,
    is_ancestor,
    last_change,
    paths_in,
    records_added,
)
from snakemake_kochi.errors import DamagedFileError, GitError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.paths import ProjectPaths

VERSION = 1
_MOST_COMMITS = 20  # of the past are looked at
_MOST_PATHS = 500  # in one command


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
    """Note which newer results the entries, committed on top of `state.start`, have replaced. Call
    with the committer's lock held."""
    with suppress(OSError, GitError):  # they are committed, whatever can be said of it
        if (found := _find(repository, state, entries)) is None:
            return
        if (before := _noted(paths, machine)) is not None:
            found = Replaced(before.count + found.count, before.example)
        make_directory(paths.replaced(machine).parent)
        content = {"version": VERSION, "count": found.count, "example": found.example}
        write_atomically(paths.replaced(machine), to_json(content))


def take_replaced(paths: ProjectPaths, machine: str) -> Replaced | None:
    """What is noted, for somebody who is told now; None where there is nothing."""
    found = _noted(paths, machine)
    if found is not None:
        with suppress(OSError):
            paths.replaced(machine).unlink(missing_ok=True)
    return found


def _noted(paths: ProjectPaths, machine: str) -> Replaced | None:
    try:
        content = read_json(paths.replaced(machine), VERSION)
        return Replaced(int(content["count"]), str(content["example"]))
    except (OSError, DamagedFileError, KeyError, TypeError, ValueError):
        return None


def _find(repository: Path, state: Branch, entries: Sequence[JournalEntry]) -> Replaced | None:
    by_path = {f"{state.name}/{dest}": entry for entry in entries for dest in entry.files}
    left = paths_in(repository, state.start, list(by_path))
    count, example = 0, ""
    for _ in range(_MOST_COMMITS):
        commit = last_change(repository, state.start, left[:_MOST_PATHS])
        if not commit:
            break
        seen = set()
        for record in records_added(repository, state, commit):
            its = {f"{state.name}/{each['dest']}" for each in record.get("artifacts", ())}
            seen |= its
            for path in sorted(its.intersection(left))[:1]:
                if _is_newer(repository, record, by_path[path].record):
                    count += 1
                    example = example or _told(path, commit, record)
        remaining = [path for path in left if path not in seen]
        if len(remaining) == len(left):
            break  # changed by hand, without a record
        left = remaining
    return Replaced(count, example) if count else None


def _is_newer(repository: Path, record: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    if is_redone(record, ours) or is_redone(ours, record):
        return False  # attempts of one job
    if _moment(record) > _moment(ours):
        return True
    base, our_base = _base(record), _base(ours)
    return bool(base and our_base) and base != our_base and is_ancestor(repository, our_base, base)


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
