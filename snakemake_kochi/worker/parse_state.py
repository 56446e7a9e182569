"""What the parse of a workflow reads and changes in its process, and what each copy has of its own.

These are the files and directories that the workflow reads, random numbers and temporary
directories, and the environment variables of `variables.py`. The parse takes place between `begin`
and `end`.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import random
import site
import sys
import sysconfig
import tempfile
import weakref
from collections.abc import Callable, Iterable
from typing import Any

# (time of the last change in ns, size), or None for a missing path.
_State = tuple[int, int] | None

_LISTINGS = ("os.listdir", "os.scandir")
# These search each directory of sys.path for modules, even directories in which jobs write. The
# modules that the import system finds are checked one by one after the parse.
_MODULE_SEARCH = (
    "<frozen importlib",
    os.path.join(os.path.dirname(importlib.__file__), ""),
    pkgutil.__file__,
)
_O_MAKES = os.O_CREAT | os.O_TRUNC
# For each event, the index of the argument that is created or removed.
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

# A private part of Python, unchanged since 3.9.
_finalizers: Any = weakref.finalize._registry  # type: ignore[attr-defined]


class Reads:
    """From `begin` to `end`, notes the paths that the process reads.

    These are the files that it opens for reading, the directories that it lists, and the paths
    whose existence it tests, except paths of installed software. It sees what Python reads, but not
    files that an extension opens by itself or that other programs read.
    """

    def __init__(self, ignored: Iterable[str] = ()) -> None:
        """Note nothing yet; `ignored`: directories in which it notes nothing."""
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
        sys.addaudithook(self._audit)  # permanent: Python cannot remove an audit hook
        os.stat = self._noting(_stat)
        os.lstat = self._noting(_lstat)  # glob uses it for a name without wildcards

    def end(self) -> None:
        os.stat, os.lstat = _stat, _lstat
        # Files that the parse itself made, in a cache for example, count in their present state.
        for path in self._written:
            if path in self._contents:
                self._contents[path] = _state_of(path)
            if path in self._existence:
                self._existence[path] = _state_of(path) is not None
        self._is_active = False
        for module in list(sys.modules.values()):
            # sys.modules may contain any object, also one with a computed __file__.
            file = vars(module).get("__file__") if hasattr(module, "__dict__") else None
            if isinstance(file, str):
                self._note_content(file)

    def changed(self) -> str | None:
        """A noted path that has changed, or None."""
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
        # The first state counts: a change between two reads then counts as a change.
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
                # lstat may succeed for a link without a target.
                is_there = stat is _stat or _state_of(absolute) is not None
                self._existence.setdefault(absolute, is_there)
            return found

        return noting_stat

    def _absolute(self, path: object) -> str | None:
        """The absolute path, or None for a path that must not be noted."""
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
    """The directories of Python and of the software installed for it.

    These do not change under a running workflow. The prefixes themselves are not included: a
    project may contain its environment, or be below /usr.
    """
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = {path for name in names if (path := sysconfig.get_path(name))}
    return paths | set(site.getsitepackages()) | {site.getusersitepackages()}


class Randomness:
    """Gives each copy random numbers of its own, as separate processes would have.

    Between `begin` and `end` a workflow is parsed, which may seed generators.
    """

    def __init__(self) -> None:
        self._is_seeded = False
        self._state: Any = None
        self._seed = random.seed
        self._known: list[Any] = []

    def begin(self) -> None:
        with tempfile.NamedTemporaryFile():  # this makes tempfile's own generator
            self._known = _generators()
        random.seed = self._noting_seed

    def end(self) -> None:
        random.seed = self._seed
        self._state = random.getstate() if self._is_seeded else None

    @property
    def has_others(self) -> bool:
        """Whether the workflow has made generators of its own.

        It is unknown whether they were seeded. If not, each job must have a generator of its own.
        """
        known = {id(generator) for generator in self._known}
        return any(id(generator) not in known for generator in _generators())

    def _noting_seed(self, *arguments: Any, **options: Any) -> None:
        self._seed(*arguments, **options)
        self._is_seeded = True

    def renew(self) -> None:
        """Renew the generators; call this in a copy."""
        # Python seeds again after a fork; a workflow that seeds expects the numbers of its seed.
        if self._state is not None:
            random.setstate(self._state)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and not _is_seeded(numpy):
            numpy.seed()  # NumPy does not seed again after a fork


def _generators() -> list[Any]:
    """All generators except NumPy's global one, which `Randomness.renew` handles."""
    numpy = sys.modules.get("numpy.random")
    kinds: tuple[type, ...] = (random.Random,)
    own = None
    if numpy is not None:
        kinds = (random.Random, numpy.BitGenerator)
        own = numpy.mtrand._rand._bit_generator
    # Compare by type: proxy objects import or compute their target on any other access.
    found = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    return [one for one in found if one is not own and not isinstance(one, random.SystemRandom)]


def _is_seeded(numpy_random: Any) -> bool:
    """Whether NumPy's `seed` was called: only then the generator has no other origin."""
    try:
        return numpy_random.get_bit_generator().seed_seq is None
    except AttributeError:  # before NumPy 1.25
        return False


def keep_temporary_directories() -> None:
    """Keep the temporary directories of the zygote; call this in the zygote.

    All jobs use these directories, so the end of one job must not remove them.
    """
    for finalizer in list(_finalizers):
        finalizer.atexit = False
