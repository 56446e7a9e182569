"""Parameter values: texts as written, and their form in names, files and the environment.

A run needs only names and encodings, so this module loads no YAML by itself.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePosixPath

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.frozen import FrozenDict

# Linux refuses a program one environment variable of more than 128 KiB.
MAXIMUM_LENGTH = 100_000
# in bytes: the limit of the kernel, less what we add around it
MAXIMUM_PATH = 3_000
_MAXIMUM_COMPONENT = 255  # of a file name, on every filesystem in use

# The only batch of a file without `batches`.
DEFAULT_BATCH = "default"
BATCH_NAME = "batch_name"
SUBSTITUTED = (BATCH_NAME, "duplicate")
# Columns of every batch's table, beside those of its parameters and metrics.
TABLE_COLUMNS = ("run_seconds", "run_node", "run_started", "run_machine", "run_warnings")
# The parameter that a batch has by its key `code`, and its value for the code as it is here.
CODE = "code"
WORKING_TREE = "working-tree"
_LONGEST = 90  # characters of a value in a path
# In a path, in place of the value of a parameter that a point does not have. No encoded value is
# equal.
ABSENT = "%absent"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NOT_IN_VARIABLES = re.compile(r"[^A-Z0-9_]")
_SAFE = "._+=,@:-~"
_NUMBER = re.compile(r"[-+]?[0-9.][0-9.eE+-]*")
_WHOLE = re.compile(r"[-+]?[0-9]+", re.ASCII)
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", re.ASCII)
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# Git refuses to record these, including the spellings of other systems.
_GIT_DIRECTORY = re.compile(r"(\.git|git~1)[ .]*(:.*)?", re.IGNORECASE)

Thresholds = Mapping[str, float | str]
# The key `quiet`: the CPUs that other processes may use on average, and the governor of the node.
QUIET: Thresholds = FrozenDict({"load": 0.5, "governor": "performance"})
ANY = "any"  # turns a threshold off


def environment_name(name: str) -> str:
    """The form of a parameter's or a dependency's name in an environment variable: upper case, with
    _ for every character that a shell does not accept there."""
    return _NOT_IN_VARIABLES.sub("_", name.upper())


def parse_assignment(text: str) -> tuple[str, str]:
    """Split `name=value` at its first `=`. Raises ConfigError when there is none."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigError(f"'{text}': NAME=VALUE was expected")
    return name, value


# ---- why a text cannot be something, or None


def name_problem(name: str) -> str | None:
    """Of the name of a parameter."""
    if name in SUBSTITUTED:
        return f"'{name}' is substituted by Kochi itself and cannot be a parameter; rename it"
    if name in TABLE_COLUMNS:
        return f"'{name}' is a column of every batch's table and cannot be a parameter; rename it"
    if not _NAME.fullmatch(name):
        return "a parameter's name has only letters, digits, _ and -, and starts with a letter or _"
    return None


def metric_problem(name: str) -> str | None:
    """Of the name of a metric."""
    if name in (*SUBSTITUTED, *TABLE_COLUMNS):
        return f"'{name}' has another meaning in every batch's table; rename the metric"
    return None


def value_problem(text: str) -> str | None:
    """Of the value of an environment variable."""
    if len(text) > MAXIMUM_LENGTH:
        return f"the value is longer than {MAXIMUM_LENGTH} characters; put it into a file"
    return unusable_character(text)


def unusable_character(text: str) -> str | None:
    """Of an argument of a program or a part of a path."""
    if "\0" in text:
        return "a value cannot contain a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "the value contains an incomplete character (a lone surrogate)"
    return None


def has_control_character(text: str) -> bool:
    return any(ord(c) < 32 or ord(c) == 127 for c in text)


