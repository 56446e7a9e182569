"""Failed allocations and workers: nodes to avoid, and jobs that no worker can run."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from humanfriendly.text import concatenate, pluralize
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.packing import Supply
from snakemake_kochi.backoff import Backoff
from snakemake_kochi.errors import WorkerError
from snakemake_kochi.files import is_there, last_lines, show_new_files
from snakemake_kochi.paths import Root
from snakemake_kochi.schedulers.environment import node_of
from snakemake_kochi.schedulers.interface import Allocation
from snakemake_kochi.tickets.ticket import Resources

# After this number of failed starts a node is avoided. It is free again at once, so the scheduler
# would choose it again.
_MOST_ON_NODE = 2
_REMEMBERED = 24 * 3600.0  # seconds
# After this number of failed starts in a row, those on one node counted once, the cause is not the
# nodes but, for example, a start script.
_MOST_FAILED = 3
# Seconds before more is requested, the first pause and the longest one. A user who cancelled
# allocations does not want them at once. If all fail although workers exist, the user may have to
# repair something.
_CANCELLED = (60.0, 1800.0)
_FAILED = (10.0, 600.0)
# Seconds until data written by a node are visible here, and between two looks.
_LOG_PATIENCE = 5.0
_LOG_PAUSE = 0.5
# After this number of workers in a row that cannot run a kind of job, another one could not run it
# either.
_MOST_IN_VAIN = 3


def was_written(log: Path) -> bool | None:
    """Whether such a log exists; None if this is not known now: a server may be unavailable."""
    with contextlib.suppress(OSError):
        if is_there(log):
            return True
        show_new_files(log.parent)
        return is_there(log)
    return None


def where_log_is(log: Path) -> str:
    """Where the output of a worker or its allocation is, for people: only a file that exists.

    An alloc_script has its own output beside the `log`.
    """
    written = _written(log)
    if found := next((path for path, is_written in written.items() if is_written), None):
        return f"its log is {found}"
    unknown = "it is not known now whether it wrote a log"
    return unknown if None in written.values() else "it wrote no log"


def _written(log: Path) -> dict[Path, bool | None]:
    return {path: was_written(path) for path in (log, log.with_suffix(".out"))}


class FailedStarts:
    """The allocations of one controller that ended before their worker started.

    Nodes on which several ended within a day are `excluded` as long if the scheduler `can_exclude`
    them.
    """

    def __init__(
        self,
        can_exclude: bool,
        logger: LoggerExecutorInterface,
        clock: Callable[[], float] = time.monotonic,
        root_if_unsure: Root | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`root_if_unsure`: KOCHI_ROOT, if the configuration does not say that all nodes see it."""
        self._can_exclude = can_exclude
        self._logger = logger
        self._clock = clock
        self._root_if_unsure = root_if_unsure
        self._sleep = sleep
        self._on_node: dict[str, list[float]] = {}  # when
        self._in_a_row: list[str] = []  # their nodes, or ids if the nodes are not known
        self._causes: dict[str, str] = {}  # of those in a row, by what they have in common
        self._last = ""
        self._failures = Backoff(*_FAILED, clock)
        self._cancellations = Backoff(*_CANCELLED, clock)

    @property
    def may_request(self) -> bool:
        """Whether the pause before the next request is over."""
        return self._failures.is_due and self._cancellations.is_due

    def worker_came(self) -> None:
        self._root_if_unsure = None  # its node sees KOCHI_ROOT
        self._in_a_row.clear()
        self._causes.clear()
        self._failures.worked()
        self._cancellations.worked()

    def cancelled(self, ids: Sequence[str]) -> None:
        """Note allocations that were cancelled before they began, and not by this run.

        Allocations count as cancelled, too, if the scheduler does not know any more why they ended.
        """
        seconds = self._cancellations.failed()
        self._logger.warning(
            f"Cancelled before a worker started, and not by this run: {', '.join(ids)}. The run "
            "goes on with fewer workers. If jobs still wait, it requests more in "
            f"{seconds:.0f} s."
        )

    def failed(self, id: str, ended: Allocation | None, log: Path) -> None:
        """Note an allocation that ended without being cancelled; `log`: the file of its output.

        Raises KochiError for the first one if its node does not see KOCHI_ROOT.
        """
        node = (ended.nodes if ended is not None else "") or node_of(log)
        on = f" on node {node}" if node else ""
        why = f" ({ended.reason})" if ended is not None and ended.reason else ""
        if self._root_if_unsure is not None and ended is not None and ended.may_be_blind:
            self._check_sight(self._root_if_unsure, ended, node, log)
        self._last = f"{id}{on}{why}; {where_log_is(log)}"
        cause = _cause(_written(log), why)
        # The numbers of nodes, allocations and processes differ.
        self._causes[re.sub(r"\d+", "", cause)] = cause
        self._logger.warning(f"Allocation ended before its worker started: {self._last}")
        self._in_a_row.append(node if node and self._can_exclude else id)
        if node and self._can_exclude:
            was_excluded = node in self.excluded
            self._on_node.setdefault(node, []).append(self._clock())
            if not was_excluded and node in self.excluded:
                self._tell_excluded(node)
        if self._are_many:
            self._failures.failed()

    def _check_sight(self, root: Root, ended: Allocation, node: str, log: Path) -> None:
        """Raise KochiError if the node wrote its log elsewhere or could not write it.

        This is the case if the directory of the log exists, and the log has not appeared within the
        time that it may take to become visible.
        """
        deadline = self._clock() + _LOG_PATIENCE
        while was_written(log) is False:
            if self._clock() >= deadline:
                why = f"allocation {ended.id} ended there ({ended.reason}) and its log is not here"
                raise root.unseen(node or "a node", why)
            self._sleep(_LOG_PAUSE)

    @property
    def excluded(self) -> tuple[str, ...]:
        """The nodes to avoid now."""
        since = self._clock() - _REMEMBERED
        return tuple(
            node
            for node, moments in self._on_node.items()
            if sum(moment >= since for moment in moments) >= _MOST_ON_NODE
        )

    def _tell_excluded(self, node: str) -> None:
        many = pluralize(_MOST_ON_NODE, "allocation")
        self._logger.warning(
            f"This run avoids node {node} for a day: {many} ended there before a worker "
            "started. If workers start on others, tell the administrators of this node."
        )

    @property
    def _are_many(self) -> bool:
        return len(set(self._in_a_row)) >= _MOST_FAILED

    def check(self) -> None:
        """Raise WorkerError if no worker can be expected.

        The caller calls it while no worker exists or is coming.
        """
        if self._are_many:
            raise self.error()

    def error(self, refusal: str = "") -> WorkerError:
        """The error that no worker can be expected.

        The caller raises it when nothing more can be requested either.
        """
        many = pluralize(len(self._in_a_row), "allocation")
        avoided = f" Avoided: {concatenate(self.excluded)}." if self.excluded else ""
        refused = f" {refusal}" if refusal else ""
        cause = next(iter(self._causes.values())) if len(self._causes) == 1 else ""
        first = f"{cause}, each time. " if cause else ""
        return WorkerError(
            f"no worker exists, and none starts: {first}{many} in a row ended before their worker "
            f"started. The last one is {self._last}.{avoided}{refused}",
            "Read that log. If there is none, check whether the nodes see KOCHI_ROOT, can write "
            "there (by default it is in HOME, which may be read-only on them), and have the "
            "programs that load_env_script uses.",
        )


