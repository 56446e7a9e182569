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

from snakemake_kochi.allocation.launch import node_of
from snakemake_kochi.allocation.questions import Pauses
from snakemake_kochi.allocation.scheduler import Allocation
from snakemake_kochi.errors import WorkerError
from snakemake_kochi.files import is_there
from snakemake_kochi.paths import Root

# So many on one node, and it is avoided: it is free again at once, and would be given again.
_MOST_ON_NODE = 2
# So many in a row, those on one node counted once, and it is not the nodes: a start script, say.
_MOST_FAILED = 3
# Seconds before more is asked for, at first and at most: where they were cancelled, somebody does
# not want them; where all fail though workers are there, it may take a person to mend it.
_CANCELLED = (60.0, 1800.0)
_FAILED = (10.0, 600.0)


def was_written(log: Path) -> bool:
    """As far as is known now."""
    with contextlib.suppress(OSError):
        return is_there(log)
    return False


class Setbacks:
    """Of one controller. `excluded` are the nodes that are avoided, if `can_exclude`."""

    def __init__(
        self,
        can_exclude: bool,
        logger: LoggerExecutorInterface,
        clock: Callable[[], float] = time.monotonic,
        root_if_unsure: Root | None = None,
    ) -> None:
        """`root_if_unsure`: KOCHI_ROOT, where nobody has said that all nodes see it."""
        self._root_if_unsure = root_if_unsure
        self.excluded: tuple[str, ...] = ()
        self._can_exclude = can_exclude
        self._logger = logger
        self._clock = clock
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
        files = [path for path in (log, log.with_suffix(".out")) if was_written(path)]
        where = f"its log is {files[0]}" if files else "it wrote no log"
        if self._root_if_unsure is not None and not files:
            raise self._root_if_unsure.unseen(node or f"the node of allocation {id}")
        self._last = f"{id}{on}{why}; {where}"
        self._logger.warning(f"Allocation ended before its worker came: {self._last}")
        self._in_a_row.append(node if node and self._can_exclude else id)
        if node and self._can_exclude:
            self._on_node[node] += 1
            if self._on_node[node] >= _MOST_ON_NODE and node not in self.excluded:
                self._exclude(node)
        if self._are_many:
            self._pause(self._after_failures)

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
