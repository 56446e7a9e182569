"""A ticket and the resources that it needs: immutable, validated, stored as plain JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from snakemake_kochi.base import files
from snakemake_kochi.errors import DamagedFileError, KochiError


def now() -> str:
    """The time as ISO 8601 in UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _require(condition: bool, what: str, expected: str, *value: object) -> None:
    if not condition:  # only then values are written out: some scripts are long
        what = " ".join([what, *map(repr, value)])
        raise KochiError(f"ticket: {what} cannot be used: {expected} was expected")


def _is_text(value: object) -> bool:
    """Whether a value can be an argument or a file name.

    It must be text without NUL that the OS can encode.
    """
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


def _are_named_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, (*value, *value.values())))


# What is expected of a value, for people, and whether it is that.
_Kind = tuple[str, Callable[[Any], bool]]
_TEXT: _Kind = "text without NUL", _is_text
_TEXTS: _Kind = "a tuple of texts without NUL", _are_texts
_NAMED: _Kind = "a mapping of text to text, both without NUL,", _are_named_texts
_BOOLEAN: _Kind = "true or false", lambda value: isinstance(value, bool)
_FROM_0: _Kind = "a number from 0", lambda value: _is_number(value, 0)
_FROM_1: _Kind = "a number from 1", lambda value: _is_number(value, 1)


def _or_none(kind: _Kind) -> _Kind:
    return kind[0], lambda value: value is None or kind[1](value)


def _check(checked: object, kinds: Mapping[str, _Kind]) -> None:
    for name, (expected, is_good) in kinds.items():
        value = getattr(checked, name)
        _require(is_good(value), name, expected, value)


