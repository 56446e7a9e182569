"""The Pythons of another host: what each is, which one to use, and which wheels fit it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

# Those that setup.py admits.
OLDEST, NEWEST = (3, 11), (3, 14)
# The program that prints what a Python is.
DESCRIBE = (Path(__file__).parent / "describe_python.py").read_text(encoding="utf-8")

# The names that platforms had before PEP 600, by the version of glibc.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
# The oldest glibc that any wheel was made for; before AArch64 and others existed, only these were.
_FIRST_GLIBC, _FIRST_GLIBC_OF_OTHERS = 5, 17
_OLD_MACHINES = ("x86_64", "i686")


@dataclass(frozen=True)
class Python:
    """A Python of another host.

    `path` is how it was found, `executable` its own path. `libc` is (2, 36) for glibc 2.36, None
    for another C library. `lacks` are modules that are needed. `markers` are the variables of
    environment markers (PEP 508) there.
    """

    path: str
    executable: str
    version: tuple[int, ...]
    implementation: str
    soabi: str
    libc: tuple[int, int] | None
    lacks: tuple[str, ...]
    has_ensurepip: bool
    has_pip: bool
    markers: Mapping[str, str]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Python:
        """From what `describe_python.py` prints."""
        found = re.fullmatch(r"glibc (\d+)\.(\d+).*", data["libc"])
        return cls(
            path=str(data["path"]),
            executable=str(data["executable"]),
            version=tuple(map(int, data["version"])),
            implementation=str(data["implementation"]),
            soabi=str(data["soabi"]),
            libc=None if found is None else (int(found[1]), int(found[2])),
            lacks=tuple(map(str, data["lacks"])),
            has_ensurepip=bool(data["has_ensurepip"]),
            has_pip=bool(data["has_pip"]),
            markers={str(key): str(value) for key, value in data["markers"].items()},
        )

    @property
    def minor(self) -> tuple[int, int]:
        return self.version[0], self.version[1]

    @property
    def text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def problem(self) -> str | None:
        """Why it cannot be used, for people; None if it can."""
        if not OLDEST <= self.minor <= NEWEST:
            return f"Python {self.text}"
        if self.implementation != "cpython":
            return f"{self.implementation} {self.text}, not CPython"
        if self.libc is None:
            return f"Python {self.text}, with another C library than glibc"
        if self.lacks:
            return f"Python {self.text} without {', '.join(self.lacks)}"
        return None

    @property
    def abi(self) -> str:
        """The tag of its ABI: cp311, or cp313t if it has no global lock."""
        return f"cp{self.soabi.split('-')[1]}"

    @cached_property
    def platforms(self) -> tuple[str, ...]:
        """The tags of the platforms whose wheels work there, the newest first (PEP 600)."""
        assert self.libc is not None
        machine = self.markers["platform_machine"]
        first = _FIRST_GLIBC if machine in _OLD_MACHINES else _FIRST_GLIBC_OF_OTHERS
        found = []
        for minor in range(self.libc[1], first - 1, -1):
            found.append(f"manylinux_2_{minor}_{machine}")
            if minor in _LEGACY:
                found.append(f"{_LEGACY[minor]}_{machine}")
        return (*found, f"linux_{machine}")

    @cached_property
    def tags(self) -> frozenset[Tag]:
        """The tags of all wheels that work there."""
        interpreter = f"cp{self.version[0]}{self.version[1]}"
        own = cpython_tags(self.minor, [self.abi], self.platforms)
        return frozenset([*own, *compatible_tags(self.minor, interpreter, self.platforms)])

    def takes(self, file_name: str) -> bool:
        """Whether the wheel with this name works there."""
        try:
            _, _, _, tags = parse_wheel_filename(file_name)
        except InvalidWheelFilename:
            return False
        return not tags.isdisjoint(self.tags)


def described(lines: Sequence[str]) -> Iterator[Python]:
    """The Pythons that described themselves in these lines, each once."""
    seen = set()
    for line in lines:
        try:
            found = Python.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a program of that name that is no Python
        if found.executable not in seen:
            seen.add(found.executable)
            yield found


def names_to_try() -> list[str]:
    """The names of programs that may be a Python of use, the best first.

    With the version that runs here, all that is installed here may travel as it is.
    """
    versions = sorted(range(OLDEST[1], NEWEST[1] + 1), reverse=True)
    versions.sort(key=lambda minor: minor != sys.version_info.minor)
    return [*(f"python{OLDEST[0]}.{minor}" for minor in versions), "python3"]
