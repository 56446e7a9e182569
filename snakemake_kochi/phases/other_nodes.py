"""Data on the other nodes of a run: a launcher starts this program once on each of its nodes.

`make FILE`, on the order of the run, has the script `prepare_node` fill a directory on the node's
own storage that has the same path as on the run's first node, and answers in a file. `leave PLACE
FIRST`, at the end of the run's worker, executes the script `finish_node` and removes the
directory. On the first node, which does the same by itself, the program does nothing.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError, KochiError, PhaseError
from snakemake_kochi.files import (
    last_lines,
    make_directory,
    random_word,
    read_json,
    to_json,
    write_atomically,
)
from snakemake_kochi.node_storage import (
    Place,
    hold_for_worker,
    is_held_by_processes,
    remove,
)
from snakemake_kochi.phases.ending import Ended
from snakemake_kochi.phases.launcher import Files, line_of
from snakemake_kochi.phases.node_data import FINISH_SECONDS, Order, complete, fill, finish
from snakemake_kochi.phases.products import LAST_LINES, Install
from snakemake_kochi.phases.script import Environment, clean_up_on_sigterm, run_script
from snakemake_kochi.processes import host_key, this_node
from snakemake_kochi.project.launchers import Launcher, Launchers
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.schedulers.launchers import Shape, launcher_of

VERSION = 1
_PROGRAM = (sys.executable, "-P", "-m", "snakemake_kochi.phases.other_nodes")


def way_to(
    nodes: Sequence[str], of_run: Launcher, launchers: Launchers, machine: str, place: Place
) -> dict[str, Any] | None:
    """How a program is started once on each of a run's nodes, as JSON; None if it is not known.

    The scheduler's own launcher does so, else that of the run.
    """
    allocation = own_allocation(os.environ)
    launcher = of_run
    if allocation is not None and (name := launcher_of(allocation.scheduler)) is not None:
        with suppress(ConfigError):
            launcher = launchers.of(name, machine)
    if not launcher.starts_tasks:
        return None
    host_file = place.directory / "hosts"
    host_file.write_text("".join(f"{node} slots=1\n" for node in nodes))
    files = Files(",".join(nodes), ",".join(f"{node}:1" for node in nodes), str(host_file))
    shape = Shape(nodes=len(nodes), tasks=len(nodes), tasks_per_node=1)
    variables = {} if allocation is None else allocation.variables_for([1] * len(nodes))
    return {"line": line_of(launcher, shape, "none", files), "variables": variables}


def make_there(
    order: Order,
    way: Mapping[str, Any],
    nodes: Sequence[str],
    place: Place,
    data: str,
    worker: Mapping[str, str],
    own: Path,
    timeout: float | None,
) -> list[dict[str, Any]]:
    """Have the data of a place, a directory called `data`, made on all of a run's nodes but this.

    `worker`: see `hold_for_worker`. `own`: a new private directory that all nodes see. Returns
    "node", "started" and "seconds" of each. Raises PhaseError.
    """
    answers = make_directory(own / "answers")
    file = own / "order.json"
    said = {
        "version": VERSION,
        "order": asdict(order),
        "first": host_key(this_node()),
        "place": str(place.directory),
        "data": data,
        "worker": dict(worker),
        "answers": str(answers),
    }
    write_atomically(file, to_json(said))
    log = own / "log"
    around = order.environment
    ended = _launch(way, ("make", str(file)), around, own, log, timeout)
    found = [read_json(each, VERSION) for each in answers.glob("*.json")]
    for answer in found:
        if "message" in answer:
            raise PhaseError(
                *(answer["message"], answer["hint"]),
                reason=answer["reason"],
                output=answer["output"],
            )
    if ended.has_failed or len(found) < len(nodes):
        reason = ended.reason("prepare_node") if ended.has_failed else "prepare_node did not end"
        raise PhaseError(
            f"{order.file}: prepare_node was executed on {len(found)} of the nodes "
            f"{', '.join(nodes)}, started by: {way['line']}",
            "Its output is above.",
            reason=f"{reason} on each node of the run",
            output=last_lines(log, LAST_LINES),
        )
    made = [answer["made"] for answer in found if answer["made"] is not None]
    return sorted(made, key=lambda each: str(each["node"]))


def leave_there(place: Place, way: Mapping[str, Any]) -> bool:
    """Have the data of a place removed on the other nodes; whether a script there failed.

    `way`: as from `way_to`, with "load_environment" and "installs" for the launcher.
    """
    words = ("leave", str(place.directory), host_key(this_node()))
    own = make_directory(place.directory / "leaving")
    installs = tuple(Install.of(each) for each in way["installs"])
    around = Environment(way["load_environment"], installs, {})
    # For the launcher, too.
    limit = FINISH_SECONDS + 60
    return _launch(way, words, around, own, None, limit).has_failed


def _launch(
    way: Mapping[str, Any],
    words: Sequence[str],
    around: Environment,
    own: Path,
    log: Path | None,
    timeout: float | None,
) -> Ended:
    """Start this program with these words on all nodes of a run. Its launcher may be a module's."""
    environment = Environment(
        around.load_environment, around.installs, {**around.variables, **way["variables"]}
    )
    script = f"exec {way['line']} {shlex.join([*_PROGRAM, *words])}"
    return run_script(script, "other_nodes", own, environment, True, own, log, timeout=timeout)


# ---- the program


def _make(file: Path) -> int:
    said = read_json(file, VERSION, is_ours=True)
    answer: dict[str, Any] = {"version": VERSION}
    try:
        made = None if said["first"] == host_key(this_node()) else _made_here(said, file.parent)
        answer["made"] = made
    except KochiError as error:
        answer |= _as_answer(error)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        message = f"no data can be prepared on the node {platform.node()}: {why}"
        hint = f"Free some space there, or: {said['order']['if_full']}"
        answer |= _as_answer(PhaseError(message, hint))
    name = f"{random_word(8)}.json"
    write_atomically(Path(said["answers"]) / name, to_json(answer))
    return 0


def _as_answer(error: KochiError) -> dict[str, Any]:
    phase = error if isinstance(error, PhaseError) else PhaseError(error.message, error.hint)
    return {
        "message": phase.message,
        "hint": phase.hint,
        "reason": phase.reason,
        "output": list(phase.output),
    }


def _made_here(said: Mapping[str, Any], shared: Path) -> dict[str, Any] | None:
    """What the record says of the data on this node; None if they are on a storage that this node
    shares with the first one."""
    order, place = Order.from_json(said["order"]), Place(Path(said["place"]))
    if is_held_by_processes(place):
        return None
    hold_for_worker(place, said["worker"])
    with place.filling():
        found = complete(place)
        if found is None or found.directory.name != said["data"]:
            own = make_directory(shared / f"on-{host_key(this_node())}")
            found = fill(order, place, place.new_data(said["data"]), own)
    return {key: found.record[key] for key in ("node", "started", "seconds")}


def _leave(place: Place, first: str) -> int:
    if first == host_key(this_node()) or is_held_by_processes(place):
        return 0
    has_failed = finish(place)
    remove(place)
    return int(has_failed)


def main(command: str, *words: str) -> int:
    """The program; see the module. Exit status 1 if a script `finish_node` failed."""
    clean_up_on_sigterm()
    if command == "make":
        return _make(Path(words[0]))
    return _leave(Place(Path(words[0])), words[1])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
