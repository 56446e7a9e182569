"""A scheduler's commands: running and repeating them, when to ask, and what to tell of answers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from humanfriendly.text import pluralize
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.backoff import Backoff
from snakemake_kochi.notices import Told
from snakemake_kochi.schedulers.interface import Allocation, RefusedError, UnreachableError

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

# Seconds between two questions about all allocations; fewer if the answer is about to change.
_QUESTION = 10.0
_SHORT_QUESTION = 1.0
# Seconds for which the reason of a wait is not repeated. The reason of an allocation alternates
# between a few with each look of the scheduler, for example Priority and Resources.
_QUIET = 1800.0
# The words of schedulers before they have determined a reason.
_NO_REASON = frozenset({"", "None", "(null)"})


@dataclass(frozen=True)
class Pace:
    """Times in seconds for the commands of a scheduler.

    For one answer of a busy scheduler (Slurm's own patience is ten); for which a submission or a
    first question is tried again; and between two tries, at first and at most.
    """

    answer: float = 60.0
    submission: float = 60.0
    first_pause: float = 1.0
    most_pause: float = 30.0


USUAL = Pace()
ONCE = Pace(submission=0.0)


def trying_again(
    pace: Pace,
    has_given_up: threading.Event,
    before_pause: Callable[[RetryCallState], None] | None = None,
) -> Retrying:
    """Makes a call again while it raises UnreachableError, and raises the last one."""
    # Imported here: it imports asyncio, and takes as long as all of a scheduler's modules.
    from tenacity import (
        Retrying,
        retry_if_exception_type,
        sleep_using_event,
        stop_after_delay,
        stop_when_event_set,
        wait_exponential,
        wait_random,
    )

    return Retrying(
        retry=retry_if_exception_type(UnreachableError),
        wait=wait_exponential(multiplier=pace.first_pause, max=pace.most_pause)
        + wait_random(0, pace.first_pause),
        stop=stop_after_delay(pace.submission) | stop_when_event_set(has_given_up),
        sleep=sleep_using_event(has_given_up),
        before_sleep=before_pause,
        reraise=True,
    )


class NoProgramError(RefusedError):
    """The program does not exist."""


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    patience: float,
    text: str,
    is_transient: Callable[[str], bool],
    module: str,
) -> str:
    """The output of a command that reads `text`, stripped of surrounding blanks.

    `is_transient`: whether a command that failed with this output may succeed another time.
    `module`: the environment module that contains the commands, for people. Raises UnreachableError
    if another try may succeed, also when no answer comes in `patience` seconds; NoProgramError;
    RefusedError in the command's own words.
    """
    program = command[0]
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ctrl-C is for Snakemake: it must not end a command that has submitted a job and not
            # reported it.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise NoProgramError(
            f"there is no program {program} here",
            f"Is this a login node of the cluster? If so, type: module load {module}\n"
            "Otherwise, to run on this computer, add to the command line: --kochi-where here",
        ) from error
    except OSError as error:
        raise UnreachableError(f"{program} cannot be run: {error}") from error
    with process:
        try:
            output, errors = process.communicate(text, timeout=patience)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise UnreachableError(f"{program} gave no answer in {patience:.0f} s") from error
            raise
    if process.returncode == 0:
        return output.strip()
    said = errors.strip() or output.strip() or "nothing"
    # A command that a signal ended has not refused; the login node may be short of memory.
    if process.returncode < 0 or is_transient(said):
        raise UnreachableError(f"{program}: {said}")
    raise RefusedError(f"{program} refused (status {process.returncode}): {said}")


def _end(process: subprocess.Popen[str]) -> None:
    """End the process with its children.

    Many sites replace the program by a script, and processes that it leaves behind might submit
    later.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Questions:
    """The questions of one controller, each about all of its allocations."""

    def __init__(
        self, logger: LoggerExecutorInterface, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._next = 0.0
        self._backoff = Backoff(_QUESTION)
        self._is_unreachable = False

    def is_due(self) -> bool:
        """Whether it is time for a question; if so, the next one comes after the usual interval."""
        if self._clock() < self._next:
            return False
        self._next = self._clock() + _QUESTION
        return True

    def at_once(self) -> None:
        """Ask at once, after an event that is worth a question.

        It has no effect while the scheduler is unreachable.
        """
        if not self._is_unreachable:
            self._next = 0.0

    def soon(self) -> None:
        """Ask soon: the answer is about to change."""
        self._next = self._clock() + _SHORT_QUESTION

    def later(self) -> None:
        """Ask later: no answer is expected for a while."""
        self._next = self._clock() + _QUESTION

    def answered(self) -> None:
        self._backoff.worked()
        if self._is_unreachable:
            self._is_unreachable = False
            self._logger.info("The scheduler answers again.")

    def not_answered(self, error: UnreachableError) -> None:
        """Note a missing answer.

        Nothing is known, and nothing is lost: the next question comes after a growing pause.
        """
        self._next = self._clock() + self._backoff.failed()
        if not self._is_unreachable:
            self._is_unreachable = True
            self._logger.warning(
                "The scheduler does not answer. Kochi asks again, and running jobs go on. "
                f"{error.message}"
            )


class WaitReasons:
    """The reasons why allocations wait, in the scheduler's own words."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._told = Told(clock)

    def lines(self, allocations: Iterable[Allocation]) -> Iterator[str]:
        """One line for each reason why allocations wait, unless it was told lately.

        It contains what to do about it, if anything.
        """
        waiting: dict[str, list[Allocation]] = {}
        for allocation in allocations:
            if allocation.state == "pending" and allocation.reason not in _NO_REASON:
                waiting.setdefault(allocation.reason, []).append(allocation)
        for reason, those in waiting.items():
            if self._told.is_new(reason, quiet=_QUIET):
                advice = those[0].advice
                which = f"Allocation {those[0].id} waits"
                if len(those) > 1:
                    many = pluralize(len(those), "allocation")
                    which = f"{many} wait ({those[0].id} to {those[-1].id})"
                yield f"{which}: {reason}{f'. {advice}' if advice else ''}"
