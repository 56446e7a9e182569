"""A connection to a login host, over plain OpenSSH.

One login serves all sessions of a command, and those of the next commands: a master process of ssh
keeps it (ssh_config(5), ControlMaster), and ends some minutes after the last session. If the user's
own configuration has a ControlMaster for the host, that one is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO
from urllib.parse import quote

import psutil

from snakemake_kochi.parent_death import ending_with_this_process
from snakemake_kochi.remote import session
from snakemake_kochi.remote.refusal import LostError, RemoteError, advice_for_room, refusal
from snakemake_kochi.remote.script import Script, Wrapped
from snakemake_kochi.remote.session import SSH_FAILED, Attended, program, write_all
from snakemake_kochi.remote.sockets import answers, socket_path

PERSISTS = 300  # seconds after the last session
_LONG_IDLE = 30.0  # seconds: afterwards the network may have changed, or the laptop have slept
_PROBED = 10  # seconds that such a connection has for an answer
_CONNECT_TIMEOUT = "30"
_PATIENCE = 90.0  # seconds for a login without questions, jump hosts included
_MOST_INTERRUPTS = 3  # that are passed on; the next one ends the waiting here
# As a terminal does, an interrupt reaches the whole group: proc_pid_stat(5), field 5.
_PRINT_GROUP = "read -r _ _ _ _ group _ < /proc/$$/stat; printf '%s\\n' \"$group\""
# Of the user's configuration: a second session must not fail because the first one forwards a port,
# and nothing but the command is run there.
_ALWAYS = (
    *("-o", "LogLevel=ERROR"),
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none"),
    *("-o", "PermitLocalCommand=no"),
    *("-o", "ForwardX11=no"),
)


@dataclass(frozen=True)
class _Master:
    """How sessions find the master. `path` is that of our own one; None: the user's."""

    path: Path | None
    options: tuple[str, ...]


