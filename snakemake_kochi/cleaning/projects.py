"""Files of projects on one machine: workspaces, builds and installations.

A build or an installation goes if it was not used for long (the time of its manifest says when),
and if nothing that lives may use it: neither a process with a workspace, nor a job that waits or
runs, nor a run whose main process is alive. The last one holds a promise (`artifacts/promises.py`)
from before it looks which builds and installations exist. The lock of the build or the recipe is
held meanwhile, so nothing is made there; if it is busy, the thing stays. What `prepare` scripts
have made goes as builds do.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from snakemake_kochi.artifacts.agreement import working_directories
from snakemake_kochi.artifacts.journal import journaled_jobs
from snakemake_kochi.artifacts.promises import has_promise
from snakemake_kochi.cleaning.jobs import all_tickets, hosts_of_live_processes
from snakemake_kochi.cleaning.removal import Removal, measure, move_aside, put_back
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import answered, list_names, read_json
from snakemake_kochi.locks import LockBusyError, find_lock_settings
from snakemake_kochi.paths import (
    BuildPaths,
    InstallPaths,
    MachinePaths,
    ProjectPaths,
    original_path,
)
from snakemake_kochi.phases.make import current_digests
from snakemake_kochi.phases.products import (
    builds_in_use,
    host_of_scratch,
    is_forsaken,
    read_manifest,
)
from snakemake_kochi.processes import find_by_environment, host_key, this_node
from snakemake_kochi.project.clean_rules import DAY, Rules
from snakemake_kochi.project.values import environment_name
from snakemake_kochi.tickets.ticket import Ticket

# Seconds for which a build or an installation stays in any case: a process may have seen it, and
# not have said yet that it uses it.
LEAST_AGE = 600.0
# Seconds without a change, after which a workspace of a host without workers and runs goes.
_LONG = 30 * DAY


@dataclass(frozen=True)
class Needed:
    """What the jobs and runs of a project need on a machine, at the moment when it is asked for."""

    machine: MachinePaths
    project: ProjectPaths
    repository: Path | None

    @cached_property
    def tickets(self) -> tuple[Ticket, ...]:
        """The jobs of this project that wait or run."""
        freezes = self.project.freeze_directory
        return tuple(
            ticket
            for ticket in all_tickets(self.machine)
            if Path(ticket.environment.get("KOCHI_FREEZE", "/")).parent == freezes
        )

    @cached_property
    def freezes(self) -> frozenset[str]:
        """The files of the freezes that these jobs read."""
        return frozenset(ticket.environment["KOCHI_FREEZE"] for ticket in self.tickets)

    @cached_property
    def is_running(self) -> bool:
        """Whether the main process of a run is alive, or jobs of one are left."""
        return bool(self.tickets) or has_promise(self.project, self.machine.name)

    @cached_property
    def directories(self) -> set[Path]:
        """The builds and installations that a run may have found in its working directory."""
        found: set[Path] = set()
        if not self.is_running or self.repository is None:
            return found
        for working in working_directories(self.project, self.machine.name, self.repository):
            for parent, directories, names in os.walk(working.state):
                if Path(parent) == working.records:
                    directories.clear()
                for name in names:
                    found.update(_named_in(Path(parent, name)))
        return found

    @cached_property
    def builds(self) -> set[str]:
        """The digests of the builds that processes with a workspace use."""
        return builds_in_use(self.project.workspaces(self.machine.name))

    @cached_property
    def current_installs(self) -> set[tuple[str, str, str]]:
        return current_digests(self.project, self.machine.name)

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the commands of the jobs, which name installations."""
        return frozenset(word for ticket in self.tickets for word in ticket.command)


def _named_in(file: Path) -> Iterator[Path]:
    """The directories of the build or of the installations that a file of the rules names."""
    if file.suffix != ".json" or file.name == "record.json":
        return
    with contextlib.suppress(FileNotFoundError, DamagedFileError, KeyError, TypeError):
        if "tree" in (data := read_json(file)):
            yield Path(str(data["tree"])).parent
        elif "installs" in data:
            yield from (Path(install.prefix).parent for install in read_manifest(file))


def clean_project(
    machine: MachinePaths,
    project: ProjectPaths,
    repository: Path | None,
    rules: Rules,
    removal: Removal,
) -> None:
    """Delete workspaces, builds and installations of a project on a machine."""
    with removal.tolerating(f"workspaces of {project.directory.name}"):
        _clean_workspaces(machine, project, removal)
    needed = Needed(machine, project, repository)
    with removal.tolerating(f"builds of {project.directory.name}"):
        _clean_builds(needed, rules, removal)
    for recipe in project.recipes(machine.name):
        with removal.tolerating(f"installations in {recipe}"):
            _clean_recipe(needed, recipe, rules, removal)


# ---- workspaces


def _clean_workspaces(machine: MachinePaths, project: ProjectPaths, removal: Removal) -> None:
    parent = project.workspaces(machine.name)
    hosts: set[str] | None = None
    removal.sweep(parent)
    for name in list_names(parent):
        path = parent / name
        with contextlib.suppress(FileNotFoundError):
            if not is_forsaken(name):
                if (host := host_of_scratch(name)) in (None, host_key(this_node())):
                    continue
                if hosts is None:
                    hosts = {host_key(node) for node in hosts_of_live_processes(machine)}
                if host in hosts or removal.now - _newest(path) < _LONG:
                    continue
            removal.remove("workspaces", path)


def _newest(directory: Path) -> float:
    """When something in a directory was last changed. Raises OSError."""
    newest = answered(directory.stat).st_mtime
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            newest = max(newest, os.lstat(f"{parent}/{name}").st_mtime)
    return newest


