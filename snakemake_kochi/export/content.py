"""What was written to a crate, and what could not be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.export.selection import Run
from snakemake_kochi.export.tables import Table


@dataclass
class Content:
    """What a crate has: `files` by their path in the branch with size and SHA-256; `records`.

    `verified` files are as their run wrote them; records of early releases have no digest.
    `problems` are sentences.
    """

    files: dict[str, tuple[Path, int, str]] = field(default_factory=dict)
    records: dict[Run, Path] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    verified: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def counts(self) -> Mapping[str, int]:
        return {
            "files": len(self.files),
            "verified": len(self.verified),
            "bytes": sum(size for _, size, _ in self.files.values()),
            "tables": len(self.tables),
        }
