"""Measuring in a process of its own, with a deadline: a filesystem that hangs, hangs only that."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from snakemake_kochi.doctor.finding import Finding, Outcome

# Seconds until Python runs: on a cluster many nodes may just be loading it from one file server.
_START_PATIENCE = 60.0
# Seconds for one that was told to end, to remove what it made.
_END_PATIENCE = 6.0
# The same for one that did not answer: most likely it cannot.
_HUNG_PATIENCE = 2.0
# Seconds from SIGKILL to the end. One that hangs in the kernel does not end, and is left alone.
_KILL_PATIENCE = 1.0
_HUNG = -1  # in place of an exit status


@contextlib.contextmanager
def other_process(module: str, *arguments: str) -> Iterator[IO[str]]:
    """What `python -m MODULE ARGUMENTS` prints while it is looked at; then it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        process.stdout.close()
        # One that hangs in the kernel is left alone.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_PATIENCE)


class NoAnswerError(Exception):
    """Nothing came before the deadline."""


class Child:
    """`python -m snakemake_kochi.doctor.measure PART ARGUMENTS`, and the events it tells."""

    def __init__(self, part: str, arguments: Mapping[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (see `close`)
        module = "snakemake_kochi.doctor.measure"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, part, json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C is for us: we end it, and it cleans up.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._stream = self._process.stdout.fileno()
        self._read = b""

    def event(self, patience: float) -> dict[str, Any] | None:
        """The next one; None at the end. Raises NoAnswerError."""
        deadline = time.monotonic() + patience
        while b"\n" not in self._read:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._stream], [], [], left)[0]:
                raise NoAnswerError
            more = os.read(self._stream, 65536)
            if not more:
                return None
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    def end(self, patience: float = _END_PATIENCE) -> int | None:
        """End it, and all that it started; return its exit status, None if it does not end."""
        if (status := self._wait(0.0)) is not None:
            return status
        self._process.terminate()
        if (status := self._wait(patience)) is not None:
            return status
        # As long as it has not been waited for, the group is certainly its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._wait(_KILL_PATIENCE)

    def status(self) -> int | None:
        """After its last event."""
        return self._wait(_END_PATIENCE)

    def _wait(self, patience: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience)
        return None

    def last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


class Measurements:
    """Runs one part after the other, and knows what they made and did not remove."""

    def __init__(self, deadline: float, remark: Callable[[str], None]) -> None:
        """`deadline`: seconds for each check that does not need more by itself."""
        self._deadline = deadline
        self._remark = remark

    def run(self, part: str, arguments: Mapping[str, Any]) -> Generator[Finding]:
        """The findings of a part, as they come. One that does not answer is a finding, and ends
        the part; whatever happens, nothing of it is left."""
        child = Child(part, arguments)
        made: list[str] = []
        check, directory, patience = "start", "", _START_PATIENCE
        status: int | None = None
        try:
            while True:
                try:
                    event = child.event(patience)
                except NoAnswerError:
                    status = child.end(_HUNG_PATIENCE) or _HUNG
                    yield _hanging(check, directory, patience)
                    return
                if event is None:
                    status = child.status()
                    break
                patience = self._deadline
                match event.pop("event"):
                    case "begin":
                        check, directory = event["check"], event["directory"]
                        patience = event["patience"] or patience
                    case "found":
                        yield Finding.from_dict(event)
                    case "making":
                        made.append(event["path"])
                    case "remark":
                        self._remark(event["text"])
            if status:
                words = f"it ended with status {status}: {child.last_words()}"
                yield Finding(check, directory, Outcome("failed", words))
        finally:
            # Also when whoever asked has had enough, or typed Ctrl-C.
            if status is None:
                status = child.end()
            child.close()
            if status != 0 and made:
                self._remove(made)

    def _remove(self, made: list[str]) -> None:
        child = Child("remove", {"made": made})
        try:
            left = [made[-1]]
            with contextlib.suppress(NoAnswerError):
                child.event(_START_PATIENCE)  # it has begun
                event = child.event(max(self._deadline, _END_PATIENCE))
                left = [] if event is None else event["left"]
            if left:
                self._remark(f"This is left behind: {', '.join(left)}")
        finally:
            child.end(_HUNG_PATIENCE)
            child.close()


def _hanging(check: str, directory: str, patience: float) -> Finding:
    where = f"Look after the filesystem of {Path(directory)}. " if directory else ""
    advice = f"{where}What comes after it was not tried."
    if {"lock", "locks"} & set(check.split()):  # not a clock
        advice = (
            "Name a directory with working locks in kochi.yaml (machines: NAME: lock_dir), or use "
            "lock_kind: lease. What comes after it was not tried."
        )
    outcome = Outcome("failed", f"no answer within {patience:g} seconds: it hangs", advice)
    return Finding(check, directory, outcome)