def _cause(written: Mapping[Path, bool | None], why: str) -> str:
    """Why an allocation ended before its worker started, as far as its logs tell; "" if unknown.

    `written`: which of them are there. `why`: the scheduler's reason.
    """
    if not any(written.values()):
        place = next(iter(written)).parent
        return "" if None in written.values() else f"no log was written to {place}{why}"
    lines = (
        line
        for path in written
        for line in last_lines(path, 1)
        if not line.endswith(node_of(path) or "\n")
    )
    return next((f"the log ends with: {line.strip()}" for line in lines), "")


class UnfitWorkers:
    """The workers of one queue that came for jobs and cannot run them.

    If the resources of a node are not known, or stated too high, a job may be too large for each
    worker that comes. Without this class, another worker would be requested again and again.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._in_vain: dict[Resources, int] = {}
        self._obstacles: dict[Resources, str] = {}

    def note(
        self,
        waiting: Iterable[Resources],
        there: Mapping[str, Supply],
        requested: Mapping[str, Supply],
    ) -> None:
        """Compare the resources of new workers, by allocation, to the requested ones."""
        for allocation in there.keys() - self._seen:
            self._seen.add(allocation)
            if (expected := requested.get(allocation)) is None:
                continue
            for kind in waiting:
                if expected.obstacle(kind) is not None:
                    continue  # it was not requested for this job
                if (why := there[allocation].obstacle(kind)) is None:
                    self._in_vain.pop(kind, None)
                else:
                    self._in_vain[kind] = self._in_vain.get(kind, 0) + 1
                    self._obstacles[kind] = why

    def obstacle(self, kind: Resources) -> str | None:
        """The reason, for people, why nothing more is requested for a kind of job, or None."""
        if self._in_vain.get(kind, 0) < _MOST_IN_VAIN:
            return None
        return self._obstacles[kind]
