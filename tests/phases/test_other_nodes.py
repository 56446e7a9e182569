"""How a program is started on each node of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_kochi.node_storage import Place
from snakemake_kochi.phases.other_nodes import way_to
from snakemake_kochi.project.launchers import MPIRUN, NO_LAUNCHER, Launcher, Launchers

NODES = ("n1", "n2", "n3")


def line(directory: Path, of_run: Launcher, launchers: Launchers) -> str | None:
    way = way_to(NODES, of_run, launchers, "spica", Place(directory))
    return None if way is None else str(way["line"])


def test_without_a_scheduler_the_launcher_of_the_run_starts_one_task_on_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert line(tmp_path, NO_LAUNCHER, Launchers()) is None
    assert line(tmp_path, Launcher(MPIRUN, MPIRUN), Launchers()) == (
        "mpirun -n 3 --host n1:1,n2:1,n3:1 --map-by ppr:1:node --bind-to none"
    )
    template = Launcher("pmi", "mpiexec -n {tasks} -ppn {tasks_per_node} -f {hostfile}")
    hosts = tmp_path / "hosts"
    assert line(tmp_path, template, Launchers()) == f"mpiexec -n 3 -ppn 1 -f {hosts}"
    assert hosts.read_text() == "n1 slots=1\nn2 slots=1\nn3 slots=1\n"


def test_in_an_allocation_the_launcher_of_the_scheduler_does_so_as_the_machine_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    found = line(tmp_path, Launcher(MPIRUN, MPIRUN), Launchers())
    assert found is not None
    assert found.startswith("srun ")
    assert "--nodes=3 --ntasks=3 --ntasks-per-node=1" in found
    own = Launchers(own={"srun": "srun --mpi=none -n {tasks}"})
    assert line(tmp_path, NO_LAUNCHER, own) == "srun --mpi=none -n 3"
