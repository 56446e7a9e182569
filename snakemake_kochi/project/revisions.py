"""A recipe at another branch, tag or commit than its own, and the name that it has then.

`develop@feature` is the recipe `develop` at the branch or tag `feature`, `develop@@1f3c9a2` at a
commit. What a name cannot contain is `=` and two hexadecimal digits: `develop@fix=2Fqueue`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from snakemake_kochi.files import is_name

_UNUSABLE = re.compile(rb"[^A-Za-z0-9._+-]")
_COMMIT = re.compile(r"[0-9A-Fa-f]{4,64}")


@dataclass(frozen=True)
class Revision:
    """A recipe, and a branch (or a tag) or a commit of its repository, or neither."""

    recipe: str
    branch: str = ""
    commit_hash: str = ""

    @classmethod
    def of(cls, name: str) -> Revision:
        """From the name of a recipe at a revision. Any other name is the name of a recipe."""
        own, _, text = name.rpartition("@")
        if not own or not text:
            return cls(name)
        if own.endswith("@"):
            return cls(own[:-1], commit_hash=text) if _COMMIT.fullmatch(text) else cls(name)
        return cls(own, branch=_decoded(text))

    @property
    def is_any(self) -> bool:
        return bool(self.branch or self.commit_hash)

    @property
    def name(self) -> str:
        """The name of the recipe at the revision."""
        if self.commit_hash:
            return f"{self.recipe}@@{self.commit_hash.lower()}"
        return f"{self.recipe}@{_encoded(self.branch)}" if self.branch else self.recipe

    @property
    def problem(self) -> str | None:
        """Why there can be no such revision, or None."""
        if self.commit_hash and not _COMMIT.fullmatch(self.commit_hash):
            return (
                f"'{self.commit_hash}' is not a commit id: 4 to 40 digits 0-9a-f were expected; "
                "a branch or a tag goes under 'branch'"
            )
        if self.branch.startswith("-"):
            return f"'{self.branch}' is no branch: the name of a branch does not begin with a dash"
        if not is_name(self.name):
            return f"'{self.branch}' is too long for the name of a branch here"
        return None


def _encoded(branch: str) -> str:
    return _UNUSABLE.sub(
        lambda found: b"=%02X" % found[0][0], branch.encode("utf-8", "surrogateescape")
    ).decode("ascii")


def _decoded(text: str) -> str:
    raw = re.sub(rb"=([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), text.encode("utf-8"))
    return raw.decode("utf-8", "surrogateescape")
