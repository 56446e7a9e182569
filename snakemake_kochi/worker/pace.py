"""How long the last jobs and claims of a worker took, and how many tickets it claims ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

# Seconds. If the last jobs took less than _SHORT, the worker claims work for _AHEAD ahead.
_SHORT = 0.1
_AHEAD = 0.15
# Where claims are slow, it claims work for so many times the duration of a claim, but for _LONGEST
# at most, in seconds: others could run what it holds. Where claims are so slow that it would do
# little else, it claims work for at least _FEWEST_TIMES a claim all the same.
_TIMES_A_CLAIM = 10.0
_LONGEST = 2.0
_FEWEST_TIMES = 4.0
_MOST_AHEAD = 32
# After fewer jobs, the worker claims as many ahead for each of them as it has cores.
_FEWEST_KNOWN = 4
_KNOWN = 16
# Seconds after which the worker requeues tickets that it cannot start: others may be idle.
_PATIENCE = 1.0
# In durations of the last jobs, if these are longer.
_PATIENCE_IN_JOBS = 2.0
# Seconds that claims take on average, from which on they are made beside other work.
_SLOW_CLAIM = 0.05


class Pace:
    """The durations of one worker's last jobs and claims, in seconds."""

    def __init__(self) -> None:
        self._jobs: deque[float] = deque(maxlen=_KNOWN)
        self._claims: deque[float] = deque(maxlen=_KNOWN)

    def job_ended(self, seconds: float) -> None:
        self._jobs.append(seconds)

    def claimed(self, seconds: float) -> None:
        """Note how long a claim took that found something."""
        self._claims.append(seconds)

    def forget_jobs(self) -> None:
        """Forget the durations of jobs: they say nothing about the next ones."""
        self._jobs.clear()

    def allowance(self, cores: int) -> int:
        """How many tickets a worker may hold in addition to those that can start at once."""
        known = len(self._jobs)
        if not known:
            return 0
        mean = _mean(self._jobs)
        cost = _mean(self._claims)
        ahead = max(min(_TIMES_A_CLAIM * cost, _LONGEST), _FEWEST_TIMES * cost)
        if mean < _SHORT:
            ahead = max(ahead, _AHEAD)
        expected = int(ahead / max(mean, 0.001) * cores)
        # The first jobs say little about the next ones.
        most = _MOST_AHEAD if known >= _FEWEST_KNOWN else known * cores
        return min(most, _MOST_AHEAD, expected)

    @property
    def patience(self) -> float:
        """For how many seconds a worker may hold tickets while none of them starts."""
        return max(_PATIENCE, _PATIENCE_IN_JOBS * _mean(self._jobs))

    @property
    def are_claims_slow(self) -> bool:
        """Whether claims take so long that the worker should not wait for them."""
        return _mean(self._claims) >= _SLOW_CLAIM


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else 0.0
