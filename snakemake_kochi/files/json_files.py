"""JSON files: objects with a `version`, written for people and validated when read."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files.calls import (
    answered,
)

# A file with deeper nesting than this was not written by this program.
_DEEPEST = 100


# `indent` is not set: it would select the encoder written in Python, ten times slower.
_encode = json.JSONEncoder(ensure_ascii=False).encode


def to_json(data: Mapping[str, Any]) -> bytes:
    """JSON for people: an object with a line for each key.

    The keys are not sorted; their order is the order of reading.
    """
    lines = [f" {_encode(key)}: {_encode(value)}" for key, value in data.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    return text.encode("utf-8", "surrogateescape")


def read_json(path: Path, version: int | None = None, is_ours: bool = False) -> dict[str, Any]:
    """Read a JSON object of this program; with `is_ours`, only if this user owns the file.

    The owner is determined from the open file. Raises FileNotFoundError when the file does not
    exist. Raises DamagedFileError when it is not a JSON object, when its "version" is newer than
    `version`, or when another user has put it there.
    """
    content = _content_of_ours(path) if is_ours else answered(path.read_bytes)
    try:
        data = _decode(content.decode("utf-8", "surrogateescape"))
        # Brackets may occur in texts, tens of thousands of them, and no file of this program is ten
        # levels deep.
        if content.count(b"[") + content.count(b"{") > _DEEPEST and _is_deep(data):
            raise RecursionError
        if b"\\ud" in content.lower():
            _encode(data).encode("utf-8", "surrogateescape")  # half a character: no name of a file
    except ValueError as error:
        raise DamagedFileError(f"{path}: not valid JSON ({error})") from error
    except RecursionError:
        raise DamagedFileError(f"{path}: not valid JSON (nested too deeply)") from None
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


def _content_of_ours(path: Path) -> bytes:
    # No link is followed, because it may lead to another file of this user. O_NONBLOCK avoids
    # waiting for a writer to a FIFO.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

    def read() -> bytes:
        try:
            descriptor = os.open(path, flags)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise DamagedFileError(f"{path}: a file was expected, not a link") from error
            raise
        with open(descriptor, "rb") as stream:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedFileError(f"{path}: a file was expected")
            if found.st_uid != os.geteuid():
                raise DamagedFileError(
                    f"{path}: it belongs to user {found.st_uid}, and not to you: it is not executed"
                )
            return stream.read()

    return answered(read)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


# With these, no number in a file is infinite or NaN.
_decode = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number).decode


def _is_deep(data: Any) -> bool:
    level = [data]
    for _ in range(_DEEPEST):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for part in inner for each in part if isinstance(each, dict | list)]
        if not level:
            return False
    return True
