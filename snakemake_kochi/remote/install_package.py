"""Installs this package on another host: executed there, by the Python that it gets.

    python -I -c PROGRAM DIRECTORY < STREAM

So it needs nothing but the standard library of Python 3.11. DIRECTORY is `remote/` below
KOCHI_ROOT. STREAM is a tar archive: plan.json; NAME.sha256 and NAME for each wheel that is missing
there; and `end`. What has arrived stays for the next attempt. The environment is made aside, and is
complete when a symbolic link leads to it.

plan.json: "identity", "link", "environments", "wheels" (directories and names relative to
DIRECTORY), "files" (the names of all wheels), "pip" (the name of the wheel of pip, if this Python
has none of its own), "trial" (a program that must succeed with what was installed).
"""

from __future__ import annotations

import errno
import fcntl
import filecmp
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from pathlib import Path
from typing import IO

FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK = 1 << 20
A_DAY = 24 * 3600.0
# In a Python's script and in the shell: the environment works wherever it is, and in a path with
# spaces.
HEADER = b"""#!/bin/sh
'''exec' "$(dirname -- "$(if [ -h "$0" ]; then readlink -f -- "$0"; else echo "$0"; fi)")"/python \
"$0" "$@"
' '''
"""


class Failed(Exception):
    """The message is for people."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def receive(stream: tarfile.TarFile, directory: Path) -> None:
    """Store the wheels of the stream; each appears when it is whole."""
    digests: dict[str, str] = {}
    while (member := stream.next()) is not None and member.name != "end":
        source = stream.extractfile(member)
        if source is None or "/" in member.name:
            raise Failed(f"{member.name}: a wheel was expected")
        if member.name.endswith(".sha256"):
            digests[member.name.removesuffix(".sha256")] = source.read().decode()
        else:
            store(source, directory / member.name, digests[member.name])
    if member is None:
        raise EOFError


def store(source: IO[bytes], path: Path, expected: str) -> None:
    """Store one file, under its name when it is whole."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    digest = hashlib.sha256()
    try:
        with aside.open("xb") as file:
            while block := source.read(BLOCK):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != expected:
            raise Failed(f"{path.name} did not arrive as it was sent")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def run(words: list[str | Path], what: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))
    }
    # The configuration of pip there may name a directory for installations, for example.
    environment["PIP_CONFIG_FILE"] = os.devnull
    done = subprocess.run(
        list(map(str, words)), env=environment, stdin=subprocess.DEVNULL, capture_output=True
    )
    said = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode != 0:
        if any(os.strerror(number) in said for number in FULL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lines = "\n".join(said.strip().splitlines()[-5:])
        noexec = "\nIs its filesystem mounted with noexec? Then choose another kochi_root."
        hint = noexec if "failed to map segment" in said or "Permission denied" in said else ""
        raise Failed(f"{what} failed:\n{lines}{hint}")
    return done.stdout.decode(errors="replace")


def pip_of_ensurepip() -> Path:
    """The wheel of pip that came with this Python."""
    import ensurepip

    for place in (
        sysconfig.get_config_var("WHEEL_PKG_DIR"),  # of Fedora and others
        Path(ensurepip.__file__).parent / "_bundled",
        "/usr/share/python-wheels",  # of Debian
    ):
        if place and (found := sorted(Path(place).glob("pip-*.whl"))):
            return found[-1]
    raise Failed("ensurepip there has no wheel of pip; name another Python with --python")


def make(environment: Path, wheels: list[Path], pip: Path | None) -> None:
    """Make a virtual environment with these wheels."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(environment)
    python = environment / "bin" / "python"
    options = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir"]
    options.append("--disable-pip-version-check")
    if pip is None:
        pip = pip_of_ensurepip()
        wheels = [*wheels, pip]
    # pip runs in its wheel, which also Python's own ensurepip does.
    run([python, f"{pip}/pip", "install", *options, *wheels], "pip install")
    make_movable(environment / "bin")


def make_movable(directory: Path) -> None:
    """Let the scripts of an environment find their Python beside themselves."""
    line = re.escape(os.fsencode(directory)) + rb"/python[0-9.]*"
    own = re.compile(
        rb"\A(#!" + line + rb"[^\n]*\n|#!/bin/sh\n'''exec' \"?" + line + rb"[^\n]*\n' '''\n)"
    )
    for path in directory.iterdir():
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        changed = own.sub(lambda _: HEADER, content)
        if changed != content:
            path.write_bytes(changed)


def share(environment: Path, others: Path) -> None:
    """Make the files that the newest of the other environments has, too, hard links to its own."""
    there = [path for path in others.iterdir() if not path.name.startswith(".")]
    if not there:
        return
    newest = max(there, key=lambda path: path.stat().st_mtime)
    link = environment / "link"
    for path in list(environment.rglob("*")):
        same = newest / path.relative_to(environment)
        if path.is_symlink() or not path.is_file() or not same.is_file():
            continue
        try:
            if filecmp.cmp(same, path, shallow=False):
                os.link(same, link)
                link.replace(path)
        except OSError:
            return  # a filesystem without them, or `kochi clean` deletes the other one


def try_out(environment: Path, trial: str) -> None:
    python = environment / "bin" / "python"
    run([python, "-I", "-c", trial], "the first use of what was installed")
    for package in environment.glob("lib/python*/site-packages/snakemake_kochi"):
        run([python, "-I", "-m", "compileall", "-q", package], "compileall")
    run([environment / "bin" / "kochi", "--version"], "kochi --version")


def remove_leftovers(directory: Path) -> None:
    """Delete what killed attempts have made; a living one holds the lock."""
    for path in directory.glob(".*.tmp"):
        try:
            with (path / "lock").open("rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # it lives, or just begins, or `kochi clean` deletes it after a day


def remove_old_wheels(directory: Path, needed: list[str]) -> None:
    """Delete the wheels of other versions, but none that just came for another attempt."""
    for path in directory.iterdir():
        try:
            if path.name not in needed and time.time() - path.stat().st_mtime > A_DAY:
                path.unlink()
        except OSError:
            continue  # as for a directory in which another attempt fetches


def install(directory: Path) -> None:
    for each in (directory.parent, directory):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.geteuid():
        raise Failed(f"{directory} belongs to another user")
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as stream:
        first = stream.next()
        content = None if first is None else stream.extractfile(first)
        if content is None:
            raise Failed("the connection was closed before anything arrived")
        plan = json.load(content)
        wheels, environments = directory / plan["wheels"], directory / plan["environments"]
        for each in (wheels, environments):
            each.mkdir(mode=0o700, exist_ok=True)
        # First: on a full disk they may be what is missing.
        remove_leftovers(environments)
        receive(stream, wheels)
    began = time.monotonic()
    say(f"Installing {len(plan['files'])} wheels in {environments} ...")
    nonce = secrets.token_hex(4)
    aside = environments / f".{plan['identity']}-{nonce}.tmp"
    aside.mkdir(mode=0o700)
    try:
        with (aside / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            pip = None if plan["pip"] is None else wheels / plan["pip"]
            make(aside, [wheels / name for name in plan["files"]], pip)
            # Before the first use, whose bytecode has the times of the sources.
            share(aside, environments)
            try_out(aside, plan["trial"])
            (aside / "used").touch()
            (aside / "lock").unlink()
            final = environments / f"{plan['identity']}-{nonce}"
            aside.rename(final)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    link = directory / f".{plan['link']}.{nonce}.tmp"
    link.symlink_to(f"{plan['environments']}/{final.name}")
    link.replace(directory / plan["link"])
    remove_old_wheels(wheels, plan["files"])
    say(f"Installed in {time.monotonic() - began:.0f} s.")


def main() -> int:
    os.umask(0o077)
    directory = Path(sys.argv[1])
    try:
        install(directory)
    except Failed as error:
        say(f"kochi: {error}")
    except (EOFError, tarfile.ReadError):
        say("kochi: the connection was closed before all had arrived; what has arrived stays")
    except OSError as error:
        if error.errno in FULL:
            say(
                f"kochi: {directory} cannot take it: {error.strerror}. Some 500 MB are needed: "
                "free some space there, or choose another kochi_root. Then type the same line again"
            )
        else:
            say(f"kochi: {error.filename or directory}: {error.strerror or error}")
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
