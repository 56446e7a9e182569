"""All packs of a machine: the files of an ended job by its number, and the numbers by a filter."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import answered, is_there, list_names, parse_json, read_json
from snakemake_kochi.later_log import LaterLog
from snakemake_kochi.packs.summary import JobFilter, Summary, header_of, summaries_from_lines
from snakemake_kochi.paths import SHARD, JobPaths, MachinePaths, PackGroupPaths

if TYPE_CHECKING:
    from snakemake_kochi.packs.pack import Pack, PackedFile

_log = LaterLog(__name__)

# How often the packs of a group may be replaced during one look before that is an error.
_MOST_LOOKS = 20


class Packs:
    """The packs of a machine, for one command or one look: it keeps the last shard open.

    One thread uses an object. Nothing is read before the first question.
    """

    def __init__(self, machine: MachinePaths) -> None:
        self._machine = machine
        self._shard: int | None = None
        self._packs: list[Pack] = []
        self._damage: DamagedFileError | None = None

    # ---- one job

    def files(self, job: int) -> dict[str, PackedFile]:
        """The packed files of a job, by their names in its directory; none if it is not packed.

        Raises OSError when that is unknown now. Raises DamagedFileError if no pack has it, and one
        of its shard cannot be read.
        """
        is_new = self._shard != job // SHARD
        if is_new:
            self._open(job // SHARD)
        found = self._files(job)
        if not found and not is_new:
            self._open(job // SHARD)  # it may have been packed since
            found = self._files(job)
        if not found and self._damage is not None:
            raise self._damage
        return found

    def _files(self, job: int) -> dict[str, PackedFile]:
        found: dict[str, PackedFile] = {}
        for pack in self._packs:
            found |= pack.jobs.get(job, {})
        return found

    def _open(self, shard: int) -> None:
        self.close()
        group = self._machine.pack_group(shard)
        for _ in range(_MOST_LOOKS):
            names = [name for name in list_names(group.directory) if group.shard_of(name) == shard]
            try:
                for name in sorted(names):
                    with self._noting_damage():
                        self._packs.append(_opened(group.directory / name))
            except FileNotFoundError:
                # A packer has put it into a new one, which was there before this one was removed.
                self.close()
                continue
            self._shard = shard
            return
        raise OSError(f"{group.directory}: the packs of shard {shard} are replaced again and again")

    @contextlib.contextmanager
    def _noting_damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedFileError as error:
            self._damage = error

    def close(self) -> None:
        for pack in self._packs:
            pack.close()
        self._packs, self._shard, self._damage = [], None, None

    def file(self, path: Path) -> PackedFile | None:
        """The packed file that had this path in the directory of its job. Raises as `files`."""
        return self.files(JobPaths(path.parent).number).get(path.name)

    def read_json(
        self, path: Path, version: int | None = None, is_ours: bool = False
    ) -> dict[str, Any]:
        """`files.read_json` of a file of a job that may have ended, wherever it is.

        Raises FileNotFoundError, DamagedFileError and OSError.
        """
        try:
            return read_json(path, version, is_ours)
        except FileNotFoundError:
            if (packed := self.file(path)) is None:
                raise
        return parse_json(packed.read(), path, version)

    def is_there(self, path: Path) -> bool:
        """Whether a file of a job exists, in its directory or in a pack. Raises as `files`."""
        return is_there(path) or self.file(path) is not None

    # ---- all jobs

    def numbers(self, wanted: JobFilter, others: Iterable[int]) -> Iterator[int]:
        """The packed jobs that are wanted, and all `others`, each once, newest first.

        `others` are the jobs with a directory of their own, newest first. Of each group of shards,
        they are taken before the packs are listed, so what moves meanwhile is not missed. Opens few
        files for many jobs. A pack that cannot be read is left out, with a message in the log.
        Raises OSError.
        """
        of_others = itertools.groupby(others, lambda job: job // (SHARD * SHARD))
        waiting = next(of_others, None)
        number = None
        while (number := self._group_before(number, waiting)) is not None:
            jobs: set[int] = set()
            if waiting is not None and waiting[0] == number:
                jobs.update(waiting[1])
                waiting = next(of_others, None)
            group = self._machine.pack_group(number * SHARD)
            for more in group_summaries(group, wanted).values():
                jobs |= more
            yield from sorted(jobs, reverse=True)

    def _group_before(self, number: int | None, other: tuple[int, object] | None) -> int | None:
        """The next group of shards with packs, or with other jobs."""
        # Listed anew each time: the first packs of a group may have been made since.
        names = list_names(self._machine.packs)
        found = [int(name) for name in names if name.isdecimal()]
        found += [] if other is None else [other[0]]
        return max((each for each in found if number is None or each < number), default=None)


def group_summaries(
    group: PackGroupPaths, wanted: JobFilter | None = None
) -> dict[Summary, set[int]]:
    """The summaries of all jobs in the packs of a group, or the wanted ones.

    There may be jobs among them that were deleted since. Raises OSError.
    """
    for _ in range(_MOST_LOOKS):
        names = list_names(group.directory)
        packs = {name for name in names if group.shard_of(name) is not None}
        try:
            found: dict[Summary, set[int]] = {}
            covered: set[str] = set()
            for index in sorted(filter(group.is_index, names)):
                covers, read = _read_index(group.directory / index, wanted)
                covered |= covers
                _merge(found, read)
            for name in sorted(packs - covered):
                with _leaving_out_damage(), _opened(group.directory / name) as pack:
                    _merge(found, pack.summaries(wanted))
        except FileNotFoundError:
            continue  # replaced meanwhile
        return found
    raise OSError(f"{group.directory}: its files are replaced again and again")


def _read_index(path: Path, wanted: JobFilter | None) -> tuple[set[str], dict[Summary, set[int]]]:
    """The packs that an index covers, and its summaries; none if it is damaged.

    If one of these packs is gone, a newer one has its jobs, or they were deleted.
    """
    with _leaving_out_damage():
        content = answered(path.read_bytes)
        covered = header_of(content, path).get("packs")
        if isinstance(covered, list):
            return set(covered), summaries_from_lines(content, path, wanted)
    return set(), {}


def covered_by(index: Path) -> set[str]:
    """The names of the packs that an index covers; none if it is damaged."""
    return _read_index(index, JobFilter(names=("",)))[0]


@contextlib.contextmanager
def _leaving_out_damage() -> Iterator[None]:
    try:
        yield
    except DamagedFileError as error:
        _log.warning("%s", error.sentences)


def _opened(path: Path) -> Pack:
    from snakemake_kochi.packs.pack import Pack

    return Pack(path)


def _merge(found: dict[Summary, set[int]], more: dict[Summary, set[int]]) -> None:
    for summary, jobs in more.items():
        found.setdefault(summary, set()).update(jobs)
