"""What a workflow reads while it is parsed, and whether that is still as it was."""

from __future__ import annotations

import importlib
import os
import pkgutil
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable
from typing import Any

# (time of the last change in ns, size), or None for what is not there.
_State = tuple[int, int] | None

_LISTINGS = ("os.listdir", "os.scandir")
# These look for modules in each directory of sys.path, also in those in which jobs write. What the
# import system finds there is looked at after the parse, module by module.
_MODULE_SEARCH = (
    "<frozen importlib",
    os.path.join(os.path.dirname(importlib.__file__), ""),
    pkgutil.__file__,
)
_O_MAKES = os.O_CREAT | os.O_TRUNC
# Which argument of an event is what comes into being, or goes.
_WRITES = {
    "os.link": 1,
    "os.mkdir": 0,
    "os.remove": 0,
    "os.rename": 1,
    "os.rmdir": 0,
    "os.symlink": 1,
}
_stat = os.stat
_lstat = os.lstat


class Reads:
    """From `begin` to `end`, notes the files that the process opens for reading, the directories it
    lists, and the paths whose existence it asks for; of installed software it notes nothing.

    It sees what Python does, and neither what an extension opens by itself nor what is read by
    programs that are started.
    """

    def __init__(self, ignored: Iterable[str] = ()) -> None:
        """`ignored`: directories in which nothing is noted."""
        self._contents: dict[str, _State] = {}
        self._existence: dict[str, bool] = {}
        self._written: set[str] = set()
        self._is_active = False
        kept = {*_installed(), "/proc", "/sys", "/dev", *ignored}
        self._ignored = tuple(os.path.join(os.path.abspath(path), "") for path in kept)

    def __len__(self) -> int:
        return len(self._contents) + len(self._existence)

    def begin(self) -> None:
        self._is_active = True
        sys.addaudithook(self._audit)  # for good: there is no way to remove one
        os.stat = self._noting(_stat)
        os.lstat = self._noting(_lstat)  # by which glob looks for a name without wildcards

    def end(self) -> None:
        os.stat, os.lstat = _stat, _lstat
        # What it made itself, in a cache say, is as it is to be.
        for path in self._written:
            if path in self._contents:
                self._contents[path] = _state_of(path)
            if path in self._existence:
                self._existence[path] = _state_of(path) is not None
        self._is_active = False
        for module in list(sys.modules.values()):
            # Anything may be there, and have a __file__ that is computed.
            file = vars(module).get("__file__") if hasattr(module, "__dict__") else None
            if isinstance(file, str):
                self._note_content(file)

    def changed(self) -> str | None:
        """One of them that is not as it was, or None."""
        for path, state in self._contents.items():
            if _state_of(path) != state:
                return path
        for path, was_there in self._existence.items():
            if (_state_of(path) is not None) != was_there:
                return path
        return None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_active:
            return
        if event == "open":
            path, _, flags = arguments
            if flags & os.O_ACCMODE != os.O_RDONLY or flags & _O_MAKES:
                self._note_write(path)
                return
        elif event in _LISTINGS:
            path = "." if arguments[0] is None else arguments[0]
        elif event in _WRITES:
            self._note_write(arguments[_WRITES[event]])
            return
        else:
            return
        if not sys._getframe(1).f_code.co_filename.startswith(_MODULE_SEARCH):
            self._note_content(path)

    def _note_write(self, path: object) -> None:
        if (absolute := self._absolute(path)) is not None:
            self._written |= {absolute, os.path.dirname(absolute)}

    def _note_content(self, path: object) -> None:
        # The first look counts: what is changed between two reads is then seen as changed.
        if (absolute := self._absolute(path)) is not None and absolute not in self._contents:
            self._contents[absolute] = _state_of(absolute)

    def _noting(self, stat: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def noting_stat(path: Any, **options: Any) -> os.stat_result:
            absolute = None if options.get("dir_fd") is not None else self._absolute(path)
            try:
                found = stat(path, **options)
            except OSError:
                if absolute is not None:
                    self._existence.setdefault(absolute, False)
                raise
            if absolute is not None:
                # There may be a link, and nothing at its end.
                is_there = stat is _stat or _state_of(absolute) is not None
                self._existence.setdefault(absolute, is_there)
            return found

        return noting_stat

    def _absolute(self, path: object) -> str | None:
        """None for what is not to be noted."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None  # a file descriptor
        absolute = os.path.abspath(os.fsdecode(path))
        return None if os.path.join(absolute, "").startswith(self._ignored) else absolute


def _state_of(path: str) -> _State:
    try:
        found = _stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size


def _installed() -> set[str]:
    """Where Python and what was installed for it are: nobody changes that under a running
    workflow. Not the prefixes themselves: a project may have its environment in itself, or be
    below /usr."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = {path for name in names if (path := sysconfig.get_path(name))}
    return paths | set(site.getsitepackages()) | {site.getusersitepackages()}
