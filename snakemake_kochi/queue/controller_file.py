"""The state file of a controller, with its heartbeat; was this controller presumed dead?"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_removed
from snakemake_kochi.heartbeat import HeartbeatFile
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.controllers import Adopter, last_adopter
from snakemake_kochi.queue.heartbeat import LATE, time_awake_or_asleep

_log = logging.getLogger(__name__)


class ControllerFile:
    """controller.json of the calling process. Any thread may call its methods."""

    def __init__(self, machine: MachinePaths, identity: str, fields: Mapping[str, Any]) -> None:
        """Write the file. Raises OSError when it cannot be written."""
        self._machine = machine
        self._identity = identity
        self._paths = machine.controller(identity)
        self._file = HeartbeatFile(self._paths.state, fields)
        self._file.write()
        self._looked = time_awake_or_asleep()
        self._adopter: Adopter | None = None
        # Since when this controller seems to have an adopter. This may be a transient fault.
        self._doubted: float | None = None

    def write(self, **changes: Any) -> None:
        """Write the file with some fields changed. Raises OSError."""
        self._file.write(**changes)

    def start(self) -> None:
        """Start the heartbeat; each beat also looks for an adopter."""
        self._file.start(self._has_no_adopter)

    def stop(self) -> None:
        """Stop the heartbeat. After this returns, only `write` writes the file."""
        self._file.stop()

    def _has_no_adopter(self) -> bool:
        self._look_for_adopter()
        return self._adopter is None

    @property
    def adopter(self) -> Adopter | None:
        """The controller that adopted the jobs of this one, if any.

        That happens after this controller gave no sign of life for too long. It is final: the jobs
        no longer belong to this controller. While the heartbeat runs, the call costs nothing.
        """
        if self._file.is_started and self._adopter is None:
            asleep = time_awake_or_asleep() - self._looked
            if asleep > LATE * self._file.interval:
                self._look_for_adopter()
                if self._doubted is not None:
                    time.sleep(self._file.interval)
                    self._look_for_adopter()
        return self._adopter

    def require_no_adopter(self) -> None:
        """Raise KochiError if there is an adopter.

        This must be called before tickets are submitted and before results are taken in.
        """
        if (adopter := self.adopter) is None:
            return
        where = f" on {adopter.host}" if adopter.host else ""
        who = (
            f"controller {adopter.controller}{where}"
            if adopter.controller
            else "another run, which has ended since,"
        )
        raise KochiError(
            f"the heartbeat of this run stood still for too long, so {who} presumed the run "
            "dead and adopted its jobs: this run ends now",
            "The host may have been suspended, or cut off from the filesystem of KOCHI_ROOT. To "
            "see the jobs, type: kochi show jobs -t",
        )

    def _look_for_adopter(self) -> None:
        moment = time_awake_or_asleep()
        try:
            _, found = last_adopter(self._machine, self._identity)
            # The adopter may have ended, and removed what it had adopted.
            is_doubtful = found is None and is_removed(self._paths.directory)
        except DamagedFileError:
            found, is_doubtful = None, True
        except OSError:
            return  # unknown now
        if not is_doubtful:
            self._doubted = None
        elif self._doubted is None:
            self._doubted = moment
        # It counts only when it was seen twice, because it ends the run for good.
        if self._doubted is not None:
            if moment < self._doubted + self._file.interval:
                return
            found = Adopter("")
        self._looked = moment
        if found is not None:
            self._adopter = found
            _log.warning("controller %s was presumed dead", self._identity)
