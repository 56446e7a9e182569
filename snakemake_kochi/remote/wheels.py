"""Wheels made from what is installed here, so that a host without an index gets the same.

The format is that of the specification "Binary distribution format" of the Python Packaging User
Guide. A wheel is made from the files that the RECORD of an installed distribution lists; that of
this package from its directories, because an editable installation lists none.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import snakemake_kochi
from snakemake_kochi.errors import KochiError
from snakemake_kochi.resources import profiles_directory, workflow_directory

OWN_NAME = "snakemake-executor-plugin-kochi"
_OWN_PACKAGES = (
    "snakemake_kochi",
    "snakemake_executor_plugin_kochi",
    "snakemake_logger_plugin_kochi",
)
# Of an installation and not of a distribution.
_NOT_PACKED = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_COMPRESSION = 1  # the fastest: a tenth larger than the best, and many times as fast
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # the same content makes the same wheel


class NotPackableError(KochiError):
    """No wheel can be made from an installed distribution; the message says why."""


@dataclass(frozen=True)
class InstalledWheel:
    """A wheel that can be made from an installed distribution.

    `tags` are its compatibility tags. `files` has the path of each file, and its name in the wheel.
    """

    name: str
    version: str
    tags: tuple[str, ...]
    files: tuple[tuple[Path, str], ...]
    metadata: str  # the name of its .dist-info directory
    is_pure: bool
    build: str = ""

    @property
    def file_name(self) -> str:
        """The name of its file, with all tags in the compressed form."""
        parts = zip(*(tag.split("-") for tag in self.tags), strict=True)
        tags = "-".join(".".join(sorted(set(part))) for part in parts)
        build = f"-{self.build}" if self.build else ""
        return f"{self.metadata.removesuffix('.dist-info')}{build}-{tags}.whl"

    @cached_property
    def digest(self) -> str:
        """A short digest of the names and contents of its files."""
        whole = hashlib.sha256()
        for path, name in sorted(self.files, key=lambda each: each[1]):
            whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return whole.hexdigest()[:10]

    def write(self, directory: Path) -> Path:
        """Make the wheel in a directory. Raises OSError."""
        target = directory / self.file_name
        record = [f"{self.metadata}/RECORD,,"]
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as file:
            for name, content, mode in self._contents():
                entry = zipfile.ZipInfo(name, _EARLIEST)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (0o100000 | mode) << 16
                file.writestr(entry, content)
                record.append(_record_line(name, content))
            file.writestr(
                zipfile.ZipInfo(f"{self.metadata}/RECORD", _EARLIEST), "\n".join([*record, ""])
            )
        return target

    def _contents(self) -> Iterator[tuple[str, bytes, int]]:
        for path, name in self.files:
            content = path.read_bytes()
            if ".data/scripts/" in name:
                # The form that an installer replaces by its own Python.
                content = re.sub(rb"\A#!.*?python.*", b"#!python", content)
            yield name, content, path.stat().st_mode & 0o755 | 0o644
        wheel = [
            "Wheel-Version: 1.0",
            f"Generator: snakemake_kochi {snakemake_kochi.__version__}",
            f"Root-Is-Purelib: {str(self.is_pure).lower()}",
            *([f"Build: {self.build}"] if self.build else []),
            *(f"Tag: {tag}" for tag in self.tags),
        ]
        yield f"{self.metadata}/WHEEL", "\n".join([*wheel, ""]).encode(), 0o644


def _record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    quoted = f'"{name}"' if "," in name else name
    return f"{quoted},sha256={digest},{len(content)}"


def installed_wheel(found: Distribution) -> InstalledWheel:
    """The wheel that an installed distribution came from. Raises NotPackableError."""
    name, files = found.metadata["Name"], found.files
    text = found.read_text("WHEEL")
    if text is None and (installed := found.read_text("installed-files.txt")) is not None:
        return _wheel_of_egg(found, installed.split("\n"))
    if text is None or files is None:
        raise NotPackableError(f"{name} was not installed from a wheel")
    tags = tuple(re.findall(r"^Tag: *(\S+)", text, re.MULTILINE))
    directory = next((f.parts[0] for f in files if f.parts[0].endswith(".dist-info")), "")
    if not tags or not directory:
        raise NotPackableError(f"{name} is installed without its tags or its metadata")
    entry_points = {each.name for each in found.entry_points if each.group.endswith("_scripts")}
    packed = []
    for file in files:
        if "__pycache__" in file.parts or file.suffix == ".pyc":
            continue
        if file.parts[0] == directory and file.name in (*_NOT_PACKED, "WHEEL"):
            continue
        path = Path(str(file.locate()))
        if not path.is_file():
            raise NotPackableError(f"{name} lacks its file {file}")
        if ".." not in file.parts:
            packed.append((path, file.as_posix()))
        elif not (path.parent.name == "bin" and path.name in entry_points):
            packed.append((path, _outside(path, directory, name)))
    return InstalledWheel(
        name=name,
        version=found.version,
        tags=tags,
        files=tuple(packed),
        metadata=directory,
        is_pure=re.search(r"^Root-Is-Purelib: *true", text, re.MULTILINE | re.I) is not None,
    )


def _wheel_of_egg(found: Distribution, files: list[str]) -> InstalledWheel:
    """The wheel of a distribution that its own `setup.py install` has installed.

    pip before 23.1 does so with a source if the package `wheel` is not there, as in a new
    environment of Debian 12. `files` are relative to the directory of its metadata, .egg-info.
    Raises NotPackableError.
    """
    name, place = found.metadata["Name"], Path(str(found.locate_file("")))
    said = found.read_text("PKG-INFO")
    eggs = (each for each in place.glob("*.egg-info/PKG-INFO") if each.read_text() == said)
    if (egg := next(eggs, None)) is None:
        raise NotPackableError(f"{name} is installed without its metadata")
    metadata = f"{re.sub(r'[^A-Za-z0-9.]+', '_', name)}-{found.version}.dist-info"
    packed = [(egg, f"{metadata}/METADATA")]
    if (entry_points := egg.with_name("entry_points.txt")).is_file():
        packed.append((entry_points, f"{metadata}/entry_points.txt"))
    scripts = {each.name for each in found.entry_points if each.group.endswith("_scripts")}
    for path in (Path(os.path.normpath(egg.parent / file)) for file in files if file):
        if path.suffix == ".pyc" or path.parent == egg.parent or path.name in scripts:
            continue
        if path.suffix == ".so" or not path.is_file():
            raise NotPackableError(f"{name} was compiled here, or lacks its file {path}")
        inside = path.is_relative_to(place)
        relative = path.relative_to(place).as_posix() if inside else ""
        packed.append((path, relative or _outside(path, metadata, name)))
    tags = ("py3-none-any",)
    return InstalledWheel(name, found.version, tags, tuple(packed), metadata, is_pure=True)


def _outside(path: Path, directory: str, name: str) -> str:
    """The name in a wheel of a file that is installed outside of site-packages."""
    real = path.parent.resolve() / path.name
    data = directory.replace(".dist-info", ".data")
    scripts = Path(sysconfig.get_path("scripts")).resolve()
    if real.parent == scripts:
        return f"{data}/scripts/{real.name}"
    prefix = Path(sys.prefix).resolve()
    headers = prefix / "include" / "site" / f"python{sysconfig.get_python_version()}"
    if real.is_relative_to(headers):
        return f"{data}/headers/{'/'.join(real.relative_to(headers).parts[1:])}"
    if real.is_relative_to(prefix):
        return f"{data}/data/{real.relative_to(prefix).as_posix()}"
    raise NotPackableError(f"{name} has the file {path} outside of its environment")


def own_wheel() -> InstalledWheel:
    """The wheel of this package as it runs here, whatever it was installed from.

    Its build number is the digest of its content: two checkouts of one version are two builds.
    Raises KochiError.
    """
    try:
        found = distribution(OWN_NAME)
    except PackageNotFoundError:
        raise KochiError(
            f"{OWN_NAME} is not installed here: {Path(snakemake_kochi.__file__).parent} runs as "
            "it is",
            "Install it: in a clone of snakemake_kochi, type: pip install --editable .",
        ) from None
    version = snakemake_kochi.__version__
    metadata = f"{OWN_NAME.replace('-', '_')}-{version}.dist-info"
    files = [*_package_files(), *_own_metadata(found, metadata)]
    tags = ("py3-none-any",)
    wheel = InstalledWheel(OWN_NAME, version, tags, tuple(files), metadata, is_pure=True)
    return replace(wheel, build=f"0{wheel.digest}")


def identity() -> str:
    """The version of this package, and a digest of its content: "0.1.0-1f3a90cc27"."""
    wheel = own_wheel()
    return f"{wheel.version}-{wheel.build[1:]}"


def _package_files() -> Iterator[tuple[Path, str]]:
    package = Path(snakemake_kochi.__file__).resolve().parent
    for name in _OWN_PACKAGES:
        yield from _files(package.parent / name, name)
    for directory in (workflow_directory(), profiles_directory()):
        if not directory.is_relative_to(package):  # a checkout
            yield from _files(directory, f"{package.name}/{directory.name}")


def _files(directory: Path, name: str) -> Iterator[tuple[Path, str]]:
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        if "__pycache__" in parts or any(part.startswith(".") for part in parts):
            continue
        if path.is_file() and path.suffix not in (".pyc", ".pyo"):
            yield path, "/".join([name, *parts])


def _own_metadata(found: Distribution, directory: str) -> Iterator[tuple[Path, str]]:
    for file in found.files or ():
        is_metadata = re.fullmatch(r".*\.(dist|egg)-info", file.parts[0]) is not None
        path = Path(str(file.locate()))
        if is_metadata and file.name not in (*_NOT_PACKED, "WHEEL") and path.is_file():
            yield path, "/".join([directory, *file.parts[1:]])
