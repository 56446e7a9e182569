"""The directories and logs of jobs that a worker starts.

Where the filesystem is slow, those of the tickets that the worker holds are made while the jobs
before them run, so that a start need not wait for them. Nothing of a job has begun with them: its
ticket may still be requeued or cancelled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from snakemake_kochi.files import answered, create_directory, is_there
from snakemake_kochi.files.together import Background, Together, outcome_of
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.ticket import now

# Seconds that the last calls of a start took. Below that, a start would gain less than it costs to
# look again at its end what others have left in the directory.
_SLOW = 0.01


class AlreadyCancelledError(Exception):
    """The job was cancelled before it began: the claim is to be requeued, which ends it."""


class _NotWantedError(Exception):
    """The claim was requeued before its log was made."""


@dataclass(frozen=True)
class Log:
    """The open log of a job, and where the output of this attempt begins in it, in bytes.

    `is_new`: the directory of the job was made for it just now, so no other process has left
    anything there.
    """

    claim: Claim
    path: Path
    descriptor: int
    offset: int
    is_new: bool


class Logs:
    """Opens the logs of one worker's jobs."""

    def __init__(self, machine: MachinePaths, together: Together, slow: float = _SLOW) -> None:
        self._machine = machine
        self._together = together
        self._slow = slow
        self._background: Background[str, Log] = Background()
        # By the nonce of the claim; None while it is being made.
        self._prepared: dict[str, Log | Exception | None] = {}
        self._wanted: Mapping[str, Claim] = {}

    def open(self, claims: Sequence[Claim]) -> list[Log | Exception]:
        """Open the logs of jobs that start now; return for each its log, or why there is none.

        That is AlreadyCancelledError, or the OSError of a file that cannot be made. The caller
        closes the descriptors.
        """
        taken = [self._take(claim) for claim in claims]
        missing = (claim for claim, log in zip(claims, taken, strict=True) if log is None)
        opened = iter(self._together([partial(self._open, claim) for claim in missing]))
        return [next(opened) if log is None else log for log in taken]

    def prepare(self, claims: Sequence[Claim]) -> None:
        """Make the logs of these held claims in the background, if the filesystem is slow.

        Forgets those of all other claims, which were requeued.
        """
        self._note_made()
        self._wanted = wanted = {claim.nonce: claim for claim in claims}
        for nonce in [each for each in self._prepared if each not in wanted]:
            # One that is still being made is forgotten when that is done.
            if (log := self._prepared[nonce]) is not None:
                del self._prepared[nonce]
                _close(log)
        if self._together.took >= self._slow:
            for nonce, claim in wanted.items():
                if nonce not in self._prepared:
                    self._prepared[nonce] = None
                    self._background.begin(nonce, partial(self._make_wanted, claim))

    def _take(self, claim: Claim) -> Log | Exception | None:
        """The log of a claim if it was made before, or is being made; None if it must be opened."""
        if claim.nonce not in self._prepared:
            return None
        while self._prepared[claim.nonce] is None:
            self._background.wait()
            self._note_made()
        log = self._prepared.pop(claim.nonce)
        if not isinstance(log, Log):
            return None  # what prevented it may be over
        # Others may have left something in the directory since.
        return outcome_of(lambda: _begin(replace(log, is_new=False)))

    def _note_made(self) -> None:
        self._prepared |= self._background.take()

    def _open(self, claim: Claim) -> Log:
        return _begin(self._make(claim))

    def _make_wanted(self, claim: Claim) -> Log:
        # Calls that hang keep others waiting. Meanwhile the job may end elsewhere, and be packed.
        if claim.nonce not in self._wanted:
            raise _NotWantedError
        return self._make(claim)

    def _make(self, claim: Claim) -> Log:
        """Make the directory and the log; nothing is written into it yet."""
        paths = self._machine.job(claim.ticket.job)
        # In a new directory there is no order to cancel the job, and no result.
        is_new = create_directory(paths.directory)
        if not is_new and is_there(paths.cancel):
            raise AlreadyCancelledError(f"job {claim.ticket.job} was cancelled before it began")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = answered(partial(os.open, paths.log, flags, 0o600))
        try:
            offset = os.lseek(descriptor, 0, os.SEEK_END)
        except BaseException:
            os.close(descriptor)
            raise
        return Log(claim, paths.log, descriptor, offset, is_new)


def _begin(log: Log) -> Log:
    """Begin the output of an attempt; from the second one on, it has a header."""
    claim, attempt = log.claim, log.claim.ticket.attempt
    if attempt == 1:
        return log
    where = f"worker {claim.worker} on {this_node().host}"
    try:
        os.write(log.descriptor, f"-- attempt {attempt}: {where}, {now()} --\n".encode())
        return replace(log, offset=os.lseek(log.descriptor, 0, os.SEEK_END))
    except BaseException:
        os.close(log.descriptor)
        raise


def _close(log: Log | Exception) -> None:
    if isinstance(log, Log):
        os.close(log.descriptor)
