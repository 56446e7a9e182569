"""From what a person types to records: a file, the identity of a record, a batch, or a sample."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from snakemake_kochi.artifacts.origin import find_origin
from snakemake_kochi.artifacts.reading import Published, RecordFile, published
from snakemake_kochi.artifacts.record import is_success, may_be_of, parse_record
from snakemake_kochi.errors import DamagedFileError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.git import how_to_complete
from snakemake_kochi.reproduction.subject import Subject, subject_of

_AT_ONCE = 100  # records that are read together while a sample is drawn


def choose(repository: Path, word: str) -> list[Subject]:
    """The records that a word means: those of a file or path as in `kochi why`, of an identity or
    its beginning, or of all records of a batch: [EXPERIMENT/]BATCH@COMMIT.

    Raises NameNotFoundError, KochiError and DamagedFileError.
    """
    if not Path(word).exists():
        if "@" in word:
            batch, _, commit = word.partition("@")
            return _of_batch(repository, batch, commit)
        if "/" not in word:
            return [_with_identity(repository, word)]
    origin = find_origin(repository, word)
    commits = (origin.commit,) if origin.commit else ()
    return [subject_of(origin.record, origin.path.partition("/")[0], commits)]


def sample(repository: Path, count: int, seed: int | None = None) -> tuple[list[Subject], int]:
    """Some records of all artifact branches here, chosen at random, without those of reruns.

    Returns them, maybe fewer than `count`, and how many were passed over, as they are of a newer
    release or were edited. Raises GitError without any artifact branch.
    """
    branches = published(repository)
    records = branches.records()
    edited = branches.edited(records)
    passed_over = len(edited)
    left = (file for file in records if file not in edited)
    files = sorted(left, key=lambda file: (file.identity, file.name))
    random.Random(seed).shuffle(files)
    chosen: list[Subject] = []
    for first in range(0, len(files), _AT_ONCE):
        for file, record in _contents(branches, files[first : first + _AT_ONCE]):
            if len(chosen) == count:
                return chosen, passed_over
            if _is_result(record):
                try:
                    chosen.append(subject_of(record, file.name, branches.tips[file.name]))
                except DamagedFileError:
                    passed_over += 1
    return chosen, passed_over


def _is_result(record: Mapping[str, Any]) -> bool:
    is_of_batch = record.get("batch") != "" and not record.get("rule")
    return is_of_batch and not record.get("rerun_of") and is_success(record)


def _of_batch(repository: Path, batch: str, commit: str) -> list[Subject]:
    """The results of a batch in a commit of an artifact branch: of each point the newest."""
    experiment, _, name = batch.rpartition("/")
    branches = published(repository, commit)
    files, found = branches.records(), []
    # Only those that may be of the batch are read: a label is cut.
    may_be = (file for file in files if may_be_of(file.label, None, name))
    for file, record in _contents(branches, list(may_be)):
        if record.get("batch") == name and _is_result(record):
            subject = subject_of(record, file.name, branches.tips[file.name])
            own = PurePosixPath(subject.experiment)
            if experiment in ("", own.stem, own.name, str(own)):
                found.append(subject)
    if not files:
        raise KochiError(
            f"commit {commit} has no records: it is not of an artifact branch",
            "To list commits with results, type: kochi artifact log",
        )
    if not found:
        known = {file.label.replace(".", "/", 1) for file in files}
        raise NameNotFoundError(
            f"commit {commit} has no results of batch '{batch}', {nearest(batch, known)}"
        )
    if len(experiments := sorted({subject.experiment for subject in found})) > 1:
        stems = " or ".join(f"{PurePosixPath(each).stem}/{name}@{commit}" for each in experiments)
        raise KochiError(f"several experiments have a batch '{name}'", f"Type {stems}")
    newest: dict[tuple[object, ...], Subject] = {}
    for subject in sorted(found, key=lambda each: str(each.record["started"])):
        newest[subject.point] = subject
    return sorted(newest.values(), key=lambda each: str(each.record["started"]))


def _with_identity(repository: Path, word: str) -> Subject:
    branches = published(repository)
    files = [file for file in branches.records() if file.identity.startswith(word)]
    exact = [file for file in files if file.identity == word] or files
    identities = {file.identity for file in exact}
    if len(identities) > 1:
        raise KochiError(
            f"{word}: {len(identities)} records begin like this, for example "
            f"{', '.join(sorted(identities)[:3])}"
        )
    for subject in _read(branches, exact[:1]):
        return subject
    known = [file.identity for file in branches.records()[:1000]]
    raise NameNotFoundError(
        f"{word}: there is no such file and no such record, {nearest(word, known)}",
        "FILE is a result, RECORD the identity that 'kochi why FILE' prints, BATCH@COMMIT a batch "
        "in a commit of an artifact branch.",
    )


def _read(branches: Published, files: list[RecordFile]) -> Iterator[Subject]:
    for file, record in _contents(branches, files):
        yield subject_of(record, file.name, branches.tips[file.name])


def _contents(
    branches: Published, files: list[RecordFile]
) -> Iterator[tuple[RecordFile, dict[str, Any]]]:
    for file, content in branches.read_records(files):
        if content is None:
            raise KochiError(
                f"record {file.identity} is not in this clone",
                how_to_complete(),
            )
        record: dict[str, Any] = {}
        with suppress(ValueError):
            record = parse_record(content)
        # Without its identity, one that is no JSON object is told as edited.
        yield file, record
