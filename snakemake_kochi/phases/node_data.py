"""What `prepare_node` leaves on one node: made by its script, found again, and used up at the end.

It runs in a private copy of the snapshot. An order has all that is needed, so that the same is done
on the other nodes of a run (`other_nodes.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, PhaseError
from snakemake_kochi.files import (
    has_room,
    is_there,
    last_lines,
    make_directory,
    read_json,
    to_json,
    write_atomically,
)
from snakemake_kochi.node_storage import Place
from snakemake_kochi.phases.products import LAST_LINES, Install
from snakemake_kochi.phases.script import Environment, Stopwatch, give_repository, run_script
from snakemake_kochi.processes import this_node

VERSION = 1
SCRATCH_VARIABLE = "KOCHI_SCRATCH"
# For the script at the end: an allocation may be about to end, and should not be kept for long.
FINISH_SECONDS = 300.0
_FOR_FINISH = ("KOCHI_PARAM_", "KOCHI_PREPARED", "KOCHI_SCRATCH", "KOCHI_MACHINE")


@dataclass(frozen=True)
class Order:
    """How data are made. `file` is the path of the experiment in the project, `store` and `tree`
    are the snapshot with the script, `git_directory` as in the freeze, `finish` is the script
    `finish_node` with "script" and "strict", `results` the directory that it finds, `if_full` what
    to do about a full storage."""

    digest: str
    experiment: str
    file: str
    script: str
    strict: bool
    environment: Environment
    store: str
    tree: str
    git_directory: str | None
    finish: Mapping[str, Any] | None
    results: str
    if_full: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Order:
        """From `asdict` of one that went through JSON."""
        own = data["environment"]
        installs = tuple(Install.of(each) for each in own["installs"])
        return cls(**{**data, "environment": Environment(**{**own, "installs": installs})})


@dataclass(frozen=True)
class Staged:
    """Data on this node: the directory of $KOCHI_SCRATCH, and what the record says of them.

    `others`: further nodes that have them, by name. `elsewhere`: how these are reached at the end,
    for `other_nodes.py`.
    """

    directory: Path
    record: Mapping[str, Any]
    others: Sequence[str] = ()
    elsewhere: Mapping[str, Any] | None = None


def complete(place: Place) -> Staged | None:
    """The data of a place, if they are complete."""
    with suppress(FileNotFoundError, DamagedFileError, KeyError, TypeError):
        data = read_json(place.manifest, VERSION, is_ours=True)
        directory = place.data(str(data["data"]))
        if is_there(directory):
            return Staged(directory, data["record"], data.get("others", ()), data.get("elsewhere"))
    return None


def fill(
    order: Order, place: Place, directory: Path, own: Path, timeout: float | None = None
) -> Staged:
    """Have the script fill an empty directory of a place, on this node.

    `own`: a new private directory. Raises PhaseError when the script fails.
    """
    environment = _with_scratch(order, directory)
    # Not on the storage: if that is full, the script says so.
    log = own / "log"
    with Stopwatch() as watch:
        ended = run_script(
            order.script,
            f"prepare_node_{order.experiment}",
            _workspace(order, own / "workspace"),
            environment,
            order.strict,
            own,
            output=log,
            timeout=timeout,
        )
    if ended.has_failed:
        full = (
            "" if has_room(place.directory) else f", where {place.directory.parent.parent} is full"
        )
        raise PhaseError(
            f"{order.file}: the prepare_node script {ended.how} on {this_node().host}{full}",
            f"Free some space there, or: {order.if_full}" if full else None,
            reason=f"{ended.reason('the prepare_node script')}{full}",
            output=last_lines(log, LAST_LINES),
        )
    record = {
        "digest": order.digest,
        "script": order.script,
        "directory": str(directory),
        **watch.record,
    }
    staged = Staged(directory, record)
    note(order, place, staged)
    return staged


def note(order: Order, place: Place, staged: Staged) -> None:
    """Say that the data are complete: last, because whoever finds this takes them for so."""
    manifest = {
        "version": VERSION,
        "data": staged.directory.name,
        "record": staged.record,
        "others": staged.others,
        "elsewhere": staged.elsewhere,
        "finish": _finish_of(order, staged.directory),
    }
    write_atomically(place.manifest, to_json(manifest))


def _with_scratch(order: Order, directory: Path) -> Environment:
    variables = {**order.environment.variables, SCRATCH_VARIABLE: str(directory)}
    return replace(order.environment, variables=variables)


def _workspace(order: Order, directory: Path) -> Path:
    # Imported here: it loads git, and most runs find the data.
    from snakemake_kochi.snapshot import materialise

    materialise(Path(order.store), order.tree, directory)
    give_repository(order.git_directory, directory)
    return directory


def _finish_of(order: Order, directory: Path) -> dict[str, Any] | None:
    """What the process that removes the data has to know of the script `finish_node`, as JSON."""
    if order.finish is None:
        return None
    around = _with_scratch(order, directory)
    own = {n: text for n, text in around.variables.items() if n.startswith(_FOR_FINISH)}
    return {
        **order.finish,
        "experiment": order.file,
        "load_environment": around.load_environment,
        "installs": [asdict(install) for install in around.installs],
        "variables": {**own, "KOCHI_RESULTS": order.results},
    }


def finish(place: Place) -> bool:
    """Run the script `finish_node` of a place, if it has one and is complete; whether it failed."""
    with suppress(OSError, DamagedFileError, KeyError, TypeError):
        manifest = read_json(place.manifest, VERSION, is_ours=True)
        if (step := manifest["finish"]) is None:
            return False
        installs = tuple(Install.of(each) for each in step["installs"])
        ended = run_script(
            step["script"],
            "finish_node",
            place.data(str(manifest["data"])),
            Environment(step["load_environment"], installs, step["variables"]),
            step["strict"],
            make_directory(place.directory / "finish"),
            timeout=FINISH_SECONDS,
        )
        if ended.has_failed:
            said = f"{step['experiment']}: the finish_node script {ended.how}"
            print(f"kochi: {said} on {this_node().host}", file=sys.stderr)
        return ended.has_failed
    return False
