"""All checks, one after the other."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path

from snakemake_kochi.doctor import filesystem, node, pair
from snakemake_kochi.doctor.allocations import TrialAllocations, TrialWorker
from snakemake_kochi.doctor.checks import (
    Check,
    Finding,
    HangsError,
    failed,
    isolated,
    run,
    trial,
)
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.location import Location
from snakemake_kochi.locks.settings import (
    LockSettings,
    intended_lock_settings,
    read_lock_settings,
)
from snakemake_kochi.paths import MachinePaths, TrialPaths
from snakemake_kochi.processes import this_node

_ROOT_OF_ALL = (
    "kochi_root must be on a filesystem that all nodes see. To test whether this one is, type: "
    "kochi doctor --allocations"
)
_PROJECT_OF_ALL = "The project must be on a filesystem that all nodes see."
# Snakemake's own files in a working directory: no snapshot of the sources has them.
_IN_PROJECT = ".snakemake"
_BETWEEN, _COMPUTE = "between nodes", "between compute nodes"


def diagnose(
    location: Location,
    deadline: float,
    remark: Callable[[str], None],
    queue: str | None = None,
    allocations: TrialAllocations | None = None,
) -> Generator[Finding]:
    """The findings about a machine, and about the project if there is one, as they come.

    `deadline`: seconds for a check to answer before it counts as hanging; checks between nodes have
    more. `remark` prints messages meanwhile. `queue` has a worker on another node to test with.
    `allocations` are requested for such a test if this node is fit. It touches none of the
    directories itself, and leaves nothing in them. The caller must read it to the end, or close it.
    """
    doctor = _Doctor(location, deadline, remark)
    option = "--allocations" if queue is None else f"-q {queue}"
    is_tested = queue is not None or allocations is not None
    has_scheduler = location.machine.has_allocations
    of_all = has_scheduler and not is_tested
    yield from run(node.CHECKS, deadline)
    is_fit = True
    for part in (doctor.machine(of_all), doctor.locks()):
        for finding in part:
            is_fit = is_fit and finding.verdict != "failed"
            yield finding
    yield from doctor.project(of_all)
    if not is_tested:
        start = "Start a worker on another node (kochi work -q QUEUE -b), then type here"
        yield _untested("Type" if has_scheduler else start, option if has_scheduler else "-q QUEUE")
    elif not is_fit:
        yield _untested("First repair what failed on this node, then type here", option)
    elif allocations is not None:
        yield from doctor.allocated(allocations)
    else:
        yield from doctor.between_nodes(str(queue))


def _untested(first: str, option: str) -> Finding:
    return Finding("note", "not tested", f"{first}: kochi doctor {option}", _BETWEEN)


class _Doctor:
    def __init__(self, location: Location, deadline: float, remark: Callable[[str], None]) -> None:
        self._location = location
        self._machine = location.machine_paths
        self._deadline, self._remark = deadline, remark
        self._nonce = secrets.token_hex(4)

    def machine(self, of_all: bool) -> Generator[Finding]:
        where, paths = self._machine.directory, self._machine.trial(self._nonce)
        advice = _ROOT_OF_ALL if of_all else ""
        checks = [
            *_of_directory(where, paths, advice),
            Check("link", where, partial(filesystem.examine_link, paths)),
            Check("wake-up", where, partial(filesystem.examine_wakeup, paths)),
            Check("directories", where, partial(filesystem.examine_refusals, paths)),
        ]
        return self._in_trial(paths, checks)

    def project(self, of_all: bool) -> Generator[Finding]:
        if (project := self._location.project) is not None:
            where = project.directory
            paths = TrialPaths(where / _IN_PROJECT / f"kochi-doctor-{self._nonce}")
            checks = _of_directory(where, paths, _PROJECT_OF_ALL if of_all else "")
            yield from self._in_trial(paths, checks)

    def _in_trial(self, paths: TrialPaths, checks: list[Check]) -> Generator[Finding]:
        try:
            with trial(paths, self._deadline, self._remark):
                yield from run(checks, self._deadline)
        except KochiError as error:
            yield failed("directory", paths.directory.parent, error)

    def locks(self) -> Generator[Finding]:
        """All findings about the locks that need no other node."""
        machine, configured = self._machine, self._location.machine
        wanted = intended_lock_settings(machine, configured.lock_directory, configured.lock_kind)
        examine = partial(filesystem.examine_lock_settings, wanted)
        (settings,) = run([Check("lock settings", machine.lock_settings, examine)], self._deadline)
        yield settings
        used = wanted
        try:
            # The locks in use, whatever the configuration says by now.
            if settled := isolated(partial(_settled, machine), self._deadline):
                used = settled
            around = used.lock_dir or machine.directory
            if settings.verdict == "failed" and not isolated(around.is_dir, self._deadline):
                return
        except HangsError:
            return  # the check has hung, too
        paths, where, kind = used.paths.trial(self._nonce), used.paths.directory, used.kind
        examine = partial(filesystem.examine_filesystem, where, for_flock=kind == "flock")
        lock, exclusion = filesystem.examine_lock, filesystem.examine_exclusion
        checks = [
            Check("filesystem of locks", where, examine),
            Check("lock", where, partial(lock, paths.lock("here"), kind), is_needed=True),
            Check("lock between processes", where, partial(exclusion, paths.lock("here"), kind)),
        ]
        yield from self._in_trial(paths, checks)

    def between_nodes(
        self, queue: str, controller: str | None = None, first: TrialWorker | None = None
    ) -> Generator[Finding]:
        """The findings with the worker of a queue: this node, or that of the `first` worker."""
        machine, nonce = self._machine, self._nonce
        other = pair.Pair(machine.name, str(machine.directory), nonce, queue, controller)
        if first is None:
            return pair.examine(other, self._remark, self._deadline)
        # The other node may still cache the directories of the earlier test.
        other = replace(other, nonce=f"{nonce}-2", what=_COMPUTE, here=first.node.host)
        return pair.examine(other, self._remark, self._deadline, first.queue)

    def allocated(self, allocations: TrialAllocations) -> Generator[Finding]:
        """The findings of this node with an allocated one, and of that one with a second one.

        The first pair is not enough if login nodes have their filesystems from other servers than
        compute nodes.
        """
        first = allocations.get()
        if isinstance(first, Finding):
            yield replace(first, check=_BETWEEN)
            return
        yield Finding("ok", first.said, check="allocation")
        if this_node().can_see(first.node):
            said = f"not tested: the allocation is on this node ({first.node.host})"
            advice = "Type the same command on a login node."
            yield Finding("warning", said, advice, _BETWEEN)
        else:
            yield from self.between_nodes(first.queue, first.controller)
        second = allocations.get(not_on=first.nodes)
        if isinstance(second, Finding):
            yield replace(second, check=_COMPUTE)
            return
        yield Finding("ok", second.said, check="allocation")
        if second.node == first.node:
            said = f"not tested: both allocations are on {first.node.host}"
            advice = "Try again when other nodes are free, or in another partition."
            yield Finding("warning", said, advice, _COMPUTE)
            return
        yield from self.between_nodes(second.queue, second.controller, first)


def _of_directory(where: Path, paths: TrialPaths, of_all: str) -> list[Check]:
    examine = partial(filesystem.examine_filesystem, paths.directory, of_all=of_all)
    rename = partial(pair.examine_rename, paths)
    return [
        Check("filesystem", where, examine),
        Check("space", where, partial(filesystem.examine_space, paths.directory)),
        Check("clock", where, partial(filesystem.examine_clock, paths)),
        Check("rename", where, rename, filesystem.RENAME_PATIENCE),
    ]


def _settled(machine: MachinePaths) -> LockSettings | None:
    with contextlib.suppress(DamagedFileError, OSError):
        return read_lock_settings(machine)
    return None
