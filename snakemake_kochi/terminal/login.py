"""The user's side of a login through a worker's ssh server.

The user's side makes all keys, so that it knows the only host key to accept, and the server the
only user's key. They belong to one worker, and are below KOCHI_ROOT, which only the user may enter.
A file tells the worker to start the server (`login_server.py`), if it does not run yet.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake_kochi.base.wake import wake
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    is_there,
    make_directory,
    random_word,
    read_json,
    show_new_files,
    write_atomically,
)
from snakemake_kochi.ownership import check_ours
from snakemake_kochi.paths import LoginPaths, MachinePaths
from snakemake_kochi.queue.views import WorkerView


def _login_of(machine: MachinePaths, worker: int) -> LoginPaths:
    return LoginPaths(Path(machine.layout.worker(str(worker)).login))


def _wake(machine: MachinePaths, worker: int) -> None:
    wake(machine.layout.worker(str(worker)).wake)


VERSION = 1

# Seconds until a worker on another node has seen the request, and its server has started.
_PATIENCE = 30.0
_PAUSE = 0.1
# Seconds after which it is asked again: a server that was about to end has left no answer.
_AGAIN = 5.0
# Seconds for a connection to one address of a node.
_CONNECT = 3.0


def words_by_ssh(
    machine: MachinePaths, worker: WorkerView, words: Sequence[str], pty: bool
) -> list[str]:
    """A command that runs a program on the node of a worker, through an ssh server there.

    Waits until the worker has started the server. Raises KochiError.
    """
    paths = _prepare(machine, worker.worker)
    answer = _existing_answer(paths)
    address = None if answer is None else _reachable(answer)
    if answer is None or address is None:
        answer = _ask(machine, worker, paths, answer)
        address = _reachable(answer)
    if address is None:
        where = ", ".join(map(str, answer["addresses"]))
        raise KochiError(
            f"node {worker.node.host} of worker {worker.worker} does not accept connections from "
            f"this host, at port {answer['port']} of {where}",
            "Nodes of this cluster may be closed to this host. For a shell on the node as a job of "
            f"the worker, type: kochi interact -q {worker.queues[0]}",
        )
    if _is_full(answer, address):
        raise KochiError(
            f"the ssh server of worker {worker.worker} has as many connections as it serves at a "
            "time",
            "Close other logins, or try again in 20 s: it closes connections that do not log in "
            "until then. For a shell on the node as a job of the worker, type: kochi interact -q "
            f"{worker.queues[0]}",
        )
    return _ssh(paths, worker.worker, answer, address, words, pty)


# ---- keys


def _prepare(machine: MachinePaths, worker: int) -> LoginPaths:
    """The files of a worker's server, with keys that are made if necessary."""
    paths = _login_of(machine, worker)
    if not is_there(paths.directory):
        new = paths.new(random_word())
        try:
            _make_keys(new, worker)
            with contextlib.suppress(OSError):  # another process was faster: its keys are used
                new.directory.rename(paths.directory)
        finally:
            shutil.rmtree(new.directory, ignore_errors=True)
    check_ours(paths.directory)
    return paths