def path_problem(text: str, is_one: bool = True) -> str | None:
    """Of a path on any filesystem; where not `is_one`, it may be a URL."""
    if len(os.fsencode(text)) > MAXIMUM_PATH:
        return f"'{text[:40]}...' is longer than {MAXIMUM_PATH} bytes"
    for component in text.split("/") if is_one else ():
        if len(os.fsencode(component)) > _MAXIMUM_COMPONENT:
            return f"'{component[:40]}...' is longer than {_MAXIMUM_COMPONENT} bytes"
    return None


def glob_problem(pattern: str) -> str | None:
    """Of a pattern of files of the project."""
    # A leading / means the top of the project, as in .gitignore.
    if ".." in pattern.split("/") or not pattern.strip("/ "):
        return "a glob relative to the project, without '..', was expected"
    return None


def dest_problem(dest: str) -> str | None:
    """Of a path in the artifact branch."""
    components = dest.split("/")
    if dest.startswith("/") or ".." in components or dest in ("", "."):
        return "a relative path without '..' was expected"
    if has_control_character(dest):
        return "a path cannot contain control characters such as line breaks"
    if dest.startswith(".kochi"):
        return "paths that start with '.kochi' are reserved for Kochi"
    if components[-1].lower() == ".gitattributes":
        return "a file of this name is for Kochi: it tells git which files are large"
    for component in components:
        if _GIT_DIRECTORY.fullmatch(component):
            return f"git cannot store a file named '{component}'"
    return path_problem(dest)


def src_problem(src: str) -> str | None:
    """Of the path of a file in a workspace."""
    # Anything else would put another file of the computer, perhaps a secret one, into git.
    if not src or src.startswith("/") or ".." in src.split("/"):
        return "a path relative to the workspace, without '..', was expected"
    if has_control_character(src):
        return "a path cannot contain control characters such as line breaks"
    return path_problem(src)


def threshold_of(text: str) -> float | str:
    """A threshold of `quiet`: a number, or ANY. Raises ValueError, which says what was expected."""
    if text == ANY:
        return ANY
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise ValueError(f"a number from 0, or {ANY}, was expected")
    return number


# ---- numbers


def typed(text: str) -> int | float | bool | str:
    """A value in an expression: a number of YAML 1.2, a boolean, or else its text."""
    if _FLOAT.fullmatch(text):
        return float(text)
    with suppress(ValueError):  # too many digits
        if _WHOLE.fullmatch(text):
            return int(text)
        if _OTHER_BASE.fullmatch(text):
            return int(text, 0)
    return _BOOLEANS.get(text.lower(), text)


def looks_like_list(text: str) -> bool:
    """Whether a text is values with commas between them: one value, though perhaps not intended as
    one. A comma without a blank may be part of an option: -Wl,-O1."""
    pieces = re.sub("`[^`]*`", "", text).split(",")
    are_numbers = all(_NUMBER.fullmatch(piece.strip()) for piece in pieces)
    return len(pieces) > 1 and (
        are_numbers or all(piece.startswith((" ", "\t")) for piece in pieces[1:])
    )


# ---- paths


def normalise_dest(dest: str) -> str:
    """One spelling for one path: `./a//b` is `a/b`."""
    return PurePosixPath(dest).as_posix() if dest else dest


@functools.lru_cache(10_000)
def encode_component(text: str, most: int = _LONGEST) -> str:
    """A value as part of one component of a path; two values never become the same text.

    Percent-encoding (RFC 3986), and %empty for the empty value. A digest replaces the rest of one
    with more than `most` characters, which leaves no room for others in a component.
    """
    if not text:
        return "%empty"
    if text in (".", ".."):
        return text.replace(".", "%2E")
    encoded = urllib.parse.quote(text, safe=_SAFE)
    return encoded if len(encoded) <= most else digest_component(text)


def digest_component(text: str) -> str:
    """A long value as part of one component of a path: its beginning, and a digest of it."""
    encoded = urllib.parse.quote(text, safe=_SAFE)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{encoded[:16]}%{digest[:32]}"
