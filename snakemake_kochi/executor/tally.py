"""How the jobs of a run were executed, for the line at its end."""

from __future__ import annotations

from collections import Counter

from humanfriendly.text import pluralize

from snakemake_kochi.executor.settings import RUNNERS
from snakemake_kochi.queue import Result, Ticket


class Tally:
    """Counts jobs by runner, and those not executed by the fastest one by why."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in RUNNERS}
        self._examples: dict[str, int] = {}

    def add(self, ticket: Ticket, result: Result) -> None:
        if result.runner in self._counts:
            chosen, _, why = ticket.labels.get("runner", "").partition(" (")
            reason = why.rstrip(")")
            if chosen != result.runner:
                # Why, the worker knows, for each job.
                example = self._examples.setdefault(chosen, result.job)
                reason = f"not by {chosen}: see kochi show job {example}"
            self._counts[result.runner][reason] += 1

    def describe(self) -> str:
        """As "kochi ran 12 jobs: 10 by shell, 2 by zygote (2 script)"; "" if there were none."""
        total = sum(counts.total() for counts in self._counts.values())
        parts = []
        for name, counts in self._counts.items():
            if counts:
                whys = [f"{count} {why}" for why, count in counts.most_common() if why]
                parts.append(f"{counts.total()} by {name}" + (f" ({', '.join(whys)})" * bool(whys)))
        return f"kochi ran {pluralize(total, 'job')}: {', '.join(parts)}" if parts else ""
