"""A line is typed when a shell waits for one, and not before."""

from __future__ import annotations

import sys
from pathlib import Path

import pexpect
import pytest

from snakemake_kochi.terminal.typist import is_prompt


@pytest.mark.parametrize(
    "printed",
    [
        b"$ ",
        b"srun: job 5 queued\r\nsrun: job 5 has been allocated resources\r\nada@node2:~> ",
        b"\x1b]0;ada@node2\x07\x1b[01;32mada@node2\x1b[00m:\x1b[01;34m~\x1b[00m$ ",
        b"\x1b[?2004hbash-5.2# ",
    ],
)
def test_a_shell_waits(printed: bytes) -> None:
    assert is_prompt(printed)


@pytest.mark.parametrize(
    "printed",
    [
        b"",
        b"qsub: waiting for job 12 to start\r\n",
        b"\x1b[?2004h",
        b"Password: ",
        b"(ada@login) Verification code: ",
        b"Enter passphrase for key '/home/ada/.ssh/id':",
        b"Are you sure you want to continue connecting (yes/no/[fingerprint])? ",
    ],
)
def test_nobody_waits_or_only_the_person_can_answer(printed: bytes) -> None:
    assert not is_prompt(printed)


SLOW = """
echo the scheduler says something; sleep 1
printf 'Password: '; read -r answer; echo "answer: $answer"
PS1='at last> ' exec bash --norc
"""


def test_a_slow_script_that_asks_and_a_terminal_that_is_as_before(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(SLOW)
    code = (
        "import sys; from snakemake_kochi.terminal.typist import run_and_type; "
        "sys.exit(run_and_type(['bash', sys.argv[1]], ' echo typed $((3+4)) &'))"
    )
    typist = f"'{sys.executable}' -c \"{code}\" '{script}'; echo status $?"
    outer = pexpect.spawn("bash", ["--norc"], encoding="utf-8", timeout=60, cwd=str(tmp_path))
    outer.sendline("stty -a > before")
    outer.sendline(typist.replace("$((", "\\$(("))
    outer.expect("Password: ")
    with pytest.raises(pexpect.TIMEOUT):
        outer.expect("typed 7", timeout=1.5)
    outer.sendline("secret")
    outer.expect("answer: secret")
    outer.expect("typed 7")
    outer.sendline("exit 9")
    outer.expect("status 9")
    outer.sendline("stty -a > after; cmp before after && echo the same $((1+1))")
    outer.expect("the same 2")
    outer.sendline("exit")
    outer.expect(pexpect.EOF)
