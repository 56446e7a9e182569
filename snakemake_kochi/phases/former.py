"""Results of an earlier run that are all that a point is to leave, set aside for its job."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.files import make_directory, read_json, to_json
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.digest import digest_of
from snakemake_kochi.phases.run import RECORD_VERSION, Output
from snakemake_kochi.project.grid import Artifact, Point

FORMER_VERSION = 1


@dataclass(frozen=True)
class Former:
    """A directory with the record of the earlier run and a file for each artifact."""

    directory: Path

    @classmethod
    def of(cls, machine: str, experiment: str, batch: str, identity: str, point: Point) -> Former:
        """Where, below the current directory, the results of a run of that identity are for a
        point, with the artifacts that it has now."""
        artifacts = [(each.type, each.dest, each.src) for each in point.artifacts]
        name = digest_of([identity, dict(point.parameters), point.duplicate, artifacts])
        return cls(WorkingPaths(Path(), machine).former(experiment, batch) / name)

    @property
    def record(self) -> Path:
        return self.directory / "former.json"

    def file(self, artifact: Artifact | Output) -> Path:
        return self.directory / digest_of([artifact.type, _source(artifact)])

    def take(self, outputs: Sequence[Output]) -> dict[str, Any] | None:
        """Put the results where the outputs are to be; return their record, None without any.

        It tells of the run that was, under an identity of its own.
        """
        try:
            record = read_json(self.record, RECORD_VERSION)
        except FileNotFoundError:
            return None
        record["identity"] = f"{record['identity'].rpartition('.')[0]}.{secrets.token_hex(6)}"
        record["artifacts"] = [
            {"type": output.type, "dest": output.destination, "src": output.source}
            for output in outputs
        ]
        for output in outputs:
            make_directory(output.file.parent)
            if output.type == "stats":
                output.file.write_bytes(to_json(record))
            else:
                shutil.copyfile(self.file(output), output.file)
        shutil.rmtree(self.directory, ignore_errors=True)
        return record


def _source(artifact: Artifact | Output) -> str | None:
    return artifact.source if isinstance(artifact, Output) else artifact.src
