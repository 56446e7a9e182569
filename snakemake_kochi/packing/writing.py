"""Writing packs, their removal from directories, and the indexes of packs.

A pack is written beside its place, put on the disk, read back and renamed: its name is new, so no
process replaces the pack of another one. A process removes only files, and only packs, that are in
a pack which it has put into its place itself. So nothing is lost if it is killed at any step, nor
if two processes pack the same jobs.
"""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import (
    answered,
    list_names,
    make_directory,
    move,
    random_word,
    sync,
    sync_directory,
    write_atomically,
)
from snakemake_kochi.packing.candidates import Candidate, JobFile, in_order
from snakemake_kochi.packs import Summary, covered_by, group_summaries, summaries_to_lines
from snakemake_kochi.packs.pack import SUMMARIES, Pack, PackedFile, member_name
from snakemake_kochi.paths import PackGroupPaths

_MODE = 0o600
_LOG = "log"
_FIRST_TIME = 315532800.0  # 1980, the first year of times in a ZIP archive


def write_pack(
    group: PackGroupPaths,
    shard: int,
    candidates: Collection[Candidate],
    others: Iterable[Pack] = (),
    without: Collection[int] = (),
) -> Path:
    """Write a pack of these jobs, and of all in other packs but those in `without`.

    Returns its path. Raises OSError and DamagedFileError; then there is no new pack.
    """
    make_directory(group.directory)
    path = group.pack(shard, random_word())
    temporary = path.with_name(f".{path.name}.tmp")
    others = list(others)
    try:
        names = _write(temporary, candidates, others, without)
        _check(temporary, names)
        move(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(group.directory)
    sync_directory(group.directory.parent)
    return path


def _write(
    path: Path, candidates: Collection[Candidate], others: list[Pack], without: Collection[int]
) -> dict[str, int]:
    """Write an archive; returns the names of its members, with their sizes."""
    own = {(each.job, name) for each, name, _ in in_order(candidates)}
    packed: dict[tuple[int, str], PackedFile] = {
        (job, name): file
        for pack in others
        for job, files in pack.jobs.items()
        for name, file in files.items()
        if job not in without
    }
    summaries = _summaries(candidates, others, {job for job, _ in (*own, *packed)})
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    sizes: dict[str, int] = {}
    with open(descriptor, "w+b") as stream:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, sizes, SUMMARIES, time.time(), summaries_to_lines({}, summaries))
            for (job, name), file in sorted(packed.items()):
                if (job, name) not in own:
                    _add(archive, sizes, member_name(job, name), file.modified, file.read())
            for each, name, found in in_order(candidates):
                content, before = _content(found), packed.get((each.job, name))
                if name == _LOG and before is not None:
                    content = _whole_log(before.read(), content)
                moment = found.modified_ns / 1e9
                _add(archive, sizes, member_name(each.job, name), moment, content)
        stream.flush()
        sync(stream.fileno())
    return sizes


def _content(file: JobFile) -> bytes:
    return answered(file.path.read_bytes) if file.content is None else file.content


def _whole_log(packed: bytes, own: bytes) -> bytes:
    """The log of a job that has one in a pack and one in its directory.

    Usually the latter is the same file, or has grown since. But a worker that hung while it made
    the log of a claim may make it after others have ended the job: a new one, mostly empty.
    """
    if own.startswith(packed):
        return own
    return packed if packed.endswith(own) else packed + own


def _add(
    archive: zipfile.ZipFile, sizes: dict[str, int], name: str, moment: float, content: bytes
) -> None:
    # In UTC, so that a clean-up in another time zone reads the same time.
    year, month, day, hour, minute, second = time.gmtime(max(moment, _FIRST_TIME))[:6]
    member = zipfile.ZipInfo(name, (year, month, day, hour, minute, second))
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = _MODE << 16
    archive.writestr(member, content)
    sizes[name] = len(content)


def _summaries(
    candidates: Collection[Candidate], others: Iterable[Pack], jobs: set[int]
) -> dict[Summary, set[int]]:
    found: dict[Summary, set[int]] = {}
    known: set[int] = set()
    for pack in others:
        for summary, numbers in pack.summaries().items():
            found.setdefault(summary, set()).update(numbers & jobs - known)
            known |= numbers
    for each in candidates:
        if each.job not in known:
            found.setdefault(each.summary, set()).add(each.job)
    return {summary: numbers for summary, numbers in found.items() if numbers}


def _check(path: Path, sizes: dict[str, int]) -> None:
    """Read the directory of an archive back. Raises DamagedFileError if it is not as written."""
    with Pack(path) as pack:
        found = {member.filename: member.file_size for member in pack.archive.infolist()}
    if found != sizes:
        raise DamagedFileError(f"{path}: the archive is not as it was written")


def remove_packed(candidate: Candidate) -> None:
    """Remove the files of a job that are in a pack now. Raises OSError.

    What came or changed since stays, with the directory: the next packer takes it.
    """
    for file in candidate.files.values():
        with contextlib.suppress(FileNotFoundError):
            # Only the log may have changed: all other files are written once.
            if file.path.name == _LOG:
                status = os.lstat(file.path)
                if (status.st_size, status.st_mtime_ns) != (file.size, file.modified_ns):
                    continue
            file.path.unlink()
    for path in candidate.leftovers:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it has other files, or is gone
        candidate.directory.rmdir()


def write_index(group: PackGroupPaths, without: Collection[int] = ()) -> None:
    """Write the index of a group anew, if it does not cover all packs. Raises OSError.

    `without`: jobs that were deleted.
    """
    names = list_names(group.directory)
    packs = sorted(name for name in names if group.shard_of(name) is not None)
    old = [name for name in names if group.is_index(name)]
    if len(old) == 1 and not without and covered_by(group.directory / old[0]) == set(packs):
        return
    summaries = {
        summary: left
        for summary, jobs in group_summaries(group).items()
        if (left := jobs - set(without))
    }
    if packs:
        content = summaries_to_lines({"packs": packs}, summaries)
        write_atomically(group.index(random_word()), content)
    for name in old:
        with contextlib.suppress(FileNotFoundError):
            (group.directory / name).unlink()
