"""One pack: a ZIP archive with the files of ended jobs of one shard, read as `zipfile` reads it."""

from __future__ import annotations

import calendar
import contextlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import IO

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import answered
from snakemake_kochi.packs.summary import JobFilter, Summary, summaries_from_lines

# The first member, with the summaries of all jobs in the pack.
SUMMARIES = "summaries.jsonl"
# What `zipfile` raises for an archive that is not as it was written.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    struct.error,
)


def member_name(job: int, name: str) -> str:
    """The name in a pack of a file of a job."""
    return f"{job}/{name}"


class PackedFile:
    """A file of a job in a pack."""

    def __init__(self, pack: Pack, member: zipfile.ZipInfo) -> None:
        self._pack = pack
        self._member = member

    @property
    def size(self) -> int:
        """Its size in bytes, as a file of its own."""
        return self._member.file_size

    @property
    def compressed_size(self) -> int:
        return self._member.compress_size

    @property
    def modified(self) -> float:
        """When it was changed, in seconds since the epoch, to two seconds."""
        return float(calendar.timegm((*self._member.date_time, 0, 0, 0)))

    @property
    def pack(self) -> Path:
        return self._pack.path

    @property
    def place(self) -> str:
        """Where it is, for a person: the pack and the name in it, as `unzip -p` takes them."""
        return f"{self._pack.path} {self._member.filename}"

    def read(self) -> bytes:
        """Raises DamagedFileError and OSError."""
        with self.open() as stream:
            return stream.read()

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Raises DamagedFileError and OSError, also while it is read."""
        with self._pack.clear_errors(), self._pack.archive.open(self._member) as stream:
            yield stream


class Pack:
    """An open pack. It stays readable when another process removes it.

    Raises FileNotFoundError, DamagedFileError, and OSError if it is not known now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        stream = answered(partial(io.FileIO, path))
        try:
            with self.clear_errors():
                self.archive = zipfile.ZipFile(io.BufferedReader(stream))
        except BaseException:
            stream.close()
            raise
        self._stream = stream

    def close(self) -> None:
        self.archive.close()
        self._stream.close()

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def clear_errors(self) -> Iterator[None]:
        try:
            yield
        except DamagedFileError:
            raise
        except _DAMAGE as error:
            raise DamagedFileError(
                f"{self.path}: damaged, so files of ended jobs in it cannot be read ({error})",
                f"To see what can be read of it, type: unzip -t {self.path}",
            ) from error

    @cached_property
    def jobs(self) -> Mapping[int, Mapping[str, PackedFile]]:
        """The files of each job in the pack, by their names in the directory of the job."""
        found: dict[int, dict[str, PackedFile]] = {}
        for member in self.archive.infolist():
            job, _, name = member.filename.partition("/")
            if name and job.isdecimal():
                found.setdefault(int(job), {})[name] = PackedFile(self, member)
        return found

    def summaries(self, wanted: JobFilter | None = None) -> dict[Summary, set[int]]:
        """The summaries of its jobs, or the wanted ones. Raises DamagedFileError and OSError."""
        with self.clear_errors():
            content = self.archive.read(SUMMARIES)
        return summaries_from_lines(content, self.path, wanted)
