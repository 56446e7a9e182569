"""What a commit replaces: records of given-up attempts, and results that are newer than its own.

A commit from an old worktree may replace newer results. Kochi says so once, and where they are. A
result is newer if its run ended later, or had a descendant of the same commit checked out.

Each such commit leaves a file below artifacts/<machine>/ until a user was told:
  replaced/<random>.json   {"version", "count", "example": a sentence}
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.attempts import is_given_up, is_redone
from snakemake_kochi.artifacts.branch_content import (
    Branch,
    is_ancestor,
    last_change,
    paths_in,
    records_beside,
    records_of,
)
from snakemake_kochi.artifacts.entry import JournalEntry
from snakemake_kochi.artifacts.record import is_success
from snakemake_kochi.errors import DamagedFileError, GitError
from snakemake_kochi.files import (
    list_names,
    make_directory,
    random_word,
    read_json,
    to_json,
    write_atomically,
)
from snakemake_kochi.paths import ProjectPaths

VERSION = 1
_MOST_COMMITS = 20  # past commits that are examined
_MOST_PATHS = 500  # per command
_MOST_RECORDS = 20_000  # records that are read completely

_IsAncestor = Callable[[str, str], bool]


@dataclass(frozen=True)
class Replaced:
    """`example`: one of them, in a sentence."""

    count: int
    example: str

    def describe(self) -> str:
        results = "a newer result" if self.count == 1 else f"{self.count} newer results"
        return f"{results} replaced by older work. {self.example}"


def is_made_again(
    repository: Path,
    paths: ProjectPaths,
    state: Branch,
    entry: JournalEntry,
    others: Sequence[JournalEntry] = (),
) -> bool:
    """Whether the attempt of an entry was given up, and a later attempt has made the same point.

    The later result is another entry, or in the branch.
    """
    if not is_success(entry.record) or not is_given_up(paths, entry.record):
        return False
    made = [other.record for other in others if is_success(other.record)]
    if any(is_redone(entry.record, other) for other in made):
        return True
    beside = records_beside(repository, state, entry)
    return any(is_redone(entry.record, record) for _, record in beside)


def superseded_records(repository: Path, state: Branch, entry: JournalEntry) -> list[str]:
    """The records in the branch that an entry replaces.

    They are of the same point, and of attempts that were given up after their results had been
    committed.
    """
    record = entry.record
    if not record.get("job") or record.get("attempt") in (None, "", "1"):
        return []  # mostly: git is not asked for each result
    beside = records_beside(repository, state, entry)
    return [path for path, earlier in beside if is_redone(earlier, record)]


def note_replaced(
    repository: Path,
    paths: ProjectPaths,
    state: Branch,
    machine: str,
    entries: Sequence[JournalEntry],
) -> None:
    """Note the newer results that the entries, committed on top of `state.start`, have replaced.

    Of many commits or records only some are examined. Call it without the lock: large commits take
    a second, and others must not wait for it.
    """
    with suppress(OSError, GitError):  # the entries are committed all the same
        if (found := _find(repository, state, entries)) is None:
            return
        file = make_directory(paths.replaced(machine)) / f"{random_word(8)}.json"
        content = {"version": VERSION, "count": found.count, "example": found.example}
        write_atomically(file, to_json(content))


def take_replaced(paths: ProjectPaths, machine: str) -> Replaced | None:
    """Take the notes, to tell the user now; None if there are none."""
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
    by_path = {f"{state.name}/{dest}": entry for entry in entries for dest in entry.destinations}
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
