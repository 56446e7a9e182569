"""Helpers of the tests: run a command, write a file, use git as some user would."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from preloaded_programs import PreloadedPrograms, ProgramRun

Found = TypeVar("Found")

# Seconds; less than the limit of a test, so that the test fails with what the command has printed.
COMMAND_LIMIT = 360.0

REPOSITORY = Path(__file__).resolve().parent.parent
# The checkout is what is tested, whatever is installed. For the other one see its sitecustomize.py.
PYTHON_PATH = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "tests" / "interpreter")))
PROGRAMS = PreloadedPrograms(PYTHON_PATH)


Process = subprocess.Popen[str] | ProgramRun
_MOST_COUNTED = 5.0  # seconds between two looks of `wait_until`


# See the option --executor in conftest.py.
default_executor = "local"


@dataclass
class Outcome:
    """Of a command."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


def run(
    *command: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = COMMAND_LIMIT
) -> subprocess.CompletedProcess[str]:
    """Run a command; its output is shown when the test fails."""
    process = start(*command, cwd=cwd, env=env)
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        process.kill()
    result = subprocess.CompletedProcess(command, process.wait(), output)
    print(f"$ {' '.join(command)}   (in {cwd})\n{result.stdout}[exit status {result.returncode}]")
    return result


def run_apart(
    *command: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    given: str = "",
    timeout: float = COMMAND_LIMIT,
) -> subprocess.CompletedProcess[str]:
    """Run a command whose standard input is a text, with its two other streams apart."""
    environment = {**os.environ, **(env or {})}
    if not PROGRAMS.serves(command, environment):
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    process = PROGRAMS.start(command, cwd or Path(), environment, given=given, apart=True)
    try:
        output, errors = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.wait(), output, errors)


def start(
    *command: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    start_new_session: bool = False,
) -> Process:
    """Start a command whose output goes to a pipe, or to the file `output`. A Snakemake or a
    `kochi` need not import anything first."""
    environment = {**os.environ, **(env or {})}
    if PROGRAMS.serves(command, environment):
        return PROGRAMS.start(
            command, cwd, environment, output=output, start_new_session=start_new_session
        )
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdout=output or subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=start_new_session,
    )


def calls_of(function: Callable[[], Found]) -> tuple[Found, int]:
    """What a function returns, and the number of calls of functions that it took, in Python and in
    C: what it costs, whatever the machine."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = function()
    finally:
        sys.setprofile(None)
    return found, calls


def write(path: Path, text: str) -> Path:
    """Write an indented text, making the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return path


def git(directory: Path, *arguments: str) -> str:
    """Run git as some user would, with a name of their own."""
    identity = ["-c", "user.name=A User", "-c", "user.email=user@example.org"]
    command = ["git", *identity, "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, errors="replace")
    try:
        done.check_returncode()
    except subprocess.CalledProcessError as error:
        error.add_note(done.stderr)
        raise
    return done.stdout


def printed(log: str) -> str:
    """What the build and the run have printed, of the text of an artifact of type stdout."""
    head, _, rest = log.partition(f"{'-' * 80}\n")
    assert re.fullmatch(r"Kochi job .* \(ID=[\d.]+\) started\.\n", head), log
    said, _, end = rest.rpartition(f"{'-' * 80}\n")
    assert end == "Saving artifacts...\n"
    return said


def worker_command(
    root: Path, directory: Path, machine: str = "local", **settings: Any
) -> list[str]:
    """A worker, as a command; the file with its settings, named as in WorkerSettings, is put into a
    directory."""
    # Only here: who imports this module to wait for something has no worker.
    from snakemake_kochi.files import write_atomically
    from snakemake_kochi.worker import start_command
    from snakemake_kochi.worker.settings import WorkerSettings

    content = WorkerSettings(str(root), machine, **settings).to_json()
    file = directory / f".worker-{hashlib.sha256(content).hexdigest()[:10]}.json"
    write_atomically(file, content)
    return start_command(file)


def job_of_run(job: int, run: int = 1) -> str:
    """The number of a job of the first run, for people; the first one is 0."""
    return f"{run}.{job + 1}"


def servers(machine: Path, queue: str) -> list[Path]:
    """A mark for each worker that serves a queue."""
    files = "serving.*"
    return list(machine.glob(f"queues/{queue}/{files}"))


def open_runs(machine: Path) -> list[Path]:
    """A file for each run whose jobs have not all ended."""
    return list(machine.glob("runs/*/own*"))


def cancel_orders(machine: Path) -> list[Path]:
    """A file for each running job that somebody has cancelled."""
    return list(machine.glob("workers/*/cancel.*"))


def wait_until(condition: Callable[[], Found], what: str = "", seconds: float = 60) -> Found:
    """Wait for something that must happen, and return what the condition gave; how long it takes is
    not what is tested."""
    waited, looked = 0.0, time.monotonic()
    while not (found := condition()):
        moment = time.monotonic()
        # While the computer stood still, nothing that is waited for could happen.
        waited += min(moment - looked, _MOST_COUNTED)
        looked = moment
        assert waited < seconds, f"did not happen: {what or condition}"
        # Many conditions start a process or look at all processes. Evaluated 50 times a second for
        # a long time, they take a processor from what the test waits for.
        time.sleep(min(0.02 + waited / 20, 0.2))
    return found


def interruptible(mark: str) -> str:
    """A command for a shell in a terminal: it says `mark`, and ends with status 3 by Ctrl-C.

    The command as it is typed does not contain `mark`. A program that only said it and slept
    could lose a Ctrl-C that comes in between.
    """
    return waiting_for("INT", mark, "echo interrupted; exit 3")


def until_size(rows: int, columns: int) -> str:
    """A command for a shell in a terminal: it waits until the window has a size, and says `sized`.

    The command as it is typed does not contain the word.
    """
    size = f"{rows} {columns}"
    return f"while [ \"$(stty size)\" != '{size}' ]; do sleep 0.1; done; echo s''ized"


def waiting_for(signal: str, mark: str, script: str) -> str:
    """A command that says `mark`, then runs a script, without ' in it, for each such signal."""
    said = f"{mark[0]}''{mark[1:]}"
    return f"bash -c 'trap \"{script}\" {signal}; echo {said}; while :; do sleep 0.1; done'"
