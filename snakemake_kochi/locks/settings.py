"""locks.json: the locks that a machine's processes use.

Every process that changes a file of the machine reads it first. So this is where files of another
layout are refused.
"""

from __future__ import annotations

import functools
import math
import os
import stat
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, get_args

from snakemake_kochi.errors import ConfigError, DamagedFileError, KochiError, nearest
from snakemake_kochi.files import (
    PRIVATE_DIRECTORY,
    is_there,
    make_directory,
    random_word,
    read_json,
    to_json,
    write_exclusively,
)
from snakemake_kochi.locks.lock import LEASE_DURATION, Held, Kind, hold, is_held
from snakemake_kochi.paths import LockPaths, MachinePaths

VERSION = 3  # of the layout of the machine's directory


@dataclass(frozen=True)
class LockSettings:
    """The content of locks.json.

    `paths` are the paths of the locks, `lock_dir` the configured directory that contains them, if
    any. `lease_duration` is the number of seconds for which a
    lease need not be renewed.
    """

    machine: MachinePaths
    paths: LockPaths
    kind: Kind
    lock_dir: Path | None = None
    host: str = ""  # where it was settled, at `time`
    time: str = ""
    nonce: str = ""
    lease_duration: float = LEASE_DURATION

    def hold(
        self, path: Path, complain_after: float = 30.0, patience: float = math.inf
    ) -> AbstractContextManager[Held]:
        """Hold one of these locks (a path of `paths`). Waits and raises as `lock.hold` does."""
        if path.parent != self.paths.directory:
            make_directory(path.parent)
        return hold(path, self.kind, complain_after, patience, self.lease_duration)

    def is_held(self, path: Path) -> bool:
        """Whether a process holds one of these locks. Raises as `lock.is_held` does."""
        return is_held(path, self.kind, self.lease_duration)

    def __str__(self) -> str:
        return f"{self.kind} in {self.paths.directory}"

    def agrees_with(self, other: LockSettings) -> bool:
        mine, others = self._comparable(), other._comparable()
        return (self.kind, mine) == (other.kind, others)

    def _comparable(self) -> Path | None:
        # The path derived from it is not compared: KOCHI_ROOT may have another path on another
        # node.
        return None if self.lock_dir is None else Path(os.path.realpath(self.lock_dir))

    def to_dict(self) -> dict[str, Any]:
        default = self.lock_dir is None
        data = {
            "version": VERSION,
            # The default is relative to the file, because the path of the root may differ between
            # nodes.
            "directory": self.paths.directory.name if default else str(self.paths.directory),
            "kind": self.kind,
            "host": self.host,
            "time": self.time,
            "nonce": self.nonce,
        }
        if self.lease_duration != LEASE_DURATION:
            data["lease_duration"] = self.lease_duration
        return data

    @classmethod
    def from_dict(cls, machine: MachinePaths, data: Mapping[str, Any]) -> LockSettings:
        """Make settings from the content of the file. Raises DamagedFileError."""
        name, kind = str(data.get("directory") or ""), data.get("kind")
        if not name or "\0" in name:
            raise _damaged(machine, f"key 'directory': {name!r} is not the path of a directory")
        if kind not in get_args(Kind):
            raise _damaged(
                machine, f"key 'kind': {kind!r} is not one of {', '.join(get_args(Kind))}"
            )
        directory = Path(name)
        return cls(
            machine=machine,
            paths=LockPaths(machine.directory / directory),
            kind=cast(Kind, kind),
            lock_dir=directory.parent if directory.is_absolute() else None,
            **{key: str(data.get(key, "")) for key in ("host", "time", "nonce")},
            lease_duration=float(data.get("lease_duration", LEASE_DURATION)),
        )


def intended_lock_settings(
    machine: MachinePaths,
    lock_dir: Path | None = None,
    kind: str | None = None,
    lease_duration: float = LEASE_DURATION,
) -> LockSettings:
    """The configured settings, whatever is settled. Raises ConfigError for an unknown kind."""
    if kind is not None and kind not in get_args(Kind):
        raise ConfigError(f"lock_kind '{kind}' does not exist: {nearest(kind, get_args(Kind))}")
    return LockSettings(
        machine=machine,
        paths=machine.locks if lock_dir is None else machine.locks_in(lock_dir),
        kind=cast(Kind, kind or "flock"),
        lock_dir=lock_dir,
        lease_duration=lease_duration,
    )


def settle_locks(
    machine: MachinePaths,
    lock_dir: Path | None = None,
    kind: str | None = None,
    lease_duration: float = LEASE_DURATION,
) -> LockSettings:
    """Have the machine use the configured locks, from its first use on.

    Raises KochiError when other locks are settled, and when the directory cannot be used.
    """
    wanted = intended_lock_settings(machine, lock_dir, kind, lease_duration)
    settled = read_lock_settings(machine) or _settle(wanted)
    if problem := disagreement(settled, wanted):
        raise problem
    _check_directory(settled)
    return settled


