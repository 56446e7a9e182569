"""What looks like a secret, and is left out of results, which are shown to others.

Only names and the form of addresses count: a secret under another name is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import PurePosixPath

LEFT_OUT = "[left out]"
# Patterns of the name of a file, or of a directory above it.
SECRETS = (
    *(".env", ".env.*", ".envrc", ".netrc", ".pgpass", ".npmrc", ".pypirc", ".git-credentials"),
    *(".ssh", ".gnupg", ".aws", ".kube", ".docker", "kubeconfig*"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.keytab", "*.token", "id_rsa*", "id_ed25519*"),
    *("id_ecdsa*", "id_dsa*", "*credential*", "*password*", "*secret*"),
)
# `AUTH` must not match an author; `KEY` only as one of several words, because a sort has keys, too.
_WORD = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credential|auth(?!or(?!i[sz]))|pwd"
    r"|api_?key|(?<=[a-z0-9])[_-]keys?(?![a-z]))"
)
_NAME = re.compile(_WORD, re.IGNORECASE)
# With https a name alone may be a token.
_ADDRESS = re.compile(r"(?:https?://|://[^/\s@'\"]+:)[^/\s@'\"]+@|\bbearer\s+\S", re.IGNORECASE)
# bounded, for lines of many kilobytes without a space
_NAMED = rf"{_WORD}[\w-]{{0,60}}[\"']?\]?\s*[:=]"
_ASSIGNMENT = re.compile(rf"{_NAMED}(?!=)\s*\S", re.IGNORECASE)
# The value begins on the next line.
_OPENING = re.compile(rf"{_NAMED}\s*(?:[|>][-+\d]*|\\|\"{{3}}|'{{3}})\s*$", re.IGNORECASE)
_KEY = "PRIVATE KEY-----"


def is_secret_path(path: str) -> bool:
    return any(
        fnmatch(part.lower(), pattern) for part in PurePosixPath(path).parts for pattern in SECRETS
    )


def is_secret_variable(name: str, value: str) -> bool:
    """Whether the name of a variable suggests a secret, or a line of its value does."""
    return bool(_NAME.search(name)) or any(secret_lines(value.splitlines()))


def secret_lines(lines: Iterable[str]) -> Iterator[bool]:
    """Of each line of a text whether it sets such a variable or key, contains the password of an
    address, or belongs to a private key or to a value that began before (`password: |`)."""
    is_in_key = False
    depth: int | None = None  # of the line before such a value
    is_first = False  # the next line is its first one
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if is_in_key:
            is_in_key = _KEY not in line
            yield True
            continue
        if depth is not None and (is_first or not line.strip() or indent > depth):
            is_first = is_first and not line.strip()
            yield bool(line.strip())
            continue
        depth = indent if _OPENING.search(line) else None
        is_first = depth is not None
        is_in_key = _KEY in line and "BEGIN" in line
        yield is_in_key or bool(_ASSIGNMENT.search(line) or _ADDRESS.search(line))


def without_secrets(lines: Iterable[str]) -> list[str]:
    """The lines of a text, those that suggest secrets replaced."""
    known = list(lines)
    hidden = zip(known, secret_lines(known), strict=True)
    return [LEFT_OUT if is_secret else line for line, is_secret in hidden]
