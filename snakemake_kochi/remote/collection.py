"""What a Python on another host needs so that this package works there, and the wheels for it.

The versions are those that are installed here. A wheel is made from an installed distribution if
that works there, too; otherwise pip fetches the wheel of that version for the Python there. If
there is none, pip fetches the newest version that the other distributions accept.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from email.parser import HeaderParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename

from snakemake_kochi.errors import KochiError
from snakemake_kochi.remote.pythons import Python
from snakemake_kochi.remote.wheels import (
    OWN_NAME,
    InstalledWheel,
    NotPackableError,
    installed_wheel,
    own_wheel,
)

_PIP = "pip"


@dataclass(frozen=True)
class Wanted:
    """One distribution that is needed there.

    `wheel` can be made here. Else `version` is the one that is installed here, if any. `specifiers`
    are what the others accept.
    """

    name: str
    version: str | None = None
    wheel: InstalledWheel | None = None
    specifiers: SpecifierSet = field(default_factory=SpecifierSet)

    @property
    def requirement(self) -> str:
        """The words for pip."""
        return f"{self.name}=={self.version}" if self.version else f"{self.name}{self.specifiers}"

    def is_met_by(self, file_name: str, python: Python) -> bool:
        """Whether a wheel of this name is the distribution, and works there."""
        if not python.takes(file_name):
            return False
        name, version, build, _ = parse_wheel_filename(file_name)
        if name != canonicalize_name(self.name):
            return False
        if self.wheel is not None and self.wheel.build:
            return file_name == self.wheel.file_name
        if build:
            return False
        return str(version) == self.version if self.version else version in self.specifiers


class Collection:
    """The distributions that a Python needs. `wanted` grows while requirements are followed."""

    def __init__(self, python: Python) -> None:
        self._python = python
        self._seen: dict[NormalizedName, set[str]] = {}
        self.wanted: dict[NormalizedName, Wanted] = {}
        own = own_wheel()
        self.wanted[canonicalize_name(OWN_NAME)] = Wanted(OWN_NAME, own.version, own)
        self._follow(distribution(OWN_NAME).requires or (), frozenset())
        if not python.has_ensurepip:
            self._want(Requirement(_PIP))

    def _follow(self, requires: Iterable[str], extras: frozenset[str]) -> None:
        for text in requires:
            requirement = _requirement(text)
            if requirement is None:
                continue
            marker = requirement.marker
            if marker is None or any(
                marker.evaluate({**self._python.markers, "extra": extra}) for extra in ("", *extras)
            ):
                self._want(requirement)

    def _want(self, requirement: Requirement) -> None:
        name = canonicalize_name(requirement.name)
        if name == canonicalize_name(OWN_NAME):
            return
        if name not in self.wanted:
            self.wanted[name] = self._wanted(requirement.name)
        known = self.wanted[name]
        specifiers = known.specifiers & requirement.specifier
        self.wanted[name] = replace(known, specifiers=specifiers)
        extras = set(requirement.extras) - self._seen.get(name, set())
        if name in self._seen and not extras:
            return
        self._seen.setdefault(name, set()).update(extras)
        if known.version is not None and (found := _installed(requirement.name)) is not None:
            self._follow(found.requires or (), frozenset(extras))

    def _wanted(self, name: str) -> Wanted:
        found = _installed(name)
        if found is None or not _accepts(found.metadata.json.get("requires_python"), self._python):
            return Wanted(name)
        # The pip of another Python may not work there.
        if canonicalize_name(name) == _PIP and self._python.minor != sys.version_info[:2]:
            return Wanted(name)
        try:
            wheel = installed_wheel(found)
        except NotPackableError:
            return Wanted(name, found.version)
        fits = self._python.takes(wheel.file_name)
        # linux_x86_64 says that it was compiled here, for the libraries of this computer.
        is_portable = not any(tag.rpartition("-")[2].startswith("linux_") for tag in wheel.tags)
        return Wanted(name, found.version, wheel if fits and is_portable else None)

    def missing(self, file_names: Iterable[str]) -> list[Wanted]:
        """What is wanted and not among these wheels."""
        names = list(file_names)
        return [
            each
            for each in self.wanted.values()
            if not any(each.is_met_by(name, self._python) for name in names)
        ]

    def collect(
        self, names_there: Sequence[str], directory: Path, remark: Callable[[str], None]
    ) -> list[Path | InstalledWheel]:
        """The wheels that are missing there: those that can be made, and those that were fetched.

        The latter are in a directory. Raises KochiError when one cannot be had.
        """
        found: dict[NormalizedName, Path | InstalledWheel] = {}
        while missing := [
            each for each in self.missing(names_there) if canonicalize_name(each.name) not in found
        ]:
            for each in missing:
                if each.wheel is not None:
                    found[canonicalize_name(each.name)] = each.wheel
            to_fetch = [each for each in missing if each.wheel is None]
            if to_fetch:
                names = ", ".join(each.name for each in to_fetch)
                remark(f"Fetching for Python {self._python.text}: {names}")
            for name, path in self._fetch(to_fetch, directory).items():
                found[name] = path
                # Another version than the one here may require other things.
                self._follow(_requires_of(path), frozenset(self._seen.get(name, ())))
        return list(found.values())

    def _fetch(self, wanted: Sequence[Wanted], directory: Path) -> dict[NormalizedName, Path]:
        if not wanted:
            return {}
        if find_spec(_PIP) is None:
            names = ", ".join(each.name for each in wanted)
            raise KochiError(
                f"pip is not installed here, and wheels of these are needed: {names}",
                f"Type: {sys.executable} -m ensurepip",
            )
        with tempfile.TemporaryDirectory(dir=directory) as aside:
            place = Path(aside)
            if self._download([each.requirement for each in wanted], place) is not None:
                for each in wanted:
                    self._fetch_one(each, place)
            fetched = {}
            for path in sorted(place.glob("*.whl")):
                name, *_ = parse_wheel_filename(path.name)
                fetched[name] = path.rename(directory / path.name)
        return fetched

    def _fetch_one(self, wanted: Wanted, place: Path) -> None:
        """A wheel of the version here, or made from its source, or of another version."""
        if (problem := self._download([wanted.requirement], place)) is None:
            return
        if wanted.version is not None:
            if self._make(wanted.requirement, place):
                return
            if self._download([f"{wanted.name}{wanted.specifiers}"], place) is None:
                return
        raise KochiError(
            f"there is no wheel of {wanted.requirement} for Python {self._python.text} there:\n"
            f"{problem}",
            "Is there an index that pip can reach here? Another Python there, which you name with "
            "--python, may have one.",
        )

    def _download(self, requirements: Sequence[str], place: Path) -> str | None:
        python = self._python
        words = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(place)]
        words += ["--implementation", "cp", "--python-version", python.text]
        words += [f"--abi={abi}" for abi in (python.abi, "abi3", "none")]
        words += [f"--platform={platform}" for platform in python.platforms]
        return _pip([*words, *requirements])

    def _make(self, requirement: str, place: Path) -> bool:
        """Make a wheel from the source; return whether it has nothing compiled, so that it works
        there."""
        with tempfile.TemporaryDirectory(dir=place) as aside:
            if _pip(["wheel", "--no-deps", "--wheel-dir", aside, requirement]) is not None:
                return False
            for path in Path(aside).glob("*-none-any.whl"):
                path.rename(place / path.name)
                return True
        return False


def _pip(words: Sequence[str]) -> str | None:
    """Run pip here; return what it says if it fails."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        *words,
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
    )
    if done.returncode == 0:
        return None
    return "\n".join(done.stderr.strip().splitlines()[-3:]) or f"exit status {done.returncode}"


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None  # as pip does for metadata that is installed


def _accepts(requires_python: object, python: Python) -> bool:
    try:
        return python.text in SpecifierSet(str(requires_python or ""))
    except InvalidSpecifier:
        return True


def _requires_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            each for each in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)
        )
        metadata = HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    return metadata.get_all("Requires-Dist") or []
