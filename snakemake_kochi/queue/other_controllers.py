"""The other controllers of a directory when a run starts; two runs never write the same files.

On the same host, the kernel knows whether a controller is alive. From another host, only its
heartbeat can be seen. A controller whose heartbeat moves is alive, and the new run is refused. A
controller whose heartbeat stands still for long is dead, and the new run adopts its jobs.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import read_json
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue.controllers import (
    VERSION,
    ControllerState,
    is_same_directory,
    last_adopter,
    list_controllers,
    read_controller,
)
from snakemake_kochi.queue.heartbeat import LOST_AFTER, SETTLING, Stillness, sign_of_life

# In heartbeat intervals. A scheduler reports a node that it cannot reach as gone, although
# processes there may go on.
SILENT_AFTER = 3

# Whether a controller is known to have ended. The second argument tells whether it has been silent
# for a while; then sources that are not always right may be asked, too.
IsOver = Callable[[ControllerState, bool], bool]


@dataclass(frozen=True)
class Watched:
    """A controller that may be alive.

    `seconds_left` is the number of seconds without a sign of life after which it is presumed dead;
    None before the first look.
    """

    state: ControllerState
    seconds_left: float | None = None


class OtherControllers:
    """The controllers that may write the same files as the caller's run.

    `own` is the caller's identity. Its file exists already, so that of two controllers that start
    at the same time at least one sees the other. `among` are the controllers to look at, for a
    caller without a run.
    """

    def __init__(
        self,
        machine: MachinePaths,
        directory: str,
        own: str,
        is_over: IsOver,
        clock: Callable[[], float] = time.monotonic,
        among: Collection[ControllerState] | None = None,
    ) -> None:
        self._machine = machine
        self._is_over = is_over
        self._clock = clock
        self._stillness = Stillness(clock)
        self._signs: dict[str, Hashable] = {}
        rivals = _rivals(machine, directory, own) if among is None else among
        self._open = [Watched(state) for state in rivals]
        # Controllers that look dead by the looks so far although no process can be sure. Each has
        # the number of seconds within which it will see its adopter if it is alive after all.
        self.dead: dict[str, float] = {}
        # Controllers whose files were removed or damaged meanwhile, so that nothing more can be
        # learned.
        self.ended: set[str] = set()

    def look(self) -> list[Watched]:
        """Look at the controllers; return those that may still be alive.

        Raises KochiError, with what to type, for one that is alive and for one that cannot be
        watched.
        """
        found = []
        for watched in self._open:
            try:
                left = self._look_at(watched.state.identity)
            except (FileNotFoundError, DamagedFileError):
                self.ended.add(watched.state.identity)
                continue
            except OSError:
                found.append(watched)  # a filesystem that answers with an error proves nothing
                continue
            if left is not None:
                found.append(replace(watched, seconds_left=left))
        self._open = found
        return found

    def _look_at(self, identity: str) -> float | None:
        """The seconds until a controller is presumed dead; None for a dead one."""
        began = self._clock()
        state = read_controller(self._machine, identity)
        if state.is_dead:
            return None
        if this_node().can_see(state.node):
            raise _refusal(state)
        path = self._machine.controller(identity).state
        sign = sign_of_life(path, state.process, state.heartbeat)
        if self._signs.setdefault(identity, sign) != sign:
            raise _refusal(state)
        interval = state.heartbeat_interval
        still = self._stillness.note(identity, sign, interval, began)
        is_silent = still >= SILENT_AFTER * interval
        is_lost = state.heartbeat is not None and still >= LOST_AFTER * interval
        if is_lost or self._is_over(state, is_silent):
            self.dead[identity] = SETTLING * interval if is_silent else 0.0
            return None
        if state.heartbeat is None:
            raise _cannot_be_watched(self._machine, state)
        return LOST_AFTER * interval - still


def _rivals(machine: MachinePaths, directory: str, own: str) -> list[ControllerState]:
    """The controllers that may write the same files as one, and their adopters."""
    outputs = _outputs_of(machine, own)
    here = {
        state.identity: state
        for state in list_controllers(machine)
        if state.directory is not None and is_same_directory(state.directory, directory)
    }
    found: set[str] = set()
    for identity in here.keys() - {own}:
        theirs = _outputs_of(machine, identity)
        if outputs is None or theirs is None or not outputs.isdisjoint(theirs):
            found.add(identity)
            with contextlib.suppress(DamagedFileError):
                # The adopter waits for jobs of that controller, apart from its own jobs.
                _, adopter = last_adopter(machine, identity)
                found.update({adopter.controller} & here.keys() if adopter is not None else ())
    # A program may call Snakemake several times, one run after the other.
    me, myself = this_node(), ProcessIdentity.of(os.getpid())
    return [
        state
        for state in (here[identity] for identity in sorted(found - {own}))
        if not (me.can_see(state.node) and state.process == myself)
    ]


def may_make(machine: MachinePaths, controller: str, path: str) -> bool:
    """Whether the run of a controller may make a file, relative to its directory."""
    outputs = _outputs_of(machine, controller)
    return outputs is None or path in outputs


def _outputs_of(machine: MachinePaths, identity: str) -> frozenset[str] | None:
    """The files that the run of a controller may write; None for any."""
    try:
        return frozenset(read_json(machine.controller(identity).outputs, VERSION)["outputs"])
    except (FileNotFoundError, DamagedFileError, KeyError, TypeError):
        return None


def _refusal(state: ControllerState) -> KochiError:
    host, pid = state.node.host, state.process.pid
    is_here = this_node().can_see(state.node)
    where = "on this host" if is_here else f"on {host}"
    return KochiError(
        f"another run in this directory goes on {where} (process {pid}, since {state.started}), "
        "and makes the same files: each job would be done twice",
        "Wait for its end, or stop it cleanly: type "
        + ("" if is_here else f"on {host}: ")
        + f"kill -INT {pid}; then type the same again here. Jobs that run until then: "
        "kochi show jobs",
    )


def _cannot_be_watched(machine: MachinePaths, state: ControllerState) -> KochiError:
    host, pid = state.node.host, state.process.pid
    return KochiError(
        f"another run in this directory was started on {host} (process {pid}, since "
        f"{state.started}) by an earlier release, and whether it goes on cannot be seen from here",
        f"Look on {host} whether it does, with: ps {pid}\nIf it is gone, this run adopts its jobs "
        f"once you type: touch {shlex.quote(str(machine.controller(state.identity).gone))}",
    )
