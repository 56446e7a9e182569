"""Allocations that ended before their worker came: which nodes are avoided, and when more are asked
for."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from humanfriendly.text import concatenate, pluralize
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.files import is_there, show_new_files
from snakemake_kochi.paths import Root
from snakemake_kochi.schedulers.interface import Allocation
from snakemake_kochi.schedulers.questions import Pauses
from snakemake_kochi.schedulers.worker_command import node_of

# So many on one node, and it is avoided: it is free again at once, and would be given again.
_MOST_ON_NODE = 2
# So many in a row, those on one node counted once, and it is not the nodes: a start script, say.
_MOST_FAILED = 3
# Seconds before more is asked for, at first and at most: where they were cancelled, somebody does
# not want them; where all fail though workers are there, it may take a person to mend it.
_CANCELLED = (60.0, 1800.0)
_FAILED = (10.0, 600.0)
# Seconds for what a node has written to be seen here, and between two looks.
_LOG_PATIENCE = 5.0
_LOG_PAUSE = 0.5


def was_written(log: Path) -> bool | None:
    """None where that is not known now: a server may be away."""
    with contextlib.suppress(OSError):
        if is_there(log):
            return True
        show_new_files(log.parent)
        return is_there(log)
    return None


class Setbacks:
    """Of one controller. `excluded` are the nodes that are avoided, if `can_exclude`."""

    def __init__(
        self,
        can_exclude: bool,
        logger: LoggerExecutorInterface,
        clock: Callable[[], float] = time.monotonic,
        root_if_unsure: Root | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`root_if_unsure`: KOCHI_ROOT, where nobody has said that all nodes see it."""
        self._root_if_unsure = root_if_unsure
        self.excluded: tuple[str, ...] = ()
        self._can_exclude = can_exclude
        self._logger = logger
        self._clock = clock
        self._sleep = sleep
        self._on_node: Counter[str] = Counter()
        self._in_a_row: list[str] = []  # their nodes, or ids where those are not known
        self._last = ""
        self._next = 0.0
        self._after_failures = Pauses(*_FAILED)
        self._after_cancellations = Pauses(*_CANCELLED)

    @property
    def may_ask(self) -> bool:
        """Whether it is time to ask for more."""
        return self._clock() >= self._next

    def worker_came(self) -> None:
        self._root_if_unsure = None  # it is seen
        self._in_a_row.clear()
        self._after_failures.answered()
        self._after_cancellations.answered()

    def cancelled(self, ids: Sequence[str]) -> None:
        """Somebody else cancelled these, or their scheduler does not know any more why they ended,
        and they never began."""
        seconds = self._pause(self._after_cancellations)
        self._logger.warning(
            f"Cancelled before a worker came, and not by this run: {', '.join(ids)}. It goes on "
            "with fewer workers; if jobs wait for more, they are asked for again in "
            f"{seconds:.0f} s"
        )

    def failed(self, id: str, ended: Allocation | None, log: Path) -> None:
        """One ended, and not because somebody wanted it. `log`: where it wrote, if it did. Raises
        KochiError for the first one, if its node does not see KOCHI_ROOT."""
        node = (ended.nodes if ended is not None else "") or node_of(log)
        on = f" on node {node}" if node else ""
        why = f" ({ended.reason})" if ended is not None and ended.reason else ""
        if self._root_if_unsure is not None and ended is not None and ended.may_be_blind:
            self._check_sight(self._root_if_unsure, ended, node, log)
        written = {path: was_written(path) for path in (log, log.with_suffix(".out"))}
        where = next(
            (f"its log is {path}" for path, is_written in written.items() if is_written),
            "whether it wrote a log is not known now"
            if None in written.values()
            else "it wrote no log",
        )
        self._last = f"{id}{on}{why}; {where}"
        self._logger.warning(f"Allocation ended before its worker came: {self._last}")
        self._in_a_row.append(node if node and self._can_exclude else id)
        if node and self._can_exclude:
            self._on_node[node] += 1
            if self._on_node[node] >= _MOST_ON_NODE and node not in self.excluded:
                self._exclude(node)
        if self._are_many:
            self._pause(self._after_failures)

    def _check_sight(self, root: Root, ended: Allocation, node: str, log: Path) -> None:
        """Raise KochiError if the node has written its log elsewhere, or could not: where the
        directory of that is there, and the log is not, for as long as it may take to be seen."""
        deadline = self._clock() + _LOG_PATIENCE
        while was_written(log) is False:
            if self._clock() >= deadline:
                why = f"allocation {ended.id} ended there ({ended.reason}) and its log is not here"
                raise root.unseen(node or "a node", why)
            self._sleep(_LOG_PAUSE)

    def _exclude(self, node: str) -> None:
        self.excluded = (*self.excluded, node)
        many = pluralize(self._on_node[node], "allocation")
        self._logger.warning(
            f"Node {node} is avoided until this run ends: {many} ended there, and no worker had "
            "come. Tell those who look after it."
        )

    def _pause(self, pauses: Pauses) -> float:
        seconds = pauses.next()
        self._next = max(self._next, self._clock() + seconds)
        return seconds

    @property
    def _are_many(self) -> bool:
        return len(set(self._in_a_row)) >= _MOST_FAILED

    def check(self) -> None:
        """To be called where no worker is there, and none is to come. Raises WorkerError where none
        can be expected."""
        if self._are_many:
            raise self.hopeless()

    def hopeless(self, refusal: str = "") -> WorkerError:
        """To be raised where nothing more can be asked for, either."""
        many = pluralize(len(self._in_a_row), "allocation")
        avoided = f" Avoided: {concatenate(self.excluded)}." if self.excluded else ""
        refused = f" {refusal}" if refusal else ""
        return WorkerError(
            f"no worker is there, and none comes: {many} in a row ended before their worker came. "
            f"The last is {self._last}.{avoided}{refused}",
            "Read that log; where there is none, see whether the node has the filesystem of "
            "KOCHI_ROOT and the programs that load_env_script names.",
        )
