"""The ssh server of a worker: `python -m snakemake_kochi.terminal.login_server DIRECTORY WORKER`.

The worker starts it when a person asks for it, in a session of its own. It listens, and
has an sshd serve each connection, which reads the configuration that is written here: it accepts
one key, of one user, and executes what `become.py` is told. It ends with its worker, and
after some time without connections; no process of a login outlives it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import to_json, write_atomically
from snakemake_kochi.ownership import check_ours
from snakemake_kochi.parent_death import adopt_orphans, children, end_with_parent
from snakemake_kochi.paths import LoginPaths
from snakemake_kochi.terminal.login import VERSION, quoted

# Debian and others have sshd in a directory that is not on everybody's PATH.
_DIRECTORIES = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/ssh", "/usr/libexec")
# Seconds.
_LINGER = 600.0
_LOOK = 1.0
_END_PATIENCE = 2.0
_TEST_PATIENCE = 20.0
# Connections at a time: those without a key end after LoginGraceTime.
_MOST = 32

_CONFIGURATION = """\
HostKey {host_key}
AuthorizedKeysFile {public_key}
AllowUsers {user}
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
# Kochi has checked these files itself, and knows more kinds of permissions.
StrictModes no
DisableForwarding yes
# Some versions except these two from that.
AllowAgentForwarding no
X11Forwarding no
MaxSessions 1
PermitUserEnvironment no
PermitUserRC no
PrintMotd no
PrintLastLog no
PidFile none
LoginGraceTime 20
MaxAuthTries 2
ClientAliveInterval 15
ClientAliveCountMax 8
# Bash would otherwise read ~/.bashrc, whose output would come before that of the program.
SetEnv SHLVL=5
ForceCommand {command}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the worker ends; return the exit status."""
    # The supervisor adds two words, as to all servers.
    directory, worker, *_ = sys.argv[1:] if arguments is None else arguments
    paths = LoginPaths(Path(directory))
    parent = os.getppid()
    try:
        check_ours(paths.directory)
        server = _Server(paths, _make_command(paths))
        server.listen()
    except (KochiError, OSError) as error:
        said = error.message if isinstance(error, KochiError) else str(error)
        hint = error.hint if isinstance(error, KochiError) else None
        node = socket.gethostname()
        why = f"no ssh server can be started for worker {worker} on {node}: {said}"
        _answer(paths, {"error": why, "hint": hint})
        return 1
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    end_with_parent(signal.SIGTERM)  # and not by a kill, after which the logins would live on
    try:
        server.serve(parent)
    finally:
        paths.answer.unlink(missing_ok=True)
        _end_all()
    return 0


def _answer(paths: LoginPaths, content: dict[str, Any]) -> None:
    write_atomically(paths.answer, to_json({"version": VERSION, **content}))


def _make_command(paths: LoginPaths) -> list[str]:
    """The command that serves one connection. Raises KochiError."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_DIRECTORIES])
    program = shutil.which("sshd", path=path)
    if program is None:
        raise KochiError(
            "there is no program sshd on that node",
            "Its administrators can install OpenSSH's server there. For a shell on the node as a "
            "job of the worker, type: kochi interact -q QUEUE",
        )
    session = [sys.executable, "-P", "-m", "snakemake_kochi.terminal.become"]
    text = _CONFIGURATION.format(
        host_key=quoted(paths.host_key, has_tokens=False),
        public_key=quoted(paths.public_key),
        user=_user_name(),
        command=shlex.join(session),
    )
    write_atomically(paths.server_configuration, text.encode())
    command = [os.path.abspath(program), "-f", str(paths.server_configuration)]
    tested = subprocess.run(
        [*command, "-t"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TEST_PATIENCE,
        check=False,
    )
    if tested.returncode != 0:
        raise KochiError(f"{program} refuses: {' '.join(tested.stderr.split())}")
    return [*command, "-i", "-E", str(paths.log)]


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise KochiError(f"that node knows no user with the number {os.getuid()}") from error


class _Server:
    def __init__(self, paths: LoginPaths, command: list[str]) -> None:
        self._paths = paths
        self._command = command
        self._sockets: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def listen(self) -> None:
        """Listen at a free port of all addresses, and tell where."""
        first = socket.create_server(("", 0))
        self._sockets = [first]
        port = first.getsockname()[1]
        with contextlib.suppress(OSError):  # a node without IPv6, or with that port taken
            self._sockets.append(socket.create_server(("::", port), family=socket.AF_INET6))
        content = {"addresses": _addresses(), "port": port, "user": _user_name()}
        _answer(self._paths, content)

    def serve(self, parent: int) -> None:
        """Serve connections until the worker, the parent of this process, has ended."""
        poll = select.poll()
        for each in self._sockets:
            # A connection may have gone before it is accepted.
            each.setblocking(False)
            poll.register(each, select.POLLIN)
        with contextlib.suppress(OSError):
            poll.register(os.pidfd_open(parent), select.POLLIN)
        sockets = {each.fileno(): each for each in self._sockets}
        used = time.monotonic()
        while os.getppid() == parent:
            for descriptor, _ in poll.poll(_LOOK * 1000):
                if descriptor in sockets:
                    self._accept(sockets[descriptor])
            self._processes = [each for each in self._processes if each.poll() is None]
            _reap({each.pid for each in self._processes})
            if self._processes:
                used = time.monotonic()
            elif time.monotonic() >= used + _LINGER:
                return

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            if len(self._processes) < _MOST:
                with contextlib.suppress(OSError):
                    self._processes.append(
                        subprocess.Popen(
                            self._command,
                            stdin=connection.fileno(),
                            stdout=connection.fileno(),
                            stderr=subprocess.DEVNULL,
                            start_new_session=True,
                        )
                    )


def _addresses() -> list[str]:
    """The names and addresses by which other hosts may reach this one, the best first."""
    name = socket.gethostname()
    found = [name]
    resolved: list[str] = []
    with contextlib.suppress(OSError):
        resolved = [str(info[4][0]) for info in socket.getaddrinfo(name, None)]
    own = [each.address for some in psutil.net_if_addrs().values() for each in some]
    for address in (*resolved, *own):
        # Not those of one link only, nor of hardware.
        if "%" not in address and _is_address(address) and not _is_loopback(address):
            found.append(address)
    # For nodes that are on the same host.
    found += [address for address in resolved if _is_loopback(address)]
    return list(dict.fromkeys(found)) if len(found) > 1 else [*found, "127.0.0.1"]


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            return bool(socket.inet_pton(family, text))
    return False


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _reap(own: set[int]) -> None:
    """Reap processes of logins that their parents have left behind."""
    for pid in set(children(os.getpid())) - own:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _end_all() -> None:
    """End all processes of logins: at first their terminals hang up."""
    number = signal.SIGHUP

    def are_gone() -> bool:
        nonlocal number
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = children(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        number = signal.SIGKILL
        return not left

    wait_until(are_gone, _END_PATIENCE, 0.1)


if __name__ == "__main__":
    sys.exit(main())
