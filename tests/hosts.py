"""Hosts of their own on this computer, for what is shared by several."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil
from support import wait_until

_STOPPING = 60.0
_ENTERED = ("--uts", "--pid", "--mount", "--net")
_APART = ("--uts", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child")


class Host:
    """A host for all that can be seen: it has a name, process numbers and mounts of its own, so
    that nobody sees the processes of another one. For that one has to be root.

        with Host("login1", tmp_path) as host:
            host.start("snakemake", cwd=tmp_path)

    All processes there end with it. `before`: words in front of its first process, as those of a
    computer with a network of its own, which it then has.
    """

    def __init__(self, name: str, logs: Path, before: Sequence[str] = ()) -> None:
        self.name = name
        self._logs = logs
        self._before = before
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Host:
        # Its first process does nothing but bury the others.
        script = 'hostname "$0" && echo ready && while :; do sleep 1000 & wait; done'
        self._process = subprocess.Popen(
            (*self._before, "unshare", *_APART, "bash", "-c", script, self.name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            assert self._process.stdout.readline() == b"ready\n"
            (self._first,) = psutil.Process(self._process.pid).children()
            self.enter = ("nsenter", f"--target={self._first.pid}", *_ENTERED, "--")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lose()

    def lose(self) -> None:
        """Have it die: all processes there, at once, without a word."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._first.kill()
        for process in self._started:
            if process.poll() is None:
                # One that is stopped would not bury what it waits for.
                process.send_signal(signal.SIGCONT)
                process.wait(_STOPPING)
        self._process.wait(_STOPPING)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(
        self, *command: str, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> Started:
        """Start a command there. What it says is in a file."""
        said = self._logs / f"{self.name}-{len(self._started)}.said"
        # Who enters other mounts starts at their root.
        enter = [*self.enter, "env", f"--chdir={cwd}"]
        with said.open("wb") as stream:
            process = subprocess.Popen(
                (*enter, *command),
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self._started.append(process)
        return Started(process, said)


class Started:
    """A command on a host."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self._process = process
        self._file = said

    @property
    def said(self) -> str:
        return self._file.read_text(errors="replace")

    @property
    def process(self) -> psutil.Process:
        """The one that was started: who enters a host waits for it."""
        wait_until(lambda: not self.is_running or self._entered(), "it has entered")
        assert self.is_running, f"has ended with {self._process.returncode}:\n{self.said}"
        return self._entered()[0]

    def _entered(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float = 120) -> int:
        """Its exit status."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end:\n{self.said}") from None

    def kill(self) -> None:
        """As kill -9, the command alone."""
        self.process.kill()
        self._process.wait(_STOPPING)

    def suspend(self) -> None:
        self.process.suspend()

    def resume(self) -> None:
        """Who entered the host has stopped itself when what it waits for did."""
        process = self.process
        psutil.Process(self._process.pid).resume()
        process.resume()

    def wait_for(self, words: str) -> None:
        """Until it says something."""
        wait_until(lambda: words in self.said or not self.is_running, words)
        assert words in self.said, self.said
