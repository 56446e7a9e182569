"""Results of an artifact branch become files in `results/` again, with their records.

`restored.py` notes which results these are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from snakemake_kochi.artifacts.branch_content import last_change, paths_in, record_path
from snakemake_kochi.artifacts.content import read_artifacts
from snakemake_kochi.artifacts.reading import Published
from snakemake_kochi.artifacts.record import checked_form, parse_record
from snakemake_kochi.errors import DamagedFileError, GitError, KochiError, MissingContentError
from snakemake_kochi.files import (
    LARGE_BLOCK,
    LINK_REFUSED,
    OF_A_PERSON,
    blocks_of,
    is_name,
    list_names,
    random_word,
    read_json,
)
from snakemake_kochi.git import how_to_complete
from snakemake_kochi.paths import WorkingPaths

_MOST_NAMED = 3
_logger = logging.getLogger(__name__)
_UNFINISHED = ".restoring.tmp"


@dataclass(frozen=True)
class Publication:
    """The results that are published under a name, in one commit."""

    name: str
    commit: str


def published_records(repository: Path, publication: Publication) -> Iterator[dict[str, Any]]:
    """The records of results in a publication, of any machine, in today's form.

    Those of a newer release, and those that somebody edited, are left out, which is logged. Raises
    GitError if this clone lacks some records.
    """
    branches = Published(repository, {publication.name: (publication.commit,)})
    unread: list[str] = []
    for file, content in branches.read_records(branches.records()):
        where = f"record {file.identity} of {publication.name}"
        if content is None:
            raise GitError(
                f"{where} is not in this clone",
                how_to_complete(),
            )
        try:
            record = checked_form(parse_record(content), where)
        except DamagedFileError as error:
            unread.append(str(error))
        except ValueError as error:
            unread.append(f"{where} was edited: {error}")
        else:
            if record.get("identity") == file.identity and is_name(file.identity):
                yield record
            else:
                unread.append(f"{where} was edited: its identity is another one, or no name")
    for sentence in unread[:_MOST_NAMED]:
        _logger.warning("left out: %s", sentence)
    if more := unread[_MOST_NAMED:]:
        _logger.warning("left out: %d more records of %s", len(more), publication.name)


@dataclass(frozen=True)
class Wanted:
    """A result to restore: the file of each destination, and that of the record.

    Of the record, only "identity" and "artifacts" are used. It is written aside: without its record
    a result does not count, until Snakemake learns that it does (`library/restoring.py`).
    """

    record: Mapping[str, Any]
    files: Mapping[str, Path]
    record_file: Path

    @property
    def identity(self) -> str:
        return str(self.record["identity"])

    @property
    def aside(self) -> Path:
        return WorkingPaths.record_aside(self.record_file)

    def digest(self, dest: str) -> str | None:
        """The SHA-256 of a file; None for one that is the record itself."""
        own = next(each for each in self.record["artifacts"] if each["dest"] == dest)
        return str(own["sha256"]) if "sha256" in own else None


@dataclass
class Outcome:
    """What became of wanted results, by identity.

    `restored` just now; `present`: the same result was there; `own`: another run left the very same
    files; `differing`: files that are there with another content, and stay; `lacking`: why the
    content is not in this clone.
    """

    restored: set[str] = field(default_factory=set)
    present: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    differing: dict[str, list[Path]] = field(default_factory=dict)
    lacking: dict[str, KochiError] = field(default_factory=dict)


def restore_files(
    repository: Path, publication: Publication, wanted: Sequence[Wanted], force: bool = False
) -> Outcome:
    """Write the files of results that are not there, and then their records, aside.

    A file that is there with another content stays, and so does its whole result, unless `force`,
    or it is that of another result of the publication, and nobody has edited it.
    Each file appears complete, with the SHA-256 of its record. Killed at any point, the next call
    goes on. Raises OSError, for a full disk for example: what was written until then is whole.
    """
    outcome, missing = Outcome(), []
    differing: dict[str, tuple[Wanted, list[Path]]] = {}
    for each in wanted:
        state, files = _compare(each)
        if state == "differing":
            differing[each.identity] = each, files
        elif state == "missing":
            missing.append(each)
        else:
            (outcome.present if state == "present" else outcome.own).add(each.identity)
    forced = set(differing) if force else _published(repository, publication, differing)
    for identity, (each, files) in differing.items():
        if identity in forced:
            missing.append(each)
        else:
            outcome.differing[identity] = files
    writer = _Writer(forced)
    left = _write(repository, publication, publication.commit, missing, writer, outcome)
    # A newer result has taken the place of these: their files are in the history.
    by_commit = defaultdict(list)
    for each in left:
        path = record_path(publication.name, each.identity)
        by_commit[last_change(repository, publication.commit, [path])].append(each)
    for commit, some in by_commit.items():
        for each in _write(repository, publication, commit, some, writer, outcome):
            outcome.lacking[each.identity] = KochiError(
                f"commit {commit[:12]} does not have the files that the record "
                f"{each.identity} describes"
            )
    return outcome


def _compare(wanted: Wanted) -> tuple[str, list[Path]]:
    """`missing`, `present`, `own` or `differing`, with the files that differ."""
    differing, absent = [], False
    own: Any = None
    with suppress(FileNotFoundError):
        try:
            own = read_json(wanted.record_file)
        except DamagedFileError:
            own = {}  # its run was killed while it wrote the record
    is_same = own is None or own.get("identity") == wanted.identity
    is_of_files = not is_same and _describes(own, wanted)
    for dest, file in wanted.files.items():
        try:
            if (digest := wanted.digest(dest)) is not None:
                as_wanted = _digest_of(file) == digest
            else:
                as_wanted = is_of_files or _is_record_of(wanted, file.read_bytes())
        except FileNotFoundError:
            absent = True
        except (IsADirectoryError, NotADirectoryError):
            differing.append(file)
        else:
            differing += [] if as_wanted else [file]
    if not differing and not is_same and absent:
        differing.append(wanted.record_file)
    if differing:
        return "differing", differing
    if not is_same:
        return ("own" if is_of_files else "missing"), []
    is_recorded = own is not None or _has_record_aside(wanted)
    return ("present" if is_recorded and not absent else "missing"), []


def _describes(record: Mapping[str, Any], wanted: Wanted) -> bool:
    """Whether the record of another run is that of files as wanted.

    A call with `force` that was killed leaves a record of the files that it has replaced.
    """
    try:
        digests = {each["dest"]: each.get("sha256") for each in record["artifacts"]}
    except (KeyError, TypeError, AttributeError):  # edited by hand
        return False
    for dest, file in wanted.files.items():
        if (digest := wanted.digest(dest)) != digests.get(dest, ""):
            return False
        if digest is None:
            with suppress(OSError):
                if _is_record_of(wanted, file.read_bytes()):
                    return False
    return True


def _published(
    repository: Path,
    publication: Publication,
    differing: Mapping[str, tuple[Wanted, Sequence[Path]]],
) -> set[str]:
    """Those in whose place another result of the publication is, as it was recorded: nothing is
    lost when they replace it."""
    found = {}
    for identity, (wanted, files) in differing.items():
        own = _recorded_as(wanted, files)
        if own is not None and is_name(own):
            found[identity] = record_path(publication.name, own)
    if not found:
        return set()
    there = set(paths_in(repository, publication.commit, sorted(set(found.values()))))
    return {identity for identity, path in found.items() if path in there}


def _recorded_as(wanted: Wanted, differing: Sequence[Path]) -> str | None:
    """The identity of the result whose files these are, if nobody has edited them."""
    try:
        own = read_json(wanted.record_file)
        identity = str(own["identity"])
        digests = {each["dest"]: each.get("sha256") for each in own["artifacts"]}
    except (FileNotFoundError, DamagedFileError, KeyError, TypeError, AttributeError):
        return None
    dests = {file: dest for dest, file in wanted.files.items()}
    for file in differing:
        # The record differs, too, where a file of the wanted result is absent.
        if file != wanted.record_file and not _is_as_recorded(
            file, digests.get(dests[file], ""), identity
        ):
            return None
    return identity


def _is_as_recorded(file: Path, digest: str | None, identity: str) -> bool:
    """`digest`: its SHA-256; None for a file that is the record itself."""
    try:
        if digest is not None:
            return _digest_of(file) == digest
        return _identity_in(file.read_bytes()) == identity
    except OSError:
        return False


def _has_record_aside(wanted: Wanted) -> bool:
    """Whether a call that was killed has written the record."""
    try:
        return _is_record_of(wanted, wanted.aside.read_bytes())
    except FileNotFoundError:
        return False


def _write(
    repository: Path,
    publication: Publication,
    commit: str,
    wanted: Sequence[Wanted],
    writer: _Writer,
    outcome: Outcome,
) -> list[Wanted]:
    """Write results from a commit; return those whose files it does not have."""
    if not wanted or not commit:
        return list(wanted)
    name = publication.name
    paths = {f"{name}/{dest}": (each, dest) for each in wanted for dest in each.files}
    there = set(paths_in(repository, commit, list(paths)))
    left = {each.identity: each for path, (each, _) in paths.items() if path not in there}
    asked: dict[str, tuple[Wanted, str | None]] = {}
    for each in wanted:
        if each.identity not in left:
            asked |= {f"{name}/{dest}": (each, dest) for dest in each.files}
            asked[record_path(name, each.identity)] = (each, None)
    try:
        contents = read_artifacts(repository, commit, list(asked))
        for path, content in contents:
            each, dest = asked[path]
            if each.identity in left:
                continue
            if dest is None:
                writer.put(each.aside, content, each, None)
                outcome.restored.add(each.identity)
            elif not writer.put(each.files[dest], content, each, dest):
                left[each.identity] = each
    except MissingContentError as error:
        # Raised before anything was written: the other results do not need these contents.
        lacking = {asked[path][0].identity for path in error.paths}
        outcome.lacking |= dict.fromkeys(lacking, error)
        rest = [each for each in wanted if each.identity not in lacking]
        return _write(repository, publication, commit, rest, writer, outcome)
    return list(left.values())


class _Writer:
    """Writes files that appear complete."""

    def __init__(self, forced: Collection[str]) -> None:
        self._forced = forced  # the results that replace files with another content
        self._directories: set[Path] = set()

    def put(self, file: Path, content: IO[bytes], wanted: Wanted, dest: str | None) -> bool:
        """Write a file; False, and nothing is written, if the content is not that of the record.

        `dest` is None for the record itself, which is ours alone and may be written again.
        """
        self._prepare(file.parent)
        beside = file.with_name(f".{file.name[:200]}.{random_word()}{_UNFINISHED}")
        expected = None if dest is None else wanted.digest(dest)
        try:
            digest = _copy(content, beside)
            is_right = (
                digest == expected
                if expected is not None
                else _is_record_of(wanted, beside.read_bytes())
            )
            if is_right:
                self._move(beside, file, dest is None or wanted.identity in self._forced)
            return is_right
        finally:
            beside.unlink(missing_ok=True)

    @staticmethod
    def _move(beside: Path, file: Path, force: bool) -> None:
        if force:
            os.replace(beside, file)
            return
        try:
            os.link(beside, file)
        except FileExistsError:
            return  # just made by somebody else
        except OSError as error:
            if error.errno not in LINK_REFUSED:
                raise
            os.rename(beside, file)

    def _prepare(self, directory: Path) -> None:
        """Make a directory, and remove what a killed call has left there."""
        if directory in self._directories:
            return
        directory.mkdir(parents=True, exist_ok=True)
        for name in list_names(directory):
            if name.endswith(_UNFINISHED):
                (directory / name).unlink(missing_ok=True)
        self._directories.add(directory)


def _copy(content: IO[bytes], file: Path) -> str:
    digest = hashlib.sha256()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OF_A_PERSON)
    try:
        with open(descriptor, "wb") as stream:
            for block in blocks_of(content, LARGE_BLOCK):
                digest.update(block)
                stream.write(block)
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(file)  # the error of a write does not name the file
        raise
    return digest.hexdigest()


def _digest_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_record_of(wanted: Wanted, content: bytes) -> bool:
    return _identity_in(content) == wanted.identity


def _identity_in(record: bytes) -> str | None:
    try:
        return str(json.loads(record)["identity"])
    except (ValueError, KeyError, TypeError):
        return None
