from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator

import psutil
import pytest

MARK = "FAULTS_MARK"
_DYING_LIMIT = 10  # seconds for what has been killed to be gone


@pytest.fixture(scope="session", autouse=True)
def strace_is_there() -> None:
    if shutil.which("strace") is None:
        pytest.fail("these tests need strace; install it with: tools/programs.sh strace")


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """In the environment of all that the test starts: none of it may be left at its end."""
    text = secrets.token_hex(8)
    monkeypatch.setenv(MARK, text)
    yield text
    left = marked_processes(text)
    # What died with a process that was killed does so a moment later, on a busy computer.
    _, left = psutil.wait_procs(left, timeout=_DYING_LIMIT)
    for process in left:
        process.kill()
    assert not left, f"left behind: {[process.info for process in left]}"


def marked_processes(text: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == text:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
