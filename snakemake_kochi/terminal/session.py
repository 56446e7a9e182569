"""A person's session with the terminal of a job: waiting for it, being in it, and its end."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snakemake_kochi.backoff import Backoff, wait_until
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.location import Location
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.quantities import seconds_since
from snakemake_kochi.queue import by_hand
from snakemake_kochi.queue.views import JobView, find_job, has_ended, reasons
from snakemake_kochi.terminal.address import Address, read_address, terminal_of
from snakemake_kochi.terminal.client import Client, Ending
from snakemake_kochi.terminal.connect import UnreachableTerminalError, connected, way_to_port


def cancel(machine: MachinePaths, job: int) -> str:
    return by_hand.cancel(machine, job, _RESULT_PATIENCE)


def _last_lines(location: Location, view: JobView) -> list[str]:
    return view.output.decode("utf-8", "replace").splitlines()[-_LAST_LINES:]


if TYPE_CHECKING:
    from snakemake_kochi.terminal.forwarding import ForwardedElsewhere, Forwarding

# Seconds between two looks for the terminal, which double; between two looks why it waits.
_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_FIRST_LOOK, _LOOK = 0.3, 1.0
# Seconds for the terminal of a job that runs.
_START_PATIENCE = 5.0
# Seconds for the result of a job whose connection was lost, and for that of one that has ended.
_RESULT_PATIENCE = 3.0
_LAST_LINES = 20
# The times in explanations: a line is printed again if something else has changed.
_TIME = r"\d+(?:\.\d+)? (?:milli|micro|nano)?(?:second|minute|hour|day|week|year)s?"
_TIMES = re.compile(rf"{_TIME}(?:(?:,| and|, and) {_TIME})*")  # "1 hour and 2 seconds", "2 hours"
_LOST = 255  # as ssh
_ENDED_EARLY = 1

Say = Callable[[str], None]


class _InterruptedError(Exception):
    """A signal came that ends this process."""

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass(frozen=True)
class Session:
    """The session of one job. `say` prints a sentence for the person. `ends_it`: the job ends with
    the session, also while it waits. `forwarding` begins when the job has a terminal."""

    location: Location
    job: int
    say: Say
    ends_it: bool
    forwarding: Forwarding | ForwardedElsewhere | None = None

    def run(self) -> int:
        """Wait for the terminal, and be in it; returns the exit status of the program, or of this
        command. Raises KochiError."""
        try:
            with _raising():
                address = self._wait()
                if address is None:
                    return self._tell_end()
                ending = self._attend(address)
        except (KeyboardInterrupt, _InterruptedError) as error:
            number = getattr(error, "number", int(signal.SIGINT))
            self._interrupted()
            return 128 + int(number)
        except KochiError:
            if self.ends_it:
                self._cancel()
            raise
        return self._ended(ending)

    # ---- before

    def _wait(self) -> Address | None:
        """Wait for the terminal; None if the job ends without one."""
        path = terminal_of(self.location.machine_paths, self.job)
        pause, look, said = _PAUSE, Backoff(), ""
        # A worker that is there begins at once; then there is nothing to say.
        look.hold(_FIRST_LOOK)
        while True:
            if (address := read_address(path)) is not None and self._is_current(address):
                return address
            if self._has_ended():
                return None
            if look.is_due:
                look.hold(_LOOK)
                why = self._why_it_waits()
                if (key := _TIMES.sub("", why)) not in ("", said):
                    said = key
                    self.say(f"Job {self.job} waits: {why}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _why_it_waits(self) -> str:
        """As for a person; "" if it has just begun."""
        view = find_job(self.location.machine_paths, self.job)
        since = seconds_since(view.started)
        if since is not None and since < _START_PATIENCE:
            return ""
        return _explained(self.location, view)

    def _is_current(self, address: Address) -> bool:
        """Whether it is not the terminal of an attempt that was lost."""
        view = find_job(self.location.machine_paths, self.job)
        return view.state == "running" and view.attempt == address.attempt

    def _interrupted(self) -> None:
        if not self.ends_it:
            self.say(f"Job {self.job} goes on. To attach to it, type: kochi attach {self.job}")
            return
        outcome = self._cancel()
        if outcome == "cancelled":
            self.say(f"Job {self.job} was cancelled.")
        elif outcome == "cancelling":
            self.say(f"Job {self.job} is being cancelled by its worker.")

    def _cancel(self) -> str:
        with contextlib.suppress(KochiError, OSError):
            return cancel(self.location.machine_paths, self.job)
        return ""

    # ---- in it

    def _attend(self, address: Address) -> Ending:
        if self.forwarding is not None:
            self.forwarding.begin(way_to_port(self.location, address))
        where = f"worker {address.worker} on {address.node.host}"
        leave = "Ctrl-] three times leaves it"
        then = "" if self.ends_it else f"; kochi attach {self.job} comes back"
        self.say(f"Job {self.job} has this terminal: {where}. {leave}{then}.")
        if self.forwarding is not None:
            self.say(f"{self.forwarding.address} here is port {address.port} there.")
        try:
            with connected(self.location, address) as stream:
                return Client(stream).attend()
        except UnreachableTerminalError as error:
            # It may have ended just now.
            if self._has_result():
                return Ending("lost", why=error.message)
            raise

    # ---- after

    def _ended(self, ending: Ending) -> int:
        if ending.kind == "exit":
            return self._say_exit(ending)
        if ending.kind == "refused":
            raise KochiError(ending.why)
        if ending.kind == "lost":
            return self._say_lost(ending)
        number = ending.signal
        if self.ends_it:
            self.say(f"Job {self.job} ends: its terminal was closed.")
        else:
            why = ending.why or f"job {self.job} goes on"
            self.say(f"Detached: {why}. To attach to it, type: kochi attach {self.job}")
        return 0 if number is None else 128 + number

    def _say_exit(self, ending: Ending) -> int:
        if ending.why:
            how = f"job {self.job} was ended: {ending.why}"
            if self._has_result() or self.ends_it:
                how = f"{how} ({self._explained()})"
            if self.ends_it:
                # A worker that has to leave requeues its jobs, and nobody waits for this one.
                self._cancel()
            self.say(f"kochi: {how}")
        elif ending.signal is not None:
            said = _signal_said(ending.signal)
            self.say(f"kochi: job {self.job} was ended by signal {said}")
        elif ending.status:
            self.say(f"Job {self.job} has ended: exit status {ending.status}.")
        else:
            self.say(f"Job {self.job} has ended.")
        return ending.status

    def _say_lost(self, ending: Ending) -> int:
        why = f" ({ending.why})" if ending.why else ""
        how = "has ended" if self._has_result() else "is not known to have ended"
        self.say(
            f"kochi: the connection to the terminal of job {self.job} was lost{why}. "
            f"The job {how}: {self._explained()}"
        )
        if self.ends_it:
            self._cancel()
        elif how != "has ended":
            self.say(f"To attach to it again, type: kochi attach {self.job}")
        return _LOST

    def _has_result(self) -> bool:
        return wait_until(self._has_ended, _RESULT_PATIENCE, _PAUSE, _LONGEST_PAUSE)

    def _has_ended(self) -> bool:
        """Whether the job has ended; False also while that is not known."""
        with contextlib.suppress(OSError, DamagedFileError):
            return has_ended(self.location.machine_paths, self.job)
        return False

    def _explained(self) -> str:
        view = find_job(self.location.machine_paths, self.job)
        return _explained(self.location, view)

    def _tell_end(self) -> int:
        """Tell how a job has ended that had no terminal for this session."""
        view = find_job(self.location.machine_paths, self.job)
        self.say(f"kochi: job {self.job} has ended: {_explained(self.location, view)}")
        with contextlib.suppress(OSError, DamagedFileError):
            for line in _last_lines(self.location, view):
                self.say(f"  {line}")
        status = None if view.result is None else view.result.exit_status
        return status or _ENDED_EARLY


def _explained(location: Location, view: JobView) -> str:
    return "; ".join(reasons(location.machine_paths, view, location.to_start_worker))


def _signal_said(number: int) -> str:
    """A signal for people. Those for real-time programs have no names here, but the first."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


@contextlib.contextmanager
def _raising() -> Iterator[None]:
    """Signals that end this process become exceptions, for what is to be done before."""

    def note(number: int, _: object) -> None:
        raise _InterruptedError(number)

    before = {each: signal.signal(each, note) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def attach(
    location: Location,
    job: int,
    say: Say,
    forwarding: Forwarding | ForwardedElsewhere | None = None,
) -> int:
    """Attach to a job that was started with --keep; returns the exit status. Raises KochiError if
    it has no terminal that a second client may have."""
    view = find_job(location.machine_paths, job)
    kept = None if view.ticket is None else view.ticket.labels.get("terminal")
    if view.result is not None:
        raise KochiError(
            f"job {job} has ended: {_explained(location, view)}",
            f"To see its output, type: kochi show log job {job}",
        )
    if kept is None:
        raise KochiError(
            f"job {job} has no terminal", f"To see its output, type: kochi show log job {job} -f"
        )
    if kept != "kept":
        raise KochiError(
            f"job {job} has a terminal, and ends with it",
            "A job can be attached to if it was started with: kochi interact --keep",
        )
    return Session(location, job, say, ends_it=False, forwarding=forwarding).run()
