"""The summaries of ended jobs, by which lists of jobs are filtered without opening a job's files.

In a file there is one line of JSON for all jobs with equal summaries, and the numbers of these jobs
as ranges: `{"name": "fib", ..., "jobs": "0-254,260"}`. The first line has the version. A filter
searches the lines as bytes before it parses any of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import parse_json

VERSION = 1


@dataclass(frozen=True)
class Summary:
    """What a list of ended jobs is filtered by.

    `project` is the label of the ticket, and None without one. The texts are None if the ticket is
    damaged. `state` is "succeeded", "failed" or "cancelled".
    """

    name: str | None
    queue: str | None
    project: str | None
    directory: str | None
    state: str


Summaries = Mapping[Summary, Iterable[int]]


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a person wants to see. An empty tuple and None exclude no job.

    With `project`, the directory of a project, only jobs that have its label, or that work below
    it.
    """

    names: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    project: Path | None = None

    def accepts(self, job: Summary) -> bool:
        return (
            (not self.names or job.name in self.names)
            and (not self.queues or job.queue in self.queues)
            and (not self.states or job.state in self.states)
            and (self.project is None or self._is_of_project(self.project, job))
        )

    @staticmethod
    def _is_of_project(project: Path, job: Summary) -> bool:
        if job.project is not None:
            return Path(job.project) == project
        return job.directory is not None and Path(job.directory).is_relative_to(project)

    def texts(self) -> list[bytes]:
        """Texts of which a line has one if it has a job that is accepted; none: any line may."""
        if found := self.names or self.queues or self.states:
            return [_encode(text) for text in found]
        # The directory of a job may be one below, so the text goes on.
        return [] if self.project is None else [_encode(str(self.project))[:-1]]


def summaries_to_lines(header: Mapping[str, Any], summaries: Summaries) -> bytes:
    """A file with summaries; `header` is its first line, besides the version."""
    lines = [_encode({"version": VERSION, **header})]
    lines += [
        _encode({**asdict(summary), "jobs": _ranges(jobs)}) for summary, jobs in summaries.items()
    ]
    return b"\n".join(lines) + b"\n"


def header_of(content: bytes, where: Path) -> dict[str, Any]:
    """The first line of a file with summaries. Raises DamagedFileError."""
    return parse_json(content.partition(b"\n")[0], where, VERSION)


def summaries_from_lines(
    content: bytes, where: Path, wanted: JobFilter | None = None
) -> dict[Summary, set[int]]:
    """The summaries in a file, or those that are wanted. Raises DamagedFileError."""
    header_of(content, where)
    texts = [] if wanted is None else wanted.texts()
    found: dict[Summary, set[int]] = {}
    # A search of the whole file costs much less than one of each line.
    if texts and not any(text in content for text in texts):
        return found
    for line in content.split(b"\n")[1:]:
        if not line or (texts and not any(text in line for text in texts)):
            continue
        data = parse_json(line, where)
        try:
            summary = Summary(**{key: data[key] for key in Summary.__dataclass_fields__})
            if wanted is None or wanted.accepts(summary):
                found.setdefault(summary, set()).update(_numbers(data["jobs"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{where}: not a summary of jobs ({error!r})") from error
    return found


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _ranges(jobs: Iterable[int]) -> str:
    parts: list[list[int]] = []
    for job in sorted(jobs):
        if parts and job == parts[-1][1] + 1:
            parts[-1][1] = job
        else:
            parts.append([job, job])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