def _make_keys(paths: LoginPaths, worker: int) -> None:
    make_directory(paths.directory)
    for key in (paths.user_key, paths.host_key):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", _name(worker)]
        try:
            subprocess.run(
                [*command, "-f", str(key)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
            )
        except FileNotFoundError as error:
            raise KochiError("there is no program ssh-keygen here", _INSTALL) from error
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            raise KochiError(f"ssh-keygen made no key in {paths.directory}: {said}") from error
    public = paths.public_host_key.read_text()
    write_atomically(paths.known_hosts, f"{_name(worker)} {public}".encode())


_INSTALL = "Without a scheduler that enters allocations, Kochi logs in by OpenSSH: install it here."


def _name(worker: int) -> str:
    """The name by which the host key of a worker's server is known."""
    return f"kochi-worker-{worker}"


# ---- the request


def _existing_answer(paths: LoginPaths) -> Mapping[str, Any] | None:
    """Where a server listens that was started before; a failure of one is forgotten."""
    try:
        answer = _read_answer(paths)
    except KochiError:
        paths.answer.unlink(missing_ok=True)
        return None
    return answer


def _ask(
    machine: MachinePaths,
    worker: WorkerView,
    paths: LoginPaths,
    stale: Mapping[str, Any] | None,
) -> Mapping[str, Any]:
    again, deadline = 0.0, time.monotonic() + _PATIENCE
    while (now := time.monotonic()) < deadline:
        if now >= again:
            again = now + _AGAIN
            write_atomically(paths.asked, b"")
            _wake(machine, worker.worker)
        show_new_files(paths.directory)
        answer = _read_answer(paths)
        if answer is not None and (answer != stale or not is_there(paths.asked)):
            return answer
        time.sleep(_PAUSE)
    raise KochiError(
        f"worker {worker.worker} on {worker.node.host} has started no ssh server in "
        f"{_PATIENCE:.0f} s",
        f"To see whether it works, type: kochi show workers; kochi show log worker {worker.worker}",
    )


def _read_answer(paths: LoginPaths) -> Mapping[str, Any] | None:
    """Where the server listens; None without an answer. Raises KochiError: why there is none."""
    try:
        answer = read_json(paths.answer, VERSION, is_ours=True)
    except FileNotFoundError:
        return None
    if why := answer.get("error"):
        raise KochiError(str(why), answer.get("hint"))
    if not {"addresses", "port", "user"} <= answer.keys():
        raise DamagedFileError(f"{paths.answer}: not the answer of an ssh server")
    return answer


def _reachable(answer: Mapping[str, Any]) -> str | None:
    """The first address at which the server, or something else, accepts a connection."""
    for address in answer["addresses"]:
        with contextlib.suppress(OSError):
            socket.create_connection((address, answer["port"]), _CONNECT).close()
            return str(address)
    return None


def _is_full(answer: Mapping[str, Any], address: str) -> bool:
    """Whether the server closes connections at once, instead of greeting as an ssh server does."""
    try:
        with socket.create_connection((address, answer["port"]), _CONNECT) as connection:
            return connection.recv(1) == b""
    except OSError:
        return False  # ssh says what is wrong


# ---- the command


def _ssh(
    paths: LoginPaths,
    worker: int,
    answer: Mapping[str, Any],
    address: str,
    words: Sequence[str],
    pty: bool,
) -> list[str]:
    options = {
        "HostKeyAlias": _name(worker),
        "UserKnownHostsFile": quoted(paths.known_hosts),
        "GlobalKnownHostsFile": "none",
        "StrictHostKeyChecking": "yes",
        "IdentityFile": quoted(paths.user_key),
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey",
        "BatchMode": "yes",
        "ClearAllForwardings": "yes",
        "ConnectTimeout": "10",
        "ServerAliveInterval": "15",
        "LogLevel": "ERROR",
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    # -F: nothing in the user's own configuration concerns this server.
    command = ["ssh", "-F", "none", *given, "-p", str(answer["port"]), "-tt" if pty else "-T"]
    return [*command, "-l", str(answer["user"]), address, packed(words)]


def quoted(path: Path, has_tokens: bool = True) -> str:
    """A path as a value in a configuration of OpenSSH: it may have blanks and percent signs.

    `has_tokens`: whether percent signs have a meaning in this value.
    """
    text = str(path)
    return '"' + (text.replace("%", "%%") if has_tokens else text) + '"'


def packed(words: Sequence[str]) -> str:
    """Words as one that no shell changes."""
    return base64.b64encode(json.dumps(list(words)).encode()).decode()


def unpacked(word: str) -> list[str]:
    """The words in one that `packed` made. Raises ValueError for any other."""
    words = json.loads(base64.b64decode(word, validate=True))
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise ValueError(f"not a command: {words!r}")
    return words
