"""Terminals of persons, driven by pexpect: the project and the workers are those of the commands'
tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pexpect
import pytest
from seen import FIRST, find_job, list_jobs
from support import interruptible, wait_until

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import find_by_environment
from tests.cli.conftest import (  # noqa: F401  fixtures
    COMMAND,
    installed,
    kochi,
    own_surroundings,
    project,
    shell,
    work,
    worker,
)

PROMPT = "prompt> "
_PATIENCE = 60


class Person:
    """Somebody who types at a terminal."""

    def __init__(
        self,
        *words: str,
        command: Sequence[str] = COMMAND,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """`words` are those after `command`, by default `kochi`."""
        environment = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        program, *arguments = [*command, *words]
        self.child = pexpect.spawn(
            program,
            arguments,
            env=environment,  # type: ignore[arg-type]
            encoding="utf-8",
            timeout=_PATIENCE,
            echo=True,
            **options,
        )
        self.child.delaybeforesend = None

    def sees(self, text: str) -> str:
        """Wait for a text; returns what came before it."""
        self.child.expect_exact(text)
        before = self.child.before
        assert isinstance(before, str)
        return before

    def types(self, line: str) -> None:
        self.child.sendline(line)

    def asks(self, line: str) -> str:
        """Type a line at a prompt of the shell; returns what it prints."""
        self.types(f"{line}; echo END''OF")
        shown = self.sees("ENDOF\r\n")
        self.sees(PROMPT)
        # Behind the echo of the line itself.
        return shown.rpartition("END''OF\r\n")[2].replace("\x1b[?2004l\r", "")

    def interrupts_a_program(self) -> None:
        """Type a program at a prompt of the shell, and end it by Ctrl-C."""
        self.types(interruptible("begun"))
        # Only now: a shell that Ctrl-C meets while it starts a program asks again and lets the
        # program run, which then takes the terminal from what is typed next.
        self.sees("begun\r\n")
        self.child.sendintr()
        self.sees("interrupted\r\n")
        self.sees(PROMPT)

    def interrupts_until_asked(self) -> None:
        """Press Ctrl-C until the shell asks again: one that comes while a shell is about to give
        its terminal back to a program that was stopped reaches neither."""
        for _ in range(_PATIENCE):
            self.child.sendintr()
            if self.child.expect_exact([PROMPT, pexpect.TIMEOUT], timeout=1) == 0:
                return
        raise AssertionError("the program was not interrupted")

    def leaves(self) -> tuple[int | None, str]:
        """Wait for the end of the command; its exit status, and what it said last."""
        self.child.expect(pexpect.EOF)
        said = self.child.before
        self.child.close()
        assert isinstance(said, str)
        return self.child.exitstatus, said

    def is_in_raw_mode(self) -> bool:
        """Of the terminal itself, whoever has it."""
        import termios

        return not termios.tcgetattr(self.child.child_fd)[3] & termios.ICANON


@pytest.fixture
def machine(own_surroundings: Path) -> MachinePaths:  # noqa: F811
    return Root.find().machine("local")


@pytest.fixture
def person(own_surroundings: Path) -> Iterator[Callable[..., Person]]:  # noqa: F811
    """Somebody who types a command of kochi's, with a short prompt in their shells."""
    (own_surroundings / ".bashrc").write_text(
        f"PS1='{PROMPT}'\nbind 'set enable-bracketed-paste off'\n"
    )
    people = []

    def type_command(*words: object, **options: Any) -> Person:
        people.append(Person(*map(str, words), **options))
        return people[-1]

    yield type_command
    for each in people:
        each.child.close(force=True)


@pytest.fixture
def at_work(worker: Callable[..., subprocess.Popen[str]]) -> subprocess.Popen[str]:  # noqa: F811
    """A worker for the queue `test`."""
    return worker("test")


def newest_job(machine: MachinePaths) -> int:
    return list_jobs(machine, ended=True)[0].job


def await_end(machine: MachinePaths, job: int = FIRST) -> str:
    """How a job has ended, in a word."""
    wait_until(lambda: find_job(machine, job).result is not None, f"job {job} ends")
    result = find_job(machine, job).result
    assert result is not None
    return result.describe()


def pid_of_host(job: int = FIRST) -> int:
    """The process that a worker started for a job."""
    own = {"KOCHI_JOB_ID": str(job), "KOCHI_ROOT": os.environ["KOCHI_ROOT"]}
    for pid in find_by_environment(own, 0):
        if b"snakemake_kochi.terminal.host" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no process has the terminal")
