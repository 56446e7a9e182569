"""Which jobs are those of a project."""

from __future__ import annotations

from pathlib import Path

from snakemake_kochi.project.recipes import Project
from snakemake_kochi.queue import JobView


def belongs_to(view: JobView, project: Project) -> bool:
    """Whether a job was handed over from a project: it says so, or works in its directory. One
    whose ticket is damaged belongs to nobody."""
    if view.ticket is None:
        return False
    label = view.ticket.labels.get("project")
    if label is not None:
        return Path(label) == project.directory
    return Path(view.ticket.directory).is_relative_to(project.directory)
