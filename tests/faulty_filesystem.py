"""A filesystem whose faults a test switches on: a directory passed through FUSE.

Network filesystems refuse calls (links between directories, FIFOs, fsync), lose the answers of
calls that they have done, answer ESTALE or EIO for a moment, and show what other nodes have changed
only after a while. Here a test says which call does that, on which paths, and how often.

As a script it is the process that serves the filesystem: BACKING MOUNTPOINT CONTROL CACHE_SECONDS
INHERITED.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pass_through import PassThrough
from support import wait_until


@dataclass(frozen=True)
class Fault:
    """`call`: the FUSE operation, as `rename`, `link`, `mknod` or `readdir`; `path`: a glob for the
    path in the filesystem, beginning with a slash (of two paths, either); `error`: an errno,
    or 0 for a call that is only to be counted.

    With `done` the call is done and its answer lost: the error is what the caller hears. One that
    `hangs` has no answer as long as the fault is there. `times`: how often (None: always).
    `is_directory` restricts it to directories, `between_directories` to
    calls with two paths that are not in one directory.
    """

    number: int
    call: str
    path: str
    error: int
    done: bool = False
    times: int | None = None
    is_directory: bool = False
    between_directories: bool = False
    hangs: bool = False


class FaultyFilesystem:
    """Shows `backing` at `mountpoint`, as long as it is entered. Without faults it is an ordinary
    filesystem, whose flock(2) does not reach other mounts of the same `backing`.

    `cache_seconds`: for how long names, missing names and attributes are taken from the cache, as
    a client of NFS does; names that are new are seen when their directory is listed. `inherited`:
    permissions that all that is made has besides those it is to have, as from inherited access
    control lists.
    """

    def __init__(
        self, backing: Path, mountpoint: Path, cache_seconds: float = 0.0, inherited: int = 0
    ) -> None:
        self.path = mountpoint
        self._backing = backing
        self._control = mountpoint.with_name(f"{mountpoint.name}.control")
        self._cache_seconds = cache_seconds
        self._inherited = inherited
        self._faults: dict[int, Fault] = {}
        self._numbers = 0

    def __enter__(self) -> FaultyFilesystem:
        for directory in (self._backing, self.path, self._control):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write()
        words = [self._backing, self.path, self._control, self._cache_seconds, self._inherited]
        with open(self._control / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            )
        try:
            wait_until(self._is_mounted, f"mounting {self.path}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _is_mounted(self) -> bool:
        log = self._control / "log"
        assert self._process.poll() is None, log.read_text(errors="replace")
        return os.path.ismount(self.path)

    def __exit__(self, *_: object) -> None:
        # Lazily: what a failed test has left may have files open there.
        subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=False)
        self._process.terminate()
        self._process.wait()

    @contextlib.contextmanager
    def fault(
        self,
        call: str,
        error: int,
        path: str = "*",
        *,
        done: bool = False,
        times: int | None = None,
        is_directory: bool = False,
        between_directories: bool = False,
        hangs: bool = False,
    ) -> Iterator[Fault]:
        """While entered, the filesystem has this fault."""
        self._numbers += 1
        fault = Fault(
            self._numbers, call, path, error, done, times, is_directory, between_directories, hangs
        )
        self._faults[fault.number] = fault
        self._write()
        try:
            yield fault
        finally:
            del self._faults[fault.number]
            self._write()

    @property
    def met(self) -> Path:
        """A file that exists from the first time that any fault is met."""
        return self._control / "met"

    def count(self, fault: Fault) -> int:
        """How often a fault has been met."""
        with contextlib.suppress(FileNotFoundError):
            return self.met.read_text().split().count(str(fault.number))
        return 0

    def _write(self) -> None:
        beside = self._control / "faults.new"
        beside.write_text(json.dumps([asdict(fault) for fault in self._faults.values()]))
        os.replace(beside, self._control / "faults")


# ---- the process that serves it

# fuse_readdir_flags; shifted it is FUSE_FILL_DIR_PLUS of fuse_fill_dir_flags.
_READDIR_PLUS = 1


class _Faults:
    def __init__(self, control: Path) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._version: tuple[int, int] | None = None
        self._faults: list[Fault] = []
        self._met: dict[int, int] = {}

    def find(self, call: str, paths: tuple[str, ...], root: str) -> Fault | None:
        with self._lock:
            self._read()
            for fault in self._faults:
                if not self._is_met(fault, call, paths, root):
                    continue
                self._met[fault.number] = self._met.get(fault.number, 0) + 1
                with open(self._control / "met", "a") as file:
                    file.write(f"{fault.number}\n")
                return fault
        return None

    def _read(self) -> None:
        found = os.stat(self._control / "faults")
        if (found.st_ino, found.st_mtime_ns) != self._version:
            self._version = (found.st_ino, found.st_mtime_ns)
            text = (self._control / "faults").read_text()
            self._faults = [Fault(**each) for each in json.loads(text)]

    def is_there(self, fault: Fault) -> bool:
        with self._lock:
            self._read()
            return fault in self._faults

    def _is_met(self, fault: Fault, call: str, paths: tuple[str, ...], root: str) -> bool:
        return (
            fault.call == call
            and any(fnmatch.fnmatch(path, fault.path) for path in paths)
            and (fault.times is None or self._met.get(fault.number, 0) < fault.times)
            and (not fault.is_directory or any(os.path.isdir(root + path) for path in paths))
            and (not fault.between_directories or len(set(map(os.path.dirname, paths))) > 1)
        )


def _serve(
    backing: str, mountpoint: str, control: str, cache_seconds: float, inherited: int
) -> None:
    import mfusepy

    faults = _Faults(Path(control))

    def with_faults(call: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(operation)
        def answer(self: PassThrough, *arguments: Any) -> Any:
            names = (each for each in arguments[:2] if isinstance(each, str))
            fault = faults.find(call, tuple(name for name in names if name[:1] == "/"), backing)
            while fault is not None and fault.hangs and faults.is_there(fault):
                time.sleep(0.02)
            is_ill = fault is not None and fault.error
            if is_ill and not fault.done:
                raise mfusepy.FuseOSError(fault.error)
            answer = operation(self, *arguments)
            if is_ill:
                raise mfusepy.FuseOSError(fault.error)
            return answer

        return answer

    class Operations(PassThrough, mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def init_with_config(self, connection: Any, config: Any) -> None:
            config.use_ino = 1  # a hard link is the same file
            config.hard_remove = 1
            config.entry_timeout = config.attr_timeout = cache_seconds
            config.negative_timeout = cache_seconds

    class Filesystem(mfusepy.FUSE):  # type: ignore[misc]
        def readdir_fuse_3(
            self, path: bytes, buffer: Any, fill: Any, offset: int, info: Any, flags: int
        ) -> int:
            """A listing also says of each name what it is (the kernel asks for that at the start of
            a directory, FUSE_READDIR_PLUS), so that names are seen that were missing before.

            Of NFS that is one half: a directory that is opened is revalidated, and where it has
            changed all its names, missing ones too, are looked for anew; and READDIRPLUS brings
            their attributes. Names that are gone it shows for `cache_seconds` all the same."""
            plus = (flags & _READDIR_PLUS) << 1 if cache_seconds else 0
            found = mfusepy.c_stat()
            entries = sorted(self.operations.readdir(os.fsdecode(path), info.contents.fh))
            # libfuse takes these attributes only where each name has an offset.
            for number, (name, attributes, _) in enumerate(entries, 1):
                if plus and name not in (".", ".."):
                    path_of_it = os.path.join(os.fsdecode(path), name)
                    try:
                        attributes = PassThrough.getattr(self.operations, path_of_it)
                    except FileNotFoundError:
                        continue
                mfusepy.set_st_attrs(found, attributes, use_ns=True)
                if number > offset and fill(buffer, os.fsencode(name), found, number, plus):
                    break
            return 0

    for name, operation in vars(PassThrough).items():
        if not name.startswith("_"):
            setattr(Operations, name, with_faults(name, operation))
    Filesystem(
        Operations(backing, inherited), mountpoint, foreground=True, default_permissions=True
    )


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
