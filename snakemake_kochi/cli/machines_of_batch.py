"""`kochi batch` for a batch with `machines`: it is run on each of them, and its results are joined.

Each machine has a controller of its own, a launched run near its workers, which goes on when this
computer does not. Here one `kochi batch -m MACHINE` for each of them starts and follows it.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

import click

from snakemake_kochi.cli.output import remark, shown
from snakemake_kochi.location import Location
from snakemake_kochi.parent_death import ending_with_this_process
from snakemake_kochi.project.experiment import Experiment

_AWAY = 75  # the exit status of a command whose machine does not answer: that of AwayError
_LOOK = 0.5  # seconds between two looks while nothing is printed
_FIRST_PAUSE, _MOST_PAUSE = 5.0, 60.0  # seconds until a machine that is away is tried again
_END = 10.0  # seconds for the commands to end after Ctrl-C
# What the command says about a run that it launched, or that goes on already.
_LAUNCHED, _JOINED = b"Launched ", b"This batch runs already"


@dataclass
class _Member:
    """A machine, and the command that runs the batch there.

    `shown`: so many bytes of its run's output were read. `status` is that of the command's last
    end. While the machine is away, the command is tried again at the time `due`.
    """

    machine: str
    words: list[str]
    shown: int | None = None
    process: subprocess.Popen[bytes] | None = None
    status: int | None = None
    is_away: bool = False
    due: float = 0.0
    pause: float = _FIRST_PAUSE
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def command(self) -> list[str]:
        """The command; one that follows a run goes on where it was."""
        if self.shown is None:
            return self.words
        program, words = self.words[:5], self.words[5:]
        return [*program, "--from", str(self.shown), *words]

    def note(self, line: bytes) -> None:
        """Count a line of its standard output, unless it is about a run instead of the run's."""
        if self.shown is None or line.startswith(_JOINED):
            return
        self.shown = 0 if line.startswith(_LAUNCHED) else self.shown + len(line) + 1


def run_on_machines(
    location: Location,
    experiment: Experiment,
    batch: str,
    commands: Sequence[tuple[str, Sequence[str]]],
    runs: bool,
) -> int:
    """Run a command for each machine and show their output, with the machine before each line; if
    it runs the batch, join the results; return the exit status: the first that is not 0.

    A machine that is away is tried again as long as others run.
    """
    from snakemake_kochi.cli.joined_results import join_results

    program = [sys.executable, "-P", "-m", "snakemake_kochi.cli"]
    more = ["--launch", "--follow"] if runs else []
    members = [
        _Member(machine, [*program, words[0], *more, *words[1:]], 0 if runs else None)
        for machine, words in commands
    ]
    try:
        _Following(members).follow()
    except KeyboardInterrupt:
        remark("")
        if runs:
            remark(
                "The runs go on. To follow them again, type the same line; for one of them: "
                f"kochi launch -m {shlex.quote(members[0].machine)} --follow, --status or --stop"
            )
        raise
    if runs:
        away = [member.machine for member in members if member.is_away]
        join_results(location, experiment, batch, [member.machine for member in members], away)
    for member in members:
        if member.is_away:
            remark(
                f"{member.machine} is away. What was begun there goes on. To continue, type the "
                "same line again."
            )
        elif member.status:
            remark(f"{member.machine}: exit status {member.status}")
    return next((member.status for member in members if member.status), 0)


class _Following:
    """The commands of all machines, each with threads that read what it prints."""

    def __init__(self, members: Sequence[_Member]) -> None:
        self._members = members
        self._lines: queue.Queue[tuple[_Member, int, str] | None] = queue.Queue(maxsize=1000)
        self._width = max(len(member.machine) for member in members)

    def follow(self) -> None:
        """Show all lines until all commands have ended, but for those of machines that are away."""
        try:
            for member in self._members:
                self._start(member)
            while self._is_going_on():
                self._show()
                for member in self._members:
                    self._look_at(member)
            self._show(0)
        finally:
            self._end()

    def _is_going_on(self) -> bool:
        return any(member.process and not member.is_away for member in self._members)

    def _start(self, member: _Member) -> None:
        member.process = subprocess.Popen(
            member.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is for this process, which tells them.
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=ending_with_this_process(),
        )
        assert member.process.stdout is not None
        assert member.process.stderr is not None
        member.readers = [
            threading.Thread(target=self._read, args=(member, number, stream), daemon=True)
            for number, stream in ((1, member.process.stdout), (2, member.process.stderr))
        ]
        for reader in member.readers:
            reader.start()

    def _read(self, member: _Member, number: int, stream: IO[bytes]) -> None:
        for line in iter(stream.readline, b""):
            if number == 1:
                member.note(line.removesuffix(b"\n"))
            for part in re.split(r"[\r\n]+", line.decode(errors="replace")):
                if part:
                    self._lines.put((member, number, part))
        self._lines.put(None)  # so that its end is seen at once

    def _show(self, patience: float = _LOOK) -> None:
        """Print what was read; wait for it if nothing was."""
        try:
            entry = self._lines.get(timeout=patience)
            while True:
                if entry is not None:
                    self._print(*entry)
                entry = self._lines.get_nowait()
        except queue.Empty:
            return

    def _print(self, member: _Member, number: int, line: str) -> None:
        if number == 1:
            member.is_away = False  # its run is seen again
        if member.is_away:
            return  # why it is away was said
        name = click.style(member.machine.ljust(self._width), fg="cyan")
        click.echo(f"{name} | {shown(line.expandtabs())}", err=number == 2)

    def _look_at(self, member: _Member) -> None:
        process = member.process
        if process is None:
            if member.is_away and time.monotonic() >= member.due and self._is_going_on():
                self._start(member)
            return
        if any(reader.is_alive() for reader in member.readers) or process.poll() is None:
            return
        self._show(0)
        was_away, status = member.is_away, process.returncode
        member.process, member.status, member.is_away = None, status, status == _AWAY
        if member.is_away:
            member.pause = min(2 * member.pause, _MOST_PAUSE) if was_away else _FIRST_PAUSE
            member.due = time.monotonic() + member.pause
            if self._is_going_on() and not was_away:
                remark(f"{member.machine} is away. It is tried again while other machines run.")

    def _end(self) -> None:
        """End the commands that still follow their runs, which are not theirs to end."""
        left = [member.process for member in self._members if member.process is not None]
        for process in left:
            process.terminate()
        until = time.monotonic() + _END
        for process in left:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
