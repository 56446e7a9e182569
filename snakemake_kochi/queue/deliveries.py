"""Which deliveries of an inbox were read."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Sequence

from snakemake_kochi.files import KeptNames, answered, sync
from snakemake_kochi.paths import SHARD, ControllerPaths

_NO_NUMBER = b"?\n"  # the end of a line that is no number then


class ReadDeliveries:
    """Which deliveries in an inbox were read. The adopter of this controller has to know them,
    because this process may be killed before it acts on a result.

    Their jobs are noted in one file. The deliveries stay in the inbox until there are many, so that
    a job costs no rename; before they are removed, the file is put on the disk. A thread removes
    them: on a slow filesystem that takes seconds, and results come meanwhile.
    """

    def __init__(self, paths: ControllerPaths) -> None:
        self.paths = paths
        self.inbox = KeptNames(paths.inbox)
        self._names: set[str] = set()  # of deliveries that are still in the inbox
        self._file: int | None = None
        self._is_torn = False  # whether the last line in it may be a part of one
        self._removal = threading.Thread()
        self._is_closed = False

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def note(self, name: str, job: int) -> None:
        """Note a delivery that was read. Raises OSError if that cannot be written."""
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self.paths.read_jobs, flags, 0o600)
            self._is_torn = os.fstat(self._file).st_size > 0
        line = b"%d\n" % job
        if self._is_torn:
            # Otherwise the digits of both lines would be the number of another job.
            line = _NO_NUMBER + line
        self._is_torn = os.write(self._file, line) < len(line)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.paths.read_jobs))
        self._names.add(name)

    def remove_many(self) -> None:
        """Remove the deliveries that were read, if they are many. Raises OSError."""
        if self._file is None or len(self._names) < SHARD or self._removal.is_alive():
            return
        sync(self._file)
        names = list(self._names)
        removal = threading.Thread(target=self._remove, args=(names,), daemon=True)
        with contextlib.suppress(RuntimeError):  # the user may have no more threads
            removal.start()
            self._removal = removal

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            if self._is_closed:
                return
            try:
                (self.paths.inbox / name).unlink(missing_ok=True)
            except OSError:
                return  # the next call tries again
            self._names.discard(name)

    def close(self) -> None:
        self._is_closed = True
        self.inbox.close()
        if self._file is not None:
            descriptor, self._file = self._file, None
            os.close(descriptor)


def jobs_read(paths: ControllerPaths) -> set[int]:
    """The jobs whose deliveries a controller has read, as far as it could note them."""
    try:
        lines = answered(paths.read_jobs.read_bytes).split(b"\n")
    except OSError:
        return set()
    return {int(line) for line in lines[:-1] if line.isdigit()}  # the last line may be torn
