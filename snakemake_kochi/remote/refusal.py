"""What ssh says when it cannot log in, as an error with what to do."""

from __future__ import annotations

import re
import shlex

from snakemake_kochi.errors import ROOM, KochiError

# What git and other programs say on a full disk; "unpacker error" is of a push.
_NO_ROOM = ("No space left", "Disk quota exceeded", "unable to write", "unpacker error")


class RemoteError(KochiError):
    """A login host cannot be reached, the connection was lost, or something there is missing."""


def advice_for_room(said: str) -> str | None:
    """What to do if a program there has said that it finds no space, else None."""
    return ROOM if any(word in said for word in _NO_ROOM) else None


class AwayError(RemoteError):
    """A login host does not answer now, or not any more: the same line may work later."""

    exit_status = 75  # EX_TEMPFAIL of sysexits.h


class LostError(AwayError):
    """The connection was lost while a program ran there."""


# Words of OpenSSH (sshconnect.c, sshconnect2.c, packet.c, kex.c), what they mean, and what to do.
# The first that is found counts: after a changed key, ssh also says that it cannot verify the host.
_WRONG = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one that is known here: another computer may answer in its place",
        "Ask the people of the machine whether the key has changed. If it has, type: "
        "ssh-keygen -R {name}\nThen: {ssh}",
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "its host key is not known here yet",
        "Compare the key with what the people of the machine say, and accept it: {ssh}",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "the login was refused",
        "This must work without a question, or with questions that you answer in a terminal: "
        "{ssh}\nA key with a passphrase: ssh-add",
    ),
    (
        r"Bad configuration option|Bad owner or permissions|configuration options|"
        r"no argument after keyword|missing argument|Missing argument",
        "ssh does not accept its configuration",
        "Correct the file, and try: {ssh}",
    ),
)
# The same, where nothing has to be repaired here: later it may work.
_AWAY = (
    (
        r"Could not resolve hostname",
        "there is no host of this name",
        "Correct login_host, or name the host in ~/.ssh/config. If no name can be found, look at "
        "your network.",
    ),
    (
        r"timed out|Timeout, server",
        "it does not answer",
        "Is it up, and this computer in the right network? Try: {ssh}",
    ),
    (r"Network is unreachable|No route to host", "there is no way to it", "Look at your network."),
    (
        r"Connection refused",
        "no ssh server answers there",
        "Correct login_host, or the port in ~/.ssh/config. Try: {ssh}",
    ),
    (
        r"Connection (closed|reset)|kex_exchange_identification|Broken pipe",
        "the connection was closed before the login",
        "The host may be overloaded, or refuse this computer. Try again later, or: {ssh}",
    ),
)
_MOST_LINES = 4


def refusal(host: str, said: str, asks: bool, via: str = "") -> RemoteError:
    """The error for what ssh has said. `asks`: whether ssh could ask a person; `via`: what it goes
    through (ProxyJump or ProxyCommand), whose words look like those of the host."""
    lines = [line.strip().removeprefix("ssh: ") for line in said.splitlines()]
    lines = [line for line in lines if line.strip("@")]
    names = {"ssh": f"ssh {shlex.quote(host)}", "name": shlex.quote(host.rpartition("@")[2])}
    kind, meaning, hint = RemoteError, "ssh failed", "Try: {ssh}"
    for pattern, found, advice in (*_WRONG, *_AWAY):
        if re.search(pattern, said):
            kind = AwayError if (pattern, found, advice) in _AWAY else RemoteError
            meaning, hint = found, advice
            break
    hint = hint.format(**names)
    if via:
        hint = f"The way leads over {via}, which may be what fails. {hint}"
    if not asks and "Permission denied" in said:
        hint += "\nWithout a terminal, nobody can be asked for a password."
    told = "".join(f"\n  ssh: {line}" for line in lines[-_MOST_LINES:])
    return kind(f"no connection to {host}: {meaning}{told}", hint)
