"""Puts this package on a machine behind a login host: its own version, and all that it needs.

One session looks at the host, one takes a Python if it has none, one asks its own index if it has
one, and one takes the wheels that are still missing there, as one stream, and installs them. All of
them use one login.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from humanfriendly import format_size
from humanfriendly.text import pluralize

from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import EnvironmentPaths, InstalledPaths
from snakemake_kochi.remote.collection import Collection, Wanted
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.environment import Environment
from snakemake_kochi.remote.interpreters import LOOKING, Platform, advice, bring, can_bring
from snakemake_kochi.remote.pythons import (
    DESCRIBE,
    NEWEST,
    OLDEST,
    Python,
    described,
    names_to_try,
)
from snakemake_kochi.remote.refusal import RemoteError
from snakemake_kochi.remote.script import Script
from snakemake_kochi.remote.there import CORRECT_ROOT, unfit
from snakemake_kochi.remote.version import NOT_SET_UP
from snakemake_kochi.remote.wheels import InstalledWheel, identity

_INSTALL = (Path(__file__).parent / "install_package.py").read_text(encoding="utf-8")
# These load compiled code of the most important libraries, and leave the bytecode of what is used:
# to compile everything takes longer than the rest.
_TRIAL = "import matplotlib.pyplot, numpy, pandas, psutil, snakemake.cli, snakemake_kochi.cli, yaml"
_PATHS = InstalledPaths()
# Bytes; a larger wheel comes faster from an index there than over the line of a laptop.
_LARGE = 1_000_000
_MEGABYTES_NEEDED = 500
_TELLS_AFTER = 10.0  # seconds
Remark = Callable[[str], None]


@dataclass(frozen=True)
class Host:
    """What is on a login host. `root` is KOCHI_ROOT there; `installed` are the identities of the
    versions that are there, `own` is the one of the package that runs here. `is_executable`:
    whether programs in KOCHI_ROOT are executed; None if that was not tried."""

    root: str
    git: str
    pythons: tuple[Python, ...]
    not_pythons: tuple[str, ...]
    wheels: tuple[str, ...]
    installed: tuple[str, ...]
    own: str
    free_megabytes: int | None
    is_executable: bool | None
    platform: Platform

    @property
    def is_set_up(self) -> bool:
        return self.own in self.installed

    @property
    def lacking(self) -> list[str]:
        """What is missing or too little there, with what to do, for people."""
        found = []
        if not self.git:
            found.append("git: it is not on PATH. Install it, or load it in load_env_script")
        if self.python is None and not self.is_set_up and not can_bring(self.platform):
            found.append(no_python(self))
        free = self.free_megabytes
        if not self.is_set_up and free is not None and free < _MEGABYTES_NEEDED:
            found.append(
                f"disk space: {free} MB are free in {self.root}, and some {_MEGABYTES_NEEDED} MB "
                "are needed. Free some, or choose another kochi_root"
            )
        return found

    @property
    def python(self) -> Python | None:
        """The Python to use."""
        return next((each for each in self.pythons if each.problem is None), None)


def no_python(host: Host) -> str:
    """That there is no Python to use, and what to do, for people."""
    return f"Python: {_what_was_found(host)}\n{advice(host.platform)}"


def _what_was_found(host: Host) -> str:
    seen = "".join(f"\n  {each.executable}: {each.problem}" for each in host.pythons)
    seen += "".join(f"\n  {each}: not a Python that starts" for each in host.not_pythons)
    return f"none from {_dotted(OLDEST)} to {_dotted(NEWEST)} was found there{seen}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


# ---- what is there


def look(
    connection: Connection, environment: Environment, python: str | None, tries: bool = False
) -> Host:
    """What is on the host; with `python`, only that Python is looked at.

    `tries`: make a directory in KOCHI_ROOT, try whether programs in it are executed, and keep the
    environment for other sessions. Raises RemoteError.
    """
    answer = connection.run(environment.first(_looking(python, tries), keep=tries))
    if answer.returncode != 0:
        raise unfit(answer, f"looking at what is on {connection.host}")
    said: dict[str, list[str]] = {}
    for line in answer.stdout.decode(errors="surrogateescape").splitlines():
        key, _, value = line.partition("\t")
        said.setdefault(key, []).append(value)
    [root] = said["root"]
    pythons = tuple(described(said.get("python", ())))
    free = next(iter(said.get("free", ())), "")
    return Host(
        root=root,
        git=next(iter(said.get("git", ())), "").removeprefix("git version "),
        pythons=pythons,
        not_pythons=tuple(said.get("not python", ())),
        wheels=tuple(said.get("wheel", ())),
        installed=tuple(said.get("installed", ())),
        own=identity(),
        free_megabytes=int(free) // 1024 if free.isdecimal() else None,
        is_executable=None if not tries else said.get("executes") == ["yes"],
        platform=Platform.of(next(iter(said.get("platform", ())), "")),
    )


def _looking(python: str | None, tries: bool) -> str:
    names = [python] if python else names_to_try()
    places = (_PATHS.directory, _PATHS.environments, _PATHS.wheels, _PATHS.interpreters)
    own, environments, wheels, interpreters = (shlex.quote(str(path)) for path in places)
    link = f"{own}/{InstalledPaths.LINKS}"
    return f"""\
