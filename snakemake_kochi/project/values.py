"""Names, values and paths: what they may be, and their form in names, files and the environment.

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
from snakemake_kochi.files import is_name
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
# In a path, in place of the value of a parameter that a point does not have. No encoded value is
# equal.
ABSENT = "%absent"
_LONGEST = 90  # characters of a value in a path
_SAFE = "._+=,@:-~"
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", re.ASCII)
_WHOLE = re.compile(r"[-+]?[0-9]+", re.ASCII)
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# Git refuses to record these, including the spellings of other systems.
_GIT_DIRECTORY = re.compile(r"(\.git|git~1)[ .]*(:.*)?", re.IGNORECASE)

Thresholds = Mapping[str, float | str]
# The key `quiet`: the CPUs that other processes may use on average, and the governor of the node.
QUIET: Thresholds = FrozenDict({"load": 0.5, "governor": "performance"})
ANY = "any"  # turns a threshold off
NOT_IN_PATHS = (
    "cannot be used in paths; 1 to 128 letters, digits and any of ._+@=- were expected, not "
    "starting with a dot or dash"
)


def environment_name(name: str) -> str:
    """The form of a parameter's or a dependency's name in an environment variable: upper case, with
    _ for every character that a shell does not accept there."""
    return re.sub("[^A-Z0-9_]", "_", name.upper())


def parse_assignment(text: str) -> tuple[str, str]:
    """Split `name=value` at its first `=`. Raises ConfigError when there is none."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigError(f"'{text}': NAME=VALUE was expected")
    return name, value


# ---- why a text cannot be something, or None


def used_name_problem(name: str, what: str) -> str | None:
    """Of the name of a parameter or a metric."""
    if name not in (*SUBSTITUTED, *TABLE_COLUMNS):
        return None
    return f"'{name}' is substituted by Kochi, or a column of every table; rename the {what}"


def name_problem(name: str) -> str | None:
    """Of the name of a parameter."""
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_-]*", name):
        return "a parameter's name has only letters, digits, _ and -, and starts with a letter or _"
    return used_name_problem(name, "parameter")


def value_problem(text: str) -> str | None:
    """Of the value of an environment variable."""
    if len(text) > MAXIMUM_LENGTH:
        return f"the value is longer than {MAXIMUM_LENGTH} characters; put it into a file"
    return unusable_character(text)


def unusable_character(text: str) -> str | None:
    """Of an argument of a program or a part of a path."""
    if "\0" in text:
        return "a value cannot contain a NUL character"
    if not text.isascii() and re.search("[\ud800-\udfff]", text):
        return "the value contains an incomplete character (a lone surrogate)"
    return None


def line_problem(text: str) -> str | None:
    """Of a text in one line."""
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        return "one line of text was expected, without control characters"
    return None


def queue_problem(queue: str) -> str | None:
    """Of the name of a queue."""
    return None if is_name(queue) else f"the queue's name {NOT_IN_PATHS}"


def path_problem(text: str, is_one: bool = True) -> str | None:
    """Of a path on any filesystem; where not `is_one`, it may be a URL."""
    parts = text.split("/") if is_one else []
    for part, most in ((text, MAXIMUM_PATH), *((each, _MAXIMUM_COMPONENT) for each in parts)):
        if len(os.fsencode(part)) > most:
            return f"'{part[:40]}...' is longer than {most} bytes"
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
    if dest.startswith(".kochi"):
        return "paths that start with '.kochi' are reserved for Kochi"
    if components[-1].lower() == ".gitattributes":
        return "a file of this name is for Kochi: it tells git which files are large"
    for component in components:
        if _GIT_DIRECTORY.fullmatch(component):
            return f"git cannot store a file named '{component}'"
    return line_problem(dest) or path_problem(dest)


def src_problem(src: str) -> str | None:
    """Of the path of a file in a workspace."""
    # Anything else would put another file of the computer, perhaps a secret one, into git.
    if not src or src.startswith("/") or ".." in src.split("/"):
        return "a path relative to the workspace, without '..', was expected"
    return line_problem(src) or path_problem(src)


def threshold_of(text: str) -> float | str:
    """A threshold of `quiet`: a number, or ANY. Raises ValueError, which says what was expected."""
    with suppress(ValueError):
        if text == ANY or 0 <= float(text) < 1e9:
            return ANY if text == ANY else float(text)
    raise ValueError(f"a number from 0, or {ANY}, was expected")


# ---- numbers


def typed(text: str) -> int | float | bool | str:
    """A value in an expression: a number of YAML 1.2, a boolean, or else its text."""
    if _FLOAT.fullmatch(text):
        return float(text)
    with suppress(ValueError):  # too many digits
        if _WHOLE.fullmatch(text):
            return int(text)
        if text[:1] == "0" and re.fullmatch("0o[0-7]+|0x[0-9a-fA-F]+", text):
            return int(text, 0)
    return _BOOLEANS.get(text.lower(), text)


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
    if text in ("", ".", ".."):
        return text.replace(".", "%2E") or "%empty"
    encoded = urllib.parse.quote(text, safe=_SAFE)
    return encoded if len(encoded) <= most else digest_component(text)


def digest_component(text: str) -> str:
    """A long value as part of one component of a path: its beginning, and a digest of it."""
    encoded = urllib.parse.quote(text, safe=_SAFE)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{encoded[:16]}%{digest[:32]}"
