"""Helpers of the tests: run a command, write a file, use git as some user would."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

REPOSITORY = Path(__file__).resolve().parent.parent


def run(
    *command: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run a command; its output is shown when the test fails."""
    result = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    print(f"$ {' '.join(command)}   (in {cwd})\n{result.stdout}[exit status {result.returncode}]")
    return result


def write(path: Path, text: str) -> Path:
    """Write an indented text, making the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return path


def git(directory: Path, *arguments: str) -> str:
    """Run git as some user would, with a name of their own."""
    identity = ["-c", "user.name=A User", "-c", "user.email=user@example.org"]
    command = ["git", *identity, "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(
        command, cwd=directory, check=True, capture_output=True, text=True, errors="replace"
    ).stdout


def printed(log: str) -> str:
    """What the build and the run have printed, of the text of an artifact of type stdout."""
    head, _, rest = log.partition(f"{'-' * 80}\n")
    assert re.fullmatch(r"Kochi job .* \(ID=\d+\) started\.\n", head), log
    said, _, end = rest.rpartition(f"{'-' * 80}\n")
    assert end == "Saving artifacts...\n"
    return said


def wait_until(condition: Callable[[], Found], what: str = "", seconds: float = 60) -> Found:
    """Wait for something that must happen, and return what the condition gave; how long it takes is
    not what is tested."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not happen: {what or condition}"
        time.sleep(0.02)
    return found
