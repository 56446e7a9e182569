"""The location of a command: its machine, its project, if any, and therefore its KOCHI_ROOT."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import random_word, safe_name, write_atomically
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.locks import settle_locks
from snakemake_kochi.paths import MachinePaths, ProjectPaths, Root
from snakemake_kochi.project.configuration import find_project, is_configured, load_project
from snakemake_kochi.project.machines import (
    LOCAL,
    Machine,
    chosen_machine,
    common_files,
)
from snakemake_kochi.project.recipes import Project
from snakemake_kochi.schedulers.native import installed_system

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Location:
    """A machine, and the project of the current directory, if any.

    `unread` is the reason why the kochi.yaml of the current directory was not read, if it was not.
    `is_named` tells whether a person has named the machine. `machines` are all known machines.
    """

    machine: Machine
    project: Project | None
    root: Root
    unread: KochiError | None = None
    is_named: bool = True
    machines: Mapping[str, Machine] = field(default_factory=FrozenDict)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that pass the location on to child processes.

        The location includes a machine given with -m, and the root in kochi.yaml.
        """
        own = Root.find().directory
        # Child processes find the user's configuration for all projects below this root.
        is_there = any(Path(file).is_relative_to(own) for file in self.machine.files)
        variables = {"KOCHI_ROOT": str(own if is_there else self.root.directory)}
        if self.is_named or self.machine.name != LOCAL:
            variables["KOCHI_DEFAULT_MACHINE"] = self.machine.name
        return variables

    def is_left_to_host(self, environment: Mapping[str, str] = os.environ) -> bool:
        """Whether nothing selects a machine: neither a person, nor a job, nor the configuration."""
        return (
            not self.is_named
            and environment.get("KOCHI_MACHINE") != LOCAL
            and self.machine.name == LOCAL
            and self.unread is None
            and not self.machine.has_allocations
        )

    @property
    def machine_paths(self) -> MachinePaths:
        return self.root.machine(self.machine.name)

    def purpose(self, what: str) -> str:
        """What an allocation is for, in its scheduler's lists: "kochi:project=fib:doctor"."""
        project = "" if self.project is None else f":project={self.project.directory.name}"
        return f"kochi{project}:{what}"

    def unique_name(self, what: str) -> str:
        """A name that nothing else has, of the project and its purpose: "fib-shell-5f0a93c2"."""
        project = [] if self.project is None else [self.project.directory.name]
        return safe_name("-".join([*project, what])).lstrip(".-") + f"-{random_word()}"

    def typed(self, command: str, *words: str) -> str:
        """A command of kochi for this machine, for people to type."""
        on = ["-m", self.machine.name] if self.is_named else []
        return shlex.join(["kochi", *command.split(" "), *on, *words])

    def to_start_worker(self, queue: str) -> str:
        """What a person types to get a worker: where compute nodes can be requested, a worker that
        is started here would be on a login node."""
        if self.machine.has_allocations:
            return self.typed("alloc", "-q", queue)
        return self.typed("work", "-q", queue, "-b")

    def prepare_machine(self) -> MachinePaths:
        """Prepare the machine for jobs: check its owner, and settle the configured locks.

        This warns about those trusted users who could put jobs there. Raises KochiError when other
        users could, when the machine was used with other locks before, or when the locks cannot be
        made.
        """
        machine = self.machine.at_home()
        lock_dir = machine.lock_directory
        for doubt in self.root.secure(self.machine_paths.directory):
            _warn_once(doubt)
        with self.root.explaining():
            settle_locks(self.machine_paths, lock_dir, machine.lock_kind)
        return self.machine_paths

    def secure(self, directory: Path) -> None:
        """Make sure that no other user has put anything into a directory below KOCHI_ROOT.

        This must come before the directory is trusted. Raises KochiError.
        """
        self.root.secure(directory)

    def require_project(self) -> Project:
        """The project; raises the error that says why there is none."""
        if self.project is None:
            find_project(Path.cwd())
            raise KochiError("there is no project here", "Make one with: kochi init")
        return self.project

    @property
    def project_paths(self) -> ProjectPaths:
        return self.root.project(self.require_project().directory)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the machine is behind a login host, and this computer does not belong to it."""
        return self.machine.is_elsewhere()

    def require_here(self) -> None:
        """Refuse to submit jobs to a machine to which this computer does not belong.

        No worker would ever look at its queue. The command `kochi` goes there; this is for
        Snakemake and Python. Raises KochiError.
        """
        if not self.is_elsewhere:
            return
        name = self.machine.name
        raise KochiError(
            f"machine '{name}' is behind the login host '{self.machine.login_host}': jobs are "
            "submitted there, not from here",
            f"To run a batch there, type: kochi batch -m {name} FILE.yaml BATCH\n"
            f"For other rules: kochi launch -m {name} -- RULE",
        )


@functools.cache
def _warn_once(doubt: str) -> None:
    _log.warning("%s", doubt)


def find_location(
    machine: str | None = None,
    environment: Mapping[str, str] = os.environ,
    start: Path | None = None,
    asks: bool = False,
) -> Location:
    """Find the machine, the project and KOCHI_ROOT of a command.

    The machine is the named one, otherwise the one that applies here (see `chosen_machine`). The
    project is that of a directory, by default the current one. KOCHI_ROOT is the machine's
    kochi_root, otherwise $KOCHI_ROOT, otherwise ~/.kochi. If a kochi.yaml is not read, that is only
    logged for `local` and for a machine that is configured for all projects.

    Where nothing is configured, the machine is that of this host's scheduler, under the cluster's
    name. The first command that `asks` the scheduler notes the name for all later ones: those
    that make jobs do, because these must not run on a login node when others do not.

    Raises KochiError when the scheduler does not answer.
    Raises NameNotFoundError for a machine that is not configured. Raises ConfigError for a wrong
    kochi.yaml or a wrong file of machines for all projects, and for a host that belongs to several
    machines.
    """
    directory = start or Path.cwd()
    project, missing = None, None
    common = common_files(environment, [machine])
    try:
        top = find_project(directory)
    except KochiError as error:
        # Many commands need no project; the others call `require_project`, which says why there is
        # none.
        missing = error
        known = load_project(directory, "", common=common)
    else:
        known = project = load_project(top, common=common)
    name = machine or chosen_machine(known.machines, environment)
    if missing is not None and name not in known.machines:
        if is_configured(directory):
            raise missing
        found = _sent_machine(name, environment)
        if found is None:
            file = Root.find(environment=environment).configuration
            raise _no_machine(name, known.machines, missing, file)
    else:
        found = known.machine(name)
    unread = missing if is_configured(directory) else None
    if unread is not None:
        _log.warning("%s", unread.sentences)
    # The kochi_root of a machine elsewhere is a path there.
    root = Root.find(found.at_home(environment).kochi_root, environment, found.root_said_at)
    is_named = machine is not None or bool(environment.get("KOCHI_DEFAULT_MACHINE"))
    location = Location(found, project, root, unread, is_named, known.machines)
    if location.is_left_to_host(environment):
        own = _machine_of_host(location, environment, asks)
        if own is not None:
            return replace(find_location(own, environment, start), is_named=False)
    return location


_FOUND = """\
# The cluster's name, as {title} reports it. To write it with more settings into a file of yours,
# type: kochi init --machine
machines:
  {name}:
    scheduler: {scheduler}
