"""A Python for a host that has none of use: uv downloads it here, and it travels there.

The Pythons of uv are those of the project python-build-standalone: they work in any directory, with
any glibc of the last ten years. uv downloads those of other platforms, too. Over there nothing is
needed but bash, tar, gzip and sha256sum.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from humanfriendly import format_size

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import NO_ROOM, random_word
from snakemake_kochi.parent_death import ending_with_this_process
from snakemake_kochi.paths import InstalledPaths
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.pythons import DESCRIBE, Python, described
from snakemake_kochi.remote.refusal import RemoteError
from snakemake_kochi.remote.script import Script

# What uv calls a processor and its glibc, by the machine that uname(2) says.
_PLATFORMS = {
    "x86_64": "x86_64-gnu",
    "aarch64": "aarch64-gnu",
    "armv7l": "armv7-gnueabihf",
    "ppc64le": "powerpc64le-gnu",
    "riscv64": "riscv64gc-gnu",
    "s390x": "s390x-gnu",
}
# They would have uv read the settings of a project.
_OF_PROJECTS = ("UV_PROJECT", "UV_WORKING_DIR")
# Text files into which uv writes where it has put the Python.
_WITH_PATHS = ("lib/python*/_sysconfigdata_*.py", "lib/pkgconfig/*.pc")
_OTHERWISE = "load one in load_env_script, or install one there and name its path with --python"
_MOST_LINES = 8


@dataclass(frozen=True)
class Platform:
    """What a host is: the system and the machine that `uname` says, and its C library as getconf or
    ldd say it."""

    system: str = ""
    machine: str = ""
    libc: str = ""

    @classmethod
    def of(cls, said: str) -> Platform:
        """From the fields that `LOOKING` prints."""
        system, machine, libc, *_ = [*map(str.strip, said.split("\t")), "", ""]
        return cls(system, machine, libc)

    @property
    def problem(self) -> str | None:
        """Why uv has no Python of use for it, for people; None if it should have one."""
        if self.system != "Linux":
            return f"it runs {self.system or 'an unknown system'}, not Linux"
        if "musl" in self.libc:
            return "its C library is musl; glibc is needed"
        if self.machine not in _PLATFORMS:
            return f"its processors are of the kind {self.machine or 'unknown'}"
        return None

    @property
    def request(self) -> str:
        """What uv is asked for: "cpython-3.12-linux-x86_64-gnu".

        With the version that runs here, all that is installed here may travel as it is.
        """
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"cpython-{version}-{self.system.lower()}-{_PLATFORMS[self.machine]}"


# Bash that prints what `Platform.of` reads.
LOOKING = r"""printf 'platform\t%s\t%s\t%s\n' "$(uname -s)" "$(uname -m)" \
  "$(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 | sed -n 1p)"
