"""The scripts once per node: `prepare_node` before the first run there, `finish_node` at the end.

What it leaves in $KOCHI_SCRATCH, on the node's own storage, is for all runs of the same allocation
on this node, or on this computer (`node_storage.py`). The first run executes it, and others wait.
It runs in a private copy of the snapshot. The data stay while the worker lives, or, without a
worker, the main process of Snakemake, or at least the run.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import DamagedFileError, KochiError, PhaseError
from snakemake_kochi.files import (
    expand_path,
    has_room,
    is_there,
    lacks_room,
    last_lines,
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
from snakemake_kochi.phases.products import LAST_LINES, Build, Install, digest_of
from snakemake_kochi.phases.record import Task
from snakemake_kochi.phases.script import (
    MAIN_VARIABLE,
    Environment,
    Stopwatch,
    give_repository,
    run_script,
    source_variables,
)
from snakemake_kochi.processes import Node, ProcessIdentity, process_entry, this_node
from snakemake_kochi.project.preparation import Step
from snakemake_kochi.schedulers.environment import own_allocation

if TYPE_CHECKING:
    from snakemake_kochi.project.machines import Machine

VERSION = 1
SCRATCH_VARIABLE = "KOCHI_SCRATCH"
# For the script at the end: an allocation may be about to end, and should not be kept for long.
_FINISH_SECONDS = 300.0


@dataclass(frozen=True)
class Staged:
    """Data on this node: the directory of $KOCHI_SCRATCH, and what the record says of them."""

    directory: Path
    record: Mapping[str, Any]


def stage(
    freeze: BatchFreeze,
    task: Task,
    around: Environment,
    prepared: Build | None,
    scratch: Path,
) -> Staged:
    """The data that `prepare_node` leaves on this node. Its script is executed if no run did so.

    `around` is the environment of the run without its parameters, `scratch` the private directory
    of the run. Raises PhaseError when the script fails, and when the storage cannot be used.
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
    allocation = own_allocation(os.environ)
    if holder.pid == os.getpid():
        # Of an executor that has each job in an allocation of its own, for example.
        atexit.register(_leave, storage, holder)
    with _explaining(storage, freeze):
        place = hold(storage, allocation.id if allocation else "", digest, holder)
        if worker is not None:
            _note_storage(machine, worker, storage, holder)
        with place.filling():
            if (found := _complete(place)) is not None:
                return found
            snapshot = _snapshot(freeze)
            own = {**source_variables(snapshot["base"], snapshot["dirty"]), **seen}
            environment = replace(around, variables={**around.variables, **own})
            return _fill(freeze, step, digest, place, environment, scratch, task.timeout)


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


def _complete(place: Place) -> Staged | None:
    with suppress(FileNotFoundError, DamagedFileError, KeyError, TypeError):
        data = read_json(place.manifest, VERSION, is_ours=True)
        directory = place.data(str(data["data"]))
        if is_there(directory):
            return Staged(directory, data["record"])
    return None


def _fill(
    freeze: BatchFreeze,
    step: Step,
    digest: str,
    place: Place,
    around: Environment,
    scratch: Path,
    timeout: float | None,
) -> Staged:
    directory = place.new_data()
    environment = replace(around, variables={**around.variables, SCRATCH_VARIABLE: str(directory)})
    own = make_directory(scratch / "prepare_node")
    # Not on the storage: if that is full, the script says so.
    log = own / "log"
    with Stopwatch() as watch:
        ended = run_script(
            step.script,
            f"prepare_node_{freeze.experiment}",
            _workspace(freeze, own / "workspace"),
            environment,
            step.strict,
            own,
            output=log,
            timeout=timeout,
        )
    if ended.has_failed:
        full = (
            "" if has_room(place.directory) else f", where {place.directory.parent.parent} is full"
        )
        raise PhaseError(
            f"{freeze.file}: the prepare_node script {ended.how} on {this_node().host}{full}",
            f"Free some space there, or: {_other_storage(freeze)}" if full else None,
            reason=f"{ended.reason('the prepare_node script')}{full}",
            output=last_lines(log, LAST_LINES),
        )
    _say_what_is_not_prepared()
    record = {
        "digest": digest,
        "script": step.script,
        "directory": str(directory),
        **watch.record,
    }
    manifest = {"version": VERSION, "data": directory.name, "record": record}
    manifest |= {"finish": _finish_of(freeze, environment)}
    # Last: whoever finds it takes the data for complete.
    write_atomically(place.manifest, to_json(manifest))
    return Staged(directory, record)


def _say_what_is_not_prepared() -> None:
    first, *others = os.environ.get("KOCHI_NODELIST", "").split(",")
    if others:
        print(
            f"kochi: prepare_node has prepared {first} only, and not {', '.join(others)}",
            file=sys.stderr,
        )


def _workspace(freeze: BatchFreeze, directory: Path) -> Path:
    # Imported here: it loads git, and most runs find the data.
    from snakemake_kochi.snapshot import materialise

    materialise(freeze.paths.store, _snapshot(freeze)["tree"], directory)
    # That of the run is of another code if `code` says so.
    give_repository(freeze.git_directory if freeze.configuration is None else None, directory)
    return directory


def _snapshot(freeze: BatchFreeze) -> Mapping[str, Any]:
    """The working tree, whose script it is, also for the runs of another code."""
    return freeze.snapshot if freeze.configuration is None else freeze.configuration


# ---- the end


def _finish_of(freeze: BatchFreeze, around: Environment) -> dict[str, Any] | None:
    """What the process that removes the data has to know of the script `finish_node`, as JSON."""
    assert freeze.preparation is not None
    step = freeze.preparation.finish_node
    if step is None:
        return None
    own = ("KOCHI_PARAM_", "KOCHI_PREPARED", "KOCHI_SCRATCH", "KOCHI_MACHINE")
    variables = {name: text for name, text in around.variables.items() if name.startswith(own)}
    variables["KOCHI_RESULTS"] = str(WorkingPaths(Path.cwd(), freeze.machine_name).results)
    return {
        "experiment": freeze.file,
        "script": step.script,
        "strict": step.strict,
        "load_environment": around.load_environment,
        "installs": [asdict(install) for install in around.installs],
        "variables": variables,
    }


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
    """Run the script `finish_node` of a place, if it has one and is complete; whether it failed."""
    with suppress(OSError, DamagedFileError, KeyError, TypeError):
        manifest = read_json(place.manifest, VERSION, is_ours=True)
        if (finish := manifest["finish"]) is None:
            return False
        installs = tuple(Install.of(each) for each in finish["installs"])
        ended = run_script(
            finish["script"],
            "finish_node",
            place.data(str(manifest["data"])),
            Environment(finish["load_environment"], installs, finish["variables"]),
            finish["strict"],
            make_directory(place.directory / "finish"),
            timeout=_FINISH_SECONDS,
        )
        if ended.has_failed:
            said = f"{finish['experiment']}: the finish_node script {ended.how}"
            print(f"kochi: {said} on {this_node().host}", file=sys.stderr)
        return ended.has_failed
    return False


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
