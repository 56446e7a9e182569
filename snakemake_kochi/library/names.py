"""Names of rules, and the directories in the working directory that rules write to."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.library.patterns import looks_endless
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.project.values import encode_component

_LONGEST = 64
_MANIFEST = "manifest.json"
# A value of `params:`, or a function of the wildcards, which it does not look at.
Verbatim = Any


def identifier(text: str) -> str:
    """A text as part of a rule's name: `v5.2.1` is `v5_2_1`."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def short_component(value: str) -> str:
    """A parameter's value as part of a file name of our own: as in artifacts, but with a digest
    for the rest of a long one (a file name has 255 bytes), or one that Snakemake would refuse."""
    encoded = encode_component(value)
    if len(encoded) <= _LONGEST and not looks_endless(encoded):
        return encoded
    digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{encoded[:16]}%{digest[:32]}"


def verbatim(value: Any) -> Verbatim:
    """A value for a rule's `params:` that Snakemake takes as it is: in a plain text it would look
    for wildcards, and find the `${HOME}` of a script."""
    texts = value if isinstance(value, list) else [value]
    if all(isinstance(t, bool | int) or (isinstance(t, str) and "{" not in t) for t in texts):
        # Of a function Snakemake asks the signature, again and again for each job: with the ten of
        # a run that took a fifth of the time of a large batch's DAG.
        return value
    return lambda wildcards: value


@dataclass
class RuleNames:
    """Rule names given out while one library is made, so that two rules never share one."""

    _owners: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, owner: str) -> str:
        """Reserve a rule's name; ConfigError when another owner has it."""
        other = self._owners.setdefault(name, owner)
        if other != owner:
            raise ConfigError(
                f"{owner} and {other} would both become the rule '{name}'", "Rename one of them."
            )
        return name


def is_manifest(file: Path) -> bool:
    """Whether a file stands for an installation, not for a build."""
    return file.name == _MANIFEST


@dataclass(frozen=True)
class Directories:
    """Where rules write, relative to the working directory."""

    machine: str

    @property
    def results(self) -> str:
        return str(self._paths.results)

    @property
    def _state(self) -> str:
        return str(self._paths.state)

    @property
    def _paths(self) -> WorkingPaths:
        return WorkingPaths(Path(), self.machine)

    def collected(self, experiment: str, batch: str) -> str:
        """The table and the plot of a batch, without their endings."""
        return f"{self.results}/{experiment}/{encode_component(batch)}"

    # Installations and builds are named by what determines them: what is changed and put back is
    # what it was, whatever was tried in between.
    def manifest(self, dependency: str, recipe: str, key: str) -> str:
        return f"{self._state}/installs/{dependency}/{recipe}/{key}/{_MANIFEST}"

    def activation(self, dependency: str, recipe: str, key: str) -> str:
        return f"{self._state}/installs/{dependency}/{recipe}/{key}/activate.sh"

    @staticmethod
    def activation_beside(manifest: Path) -> Path:
        return manifest.with_name("activate.sh")

    def builds(self, rule: str, key: str) -> str:
        return f"{self._state}/builds/{rule}/{key}"

    def records(self, experiment: str, batch: str) -> str:
        return f"{self._paths.records}/{experiment}/{batch}"