# ---- builds and installations


def _remove_unused(
    kind: str,
    candidates: Sequence[Path],
    lock_of: Callable[[Path], Path],
    is_used: Callable[[Path, Path, Needed], bool],
    needed: Needed,
    removal: Removal,
) -> list[Path]:
    """Delete those candidates that are not used, and return them.

    `is_used` gets the name of a candidate, the path where it is now, and what is needed now. It is
    asked before the candidates are moved aside, and again afterwards.
    """
    removal.check_time()
    unused = [each for each in candidates if not is_used(each, each, needed)]
    if removal.is_dry or not unused:
        return [each for each in unused if removal.remove(kind, each)]
    locks = find_lock_settings(needed.machine)

    def to_go_back(aside: Path) -> None:
        # With the lock: no process makes the thing again at that moment.
        with locks.hold(lock_of(_original(aside))):
            put_back(aside)

    aside = []
    for each in unused:
        # A busy lock: it is being made now.
        with contextlib.suppress(LockBusyError), locks.hold(lock_of(each), patience=0):
            aside.append(move_aside(each))
    present = Needed(needed.machine, needed.project, needed.repository)

    def is_used_now(place: Path) -> bool:
        return is_used(_original(place), place, present)

    return [
        _original(each)
        for each in filter(None, aside)
        if removal.finish(kind, each, is_used_now, to_go_back)
    ]


def _original(path: Path) -> Path:
    return original_path(path) or path


def _age_of(manifest: Path, directory: Path, removal: Removal) -> float:
    """The seconds since the last use; since a failed try, if there is no manifest."""
    try:
        return removal.age_of(manifest)
    except FileNotFoundError:
        return removal.age_of(directory)


def _clean_builds(needed: Needed, rules: Rules, removal: Removal) -> None:
    """Delete builds, and what `prepare` scripts have made."""
    machine, project = needed.machine, needed.project
    kinds = {"builds": project.builds(machine.name), "prepared": project.all_prepared(machine.name)}

    def lock_of(path: Path) -> Path:
        paths = find_lock_settings(machine).paths
        return paths.project(project.directory).build(path.name)

    def is_used(path: Path, place: Path, present: Needed) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if removal.age_of(BuildPaths(place).manifest) < LEAST_AGE:
                return True
        return path.name in present.builds or path in present.directories

    old, left, kept = list[Path](), [], list[Path]()
    for kind, parent in kinds.items():
        removal.sweep(parent)
        old.clear()
        for name in list_names(parent):
            path = parent / name
            if name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):
                age = _age_of(BuildPaths(path).manifest, path, removal)
                if rules.keeps(kind, _names_of_build(path)):
                    continue
                if age >= max(rules.builds, LEAST_AGE):
                    old.append(path)
                elif rules.builds_above < math.inf:
                    left.append((age, kind, path, measure(path).bytes))
        gone = _remove_unused(kind, old, lock_of, is_used, needed, removal)
        kept += (each for each in old if each not in gone)
    if rules.builds_above < math.inf:
        excess = (
            -rules.builds_above
            + sum(size for *_, size in left)
            + sum(measure(each).bytes for each in kept)
        )
        for age, kind, path, size in sorted(left, reverse=True):
            if excess <= 0 or age < LEAST_AGE:
                break
            if _remove_unused(kind, [path], lock_of, is_used, needed, removal):
                excess -= size


def _names_of_build(path: Path) -> tuple[str, ...]:
    with contextlib.suppress(FileNotFoundError, DamagedFileError):
        data = read_json(BuildPaths(path).manifest)
        return path.name, str(data.get("experiment"))
    return (path.name,)


def _clean_recipe(needed: Needed, recipe: Path, rules: Rules, removal: Removal) -> None:
    machine, project = needed.machine, needed.project
    own = f"{recipe.parent.name}:{recipe.name}"
    variable = f"KOCHI_INSTALL_PREFIX_{environment_name(recipe.parent.name)}"

    def lock_of(_: Path) -> Path:
        paths = find_lock_settings(machine).paths
        return paths.project(project.directory).install(recipe.parent.name, recipe.name)

    def is_used(name: Path, place: Path, present: Needed) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if removal.age_of(InstallPaths(place).manifest) < LEAST_AGE:
                return True
        if (recipe.parent.name, recipe.name, name.name) in present.current_installs:
            return True
        if f"{own}:{name.name}" in present.words or name in present.directories:
            return True
        # A program that a person started with `kochi run`, maybe long ago.
        return bool(find_by_environment({variable: str(InstallPaths(name).prefix)}, 0))

    removal.sweep(recipe)
    old = list[Path]()
    current = project.current_install(machine.name, recipe.parent.name, recipe.name)
    for name in list_names(recipe):
        path = recipe / name
        if name.startswith(".") or path == current:
            continue
        with contextlib.suppress(FileNotFoundError):
            age = _age_of(InstallPaths(path).manifest, path, removal)
            is_kept = rules.keeps("installs", (name, own, recipe.parent.name))
            if age >= max(rules.installs, LEAST_AGE) and not is_kept:
                old.append(path)
    _remove_unused("installs", old, lock_of, is_used, needed, removal)


def needed_jobs(machine: MachinePaths, projects: Collection[ProjectPaths]) -> set[str]:
    """The jobs whose ends the committer asks for: those of results in the journal.

    Raises OSError and KochiError when they are not known now.
    """
    return {job for project in projects for job in journaled_jobs(project, machine.name)}