printf 'root\\t%s\\n' "$KOCHI_ROOT"
printf 'git\\t%s\\n' "$(git --version 2>/dev/null)"
{LOOKING}
kochi_try() {{
  [ -x "$1" ] || return
  if kochi_said=$("$1" -I -c {shlex.quote(DESCRIBE)} "$1" 2>/dev/null </dev/null); then
    printf 'python\\t%s\\n' "$kochi_said"
  else
    printf 'not python\\t%s\\n' "$1"
  fi
}}
for kochi_name in {shlex.join(names)}; do
  if kochi_found=$(command -v -- "$kochi_name"); then
    kochi_try "$kochi_found"
  elif [ {int(python is not None)} = 1 ]; then
    printf 'not python\\t%s\\n' "$kochi_name"
  fi
done
if [ {int(python is None)} = 1 ]; then
  # Those that came from elsewhere, and those that uv has installed there.
  for kochi_found in "$KOCHI_ROOT"/{interpreters}/*/bin/python3 \\
       "${{UV_PYTHON_INSTALL_DIR:-${{XDG_DATA_HOME:-$HOME/.local/share}}/uv/python}}\
"/cpython-*/bin/python3; do
    kochi_try "$kochi_found"
  done
fi
for kochi_wheel in "$KOCHI_ROOT"/{wheels}/*.whl; do
  [ -f "$kochi_wheel" ] && printf 'wheel\\t%s\\n' "${{kochi_wheel##*/}}"
done
for kochi_link in "$KOCHI_ROOT"/{link}; do
  [ -x "$kochi_link/bin/python" ] && printf 'installed\\t%s\\n' "${{kochi_link##*/python-}}"
done
if [ {int(tries)} = 1 ]; then
  umask 077
  kochi_trial="$KOCHI_ROOT"/{own}/.trial-$$.tmp
  if kochi_said=$({{ mkdir -p -- "$KOCHI_ROOT"/{environments} "$KOCHI_ROOT"/{wheels} &&
      printf '#!/bin/sh\\nexit 0\\n' >"$kochi_trial"; }} 2>&1); then
    chmod 700 "$kochi_trial"
    "$kochi_trial" 2>/dev/null && printf 'executes\\tyes\\n' || printf 'executes\\tno\\n'
    rm -f "$kochi_trial"
  else
    printf 'kochi: KOCHI_ROOT %s there cannot be used: %s\\n%s\\n' "$KOCHI_ROOT" \\
      "${{kochi_said%%$'\\n'*}}" {CORRECT_ROOT} >&2
    exit {NOT_SET_UP}
  fi
fi
kochi_place=$KOCHI_ROOT
while [ ! -d "$kochi_place" ] && [ "$kochi_place" != / ] && [ "$kochi_place" != . ]; do
  kochi_place=$(dirname -- "$kochi_place")
done
printf 'free\\t%s\\n' "$(df -Pk -- "$kochi_place" 2>/dev/null | awk 'NR == 2 {{ print $4 }}')"
"""


# ---- putting it there


def set_up(
    connection: Connection, environment: Environment, named: str | None, again: bool, remark: Remark
) -> Host:
    """Put this package on the host, if it is not there or `again` is true.

    `named` is the Python to use. `remark` prints what is done. Returns what was there before. An
    interrupted call changes nothing that works; the next one goes on. Raises KochiError.
    """
    try:
        host = look(connection, environment, named, tries=True)
        if again or not host.is_set_up:
            _install(connection, environment, host, named, remark)
        return host
    finally:
        environment.forget(connection)


def _install(
    connection: Connection, environment: Environment, host: Host, named: str | None, remark: Remark
) -> None:
    if not host.is_executable:
        raise RemoteError(
            f"programs in {host.root} there are not executed",
            "Its filesystem may be mounted with noexec. Choose another kochi_root for the machine.",
        )
    if (python := host.python) is None:
        if named is not None or not can_bring(host.platform):
            raise RemoteError(f"{connection.host}: {no_python(host)}")
        remark(f"Of Python, {_what_was_found(host)}")
        python = bring(connection, environment.later(), host.root, host.platform, remark)
    remark(f"Using Python {python.text}: {python.executable}")
    collection = Collection(python)
    wheels = list(host.wheels)
    if collection.missing(wheels):
        wheels += _fetch_there(connection, environment, collection, wheels, python, remark)
    with tempfile.TemporaryDirectory(prefix="kochi-") as place:
        sent = collection.collect(wheels, Path(place), remark)
        said = f"sending {pluralize(len(sent), 'wheel')} ..."
        remark(f"{_used(collection, wheels, python)} there already; {said}")
        wheels += [each.name if isinstance(each, Path) else each.file_name for each in sent]
        script = Script(f"{environment.later(last=True)}\n{_installing(python, host.root)}")
        process = connection.start(script, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            plan = _plan(host, python, collection, wheels)
            _send(process, plan, sent, Path(place), remark)
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
    if status != 0:
        raise KochiError(
            f"this package was not installed on {connection.host}; what worked there still does",
            "When the cause is removed, type the same line again: it goes on where it was.",
        )


def _used(collection: Collection, wheels: Sequence[str], python: Python) -> str:
    count = len(collection.wanted) - len(collection.missing(wheels))
    return f"{pluralize(count, 'wheel')} for it {'is' if count == 1 else 'are'}"


def _fetch_there(
    connection: Connection,
    environment: Environment,
    collection: Collection,
    wheels: Sequence[str],
    python: Python,
    remark: Remark,
) -> list[str]:
    """Let the host fetch what it can from an index of its own; return the names of these wheels."""
    wanted = [each for each in collection.missing(wheels) if _is_worth(each)]
    if not python.has_pip or not wanted:
        return []
    remark(f"Asking whether {connection.host} reaches an index of its own ...")
    requirements = shlex.join(each.requirement for each in wanted)
    directory = shlex.quote(str(_PATHS.wheels))
    answer = connection.run(
        Script(
            f"""{environment.later()}
