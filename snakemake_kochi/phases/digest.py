"""Digests that name an installation or a build by what determines it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

DIGEST_LENGTH = 16


def digest_of(description: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a description's JSON, keys sorted."""
    text = json.dumps(description, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:DIGEST_LENGTH]
