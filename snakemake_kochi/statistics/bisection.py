"""Which commit changed a metric, when every measurement is noisy.

Commits are numbered: 0 is the good one, `last` the bad one. Values are logarithms of the metric, so
a change is a ratio. Commits of a session run soon after each other, so that what all of a session
share, such as the temperature, cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from snakemake_kochi.statistics.comparison import Ratio, paired
from snakemake_kochi.statistics.intervals import Values
from snakemake_kochi.statistics.stopping import decision

SURE = 0.99
_ALPHA = 0.05
_FEWEST_PAIRS, _MORE_PAIRS, _MOST_PAIRS = 10, 5, 100
_MOST_SESSIONS = 200
_OUTLIERS, _TWO_STEPS = 0.05, 0.001  # how probable they are
_NOISES = np.geomspace(0.5, 4, 9)  # times the noise that the pairs of the ends have
_STEPS = 3  # of the grid of levels per standard deviation
_MOST_LEVELS = 400

ENDS, SEARCH, CONFIRM = "ends", "search", "confirm"
NO_DIFFERENCE, NO_SINGLE_COMMIT, COMMIT = "no difference", "no single commit", "commit"


@dataclass
class Bisection:
    """Proposes what to run next, and takes the results, until there is a `verdict`.

    1. Pairs of both ends, until a martingale decides that they differ. 2. Sessions of both ends
    and two runs of a candidate. 3. The posterior over commits says what the next candidate is, and
    when one commit is probable enough. 4. New pairs of that commit and its parent must show the
    change, too: where it is gradual, the posterior alone would name a commit.
    """

    last: int
    whole: list[float] = field(default_factory=list)  # differences of the ends, of all sessions
    fresh: list[float] = field(default_factory=list)  # and of a commit and its parent
    tested: list[tuple[int, float]] = field(default_factory=list)
    skipped: set[int] = field(default_factory=set)
    sessions: int = 0
    step: str = ENDS
    verdict: str = ""
    probability: float = 0.0  # of the suspects
    suspects: tuple[int, int] = (0, 0)  # the last commit before the change, the first one with it

    def __post_init__(self) -> None:
        self.suspects = (0, self.last)

    def proposed(self) -> list[tuple[int, ...]]:
        """The commits of the next sessions; none when there is a verdict."""
        if self.verdict:
            return []
        if self.step == SEARCH:
            return [(0, self.candidate, self.candidate, self.last)]
        pairs = self.whole if self.step == ENDS else self.fresh
        ends = (0, self.last) if self.step == ENDS else self.suspects
        return [ends] * (_MORE_PAIRS if pairs else _FEWEST_PAIRS)

    def take(self, sessions: Sequence[Values]) -> None:
        """The results of the proposed sessions, as they were proposed; NaN for a failed run."""
        if self.step == SEARCH:
            self._take_tested(np.asarray(sessions[0], dtype=float))
            return
        pairs = self.whole if self.step == ENDS else self.fresh
        differences = (float(other - one) for one, other in sessions)
        known = [each for each in differences if not math.isnan(each)]
        pairs += known
        is_decided = decision(pairs, _ALPHA) > 0
        if not is_decided and known and len(pairs) < _MOST_PAIRS:
            return
        if self.step == CONFIRM:
            is_same = np.median(pairs or [0.0]) * np.median(self.whole) > 0
            self.verdict = COMMIT if is_decided and is_same else NO_SINGLE_COMMIT
        elif not is_decided:
            self.verdict = NO_DIFFERENCE
        else:
            self._search()

    def _take_tested(self, values: NDArray[np.float64]) -> None:
        good, *own, bad = values
        known = [each for each in own if not math.isnan(each)]
        self.sessions += 1
        if math.isnan(good + bad):
            pass  # what keeps an end from running may have kept the candidate
        elif not known:
            self.skipped.add(self.candidate)
        else:
            self.tested.append((self.candidate, float(np.mean(known)) - (good + bad) / 2))
            self.whole.append(float(bad - good))
        self._search()

    def _search(self) -> None:
        """Choose the next candidate, or end the search."""
        self.step = SEARCH
        chances = self.posterior()
        ends = [0, *(k for k in range(1, self.last) if k not in self.skipped), self.last]
        # Commits behind skipped ones cannot be told from them.
        before = np.concatenate([[0.0], np.cumsum(chances)])[ends]
        likely = int(np.argmax(np.diff(before)))
        self.suspects = (ends[likely], ends[likely + 1])
        self.probability = float(np.diff(before)[likely])
        if len(ends) == 2:
            self.fresh, self.verdict = self.whole, COMMIT
        elif self.probability >= SURE:
            self.step = CONFIRM
        elif self.sessions >= _MOST_SESSIONS:
            self.verdict = NO_SINGLE_COMMIT
        else:
            # The median; one that was tested often may be on a level of its own, and tells nothing.
            often = [sum(place == each for place, _ in self.tested) for each in ends[1:-1]]
            halves = np.minimum(before[1:-1], 1 - before[1:-1]) / (1 + 0.3 * np.array(often))
            self.candidate = ends[1 + int(np.argmax(halves))]

    def posterior(self) -> NDArray[np.float64]:
        """How probable it is that commit 1, ..., `last` is the first one with the change.

        Before any test all are as probable; both levels may be any; the density of the noise s is
        as 1/s, and one datum in twenty is an outlier.
        """
        pairs = np.array(self.whole)
        step = float(np.median(pairs))
        spread = 1.4826 * float(np.median(np.abs(pairs - step))) / math.sqrt(2)
        noise = max(spread, abs(step) / 50, 1e-9)
        noises = noise * _NOISES
        places = np.array([0, self.last, *(place for place, _ in self.tested)])
        # The levels of the ends are known of all of their pairs; only with two steps they are not
        # those beside the change.
        data = np.array([-step / 2, step / 2, *(datum for _, datum in self.tested)])
        exact = 1.2533 / math.sqrt(2 * len(pairs))  # of a median, as a part of the noise
        scales = np.array([exact, exact, *[1.0] * len(self.tested)])
        parts = [_TWO_STEPS, _TWO_STEPS, *[_OUTLIERS] * len(self.tested)]
        outliers = np.array(parts)[:, None, None]
        low, high = np.min(data) - 3 * noise, np.max(data) + 3 * noise
        levels = np.linspace(low, high, int(min((high - low) / noise * _STEPS, _MOST_LEVELS)))
        scale = (scales[:, None] * noises)[:, :, None]
        away = (data[:, None] - levels)[:, None, :] / scale
        normal = np.exp(-(away**2) / 2) / (scale * math.sqrt(2 * math.pi))
        logs = np.log((1 - outliers) * normal + outliers / (high - low))
        # Between two commits that were tested, all are as probable.
        known, index = np.unique(places, return_inverse=True)
        sums = np.zeros((len(known), *logs.shape[1:]))
        np.add.at(sums, index, logs)
        before = np.cumsum(sums, axis=0)
        every = _log_sum(before[:-1]) + _log_sum(before[-1] - before[:-1]) - np.log(noises)
        # What the pairs say of the noise; an outlier counts, not too much.
        scaled = np.minimum(np.abs(pairs - step)[:, None] / (noises * math.sqrt(2)), 4.0)
        every -= np.sum(scaled**2 / 2 + np.log(noises), axis=0)
        chances = np.repeat(np.exp(every - np.max(every)).sum(axis=1), np.diff(known))
        found: NDArray[np.float64] = chances / chances.sum()
        return found

    @property
    def change(self) -> Ratio:
        """The ratio of the bad end to the good one, of all sessions with both."""
        return paired(self.whole)

    @property
    def explained(self) -> Ratio:
        """The ratio of the commit to its parent, of the pairs of step 4."""
        return paired(self.fresh)


def _log_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    largest = np.max(values, axis=-1, keepdims=True)
    found: NDArray[np.float64] = largest[..., 0] + np.log(np.exp(values - largest).sum(axis=-1))
    return found
