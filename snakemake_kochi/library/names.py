"""Names of rules, and the directories in the working directory that rules write to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from snakemake_kochi.errors import ConfigError


def identifier(text: str) -> str:
    """A text as part of a rule's name: `v5.2.1` is `v5_2_1`."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


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


@dataclass(frozen=True)
class Directories:
    """Where rules write, relative to the working directory."""

    machine: str

    @property
    def results(self) -> str:
        """Artifacts, tables and plots."""
        return f"results/{self.machine}"

    @property
    def _state(self) -> str:
        # Beside Snakemake's own state: what only says which installation, build or run is current.
        return f".snakemake/kochi/{self.machine}"

    def manifest(self, dependency: str, recipe: str) -> str:
        return f"{self._state}/installs/{dependency}/{recipe}.json"

    def activation(self, dependency: str, recipe: str) -> str:
        return f"{self._state}/installs/{dependency}/{recipe}.sh"

    def builds(self, rule: str) -> str:
        return f"{self._state}/builds/{rule}"

    def records(self, experiment: str, batch: str) -> str:
        return f"{self._state}/records/{experiment}/{batch}"
