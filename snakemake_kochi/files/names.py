"""Names and paths as people write them: which are allowed, and what they stand for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from os import urandom  # replaced by the simulator, in tests
from pathlib import Path

from snakemake_kochi.errors import KochiError

LONGEST_NAME = 128
_NAME = re.compile(rf"[A-Za-z0-9_+@=][A-Za-z0-9._+@=-]{{0,{LONGEST_NAME - 1}}}")


def is_name(text: str) -> bool:
    """Whether a text may be one path component.

    It must consist of letters, digits and ._+@=- , 1 to 128 of them, and not begin with a dot or a
    dash.
    """
    return _NAME.fullmatch(text) is not None


def name_of(kind: str, name: str) -> str:
    """The name, if it may be one path component. Raises KochiError."""
    if not is_name(name):
        raise KochiError(
            f"{kind} name {name!r} cannot be used: it becomes part of a path",
            "Use 1 to 128 letters, digits and any of ._+@=- , not starting with a dot or dash.",
        )
    return name


def random_word(count: int = 4) -> str:
    """A name that no other process uses: so many random bytes, in hexadecimal.

    Not by the module `secrets`, which loads eight others and has each copy of a process seed
    generators that nobody uses. `secrets` is for what nobody may guess.
    """
    return urandom(count).hex()


def safe_name(text: str) -> str:
    """A path component for the name of a host or a directory, which cannot be refused."""
    return "".join(c if is_name("x" + c) else "_" for c in text)[:64]


def is_same_directory(one: str, other: str) -> bool:
    """Whether two names mean the same directory on this host, as far as that can be seen."""
    with suppress(OSError):
        return one == other or os.path.samefile(one, other)
    return False


def expand_path(text: str, what: str, environment: Mapping[str, str] = os.environ) -> Path:
    """An absolute path as written by a person, with `~`, `$NAME` and `${NAME}` replaced.

    Raises KochiError for a variable that is not set, a user that does not exist, and a relative
    path. `what` names the setting in the message.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not environment.get(name):
            raise KochiError(
                f"{what}: the variable {name} in {text} is not set",
                f"Type on the machine: export {name}=DIRECTORY, or write the directory itself.",
            )
        return environment[name]

    # os.path.expandvars is not used, because it keeps the name of a variable that is not set: the
    # directory would be called $SCRATCH.
    path = expand_user(re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text), what)
    if not path.is_absolute():
        raise KochiError(f"{what}: an absolute path was expected, not {text}")
    return path


def expand_user(text: str, what: str) -> Path:
    """A path as written by a person, with `~` and `~user` replaced by a home directory.

    Raises KochiError when there is no such user. `what` names the setting in the message.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        # The message of pathlib does not name the user.
        user = text.split("/", 1)[0].removeprefix("~")
        if user:
            raise KochiError(f"{what}: there is no user '{user}' for {text}") from None
        raise KochiError(
            f"{what}: the home directory in {text} is not known",
            "Set it with: export HOME=DIRECTORY",
        ) from None
