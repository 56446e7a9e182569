"""A project on the Slurm of a module, which has it as its fixture `cluster`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_project import ClusterProject
from slurm_cluster import SlurmCluster


@pytest.fixture
def project(
    tmp_path: Path, isolated_environment: Path, cluster: SlurmCluster
) -> Iterator[ClusterProject]:
    with ClusterProject(tmp_path / "project", isolated_environment, cluster) as project:
        yield project
