"""A group of processes whose memory runs out early."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time

import pytest

from snakemake_kochi.worker.node.capacity import own_memory_group

LIMIT_MB = 256
# Writes to the memory that it allocates, until none is left.
EATER = f"{sys.executable} -c \"held = []\nwhile True: held.append(b'x' * 2**20)\""


class Cage:
    """A memory cgroup with a limit, made by root."""

    def __init__(self) -> None:
        group = own_memory_group()
        if not group.directories:
            pytest.fail("this test needs the memory controller of cgroups, version 1 or 2")
        is_v1 = group.limit_name == "memory.limit_in_bytes"
        # In version 2 a group that has processes cannot have groups below it.
        parent = group.directories[0 if is_v1 else -1]
        self.directory = parent / f"kochi-test-{secrets.token_hex(4)}"
        try:
            self.directory.mkdir()
            (self.directory / group.limit_name).write_text(str(LIMIT_MB * 2**20))
            # Without this the job would swap and only become slow.
            swap = "memory.swappiness" if is_v1 else "memory.swap.max"
            with contextlib.suppress(FileNotFoundError):
                (self.directory / swap).write_text("0")
        except OSError as error:
            with contextlib.suppress(FileNotFoundError):
                self.directory.rmdir()
            pytest.fail(f"this test needs a memory cgroup that it may write to: {error}")

    def __enter__(self) -> Cage:
        return self

    def enter(self) -> None:
        """Move the calling process into the cgroup; call it between fork and exec."""
        (self.directory / "cgroup.procs").write_text(str(os.getpid()))

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + 30
        while self.directory.exists():
            for pid in (self.directory / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                self.directory.rmdir()
            assert time.monotonic() < deadline, f"{self.directory} cannot be removed"
            time.sleep(0.02)
