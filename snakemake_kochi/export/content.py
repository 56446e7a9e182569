"""What was written to a crate, and what could not be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.export.selection import Run
from snakemake_kochi.export.tables import Table


@dataclass
class Content:
    """What a crate has: `files` by their path in the branch with size and SHA-256; `records`.

    `verified` files are as their run wrote them; records of early releases have no digest.
    `newest_runs` are the newest ones that name each path.
    `problems` are sentences.
    """

    files: dict[str, tuple[Path, int, str]] = field(default_factory=dict)
    records: dict[Run, Path] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    verified: set[str] = field(default_factory=set)
    newest_runs: dict[str, Run] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def artifact_of(self, run: Run, artifact: Mapping[str, Any]) -> tuple[Path, int, str] | None:
        """The file that a run wrote as an artifact; None if it is not here, as when a newer run
        replaced it."""
        path = run.path(artifact["dest"])
        if (found := self.files.get(path)) is None:
            return None
        if artifact.get("sha256"):
            is_own = artifact["sha256"] == found[2]
        elif artifact.get("type") == "stats":  # a copy of the record
            is_own = hashlib.sha256(run.text).hexdigest() == found[2]
        else:
            is_own = self.newest_runs.get(path) is run
        return found if is_own else None

    def outputs_of(self, run: Run) -> dict[str, Path]:
        """Where the artifacts of a run were written, by destination, but for those that are not
        here as in `artifact_of`."""
        artifacts = {str(each["dest"]): each for each in run.record["artifacts"]}
        found = {dest: self.artifact_of(run, each) for dest, each in artifacts.items()}
        return {dest: own[0] for dest, own in found.items() if own is not None}

    def counts(self) -> Mapping[str, int]:
        return {
            "files": len(self.files),
            "verified": len(self.verified),
            "bytes": sum(size for _, size, _ in self.files.values()),
            "tables": len(self.tables),
        }