@dataclass(frozen=True)
class Resources:
    """The needs of a ticket: cores, memory in MiB, GPUs, or a whole worker for itself.

    With several `nodes`, a worker that leads an allocation of so many, or more.

    The job is ended after `runtime_seconds`; a worker with less time left does not take it. With
    `pinned`, the job is confined to as many CPUs as it has cores.
    """

    cores: int = 1
    exclusive: bool = False
    memory_mb: int | None = None
    gpus: int = 0
    runtime_seconds: int | None = None
    pinned: bool = True
    nodes: int = 1

    def __post_init__(self) -> None:
        _check(self, _RESOURCES)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object in a ticket."""
        return dict(vars(self))

    def covers(self, other: Resources) -> bool:
        """Whether it needs at least as much of everything; no run time counts as the shortest."""
        return (
            self.exclusive >= other.exclusive
            and self.cores >= other.cores
            and (self.memory_mb or 0) >= (other.memory_mb or 0)
            and self.gpus >= other.gpus
            and (self.runtime_seconds or 0) >= (other.runtime_seconds or 0)
            and self.nodes >= other.nodes
        )


_RESOURCES = {
    **dict.fromkeys(("cores", "nodes"), _FROM_1),
    **dict.fromkeys(("exclusive", "pinned"), _BOOLEAN),
    "memory_mb": _or_none(_FROM_0),
    "gpus": _FROM_0,
    "runtime_seconds": _or_none(_FROM_1),
}
_known = lru_cache(typed=True)(Resources)  # most tickets have the same ones


def _resources_in(needs: dict[str, Any]) -> Resources:
    try:
        return _known(**needs)
    except TypeError:  # a list, for example, of which it says why not
        return Resources(**needs)


@dataclass(frozen=True)
class Kind:
    """Tickets that need between `least` and `most` of everything."""

    least: Resources
    most: Resources

    def has(self, resources: Resources) -> bool:
        return resources.covers(self.least) and self.most.covers(resources)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Kind:
        """Make it from the result of `dataclasses.asdict`. Raises KochiError for invalid values."""
        return cls(Resources(**data["least"]), Resources(**data["most"]))


@dataclass(frozen=True)
class Benchmark:
    """A rule's `benchmark:`: its file, and how often the command is executed and measured.

    The file is relative to the ticket's directory.
    """

    file: str
    repeats: int = 1

    def __post_init__(self) -> None:
        _require(_is_text(self.file) and self.file != "", "benchmark", "a file", self.file)
        _require(_is_number(self.repeats, 1), "repeats", "a number from 1", self.repeats)


@dataclass(frozen=True)
class ShellJob:
    """A plain shell command of Snakemake's, which can be executed without Snakemake.

    `script` is executed by `executable` with `-c`, in the ticket's directory. If
    `temporary_directory` is not empty, it is a text in the script that stands for the node's
    temporary directory. `threads` is the number of threads that libraries get. Before the script
    runs, all of the ticket's `outputs` and `logs` are removed; those in `directories` are
    removed with their content. The directories of all these files are made. The job waits for the
    `inputs` for up to `latency_wait` seconds. All files are absolute or relative to the ticket's
    directory. `environment` is added to the job's environment. If all that the script does is to
    run a phase, `phase` has the arguments of `python -m snakemake_kochi.phases`, and is otherwise
    empty.
    """

    script: str
    executable: str
    threads: int = 1
    inputs: tuple[str, ...] = ()
    latency_wait: float = 0
    directories: tuple[str, ...] = ()
    benchmark: Benchmark | None = None
    temporary_directory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    phase: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self, _SHELL_JOB)

    def to_dict(self) -> dict[str, Any]:
        benchmark = None if self.benchmark is None else vars(self.benchmark)
        return {**vars(self), "benchmark": benchmark, "environment": dict(self.environment)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShellJob:
        """Validate an object. Raises KochiError, KeyError or TypeError."""
        _require(isinstance(data, dict), "shell", "an object", data)
        benchmark = data["benchmark"]
        lists = {name: tuple(data[name]) for name in ("inputs", "directories", "phase")}
        return cls(
            **{**data, **lists, "benchmark": None if benchmark is None else Benchmark(**benchmark)}
        )


_SHELL_JOB = {
    **dict.fromkeys(("script", "executable", "temporary_directory"), _TEXT),
    **dict.fromkeys(("inputs", "directories", "phase"), _TEXTS),
    "threads": _FROM_1,
    "latency_wait": (
        "a number of seconds",
        lambda value: isinstance(value, float) or _is_number(value, 0),
    ),
    "environment": _NAMED,
}


@dataclass(frozen=True)
class Ticket:
    """One job, as submitted to a queue.

    `command` is an argument list, `directory` an absolute path. `environment` is added to the
    worker's own; `labels` are shown to people. `handed_over` sets `job`, its number if a person
    submitted it, `queue` and `machine`. `identity` is equal for two tickets that do the same work
    with the same inputs; None when it is unknown. The job writes the `outputs` and the `logs`,
    files relative to `directory`.

    `command` is always valid. Two other descriptions of the same work may accompany it, for faster
    runners. One is `shell`. The other is `job_arguments`: the range (start, stop) of those
    arguments of the command, an inner Snakemake, that belong to this job and not to its whole
    workflow.

    Raises KochiError when a value cannot be used.
    """

    name: str
    command: tuple[str, ...]
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    labels: Mapping[str, str] = field(default_factory=dict)
    job: int = 0
    queue: str = ""
    machine: str = ""
    submitted: str = field(default_factory=now)
    identity: str | None = None
    outputs: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    shell: ShellJob | None = None
    job_arguments: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _check(self, _TICKET)
        bad = [name for name in self.environment if name == "" or "=" in name]
        _require(not bad, f"environment variable {bad}", "a name without '='")
        start, stop = self.job_arguments or (0, 0)
        _require(
            0 <= start <= stop <= len(self.command),
            f"job_arguments {self.job_arguments!r}",
            "a range of the command",
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object written to disk: the name of the file says the job and the attempt."""
        found = {
            **vars(self),
            "resources": self.resources.to_dict(),
            "shell": None if self.shell is None else self.shell.to_dict(),
            "labels": dict(self.labels),
            "environment": dict(self.environment),
        }
        del found["job"]
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str | Path) -> Ticket:
        """Validate the content of the file `where`. Raises DamagedFileError, naming the key."""
        try:
            needs, shell = data["resources"], data["shell"]
            if not isinstance(needs, dict):
                raise DamagedFileError(f"{where}: key 'resources': an object was expected")
            values = {name: data[name] for name in _TICKET}
            for name in ("command", "outputs", "logs", "job_arguments"):
                if isinstance(values[name], list):
                    values[name] = tuple(values[name])
            values["resources"] = Resources(**needs)
            values["shell"] = None if shell is None else ShellJob.from_dict(shell)
            return cls(**values)
        except KeyError as error:
            raise DamagedFileError(f"{where}: key {error} is missing") from error
        except DamagedFileError:
            raise
        except (KochiError, TypeError) as error:
            raise DamagedFileError(f"{where}: {error}") from error

    def handed_over(self, job: int, queue: str, machine: str) -> Ticket:
        """The ticket with the values that it gets at its submission."""
        # dataclasses.replace is not used, because it would validate everything again: that was the
        # longest part of submitting ten thousand tickets.
        changed = object.__new__(type(self))
        vars(changed).update(vars(self), job=job, queue=queue, machine=machine)
        return changed


_TICKET: dict[str, _Kind] = {
    "name": (
        "printable text without control characters or line breaks",
        lambda value: _is_text(value) and value.isprintable() and value != "",
    ),
    "queue": _TEXT,
    "machine": _TEXT,
    "submitted": _TEXT,
    "command": (
        "a tuple of at least one text without NUL",
        lambda value: _are_texts(value) and len(value) > 0,
    ),
    "directory": ("an absolute path", lambda value: _is_text(value) and value.startswith("/")),
    "resources": ("Resources", lambda value: isinstance(value, Resources)),
    "identity": _or_none(_TEXT),
    "outputs": _TEXTS,
    "logs": _TEXTS,
    "shell": ("ShellJob", lambda value: value is None or isinstance(value, ShellJob)),
    "job_arguments": (
        "two numbers",
        lambda value: (
            value is None
            or (isinstance(value, tuple) and len(value) == 2 and all(map(_FROM_0[1], value)))
        ),
    ),
    "labels": _NAMED,
    "environment": _NAMED,
}


def ticket_in(data: bytes, where: str) -> Ticket:
    """The ticket at the beginning of a file. Raises DamagedFileError."""
    try:
        found = files.parse(data.partition(b"\n")[0])
    except ValueError as error:
        raise DamagedFileError(f"{where}: {error}") from error
    return Ticket.from_dict(found, Path(where))
