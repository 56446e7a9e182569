"""Nodes for `kochi doctor`, from the machine's scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import humanfriendly

from snakemake_kochi.allocation.trial import LateError, TrialAllocations
from snakemake_kochi.doctor import OtherNode, Outcome
from snakemake_kochi.errors import KochiError
from snakemake_kochi.schedulers.interface import RefusedError


class NodesOfScheduler:
    """See `doctor.others.OtherNodes`."""

    def __init__(self, allocations: TrialAllocations) -> None:
        self._allocations = allocations

    def get(self, not_on: Sequence[str]) -> OtherNode | Outcome:
        """Not tested is what cannot be had now, and the second node where there is one alone."""
        try:
            found = self._allocations.get(not_on)
        except LateError as error:
            advice = "Try again later, or wait for longer: --wait 2h"
            return Outcome("warning", f"not tested: {error.message}", advice)
        except RefusedError as error:
            if not_on:
                said = f"not tested, without a second node: {_line(error.message)}"
                return Outcome("warning", said, error.hint or "")
            return Outcome("failed", _line(error.message), error.hint or "")
        except KochiError as error:
            return Outcome("failed", _line(error.message), error.hint or "")
        state = found.state
        took = humanfriendly.format_timespan(found.seconds)
        said = f"a worker has come in {state.allocation}, on {state.node.host}, after {took}"
        return OtherNode(state.node, found.queue, found.controller, found.nodes, said)


def _line(text: str) -> str:
    return " ".join(text.split())
