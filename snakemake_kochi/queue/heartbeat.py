"""When workers and controllers are presumed dead, and the record of a worker that was.

On the node of a worker, the kernel knows whether the worker is dead. On another node, only its
heartbeat tells, so that its tickets may be requeued.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from typing import Any

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import read_json, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.workers import WorkerState

_log = logging.getLogger(__name__)

VERSION = 2  # of presumed-dead.json

# In heartbeat intervals. A process that has not looked for so long first checks whether it was
# presumed dead.
LATE = 3
# A process that goes on after it was presumed dead must see that before its tickets or jobs are
# given to others.
SETTLING = 2
# In heartbeat intervals of the worker, 5 seconds by default. The supervisor ends a worker before it
# is presumed dead, if the supervisor sees the same files as other processes.
SUPERVISOR_PATIENCE = 6


def time_awake_or_asleep() -> float:
    """The boot-time clock in seconds, which also runs while the host is suspended.

    Other clocks of a suspended host stand still, whereas those of other hosts go on.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class PresumedDead:
    """presumed-dead.json: a worker that a process on another node presumed dead; this is final.

    The process on the host `observer` saw no heartbeat for `stood_still` seconds, and presumed the
    worker dead at `time`.
    """

    worker: int
    observer: str
    stood_still: float
    time: str

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def read_presumed_dead(machine: MachinePaths, worker: int) -> PresumedDead:
    """Read presumed-dead.json.

    Raises FileNotFoundError when the worker was not presumed dead, or DamagedFileError.
    """
    path = machine.worker(worker).presumed_dead
    data = read_json(path, VERSION)
    try:
        return PresumedDead(
            worker=int(data["worker"]),
            observer=str(data["observer"]),
            stood_still=float(data["stood_still"]),
            time=str(data["time"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{path}: not the record of a worker presumed dead ({error!r})"
        ) from error


def presume_dead(machine: MachinePaths, state: WorkerState, still: float) -> None:
    """Presume a worker dead for good; its heartbeat stood still for `still` seconds."""
    presumed = PresumedDead(state.worker, this_node().host, round(still, 3), now())
    if write_exclusively(machine.worker(state.worker).presumed_dead, to_json(presumed.to_dict())):
        _log.warning(
            "worker %d on %s is presumed dead: its heartbeat stood still for %.0f seconds",
            state.worker,
            state.node.host,
            still,
        )
