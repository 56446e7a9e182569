"""What a worker and its zygotes say to each other: a JSON object in one message of a socket, and
file descriptors beside it.

To the zygote, once: `{"version", "arguments", "cores"}`, the arguments of Snakemake that all jobs
have in common, and how many cores the first of them has. From it: `{"ready": true, "memory_mb",
"reads_cores"}` or `{"failed": why}`. Then, for each job, `{"job": all its arguments, "options":
those of them that are its own, "cpus", "set", "unset"}` with the log and the gate beside it,
answered by `{"pid"}`, `{"stale": what}`, `{"failed": why}`, or `{"unfit": why}`, which holds for
each zygote of this workflow.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from snakemake_kochi.errors import KochiError

VERSION = 2
# All that distinguishes one job's arguments from another's; with anything else the workflow may
# have to be parsed differently.
JOB_OPTIONS = frozenset(
    {
        "--allowed-rules",
        "--attempt",
        "--cores",
        "--force-use-threads",
        "--local-groupid",
        "--target-jobs",
        "--unneeded-temp-files",
        "--wait-for-files",
        # In place of the other, where they are more than twenty. It is below the workflow's own
        # directory, as they are, and stays for as long as a job of the run may need it.
        "--wait-for-files-file",
    }
)
# Both ends are of one installation, or the zygote refuses; no message comes near that.
_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 2


class LinkBrokenError(KochiError):
    """What came is no message, or nothing can be sent."""


def make_link() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection that keeps messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(link: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Raises LinkBrokenError, also when it cannot be sent at once and the link does not block."""
    data = json.dumps(message).encode()
    try:
        socket.send_fds(link, [data], descriptors)
    except OSError as error:  # among them: too large for one message
        raise LinkBrokenError(f"a message cannot be sent: {error.strerror}") from error


def receive(link: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A message, None at the end, and the file descriptors that came with it.

    Raises LinkBrokenError; BlockingIOError when nothing is there and the link does not block.
    """
    try:
        data, descriptors, flags, _ = socket.recv_fds(link, _MOST_BYTES, _MOST_DESCRIPTORS)
    except ConnectionResetError:  # it ended before it had read all
        return None, []
    for descriptor in descriptors:
        # By a flag it would be for nothing: socket.recv_fds ignores all that it is given.
        os.set_inheritable(descriptor, False)
    if not data:
        return None, []
    try:
        message = json.loads(data)
    except ValueError as error:
        message = error
    if not isinstance(message, dict) or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for descriptor in descriptors:
            os.close(descriptor)
        raise LinkBrokenError(f"no message of version {VERSION}: {data[:80]!r}")
    return message, descriptors
