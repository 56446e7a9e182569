"""Whether this node can execute, write and enter: one that cannot would soon empty its queues."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Mapping

_PATIENCE = 10.0  # seconds for a shell that does nothing
# These say nothing about the node: the job or its user may have removed or closed a directory.
_NOT_OF_THE_NODE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}
)


class Health:
    """`environment`: that of the jobs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        wanted = environment.get("TMPDIR") or "/tmp"
        # If it never existed, it hinders no job: programs use another one.
        self._temporary = wanted if os.path.isdir(wanted) else "/tmp"

    def fault(self, directory: str) -> str:
        """What this node cannot do, for people, after a failure of a job; "" if nothing."""
        try:
            os.stat(os.path.join(directory, "."))
        except OSError as error:
            if error.errno not in _NOT_OF_THE_NODE:
                return f"cannot enter {directory}: {error.strerror}"
        try:
            with tempfile.TemporaryFile(dir=self._temporary) as file:
                file.write(b"x")
        except OSError as error:
            if error.errno != errno.ENOSPC:  # a job may have filled it, and will again
                return f"cannot write below {self._temporary}: {error.strerror}"
        try:
            subprocess.run(
                ["/bin/sh", "-c", ":"], env=self._environment, timeout=_PATIENCE, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"cannot execute /bin/sh: {error}"
        return ""
