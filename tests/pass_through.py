"""The calls of FUSE, done on a directory: what all filesystems of tests and benchmarks share."""

from __future__ import annotations

import os
import stat

# utimensat(2), as libfuse passes it on: in the place of nanoseconds, with zero seconds.
_UTIME_NOW = (1 << 30) - 1


class PassThrough:
    """FUSE's operations on a directory `root`. Paths begin with a slash.

    `inherited`: permissions that all that is made has besides those it is to have.
    """

    def __init__(self, root: str, inherited: int = 0) -> None:
        self._root = root
        self._inherited = inherited

    def _at(self, path: str) -> str:
        return self._root + path

    def getattr(self, path: str, handle: int | None = None) -> dict[str, int]:
        found = os.fstat(handle) if handle is not None else os.lstat(self._at(path))
        names = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
        times = ("st_atime", "st_mtime", "st_ctime")
        in_nanoseconds = {name: getattr(found, f"{name}_ns") for name in times}
        return {name: getattr(found, name) for name in names} | in_nanoseconds

    def readdir(self, path: str, handle: int) -> list[tuple[str, dict[str, int], int]]:
        with os.scandir(self._at(path)) as entries:
            found = [(each.name, each.inode(), _type_of(each)) for each in entries]
        # An entry without an inode number is one that is not there.
        every = [(".", 1, stat.S_IFDIR), ("..", 1, stat.S_IFDIR), *found]
        return [(name, {"st_ino": inode, "st_mode": mode}, 0) for name, inode, mode in every]

    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._at(path), mode)
        self._adopt(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))

    # FUSE's arguments: the new name comes first.
    def link(self, target: str, source: str) -> None:
        os.link(self._at(source), self._at(target), follow_symlinks=False)

    def symlink(self, target: str, source: str) -> None:
        os.symlink(source, self._at(target))

    def mknod(self, path: str, mode: int, device: int) -> None:
        os.mknod(self._at(path), mode, device)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._at(path), stat.S_IMODE(mode))

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self._at(path), uid, gid, follow_symlinks=False)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        if times is None or _UTIME_NOW in times:
            os.utime(self._at(path), follow_symlinks=False)
        else:
            os.utime(self._at(path), ns=times, follow_symlinks=False)

    def truncate(self, path: str, length: int, handle: int | None = None) -> None:
        os.truncate(self._at(path) if handle is None else handle, length)

    def open(self, path: str, flags: int) -> int:
        # The kernel gives the place of each write, also where the file was opened to append.
        return os.open(self._at(path), flags & ~os.O_APPEND)

    def create(self, path: str, mode: int, _: object = None) -> int:
        handle = os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        self._adopt(path)
        return handle

    def _adopt(self, path: str) -> None:
        if self._inherited:
            mode = stat.S_IMODE(os.lstat(self._at(path)).st_mode)
            os.chmod(self._at(path), mode | self._inherited)

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        return os.pread(handle, size, offset)

    def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
        return os.pwrite(handle, data, offset)

    def flush(self, path: str, handle: int) -> None:
        pass

    def release(self, path: str, handle: int) -> None:
        os.close(handle)

    def fsync(self, path: str, datasync: int, handle: int) -> None:
        os.fsync(handle)

    def fsyncdir(self, path: str, datasync: int, handle: int) -> None:
        pass

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree")
        return {name: getattr(found, name) for name in (*names, "f_favail", "f_namemax")}


def _type_of(entry: os.DirEntry[str]) -> int:
    """The type as in `st_mode`, or 0: it is not known, and whoever wants to know it asks."""
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0
