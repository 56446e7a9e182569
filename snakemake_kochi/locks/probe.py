"""Tests whether the locks of a machine work, before a process relies on them.

Some filesystems refuse locks, some grant a lock to every process, and on some the call never
returns. So the test runs in a child process, which can be given up: a fork, or `python -m
snakemake_kochi.locks.probe DIRECTORY KIND PATIENCE`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn, cast

from snakemake_kochi.errors import KochiError
from snakemake_kochi.locks.lock import Kind, LockBusyError, advice, hold
from snakemake_kochi.locks.settings import LockSettings, find_lock_settings
from snakemake_kochi.paths import LockPaths, MachinePaths
from snakemake_kochi.processes import this_node

# Seconds until Python runs: on a cluster, many nodes may be loading it from one file server.
_START_PATIENCE = 60.0
# Seconds after which the child ends, whether or not its parent still exists.
_LIFETIME = 300
_READY = "ready"


def probe_locks(
    machine: MachinePaths,
    deadline: float = 10.0,
    start_patience: float = _START_PATIENCE,
    *,
    may_fork: bool = False,
) -> None:
    """Have one process hold a lock of the machine, and check that another process is excluded.

    With `may_fork` these processes are forks of the calling process, which must have no other
    thread. Otherwise a new Python has to start, which takes about 0.15 s.

    Raises KochiError when such locks are not supported, when they do not exclude, or when they do
    not answer within `deadline` seconds after the other process has begun to run. It may take
    `start_patience` seconds to begin.
    """
    settings = find_lock_settings(machine)
    path = settings.paths.probe(this_node().host)
    words = [str(settings.paths.directory), settings.kind, str(deadline / 2)]
    try:
        process = _fork(words) if may_fork else _start(words)
    except OSError as error:
        raise _untried(settings, f"no process can be started ({error.strerror})") from error
    assert process.stdout is not None
    with process.stdout as stream:
        try:
            lines, has_ended = _listen(stream.fileno(), deadline, start_patience)
        except BaseException:
            _give_up(process)
            raise
    if has_ended:
        _judge(settings, path, lines, process.wait())
        return
    _give_up(process)
    if _READY not in lines:
        late = f"did not begin to run within {start_patience:g} seconds"
        if may_fork:
            raise _untried(settings, f"the test process {late}")
        raise _untried(settings, f"{sys.executable} {late}; its filesystem may not answer")
    call = "flock" if settings.kind == "flock" else "making the file"
    raise KochiError(
        f"locking hangs: {call} did not return within {deadline:g} seconds on {path}",
        _advice(settings),
    )


def _start(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: a queue.py in the user's directory must not be imported in place of the library.
        [sys.executable, "-P", "-m", "snakemake_kochi.locks.probe", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # stopped with Ctrl-Z, it would hold the probe's lock
    )


@dataclass(frozen=True)
class _Fork:
    """A forked child, with what is needed of a Popen."""

    pid: int
    stdout: IO[bytes]

    def wait(self) -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # SIGCHLD is ignored, so the status is lost: as in subprocess
            return 0


def _fork(words: list[str]) -> _Fork:
    reader, writer = os.pipe()
    parent = os.getpid()
    try:
        if (pid := os.fork()) == 0:
            _become_probe(words, writer)
    except OSError:
        os.close(reader)
        raise
    finally:
        # A signal may interrupt the child anywhere. It must not go on as the parent.
        if os.getpid() != parent:
            os._exit(1)
        os.close(writer)
    return _Fork(pid, open(reader, "rb", buffering=0))


def _become_probe(words: list[str], output: int) -> NoReturn:
    status = 1
    try:
        os.setsid()  # as in `_start`
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, source in enumerate((nothing, output, output)):
            os.dup2(source, stream)
        # A reader of the parent's output must not wait for a process that hangs.
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        status = main(words)
    except Exception as error:
        _say(repr(error))
    finally:
        os._exit(status)


def _give_up(process: subprocess.Popen[bytes] | _Fork) -> None:
    # There is no wait: in an uninterruptible call the process dies only when that call returns, if
    # it ever does.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _listen(stream: int, deadline: float, start_patience: float) -> tuple[list[str], bool]:
    """The output of the child, and whether the child ended; `deadline` counts from its start."""
    poll = select.poll()
    poll.register(stream)
    until = time.monotonic() + start_patience
    said, is_ready = "", False
    while (left := until - time.monotonic()) > 0:
        if not poll.poll(left * 1000):
            continue
        block = os.read(stream, 4096)
        if not block:
            return said.splitlines(), True
        said += block.decode(errors="replace")
        if not is_ready and _READY in said.splitlines():
            is_ready = True
            until = time.monotonic() + deadline
    return said.splitlines(), False


def _judge(settings: LockSettings, path: Path, lines: list[str], status: int) -> None:
    """Raise the error that the child found, if any."""
    try:
        outcome, message = json.loads(lines[-1])
    except (ValueError, TypeError, IndexError):
        said = [line for line in lines if line != _READY]
        why = f"the test process ended with status {status}"
        raise _untried(settings, f"{why} ({said[-1]})" if said else why) from None
    if outcome == "admitted":
        raise KochiError(
            f"locks do not exclude in {settings.paths.directory}: two processes held {path} "
            f"({settings.kind}) at the same time",
            _advice(settings),
        )
    if outcome == "refused":
        raise KochiError(message, _advice(settings))


def _untried(settings: LockSettings, why: str) -> KochiError:
    return KochiError(
        f"the locks in {settings.paths.directory} could not be tested: {why}",
        "Try again. To examine the locks, type: kochi doctor",
    )


def _advice(settings: LockSettings) -> str:
    # This is part of the advice because otherwise the settled locks would make the next start fail.
    file = settings.machine.lock_settings
    return (
        f"{advice(settings.kind)}\nAfter that change, when the machine has no worker or run left, "
        f"type: rm {file}"
    )


# ---- the child, and a child of its own


def main(arguments: list[str]) -> int:
    """Test the locks; the last line printed is the outcome as JSON.

    It is one of "excluded", "admitted" and "refused", and a message.
    """
    directory, kind, patience = arguments
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_LIFETIME)
    path = LockPaths(Path(directory)).probe(this_node().host)
    _say(_READY)
    _say(json.dumps(_try(path, cast(Kind, kind), float(patience))))
    return 0


def _try(path: Path, kind: Kind, patience: float) -> tuple[str, str]:
    try:
        with contender(path, kind) as contend, hold(path, kind, patience=patience):
            return "admitted" if contend() else "excluded", ""
    except LockBusyError:
        # Another process tests its locks now with the same file. This process was excluded, which
        # is enough.
        return "excluded", ""
    except KochiError as error:
        return "refused", error.message


@contextlib.contextmanager
def contender(path: Path, kind: Kind, patience: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Start another process of this node; yield a call that has it try to take a lock.

    Each call makes it try once, for `patience` seconds, and returns whether it got the lock. Use
    this before taking the lock in the calling process. The call raises KochiError when the lock is
    refused, and ChildProcessError when the process was ended.
    """
    ours, theirs = socket.socketpair()
    # The fork comes before there is a lock, or a thread that renews a lease: the child must have
    # neither.
    if os.fork() == 0:
        ours.close()
        _contend(path, kind, patience, theirs)
    theirs.close()

    def contend() -> bool:
        ours.sendall(b"!")
        if not (answer := ours.recv(4096)):
            raise ChildProcessError("the second process was ended")
        outcome, message = json.loads(answer)
        if outcome == "refused":
            raise KochiError(message, advice(kind))
        return bool(outcome == "admitted")

    with ours:
        yield contend


def _contend(path: Path, kind: Kind, patience: float, connection: socket.socket) -> NoReturn:
    try:
        signal.alarm(_LIFETIME)
        while connection.recv(1):
            connection.sendall(json.dumps(_try_once(path, kind, patience)).encode())
    finally:
        os._exit(0)


def _try_once(path: Path, kind: Kind, patience: float) -> tuple[str, str]:
    try:
        with hold(path, kind, patience=patience):
            return "admitted", ""
    except LockBusyError:
        return "excluded", ""
    except KochiError as error:
        return "refused", error.message


def _say(line: str) -> None:
    # Not print: a fork has the parent's buffer, too.
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
