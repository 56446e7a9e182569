"""Migrates the files that earlier releases wrote for a machine (layout 1) to layout 2.

The number of the layout is the `version` of locks.json. Every process that changes a file of the
machine reads that file first, so a release that knows only layout 1 refuses a migrated directory.

layout 1                              layout 2
queues/<queue>/bells/<worker>         subscribers/<worker>
workers/<worker>/bell                 wakeup
workers/<worker>/lost.json            presumed-dead.json
controllers/<id>/bell                 wakeup
controllers/<id>/heir-<n>.json        adopter-<n>.json, its key "heir" is "adopter"

Only this module has names of layout 1. Some keys changed in files of ended jobs, runs and launches
(`passed_over`, `taken_over`, `attendant`); the readers of these files accept the old keys.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    answered,
    is_there,
    list_names,
    make_directory,
    read_json,
    to_json,
    write_exclusively,
)
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node

# In heartbeat intervals, as in layout 1: a process that stands still for so long is presumed dead.
# Then it is watched again for `_WATCHED_FOR`, because its filesystem may just have come back.
_LOST_AFTER = 12
_WATCHED_FOR = 2
_HEARTBEAT = 5.0  # seconds, for a file without it
_NOT_CHECKED = 10**6  # versions of the files of layout 1 are all known
_HEIR = re.compile(r"heir-(\d+)\.json")


@dataclass(frozen=True)
class _Process:
    """A controller or worker of layout 1 that has not ended in good order."""

    state: Path
    what: str  # for people
    node: Node
    process: ProcessIdentity
    interval: float  # seconds between two heartbeats
    gives_signs: bool
    stop: str  # a command for people

    @property
    def is_elsewhere(self) -> bool:
        here = this_node()
        return not (here.can_see(self.node) or here.has_rebooted_since(self.node))

    @property
    def lives(self) -> bool:
        """Whether it is alive, or gave a sign of life so recently that it may be alive."""
        if not self.is_elsewhere:
            return this_node().can_see(self.node) and self.process.is_alive()
        return not self.gives_signs or self._age() < _LOST_AFTER * self.interval

    def _age(self) -> float:
        # Both times come from the file server, so the clock of a node does not matter. The file is
        # opened because NFS has current times only for open files.
        try:
            with self.state.open("rb") as own, tempfile.TemporaryFile(dir=self.state.parent) as new:
                return os.fstat(new.fileno()).st_mtime - os.fstat(own.fileno()).st_mtime
        except FileNotFoundError:
            return float("inf")  # it has ended, and removed its directory


def has_first_layout(machine: MachinePaths) -> bool:
    """Whether an earlier release made a queue. Raises OSError when that is unknown."""
    return any(is_there(queue / "bells") for queue in _directories(machine.queues))


def require_unused(machine: MachinePaths, watch: bool = True) -> None:
    """Raise KochiError while a controller or a worker of layout 1 uses the machine.

    With `watch`, processes on other hosts that look dead are watched for two heartbeats. Raises
    OSError when something is unknown now.
    """
    found = list(_processes(machine))
    silent = [each for each in found if each.is_elsewhere and not each.lives]
    if watch and silent and not any(each.lives for each in found):
        time.sleep(_WATCHED_FOR * max(each.interval for each in silent))
    if not (living := [each for each in found if each.lives]):
        return
    first = living[0]
    more = f", and {len(living) - 1} more" if len(living) > 1 else ""
    raise KochiError(
        f"machine '{machine.name}' is in use by an earlier release of snakemake_kochi, whose files "
        f"in {machine.directory} have other names: {first.what} on {first.node.host} (process "
        f"{first.process.pid}){more}",
        f"Wait for its end, or type on {first.node.host}: {first.stop}. Then type your command "
        "again. "
        + (
            "If that host is gone for good, wait a minute"
            if first.gives_signs
            else f"If that host is gone for good, type: rm {shlex.quote(str(first.state))}"
        )
        + ". Until then you can use the earlier release as before.",
    )


def migrate(machine: MachinePaths) -> None:
    """Give all files the names of layout 2; no process may use the machine meanwhile.

    Each step may be repeated, so after a `kill -9` the next call completes it. Raises OSError.
    """
    for process in _processes(machine):
        if process.is_elsewhere:
            _disown(process)
    for queue in _directories(machine.queues):
        # The directory has only names of workers, and none of them is alive.
        make_directory(queue / "subscribers")
        shutil.rmtree(queue / "bells", ignore_errors=True)
    for worker in _directories(machine.workers):
        _remove(worker / "bell")
        if (content := _content(worker / "lost.json")) is not None:
            # A copy: a worker that was suspended and wakes after the migration must still find it.
            write_exclusively(worker / "presumed-dead.json", content)
    for controller in _directories(machine.controllers):
        _remove(controller / "bell")
        for path, number in _heirs(controller):
            _copy_heir(path, controller / f"adopter-{number}.json")


def _disown(process: _Process) -> None:
    """Tell a process on another host that others have its jobs, in case it is alive after all.

    The files have the names of layout 1, because the process knows only these.
    """
    directory = process.state.parent
    if process.state.name == "worker.json":
        said = {
            "version": 2,
            "worker": int(directory.name),
            "observer": this_node().host,
            "stood_still": _LOST_AFTER * process.interval,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        }
        write_exclusively(directory / "lost.json", to_json(said))
        return
    heirs = list(_heirs(directory))
    if not any(_heir_of(path) == "" for path, _ in heirs):
        number = max((number for _, number in heirs), default=0) + 1
        said = {"version": 1, "heir": "", "host": this_node().host}
        write_exclusively(directory / f"heir-{number}.json", to_json(said))


def _copy_heir(path: Path, target: Path) -> None:
    try:
        data = read_json(path, _NOT_CHECKED)
    except DamagedFileError:
        # Copied with its damage, so that its readers have the same doubts.
        write_exclusively(target, _content(path) or b"")
        return
    if data.get("heir") == "":
        return  # written by `_disown`: it has no adopter yet
    data = {"adopter" if key == "heir" else key: value for key, value in data.items()}
    write_exclusively(target, to_json(data))


def _heirs(controller: Path) -> Iterator[tuple[Path, int]]:
    for name in sorted(list_names(controller)):
        if match := _HEIR.fullmatch(name):
            yield controller / name, int(match[1])


def _heir_of(path: Path) -> object:
    with contextlib.suppress(DamagedFileError, FileNotFoundError):
        return read_json(path, _NOT_CHECKED).get("heir")
    return None


def _processes(machine: MachinePaths) -> Iterator[_Process]:
    for directory in _directories(machine.controllers):
        data = _data(directory / "controller.json")
        if data.get("left") is not True and not is_there(directory / "gone"):
            what = f"a run in {data.get('directory') or 'an unknown directory'}"
            yield from _process(directory / "controller.json", data, what, "kill -INT {}")
    for directory in _directories(machine.workers):
        data = _data(directory / "worker.json")
        if data.get("state") != "left" and not is_there(directory / "lost.json"):
            yield from _process(
                directory / "worker.json", data, f"worker {directory.name}", "kill {}"
            )


def _process(state: Path, data: dict[str, Any], what: str, stop: str) -> Iterator[_Process]:
    if is_there(state.with_name("wakeup")):
        return  # layout 2: locks.json was removed, as its messages advise
    # A damaged file belongs to no process, as for all its readers.
    with contextlib.suppress(KeyError, TypeError, ValueError):
        process = ProcessIdentity.from_dict(data["process"])
        yield _Process(
            state=state,
            what=what,
            node=Node.from_dict(data["node"]),
            process=process,
            interval=float(data.get("heartbeat_interval", _HEARTBEAT)),
            gives_signs=data.get("heartbeat") is not None,
            stop=stop.format(process.pid),
        )


def _data(path: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, DamagedFileError):
        return read_json(path, _NOT_CHECKED)
    return {}


def _directories(parent: Path) -> list[Path]:
    return [parent / name for name in sorted(list_names(parent)) if not name.startswith(".")]


def _content(path: Path) -> bytes | None:
    with contextlib.suppress(FileNotFoundError):
        return answered(path.read_bytes)
    return None


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
