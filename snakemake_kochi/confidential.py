"""What looks like a secret, and is left out of results, which are shown to others.

Only names and the form of addresses count: a secret under another name is not recognised.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import PurePosixPath

# Patterns of the name of a file, or of a directory above it.
SECRETS = (
    *(".env", ".env.*", ".envrc", ".netrc", ".pgpass", ".npmrc", ".pypirc", ".git-credentials"),
    *(".ssh", ".gnupg", ".aws", ".kube", ".docker", "kubeconfig*"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.keytab", "*.token", "id_rsa*", "id_ed25519*"),
    *("id_ecdsa*", "id_dsa*", "*credential*", "*password*", "*secret*"),
)
# `AUTH` must not match an author; `KEY` only as one of several words, because a sort has keys, too.
_WORD = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credential|auth(?!or)|pwd"
    r"|api_?key|(?<=[a-z0-9])[_-]keys?(?![a-z]))"
)
_NAME = re.compile(_WORD, re.IGNORECASE)
_ADDRESS = re.compile(r"://[^/\s@'\"]+:[^/\s@'\"]+@")
# bounded, for lines of many kilobytes without a space
_ASSIGNMENT = re.compile(rf"{_WORD}[\w-]{{0,60}}[\"']?\]?\s*[:=](?!=)\s*\S", re.IGNORECASE)


def is_secret_path(path: str) -> bool:
    return any(
        fnmatch(part.lower(), pattern) for part in PurePosixPath(path).parts for pattern in SECRETS
    )


def is_secret_variable(name: str, value: str) -> bool:
    """Whether the name of a variable suggests a secret, or its value has an address's password."""
    return bool(_NAME.search(name) or _ADDRESS.search(value))


def is_secret_line(line: str) -> bool:
    """Whether a line of a file sets such a variable or key, or contains such an address."""
    return bool(_ASSIGNMENT.search(line) or _ADDRESS.search(line))
