"""Paths and names as people write them, and the end of a log."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from snakemake_kochi.errors import KochiError


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


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log, read from its end: it may be large. None,
    if it cannot be read."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - 16384))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-count:]


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
