"""The scripts once per node: `prepare_node` before the first run there, `finish_node` at the end.

What it leaves in $KOCHI_SCRATCH, on the node's own storage, is for all runs of the same allocation
on this node, or on this computer (`node_storage.py`). The first run executes it, and others wait.
The data stay while the worker lives, or, without a worker, the main process of Snakemake, or at
least the run. `node_data.py` makes them, `other_nodes.py` does so on the other nodes of a run.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import DamagedFileError, KochiError, PhaseError
from snakemake_kochi.files import (
    expand_path,
    is_there,
    lacks_room,
    make_directory,
    read_json,
    to_json,
    write_atomically,
)
from snakemake_kochi.node_storage import (
    Place,
    StorageError,
    default_directory,
    hold,
    sweep,
    take_over,
)
from snakemake_kochi.paths import MachinePaths, WorkingPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.node_data import Order, Staged, complete, fill, finish, note
from snakemake_kochi.phases.products import Build, Install, digest_of
from snakemake_kochi.phases.record import Task
from snakemake_kochi.phases.script import (
    MAIN_VARIABLE,
    Environment,
    source_variables,
)
from snakemake_kochi.processes import Node, ProcessIdentity, process_entry, this_node
from snakemake_kochi.project.preparation import Step
from snakemake_kochi.schedulers.environment import own_allocation

if TYPE_CHECKING:
    from snakemake_kochi.project.machines import Machine

VERSION = 1  # of node-storage.json


def stage(
    freeze: BatchFreeze,
    task: Task,
    around: Environment,
    prepared: Build | None,
    scratch: Path,
    nodes: Sequence[str],
) -> Staged:
    """The data that `prepare_node` leaves on each node of a run. Its script is executed on those
    where no run did so.

    `around` is the environment of the run without its parameters, `scratch` the private directory
    of the run, `nodes` has the names of its nodes, this one first. Raises PhaseError when the
    script fails, and when the storage cannot be used.
    """
    assert freeze.preparation is not None and freeze.preparation.prepare_node is not None
    step = freeze.preparation.prepare_node
    machine = freeze.paths.machine(freeze.machine_name)
    holder, worker = _holder(machine)
    try:
        storage = _storage(freeze.scratch_dir, freeze.machine_name)
    except KochiError as error:
        raise PhaseError(error.message, error.hint) from error
    seen = step.environment(task.parameters)
    digest = digest_of(_description(freeze, seen, around.installs, prepared))
    around = replace(around, variables={**around.variables, **seen})
    order = _order(freeze, step, freeze.preparation.finish_node, digest, around)
    allocation = own_allocation(os.environ)
    if holder.pid == os.getpid():
        # Of an executor that has each job in an allocation of its own, for example.
        atexit.register(_leave, storage, holder)
    with _explaining(storage, freeze):
        place = hold(storage, allocation.id if allocation else "", digest, holder)
        if worker is not None:
            _note_storage(machine, worker, storage, holder)
        with place.filling():
            if (found := complete(place)) is None:
                own = make_directory(scratch / "prepare_node")
                found = fill(order, place, place.new_data(), own, task.timeout)
            others = set(nodes[1:])
            # The data of another worker may be removed there when that has ended.
            is_held = found.elsewhere is not None and found.elsewhere["worker"] == worker
            if not others or (is_held and others <= set(found.others)):
                return found
            found = _with_others(freeze, task, order, place, found, worker, scratch, nodes)
            note(order, place, found)
            return found


def _with_others(
    freeze: BatchFreeze,
    task: Task,
    order: Order,
    place: Place,
    found: Staged,
    worker: int | None,
    scratch: Path,
    nodes: Sequence[str],
) -> Staged:
    """The same data, when the other nodes of the run have them, too."""
    # Imported here: most runs are on one node.
    from snakemake_kochi.phases.other_nodes import make_there, way_to

    launcher = task.placement.launcher
    way = way_to(nodes, launcher, freeze.launchers, freeze.machine_name, place)
    if way is None or worker is None:
        print(
            f"kochi: prepare_node has prepared {nodes[0]} only, and not {', '.join(nodes[1:])}: "
            "set 'launcher' of the run, to say how programs are started there",
            file=sys.stderr,
        )
        return found
    paths = freeze.paths.machine(freeze.machine_name).worker(worker)
    own = make_directory(scratch / "other_nodes")
    made = make_there(
        *(order, way, nodes, place, found.directory.name),
        {"state": str(paths.state), "presumed_dead": str(paths.presumed_dead)},
        *(own, task.timeout),
    )
    way["worker"] = worker
    way["load_environment"] = order.environment.load_environment
    way["installs"] = [asdict(install) for install in order.environment.installs]
    record = {**found.record, "others": made}
    return Staged(found.directory, record, tuple(nodes[1:]), way)


def _description(
    freeze: BatchFreeze,
    seen: Mapping[str, str],
    installs: Sequence[Install],
    prepared: Build | None,
) -> dict[str, Any]:
    """What determines the data, and of which KOCHI_ROOT they are."""
    finish = freeze.preparation.finish_node if freeze.preparation else None
    return {
        "root": freeze.root,
        "machine": freeze.machine_name,
        "code": freeze.node_code,
        "variables": dict(seen),
        "installs": [install.identity for install in installs],
        "load_environment": freeze.load_environment,
        "prepared": str(prepared.tree) if prepared else None,
        "finish": finish.script if finish else None,
    }


def _order(
    freeze: BatchFreeze, step: Step, finish: Step | None, digest: str, around: Environment
) -> Order:
    snapshot = _snapshot(freeze)
    own = source_variables(snapshot["base"], snapshot["dirty"])
    return Order(
        digest=digest,
        experiment=freeze.experiment,
        file=freeze.file,
        script=step.script,
        strict=step.strict,
        environment=replace(around, variables={**around.variables, **own}),
        store=str(freeze.paths.store),
        tree=snapshot["tree"],
        # That of the run is of another code if `code` says so.
        git_directory=freeze.git_directory if freeze.configuration is None else None,
        finish=None if finish is None else {"script": finish.script, "strict": finish.strict},
        results=str(WorkingPaths(Path.cwd(), freeze.machine_name).results),
        if_full=_other_storage(freeze),
    )


def _snapshot(freeze: BatchFreeze) -> Mapping[str, Any]:
    """The working tree, whose script it is, also for the runs of another code."""
    return freeze.snapshot if freeze.configuration is None else freeze.configuration


# ---- the end


def main(storage: str, pid: str, start: str) -> int:
    """The program that a worker runs at its end: its data go. Exit status 1 if a script failed."""
    return _leave(Path(storage), ProcessIdentity(int(pid), int(start)))


def _leave(storage: Path, leaving: ProcessIdentity) -> int:
    """Remove what a process held last, after the scripts `finish_node`; 1 if one of them failed."""
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    failures = [_finish(place) for place in take_over(storage, leaving, own)]
    sweep(storage, leaving, own)
    return int(any(failures))


def _finish(place: Place) -> bool:
    """Execute `finish_node` on all nodes that have the data of a place; whether it failed."""
    found = complete(place)
    has_failed = finish(place)
    if found is not None and found.elsewhere is not None:
        from snakemake_kochi.phases.other_nodes import leave_there

        with suppress(OSError):
            has_failed |= leave_there(place, found.elsewhere)
    return has_failed


# ---- the storage, and the process while which the data stay


def remove_at_exit(machine: Machine) -> None:
    """At the end of this process, the main process of Snakemake, remove the data that it holds."""

    def remove() -> None:
        own = ProcessIdentity.of(os.getpid())
        with suppress(KochiError):
            if own is not None:
                _leave(_storage(machine.scratch_dir, machine.name), own)

    atexit.register(remove)


def _storage(scratch_dir: str | None, machine: str) -> Path:
    if scratch_dir is None:
        return default_directory()
    return expand_path(scratch_dir, f"scratch_dir of the machine {machine}")


@contextmanager
def _explaining(storage: Path, freeze: BatchFreeze) -> Iterator[None]:
    """Say of an error of the storage what to do."""
    other = _other_storage(freeze)
    try:
        yield
    except StorageError as error:
        raise PhaseError(_unusable(error.message), error.hint or f"S{other[1:]}") from error
    except OSError as error:
        if not str(error.filename).startswith(str(storage)):
            raise
        said = _unusable(f"{error.filename}: {error.strerror}")
        advice = f"Free some space there, or: {other}" if lacks_room(error) else f"S{other[1:]}"
        raise PhaseError(said, advice) from error


def _other_storage(freeze: BatchFreeze) -> str:
    machine = freeze.machine_name
    return (
        f"set 'scratch_dir' of the machine '{machine}' in kochi.yaml to a directory on the own "
        "storage of its nodes."
    )


def _unusable(why: str) -> str:
    return f"no data can be prepared on the node {this_node().host}: {why}"


def _holder(machine: MachinePaths) -> tuple[ProcessIdentity, int | None]:
    """The process while which data stay, and the number of the worker if it is one."""
    number = os.environ.get("KOCHI_WORKER_ID", "")
    if number.isdecimal() and number.isascii():
        # Not by the package of the queue: this is all that a phase needs to know of a worker.
        with suppress(OSError, DamagedFileError, KeyError, TypeError, ValueError):
            state = read_json(machine.worker(int(number)).state)
            process = ProcessIdentity.from_dict(state["process"])
            if Node.from_dict(state["node"]) == this_node() and process.is_alive():
                return process, int(number)
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    return _main_process() or own, None


def _main_process() -> ProcessIdentity | None:
    """The main process of Snakemake, if it is on this node: then it is one of our ancestors."""
    wanted = os.environ.get(MAIN_VARIABLE, "")
    entry = process_entry(os.getpid())
    while entry is not None and entry.parent > 0:
        if str(entry.parent) == wanted:
            return ProcessIdentity.of(entry.parent)
        entry = process_entry(entry.parent)
    return None


def _note_storage(
    machine: MachinePaths, worker: int, storage: Path, holder: ProcessIdentity
) -> None:
    """The worker removes the data there at its end."""
    file = machine.worker(worker).node_storage
    if not is_there(file):
        noted = {"version": VERSION, "directory": str(storage), "process": asdict(holder)}
        write_atomically(file, to_json(noted))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