"""


def _machine_of_host(location: Location, environment: Mapping[str, str], asks: bool) -> str | None:
    """The machine of this host's scheduler, if the configuration has no other one with a scheduler.

    Raises KochiError when the scheduler does not answer.
    """
    root = Root.find(environment=environment)
    note = root.machine_of_host(socket.gethostname())
    others = [each.name for each in location.machines.values() if each.has_allocations]

    def is_usable(name: str) -> bool:
        # Otherwise the user must say which of them is meant.
        return name in others or not (others or name in location.machines)

    if note.is_file():
        root.secure(note.parent)
        name = note.read_text("utf-8").strip()
        if name in others or root.machine(name).found.is_file():
            return name if is_usable(name) else None
    if not asks or (scheduler := installed_system()) is None:
        return None
    from snakemake_kochi.schedulers.interface import RefusedError

    try:
        name = scheduler.cluster_name()
    except RefusedError:  # only its programs are installed
        return None
    if not is_usable(name):
        return None
    text = _FOUND.format(name=name, scheduler=scheduler.NAME, title=scheduler.TITLE)
    for file, content in ((root.machine(name).found, text), (note, name)):
        root.secure(file.parent)
        with root.explaining():
            write_atomically(file, content.encode())
    return name


def _sent_machine(name: str, environment: Mapping[str, str]) -> Machine | None:
    from snakemake_kochi.project.configuration import sent_machine

    return sent_machine(name, environment)


def is_found(machine: Machine) -> bool:
    """Whether all that is known of a machine comes from its scheduler."""
    return machine.files == (str(Root.find().machine(machine.name).found),)


def with_file_to_edit(machine: Machine) -> Machine:
    """The machine for messages that name the file with its settings."""
    if not is_found(machine):
        return machine
    # No one may edit the file of a machine that was found: a new one takes its place.
    return replace(machine, files=("kochi.yaml, which is written by: kochi init --machine",))


def _no_machine(
    name: str, known: Mapping[str, Machine], missing: KochiError, file: Path
) -> KochiError:
    """The error of a directory without a project, which `missing` is about.

    `file` describes machines for all projects.
    """
    said = nearest(name, known)
    hints = [
        f"No kochi.yaml was read: {missing.message}.",
        "If a project describes the machine, go to the project's directory.",
        missing.hint,
    ]
    if not said.startswith("did you mean"):
        begin = f"To describe the machine for all projects, write into {file}"
        hints.append(
            f"{how_to_describe(name, begin)}\nIf you reach it by ssh, also: login_host: HOST"
        )
    message = f"there is no machine '{name}', {said}"
    return NameNotFoundError(message, "\n".join(filter(None, hints)))


def how_to_describe(machine: str, begin: str = "Then write into kochi.yaml") -> str:
    """What to write into kochi.yaml, or the file that `begin` names, for a machine with
    a scheduler, for people."""
    return (
        f"{begin}, with a directory that all nodes see:\n"
        f"machines:\n  {machine}:\n    scheduler: slurm\n    kochi_root: DIRECTORY"
    )
