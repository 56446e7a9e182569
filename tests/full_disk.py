"""A filesystem that a test fills."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


class FullDisk:
    """A small one, mounted at a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def fill(self) -> None:
        """To the last byte."""
        with contextlib.suppress(OSError), open(self._filler, "wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))

    def empty(self) -> None:
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self.directory / "filler"


@contextlib.contextmanager
def mounted(directory: Path) -> Iterator[FullDisk]:
    """One of four megabytes. One has to be root."""
    directory.mkdir(exist_ok=True)
    options = ["-t", "tmpfs", "-o", "size=4m,mode=700", "kochi-test"]
    subprocess.run(["mount", *options, str(directory)], check=True)
    try:
        yield FullDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
