"""How a file of ours gets onto disk and is read back: written once, renamed into place, private.

Every file has one writer, or is written once. A reader never sees half a file: data goes to a
temporary name in the same directory and is renamed (or linked, where a second writer must lose).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError

PRIVATE_DIRECTORY = 0o700


def make_directory(path: Path) -> Path:
    """Create a directory and its missing parents with mode 0700; return it.

    `Path.mkdir(parents=True)` would give the parents the default mode, which lets other users of a
    cluster read what jobs do.
    """
    missing = []
    parent = path
    while not parent.is_dir():
        missing.append(parent)
        parent = parent.parent
    for directory in reversed(missing):
        try:
            directory.mkdir(mode=PRIVATE_DIRECTORY)
        except FileExistsError:
            if not directory.is_dir():
                raise
    return path


def write_new(path: Path | str, content: bytes, durable: bool = False) -> None:
    """Write a file of mode 0600 where none is and nobody looks yet, all of it or none.

    Raises FileExistsError when there is one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException:
        # A full disk shows here: nothing half-written may stay behind.
        os.unlink(path)
        raise


def _write_temporary(path: Path, content: bytes, durable: bool) -> Path:
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.tmp")
    write_new(temporary, content, durable)
    return temporary


def write_atomically(path: Path, content: bytes, durable: bool = False) -> None:
    """Replace a file as a whole; readers see the old content or the new, never a mixture.

    With `durable` the content is on the disk before the name is.
    """
    temporary = _write_temporary(path, content, durable)
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_exclusively(path: Path, content: bytes, durable: bool = False) -> bool:
    """Create a file that must not exist yet; return False, and change nothing, if it does.

    link(2) fails for the second of two writers on every filesystem, NFS included, and unlike
    O_EXCL never shows a reader an empty file.
    """
    temporary = _write_temporary(path, content, durable)
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS says so also when the link was made and the answer got lost: then it is ours.
        with contextlib.suppress(FileNotFoundError):
            return os.path.samefile(temporary, path)
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


# Without `indent`: with it the encoder is the one written in Python, ten times slower.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def link_atomically(path: Path, target: Path) -> None:
    """Put a symbolic link to `target`, relative, in the place of what is at `path`."""
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.tmp")
    temporary.symlink_to(os.path.relpath(target, path.parent))
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def to_json(data: Mapping[str, Any]) -> bytes:
    """JSON for people: an object with a line for each key, sorted nowhere (the order of keys is
    the order of reading)."""
    lines = [f" {_encode(key)}: {_encode(value)}" for key, value in data.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    return text.encode("utf-8", "surrogateescape")


def read_json(path: Path, version: int | None = None) -> dict[str, Any]:
    """Read a JSON object written by us.

    Raises FileNotFoundError when it is not there, DamagedFileError when it is not a JSON object or
    its "version" is newer than `version`.
    """
    try:
        data = json.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise DamagedFileError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise DamagedFileError(f"{path}: a JSON object was expected, not {type(data).__name__}")
    if version is not None:
        found = data.get("version")
        if not isinstance(found, int):
            raise DamagedFileError(f"{path}: key 'version' is missing or not a number")
        if found > version:
            raise DamagedFileError(
                f"{path}: written by a newer snakemake_kochi (format {found}, this one reads "
                f"up to {version})",
                "Update with: pip install --upgrade snakemake-executor-plugin-kochi",
            )
    return data


def expand_path(text: str, what: str, environment: Mapping[str, str] = os.environ) -> Path:
    """An absolute path as written by a person, with `~`, `$NAME` and `${NAME}` replaced.

    `what` names the setting in the message of the KochiError that is raised for a variable that is
    not set, a user that does not exist, and a relative path.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not environment.get(name):
            raise KochiError(
                f"{what}: the variable {name} in {text} is not set",
                f"Type it on the machine, with: export {name}=DIRECTORY; or write the directory.",
            )
        return environment[name]

    # Not os.path.expandvars, which leaves a variable that is not set as it is written: the
    # directory would be one that is called $SCRATCH.
    path = expand_user(re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text), what)
    if not path.is_absolute():
        raise KochiError(f"{what}: an absolute path was expected, not {text}")
    return path


def is_name(text: str) -> bool:
    """Whether a text may serve as one path component: letters, digits and ._+@=- , 1 to 128 long,
    not starting with a dot or a dash."""
    return (
        0 < len(text) <= 128
        and text[0] not in ".-"
        and all((c.isascii() and c.isalnum()) or c in "._+@=-" for c in text)
    )


def expand_user(text: str, what: str) -> Path:
    """A path as written by a person, `~` and `~user` replaced by a home directory.

    `what` names the setting in the message of the KochiError raised when there is no such user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        # pathlib's own message does not say of whom.
        user = text.split("/", 1)[0].removeprefix("~")
        if user:
            raise KochiError(f"{what}: there is no user '{user}', whose home {text} is") from None
        raise KochiError(
            f"{what}: the home directory in {text} is not known",
            "Set it with: export HOME=DIRECTORY",
        ) from None
