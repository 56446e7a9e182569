"""A controller's own account of itself: that it lives, and whether another one has adopted its
jobs because it seemed dead."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, list_names, read_json
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.heartbeat import LATE, HeartbeatFile, time_awake_or_asleep

_log = logging.getLogger(__name__)

VERSION = 1


@dataclass(frozen=True)
class Adopter:
    """adopter-<n>.json: the controller that adopted the jobs, and its host, where that is known."""

    controller: str
    host: str = ""


def last_adopter(machine: MachinePaths, identity: str) -> tuple[int, Adopter | None]:
    """How many controllers have adopted the jobs of one, and the last of them. Raises OSError, or
    DamagedFileError."""
    paths = machine.controller(identity)
    found = None
    for number in itertools.count(0):
        try:
            data = read_json(paths.adopter(number + 1), VERSION)
        except FileNotFoundError:
            return number, found
        found = Adopter(str(data.get("adopter")), str(data.get("host", "")))
    raise AssertionError("unreachable")


def is_certainly_gone(directory: Path) -> bool:
    """Whether the directory of a controller was removed, which ended or was adopted from. Raises
    OSError when that is not known now."""
    if is_there(directory):
        return False
    # Where not even those of others are there, the filesystem is away, and may come back. Listed,
    # because what a client of NFS once did not find it takes for missing for up to a minute.
    return is_there(directory.parent) and directory.name not in list_names(directory.parent)


class ControllerFile:
    """controller.json of the calling process. Any thread may call."""

    def __init__(self, machine: MachinePaths, identity: str, fields: Mapping[str, Any]) -> None:
        """Raises OSError when it cannot be written."""
        self._machine = machine
        self._identity = identity
        self._paths = machine.controller(identity)
        self._file = HeartbeatFile(self._paths.state, fields)
        self._file.write()
        self._looked = time_awake_or_asleep()
        self._adopter: Adopter | None = None
        # Since when it looks as if it had an adopter, which may be a transient fault.
        self._doubted: float | None = None

    def write(self, **changes: Any) -> None:
        """Raises OSError."""
        self._file.write(**changes)

    def start(self) -> None:
        """Give signs of life from now on, and look each time whether there is an adopter."""
        self._file.start(self._has_no_adopter)

    def stop(self) -> None:
        """When this returns nothing is written any more, but by `write`."""
        self._file.stop()

    def _has_no_adopter(self) -> bool:
        self._look_for_adopter()
        return self._adopter is None

    @property
    def adopter(self) -> Adopter | None:
        """The controller that adopted this one's jobs, after it gave no sign of life for too long:
        nothing is its own any more, for good. Free while the heartbeat goes."""
        if self._file.is_started and self._adopter is None:
            asleep = time_awake_or_asleep() - self._looked
            if asleep > LATE * self._file.interval:
                self._look_for_adopter()
                if self._doubted is not None:
                    time.sleep(self._file.interval)
                    self._look_for_adopter()
        return self._adopter

    def require_no_adopter(self) -> None:
        """To be called before anything is handed over or taken in. Raises KochiError."""
        if (adopter := self.adopter) is None:
            return
        where = f" on {adopter.host}" if adopter.host else ""
        who = (
            f"controller {adopter.controller}{where}"
            if adopter.controller
            else "another run, which has ended since,"
        )
        raise KochiError(
            f"this run gave no sign of life for long, was presumed dead, and {who} adopted its "
            "jobs: it ends here, and leaves them to that one",
            "Was this host suspended, or cut off from the filesystem? How the jobs stand says: "
            "kochi show jobs -t",
        )

    def _look_for_adopter(self) -> None:
        moment = time_awake_or_asleep()
        try:
            _, found = last_adopter(self._machine, self._identity)
            # The adopter may have ended, and removed what it had adopted.
            is_doubtful = found is None and is_certainly_gone(self._paths.directory)
        except DamagedFileError:
            found, is_doubtful = None, True
        except OSError:
            return  # not known now
        if not is_doubtful:
            self._doubted = None
        elif self._doubted is None:
            self._doubted = moment
        # Seen twice before it counts: it ends the run for good.
        if self._doubted is not None:
            if moment < self._doubted + self._file.interval:
                return
            found = Adopter("")
        self._looked = moment
        if found is not None:
            self._adopter = found
            _log.warning("controller %s was presumed dead", self._identity)