umask 077
cd -- "$KOCHI_ROOT"/{directory} || exit 1
kochi_aside=.fetched-$$.tmp
mkdir "$kochi_aside" || exit 1
trap 'rm -rf "$kochi_aside"' EXIT
trap 'exit 1' HUP INT TERM
{shlex.quote(python.path)} -I -m pip --disable-pip-version-check --no-input download --retries 1 \\
  --timeout 10 --no-deps --only-binary=:all: --dest "$kochi_aside" {requirements} >&2 || exit 1
for kochi_wheel in "$kochi_aside"/*.whl; do
  mv -f -- "$kochi_wheel" . && printf '%s\\n' "${{kochi_wheel##*/}}"
done
"""
        )
    )
    if answer.returncode != 0:
        remark("It does not, or it lacks something: the wheels travel from here.")
        return []
    fetched = answer.stdout.decode(errors="replace").split()
    remark(f"It does: {pluralize(len(fetched), 'large wheel')} came from there.")
    return fetched


def _is_worth(wanted: Wanted) -> bool:
    if wanted.wheel is None:
        return True
    if wanted.wheel.build:  # this package as it is here
        return False
    return sum(path.stat().st_size for path, _ in wanted.wheel.files) > _LARGE


def _plan(host: Host, python: Python, collection: Collection, wheels: Sequence[str]) -> bytes:
    """What the program there is told; see `install_package.py`."""
    files: dict[str, str] = {
        name: next(file for file in wheels if each.is_met_by(file, python))
        for name, each in collection.wanted.items()
    }
    plan = {
        "identity": host.own,
        "link": _PATHS.current(host.own).name,
        "environments": _PATHS.environments.name,
        "wheels": _PATHS.wheels.name,
        "files": sorted(files.values()),
        "pip": files.get("pip") if not python.has_ensurepip else None,
        "trial": _TRIAL,
    }
    return json.dumps(plan).encode()


def _installing(python: Python, root: str) -> str:
    directory = f'"$KOCHI_ROOT"/{shlex.quote(str(_PATHS.directory))}'
    interpreter, note = Path(python.path).parent.parent, ""
    if interpreter.parent == Path(root, _PATHS.interpreters):
        # A clean-up must not take it before the environment is there.
        note = f"touch -c -- {shlex.quote(str(EnvironmentPaths(interpreter).used))}\n"
    return f"{note}exec {shlex.quote(python.path)} -I -c {shlex.quote(_INSTALL)} {directory}"


def _send(
    process: subprocess.Popen[bytes],
    plan: bytes,
    wheels: Sequence[Path | InstalledWheel],
    place: Path,
    remark: Remark,
) -> None:
    assert process.stdin is not None
    size, told = 0, time.monotonic()
    try:
        with process.stdin, tarfile.open(fileobj=process.stdin, mode="w|") as stream:
            _add(stream, "plan.json", plan)
            for count, each in enumerate(wheels):
                if time.monotonic() - told > _TELLS_AFTER:
                    told = time.monotonic()
                    sent = f"{count} of {len(wheels)} wheels"
                    remark(f"  {sent}, {format_size(size)}, have been sent")
                # One is made while those before it travel.
                path = each if isinstance(each, Path) else each.write(place)
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                _add(stream, f"{path.name}.sha256", digest.encode())
                stream.add(path, path.name)
                size += path.stat().st_size
                path.unlink()
            _add(stream, "end", b"")
        if wheels:
            remark(f"Sent {format_size(size)}.")
    except BrokenPipeError:
        pass  # it has ended early, and says why


def _add(stream: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    stream.addfile(entry, io.BytesIO(content))