"""


def uv_words() -> list[str] | None:
    """The words that start uv: the package of this environment, or else the program on PATH; None
    if there is neither."""
    spec = find_spec("uv")
    if spec is not None and spec.origin is not None:
        return [sys.executable, "-P", "-m", "uv"]
    program = shutil.which("uv")
    return None if program is None else [program]


def can_bring(platform: Platform) -> bool:
    """Whether `bring` may work."""
    return platform.problem is None and uv_words() is not None


def advice(platform: Platform) -> str:
    """What to do where a host has no Python of use, for people."""
    if (problem := platform.problem) is not None:
        return f"uv could not bring one: {problem}. So {_OTHERWISE}"
    if uv_words() is None:
        return (
            "uv could bring one from here. Type: pip install uv\n"
            f"Then type the same line again. Or {_OTHERWISE}"
        )
    return f"Without --python, uv would bring one. Or {_OTHERWISE}"


def bring(
    connection: Connection,
    before: str,
    root: str,
    platform: Platform,
    remark: Callable[[str], None],
) -> Python:
    """Let uv download a Python here, and put it into KOCHI_ROOT there; `can_bring` must hold.

    `before`: lines of bash after which KOCHI_ROOT is set; `root` is that as it is known there. The
    Python appears there when it is complete and has run. What an attempt that was cut off has sent
    is deleted. Raises KochiError.
    """
    words = uv_words()
    assert words is not None
    remark(f"uv downloads {platform.request} here ...")
    with tempfile.TemporaryDirectory(prefix="kochi-") as name:
        place = Path(name)
        found = _download(words, platform.request, place)
        there = f"{found.name}-{random_word()}"
        _relocate(found, f"{root}/{InstalledPaths().interpreters}/{there}")
        archive = place / "archive"
        _pack(found, archive)
        remark(f"Sending {found.name}, {format_size(archive.stat().st_size)} ...")
        with archive.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
            content.seek(0)
            answer = connection.run(Script(f"{before}\n{_receiving(there, digest)}"), content)
    if answer.returncode != 0:
        raise _not_stored(found.name, connection.host, answer.stderr)
    pythons = list(described(answer.stdout.decode(errors="surrogateescape").splitlines()))
    for python in pythons:
        if python.problem is None:
            return python
    said = next((python.problem for python in pythons), "it does not say what it is")
    raise RemoteError(
        f"{found.name} cannot be used on {connection.host}: {said}",
        f"So {_OTHERWISE}.",
    )


def _not_stored(name: str, host: str, said: bytes) -> RemoteError:
    lines = said.decode(errors="replace").strip().splitlines()[-_MOST_LINES:]
    hint = f"When the cause is removed, type the same line again. Or {_OTHERWISE}."
    if any(os.strerror(number) in line for number in NO_ROOM for line in lines):
        hint = "Free some space there, or choose another kochi_root. Then type the same line again."
    about = "".join(f"\n  {line}" for line in lines)
    return RemoteError(f"{name} was not put on {host}{about}", hint)


def _download(words: list[str], request: str, place: Path) -> Path:
    """The directory with a Python that uv has downloaded. Raises KochiError."""
    directory = place / "pythons"
    environment = {key: value for key, value in os.environ.items() if key not in _OF_PROJECTS}
    # By variables and not by options, because earlier versions of uv refuse options.
    environment |= {
        "UV_PYTHON_INSTALL_DIR": str(directory),
        "UV_PYTHON_INSTALL_BIN": "0",
        "UV_PYTHON_BIN_DIR": str(place / "bin"),
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        [*words, "python", "install", request],
        # Not in the project, whose pyproject.toml may name another server for what is downloaded.
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
        preexec_fn=ending_with_this_process(),
    )
    found = [
        path
        for path in sorted(directory.glob("*"))
        if not (path.name.startswith(".") or path.is_symlink()) and (path / "bin").is_dir()
    ]
    if done.returncode != 0 or len(found) != 1:
        lines = [line for line in done.stdout.splitlines() if line.strip()][-_MOST_LINES:]
        said = "".join(f"\n  uv: {line}" for line in lines) or f" (status {done.returncode})"
        raise KochiError(
            f"uv did not download {request}{said}",
            "When the cause is removed, type the same line again; a newer uv may know more: "
            "pip install --upgrade uv\nOr name a Python there by its path with --python.",
        )
    return found[0]


def _relocate(python: Path, there: str) -> None:
    """Replace its path here by that there, in what it says about how it was built."""
    for pattern in _WITH_PATHS:
        for path in python.glob(pattern):
            content = path.read_bytes()
            path.write_bytes(content.replace(os.fsencode(python), os.fsencode(there)))


def _pack(python: Path, archive: Path) -> None:
    def packed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        if entry.isdir():
            entry.mode = 0o700
        return None if Path(entry.name).name == "__pycache__" else entry

    with tarfile.open(archive, "w:gz", compresslevel=6) as file:
        file.add(python, ".", filter=packed)


def _receiving(name: str, digest: str) -> str:
    """Bash that stores the archive of its input under a name, and prints what Python that is."""
    directory = shlex.quote(str(InstalledPaths().interpreters))
    describe = f"-I -c {shlex.quote(DESCRIBE)}"
    return f"""\
umask 077
kochi_place="$KOCHI_ROOT"/{directory}
mkdir -p -- "$kochi_place" && cd -- "$kochi_place" || exit 1
# What was left when this host failed in the middle; first, because the disk may be full of it.
find . -maxdepth 1 -name '.*.tmp' -mtime +0 -exec rm -rf {{}} +
kochi_name={shlex.quote(name)}
kochi_aside=.$kochi_name.tmp
mkdir -- "$kochi_aside" || exit 1
trap 'rm -rf -- "$kochi_aside"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$kochi_aside"/archive || exit 1
kochi_digest=$(sha256sum <"$kochi_aside"/archive) || exit 1
if [ "${{kochi_digest%% *}}" != {digest} ]; then
  echo 'it did not arrive as it was sent' >&2
  exit 1
fi
mkdir "$kochi_aside"/python &&
  tar -x -z -o -f "$kochi_aside"/archive -C "$kochi_aside"/python || exit 1
: >"$kochi_aside"/python/used
kochi_python=bin/python3
if ! "$kochi_aside"/python/$kochi_python {describe} . </dev/null >/dev/null; then
  echo 'it does not start there' >&2
  exit 1
fi
mv -- "$kochi_aside"/python "$kochi_name" || exit 1
kochi_python=$kochi_place/$kochi_name/$kochi_python
"$kochi_python" {describe} "$kochi_python" </dev/null
"""