class Connection:
    """A login host, for programs and for git; see the module. Entering it logs in, if need be.

    Entering, `run` and `terminal` raise RemoteError with what to do. `asks`: whether ssh may ask
    for a password, or whether a host key is right; by default if there is a terminal for it.
    """

    def __init__(self, host: str, asks: bool | None = None) -> None:
        self.host = host
        self._via = ""
        self._asks = sys.stdin.isatty() and sys.stderr.isatty() if asks is None else asks

    def __enter__(self) -> Connection:
        configured, text = self._configuration()
        if self._is_own(configured):
            self._master = _Master(None, ())
            if not self._control("check"):
                self._log_in(configured)
            return self
        path = socket_path(f"{self.host}\0{text}")
        self._master = _Master(path, ("-o", f"ControlPath={path}"))
        with _locked(path.with_suffix(".lock")) as idle:
            if not (answers(path) and (idle < _LONG_IDLE or self._probe())):
                self._log_in(configured)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if (path := self._master.path) is not None:
            with contextlib.suppress(OSError):
                os.utime(path.with_suffix(".lock"))  # when it was used

    def run(
        self, script: Script, input: bytes | IO[bytes] = b"", what: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a script without a terminal; the streams are those of the script alone.

        If `what` says what the script is for, a status other than 0 raises RemoteError, too.
        """
        said = {1: bytearray(), 2: bytearray()}
        attended = self._attend(script, input)
        status = attended.relay(lambda stream, content: said[stream].extend(content))
        self._check(attended, status)
        if what is not None and status != 0:
            lines = bytes(said[2] or said[1]).decode(errors="replace").strip().splitlines()
            about = "\n".join(lines[-10:]) or f"exit status {status}"
            raise RemoteError(f"{what} failed on {self.host}: {about}", advice_for_room(about))
        return subprocess.CompletedProcess((), status, bytes(said[1]), bytes(said[2]))

    def relay(self, script: Script, write: Callable[[int, bytes], None]) -> int:
        """Run a script without a terminal and input; return its exit status.

        What it prints is passed on as it comes, with the number of its stream. Raises LostError
        when the connection is lost.
        """
        attended = self._attend(script, b"")
        status = attended.relay(write)
        self._check(attended, status)
        return status

    def start(
        self,
        script: Script,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = subprocess.PIPE,
        stderr: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a script; its process here ends with this one, and has the script's streams.

        The script must not be private: the words of that process are seen here, too.
        """
        assert not script.is_private
        return subprocess.Popen(
            [*program(self._session()), self.host, script.text],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=ending_with_this_process(),
        )

    def terminal(self, script: Script, stdin: int | None = None) -> int:
        """Run a script with the user's streams; return its exit status.

        With a terminal of its own there if all of the user's streams are one; otherwise `stdin`,
        by default nothing, is its standard input, and Ctrl-C reaches it as SIGINT. A private script
        needs its standard input for itself, so it must have neither.
        """
        if all(os.isatty(stream) for stream in (0, 1, 2)):
            from snakemake_kochi.terminal.screen import RawTerminal

            # Before ssh changes it.
            before = RawTerminal(0)
            attended = self._attend(script, None, "-tt")
            status = attended.relay_to_terminal(before)
        else:
            attended = self._attend(
                replace(script, text=f"{_PRINT_GROUP}\n{script.text}"),
                b"" if stdin is None else stdin,
            )
            status = self._relay_interrupts(attended)
        self._check(attended, status)
        return status

    def git_environment(self) -> dict[str, str]:
        """Environment variables with which git reaches the host, for addresses from `url`."""
        return {
            "GIT_SSH_COMMAND": shlex.join(program(self._session())),
            # git adds no options to the words, and asks nobody which ones are understood.
            "GIT_SSH_VARIANT": "simple",
        }

    def url(self, path: str) -> str:
        """The address of a repository there, for git; `path` is absolute."""
        return f"ssh://login-host{quote(path)}"

    def _session(self, *options: str) -> list[str]:
        """The words of ssh for one session. The master has asked all questions."""
        words = ["ssh", *_ALWAYS, *self._master.options, "-o", "ControlMaster=no"]
        return [*words, "-o", "BatchMode=yes", *(options or ("-T",)), "--", self.host]

    def _attend(
        self, script: Script, stdin: int | bytes | IO[bytes] | None, *options: str
    ) -> Attended:
        wrapped = Wrapped(script, (1,) if options else (1, 2))
        try:
            return Attended(self._session(*options), wrapped, stdin, own_session=not options)
        except ValueError as error:
            raise RemoteError(
                f"the command is too long for {self.host}: {error}",
                "Put the values into a file of the project, such as an experiment file.",
            ) from error

    def _relay_interrupts(self, attended: Attended) -> int:
        """Relay the output, and each SIGINT to the script: ssh cannot, and would end instead."""
        number, interrupts = bytearray(), 0

        def write(stream: int, content: bytes) -> None:
            if stream == 1 and not number.endswith(b"\n"):
                first, end, content = content.partition(b"\n")
                number.extend(first + end)
            if content:
                write_all(stream, content)

        def interrupt(_signal: int, _frame: object) -> None:
            nonlocal interrupts
            interrupts += 1
            group = number.decode().strip()
            if interrupts > _MOST_INTERRUPTS or not group.isdecimal():
                raise KeyboardInterrupt
            words = [*self._session(), Wrapped(Script(f"kill -INT -{group}")).line]
            nothing = subprocess.DEVNULL
            subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            return attended.relay(write)
        finally:
            signal.signal(signal.SIGINT, before)

    def _check(self, attended: Attended, status: int) -> None:
        """Raises RemoteError when not the script has failed but the connection."""
        if status < 0 or (status == SSH_FAILED and not self._is_alive()):
            raise LostError(
                f"the connection to {self.host} was lost",
                "What was handed over is kept there. Type the same line again.",
            )
        if attended.has_begun:
            return
        if status == SSH_FAILED:
            raise self._refusal(attended.refusal)
        said = (attended.refusal + attended.noise).strip().splitlines()
        raise RemoteError(
            f"the login shell of {self.host} does not execute commands"
            + "".join(f"\n  it says: {line}" for line in said[-4:]),
            f"This must print a number, perhaps after a banner: ssh {shlex.quote(self.host)} "
            "'bash -c \"echo 1 | base64\"'",
        )

    def _is_alive(self) -> bool:
        # Asked by ssh: one that is just dying still accepts a connection to its socket.
        return self._control("check")

    def _control(self, command: str) -> bool:
        """Give the master an order; return whether it obeys.

        Of a master that is just dying ssh gets no answer. It then logs in itself, and a login shell
        without input succeeds, so this login must fail.
        """
        no_login = ("-o", "PreferredAuthentications=none")
        words = ["ssh", *self._master.options, *no_login, "-O", command, "--", self.host]
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0

    def _probe(self) -> bool:
        """Whether a login that was not used for long still answers; if not, it is given up."""
        words = [*self._session(), Wrapped(Script("exit 0")).line]
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing)
        try:
            if self._await(process, _PROBED) == 0:
                return True
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._control("exit")
        return False

    def _configuration(self) -> tuple[dict[str, str], str]:
        """What ssh's configuration says about the host, and its whole text."""
        words = ["ssh", "-G", "-T", "--", self.host]
        try:
            answer = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
        except FileNotFoundError:
            raise RemoteError(
                "ssh was not found on PATH", "Install OpenSSH's client (openssh-client)."
            ) from None
        text = answer.stdout.decode(errors="replace")
        if answer.returncode != 0:
            raise self._refusal(answer.stderr.decode(errors="replace"))
        pairs = (line.partition(" ") for line in text.splitlines())
        configured = {key: value for key, _, value in pairs}
        self._via = configured.get("proxyjump", configured.get("proxycommand", ""))
        return configured, text

    def _refusal(self, said: str) -> RemoteError:
        return refusal(self.host, said, self._asks, self._via)

    def _is_own(self, configured: Mapping[str, str]) -> bool:
        """Whether the user's configuration has a master for the host, or one runs already."""
        if configured.get("controlpath", "none") == "none":
            return False
        if configured.get("controlmaster", "false") not in ("false", "no"):
            return True
        self._master = _Master(None, ())
        return self._control("check")

    def _log_in(self, configured: Mapping[str, str]) -> None:
        """Start the master, which goes on in the background."""
        master = self._master
        options = [*_ALWAYS, *master.options, "-o", "ControlMaster=auto"]
        if configured.get("controlpersist", "no") in ("no", "false") or master.path is not None:
            options += ["-o", f"ControlPersist={PERSISTS}"]
        if configured.get("connecttimeout", "none") in ("none", "0"):
            options += ["-o", f"ConnectTimeout={_CONNECT_TIMEOUT}"]
        if configured.get("serveraliveinterval", "0") == "0":
            # A lost network ends a command after a minute instead of never.
            options += ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]
        if not self._asks:
            options += ["-o", "BatchMode=yes"]
        # Its standard error goes to a file: the master keeps it open.
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                ["ssh", *options, "-f", "-N", "-T", "--", self.host],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                preexec_fn=ending_with_this_process(),
            )
            try:
                status = self._await(process, None if self._asks else _PATIENCE)
            except subprocess.TimeoutExpired:
                raise self._refusal(f"the login timed out after {_PATIENCE:.0f} s") from None
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            said.seek(0)
            if status != 0:
                raise self._refusal(said.read().decode(errors="replace"))

    def _await(self, process: subprocess.Popen[bytes], patience: float | None) -> int:
        """Its exit status; a person is told when it takes long. Raises TimeoutExpired."""
        first = min(session.SAYS_AFTER, patience or math.inf)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(first)
        if not _is_asking(process.pid):
            session.say_no_answer(self.host)
        return process.wait(None if patience is None else patience - first)


def _is_asking(pid: int) -> bool:
    """Whether ssh asks a person something now, or the one for a jump host: at the terminal, or by a
    program of its own."""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            opened = {os.readlink(file) for file in Path(f"/proc/{each.pid}/fd").iterdir()}
            if "/dev/tty" in opened or "askpass" in each.name():
                return True
    return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[float]:
    """Hold a lock, so that two commands do not log in at once; yields the seconds since its last
    use."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield time.time() - os.fstat(descriptor).st_mtime
        os.utime(descriptor)
    finally:
        os.close(descriptor)
