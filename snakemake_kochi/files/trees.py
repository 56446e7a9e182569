"""Copies of files, and the removal of directories.

Not by `shutil`, which loads three compression libraries: a process that has them is copied slower,
for each short run.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from snakemake_kochi.files.content import copy_stream

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(directory: Path | str) -> None:
    """Remove a directory and all in it, as far as that is possible now.

    No link is followed, also not one that takes the place of a directory meanwhile: processes that
    a script has left may go on in its workspace.
    """
    with suppress(OSError):
        _remove(os.fspath(directory), None)


def _remove(name: str, above: int | None) -> None:
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        with os.scandir(descriptor) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_directory in found:
            with suppress(OSError):
                if is_directory:
                    _remove(inner, descriptor)
                else:
                    os.unlink(inner, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=above)


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file to another, which is made, or emptied first.

    Raises OSError, also if both are the same file by a link: it would be emptied.
    """
    with source.open("rb", buffering=0) as reader:
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(reader.fileno()), os.stat(target)):
                raise OSError(errno.EINVAL, "it would be copied to itself", str(source))
        with target.open("wb", buffering=0) as writer:
            copy_stream(reader, writer)