@functools.lru_cache(maxsize=64)
def find_lock_settings(machine: MachinePaths) -> LockSettings:
    """The settled locks; at the first use of the machine, the default. Read once per process.

    Raises KochiError when the directory cannot be used. Raises DamagedFileError.
    """
    settled = read_lock_settings(machine) or _settle(intended_lock_settings(machine))
    _check_directory(settled)
    return settled


def read_lock_settings(machine: MachinePaths) -> LockSettings | None:
    """The settled locks, or None before the first use. Raises DamagedFileError."""
    try:
        data = read_json(machine.lock_settings, VERSION)
        if data["version"] < VERSION:
            raise DamagedFileError(
                f"{machine.directory}: written by an earlier snakemake_kochi (layout "
                f"{data['version']}, this one uses {VERSION})",
                "Set another KOCHI_ROOT, or delete that directory.",
            )
        return LockSettings.from_dict(machine, data)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        if error.hint is not None:
            raise  # written by another release: removing the file would mix the two
        raise _damaged(machine, error.message) from error


def disagreement(settled: LockSettings, wanted: LockSettings) -> KochiError | None:
    """The error for a machine whose settled locks differ from its configuration."""
    if settled.agrees_with(wanted):
        return None
    file = settled.machine.lock_settings
    return KochiError(
        f"machine '{settled.machine.name}' uses the locks {settled} "
        f"(settled in {file}, by {settled.host} at {settled.time}), but its configuration "
        f"says {wanted}: processes with different locks do not exclude each other, and would "
        "write to one build, or commit to one branch, at once",
        "Set lock_dir and lock_kind of the machine in kochi.yaml back to those. Or end all its "
        f"workers and runs, on all nodes, and then type: rm {file}",
    )


def _settle(wanted: LockSettings) -> LockSettings:
    """Settle the wanted locks, and return the settled ones.

    If another process was faster, these are the locks that it settled.
    """
    machine = wanted.machine
    make_directory(machine.directory)
    settled = LockSettings(
        machine=machine,
        paths=wanted.paths,
        kind=wanted.kind,
        lock_dir=wanted.lock_dir,
        lease_duration=wanted.lease_duration,
        host=os.uname().nodename,
        time=datetime.now(UTC).isoformat(timespec="microseconds"),
        nonce=random_word(8),
    )
    _make_lock_directory(settled)
    mark = settled.paths.settled(settled.nonce)
    if settled.lock_dir is not None:
        write_exclusively(mark, b"")
    if write_exclusively(machine.lock_settings, to_json(settled.to_dict())):
        return settled
    mark.unlink(missing_ok=True)
    other = read_lock_settings(machine)
    assert other is not None
    return other


def _make_lock_directory(settings: LockSettings) -> None:
    directory = settings.paths.directory
    if settings.lock_dir is None:
        make_directory(directory)
        return
    if not settings.lock_dir.is_dir():
        # The directory is not made: if it is only not mounted, the locks would differ from those of
        # other nodes.
        raise KochiError(
            f"lock_dir: there is no directory {settings.lock_dir}",
            "Make it, or correct lock_dir of the machine in kochi.yaml.",
        )
    try:
        directory.mkdir(mode=PRIVATE_DIRECTORY)
    except FileExistsError:
        _check_ownership(directory)
    except OSError as error:
        raise KochiError(f"lock_dir: cannot make {directory}: {error.strerror}") from error


def _check_directory(settings: LockSettings) -> None:
    if settings.lock_dir is None:
        make_directory(settings.paths.directory)
        return
    directory = settings.paths.directory
    if not is_there(settings.paths.settled(settings.nonce)):
        raise KochiError(
            f"{directory} is not the directory of locks that {settings.host} settled for machine "
            f"'{settings.machine.name}': either lock_dir is not the same directory on all nodes, "
            "or its files were removed",
            "Set lock_dir in kochi.yaml to a directory that all nodes share. Then end all workers "
            f"and runs of the machine, and type: rm {settings.machine.lock_settings}",
        )
    _check_ownership(directory)


def _check_ownership(directory: Path) -> None:
    """In a directory open to all users, another user may have used the name first."""
    found = directory.lstat()
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.geteuid()
        or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise KochiError(
            f"lock_dir: {directory} is not a directory that only you can use",
            "Remove it, if it is yours, or choose another lock_dir.",
        )


def _damaged(machine: MachinePaths, message: str) -> DamagedFileError:
    return DamagedFileError(
        message if str(machine.lock_settings) in message else f"{machine.lock_settings}: {message}",
        "End all workers and runs of the machine, on all nodes, and then type: "
        f"rm {machine.lock_settings}",
    )
