"""What looks like a secret, and is not kept with results, which are shown to others.

By names alone, and by the form of addresses: a secret that is called something else is not found.
The snapshot itself, which has all, is private.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import PurePosixPath

# Of a file, or of a directory it is in.
SECRETS = (
    *(".env", ".env.*", ".envrc", ".netrc", ".pgpass", ".npmrc", ".pypirc", ".git-credentials"),
    *(".ssh", ".gnupg", ".aws", ".kube", ".docker", "kubeconfig*"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.keytab", "*.token", "id_rsa*", "id_ed25519*"),
    *("id_ecdsa*", "id_dsa*", "*credential*", "*password*", "*secret*"),
)
# `AUTH` is not that of an author; `KEY` is one of several words, for a sort has keys, too.
_WORD = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credential|auth(?!or)|pwd"
    r"|api_?key|(?<=[a-z0-9])[_-]keys?(?![a-z]))"
)
_NAME = re.compile(_WORD, re.IGNORECASE)
_ADDRESS = re.compile(r"://[^/\s@'\"]+:[^/\s@'\"]+@")
# Bounded, for lines of many kilobytes without a space.
_ASSIGNMENT = re.compile(rf"{_WORD}[\w-]{{0,60}}[\"']?\]?\s*[:=](?!=)\s*\S", re.IGNORECASE)


def is_secret_path(path: str) -> bool:
    return any(
        fnmatch(part.lower(), pattern) for part in PurePosixPath(path).parts for pattern in SECRETS
    )


def is_secret_variable(name: str, value: str) -> bool:
    """Whether a variable is called like a secret, or is an address with a password in it."""
    return bool(_NAME.search(name) or _ADDRESS.search(value))


def is_secret_line(line: str) -> bool:
    """Whether a line of some file gives such a variable or key a value, or has such an address."""
    return bool(_ASSIGNMENT.search(line) or _ADDRESS.search(line))
