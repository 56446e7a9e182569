"""Machines: their data, how files describe them, and which one is used when none is named.

Besides kochi.yaml, three files describe machines for all projects: the user's, the site's, and one
with what a scheduler said about itself. The nearest file counts, key by key.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.files import expand_path, expand_user, is_name
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.ownership import check_followed
from snakemake_kochi.paths import SENT_VARIABLE, Root, SentPaths
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.project.document import Document, KeyPath, merged, read_text, section
from snakemake_kochi.project.launchers import MPIRUN, Launchers, template_problem
from snakemake_kochi.schedulers.interface import AllocationSettings
from snakemake_kochi.schedulers.launchers import launcher_of
from snakemake_kochi.schedulers.native import OPTIONS

LOCAL = "local"
SITE_VARIABLE = "KOCHI_SITE_CONF"
SITE_FILE = Path("/etc/kochi/conf.yaml")
# the variables that name a machine
NAMING = ("KOCHI_DEFAULT_MACHINE", "KOCHI_MACHINE")
_SETTINGS = (
    *("node_spec", "nodes", "cores", "gpus", "min_workers", "max_workers", "time", "idle_timeout"),
)
_AS_READ = ("hosts", "alloc_interact_script", "alloc_script")
_TEXTS = ("login_host", "work_dir", "kochi_root", "lock_dir", "lock_kind", "scheduler")
# The two ways to a compute node; each has other keys in `allocation`.
_WAYS = {"scheduler": "alloc_script", "alloc_script": "scheduler"}


# ---- data


@dataclass(frozen=True)
class ControllerPlace:
    """Where the controllers of launched runs are: on the login node, or in an allocation of their
    own with a time limit in seconds; None: the scheduler's."""

    in_allocation: bool = False
    time: float | None = None


@dataclass(frozen=True)
class Machine:
    """A named place to run. Scripts are one text, "" if there is none. `files`: those that describe
    it, the nearest first; `origins`: the file that counts for each of its keys and those in its
    `allocation`."""

    name: str
    login_host: str | None = None
    hosts: tuple[str, ...] = ()  # patterns of the names of its login nodes
    work_dir: str | None = None
    kochi_root: str | None = None
    lock_dir: str | None = None  # as written: variables are those of the host that uses it
    lock_kind: str | None = None
    alloc_interact_script: str = ""
    alloc_script: str = ""
    scheduler: str | None = None
    allocation: AllocationSettings = field(default_factory=AllocationSettings)
    controller: ControllerPlace = field(default_factory=ControllerPlace)
    load_env_on_login_node: str = ""
    load_env_on_machine: str = ""
    # visible, environment and programs: texts
    isolation: Mapping[str, Sequence[str]] = field(default_factory=FrozenDict)
    launchers: Launchers = field(default_factory=Launchers)
    facts: Mapping[str, str] = field(default_factory=FrozenDict)  # texts, by name
    quiet: Mapping[str, float | str] = field(default_factory=FrozenDict)
    clean: Rules | None = None  # by which runs clean up by themselves; None if they do not
    files: tuple[str, ...] = field(default=(), compare=False)
    origins: Mapping[str, str] = field(default_factory=FrozenDict, compare=False)

    @property
    def lock_directory(self) -> Path | None:
        """Its directory of locks as a path here. Raises KochiError when a variable is not set."""
        return expand_path(self.lock_dir, f"lock_dir of {self.name}") if self.lock_dir else None

    @property
    def root_said_at(self) -> str:
        """Where its kochi_root is set, for people."""
        return self._at("kochi_root", ["kochi_root"])

    @property
    def script_at(self) -> str:
        """Where its alloc_script is set, for people."""
        return self._at("alloc_script", ["alloc_script"])

    def allocation_at(self, keys: Iterable[str]) -> str:
        """Where these keys of its `allocation` are set, or may be, for people."""
        keys = list(keys)
        return self._at(f"allocation: {', '.join(keys) or '...'}", keys, self.files[:1])

    def _at(self, shown: str, keys: Iterable[str], default: Sequence[str] = ()) -> str:
        files = [self.origins[key] for key in keys if key in self.origins]
        return f"machines: {self.name}: {shown} in {[*files, *default, 'kochi.yaml'][0]}"

    @property
    def has_allocations(self) -> bool:
        """Whether it has a way to request allocations: a known scheduler, or a script."""
        return self.scheduler is not None or bool(self.alloc_script)

    def has_host(self, host: Callable[[], str] = socket.gethostname) -> bool:
        """Whether a host, by default this one, belongs to the machine: by the machine's name, its
        `login_host` or a pattern of its `hosts`, full or short, case-insensitive."""
        login_host = (self.login_host or self.name).rpartition("@")[2]
        patterns = [pattern.lower() for pattern in (self.name, *self.hosts, login_host)]
        name = host().lower()
        names = [name, name.partition(".")[0]]
        if any(fnmatchcase(each, pattern) for each in names for pattern in patterns):
            return True
        # Finding the full name may need the network: only where it matters.
        if "." in name or not any("." in pattern for pattern in patterns):
            return False
        full = socket.getfqdn(name).lower()
        return any(fnmatchcase(full, pattern) for pattern in patterns)

    def is_elsewhere(self, environment: Mapping[str, str] = os.environ) -> bool:
        """Whether it is behind a login host, and this computer does not belong to it.

        $KOCHI_MACHINE, which is set for jobs, says that this computer belongs to that machine.
        """
        if self.login_host is None or environment.get("KOCHI_MACHINE") == self.name:
            return False
        return not self.has_host()

    def at_home(self, environment: Mapping[str, str] = os.environ) -> Machine:
        """The machine for a computer that may not belong to it, and on which its own directories
        mean nothing."""
        if not self.is_elsewhere(environment):
            return self
        return replace(self, kochi_root=None, lock_dir=None, lock_kind=None)

    def installs_on_login_node(self, on_machine: bool) -> bool:
        """Whether a recipe is installed where the user types, because compute nodes often cannot
        reach its source. `on_machine`: the key of the recipe."""
        return not on_machine and (self.has_allocations or self.login_host is not None)

    def load_env_for_install(self, on_machine: bool) -> str:
        """The script that runs before that of a recipe."""
        if self.installs_on_login_node(on_machine):
            return self.load_env_on_login_node
        return self.load_env_on_machine


def chosen_machine(
    machines: Mapping[str, Machine],
    environment: Mapping[str, str] = os.environ,
    host: Callable[[], str] = socket.gethostname,
) -> str:
    """The name of the machine to use.

    $KOCHI_DEFAULT_MACHINE, which need not be one of the machines; else $KOCHI_MACHINE, which jobs
    have set, if it is one of them; else the one to which this host belongs; else `local`. Raises
    ConfigError when this host belongs to several.
    """
    if name := environment.get("KOCHI_DEFAULT_MACHINE"):
        return name
    # A job may work on another project, which has no such machine.
    if (name := environment.get("KOCHI_MACHINE", "")) in machines:
        return name
    found = [each.name for each in machines.values() if each.name != LOCAL and each.has_host(host)]
    if len(found) > 1:
        raise ConfigError(
            f"this host, {host()}, belongs to several machines: {', '.join(found)}",
            f"Name one with -m, or type: export KOCHI_DEFAULT_MACHINE={found[0]}",
        )
    return found[0] if found else LOCAL


# ---- files for all projects


@dataclass(frozen=True)
class CommonFile:
    """A file with a section `machines:` that a project overrides, and its text. What else it has is
    for directories outside of any repository."""

    file: str
    text: str


def common_files(
    environment: Mapping[str, str] = os.environ, machines: Collection[str | None] = ()
) -> tuple[CommonFile, ...]:
    """The existing files, the nearest first: those of the computer that sent the project, then
    $KOCHI_ROOT/conf.yaml, then $KOCHI_SITE_CONF, else /etc/kochi/conf.yaml, then what a scheduler
    said about one of the `machines`, or about one that the environment names.

    Raises ConfigError for a file that cannot be read, and for a missing $KOCHI_SITE_CONF;
    KochiError when another user could have written a file: its scripts are executed.
    """
    root = Root.find(environment=environment)
    files: list[Path] = []
    if sent := environment.get(SENT_VARIABLE):
        place = SentPaths(Path(sent))
        Root(place.root).secure(place.state)
        files += place.machines
    if root.has_configuration():
        files.append(root.configuration)
    # An empty variable means none.
    if site := environment.get(SITE_VARIABLE, str(SITE_FILE) if SITE_FILE.exists() else ""):
        files.append(file := expand_user(site, SITE_VARIABLE).absolute())
        if not file.exists():
            said = f"{SITE_VARIABLE} names {file}, which does not exist"
            raise ConfigError(said, f"Correct the variable, or type: unset {SITE_VARIABLE}")
        check_followed(file)
    for name in dict.fromkeys([*machines, *map(environment.get, NAMING)]):
        if name and is_name(name) and (file := root.machine(name).found).is_file():
            root.secure(file.parent)
            files.append(file)
    return tuple(CommonFile(str(file), read_text(file, str(file))) for file in files)


# ---- reading


def read_machines(documents: Sequence[Document]) -> FrozenDict[str, Machine]:
    """All machines by name, including `local`, from files whose shape was read, the nearest first;
    notes the problems of a key in its file."""
    names = dict.fromkeys(n for each in documents for n in section(each.data, "machines"))
    machines = {name: _Reader(name, documents).machine() for name in names}
    return FrozenDict({LOCAL: Machine(LOCAL), **machines})


class _Reader:
    """Reads one machine, noting problems: the nearest file counts for each key. A nearer
    `scheduler` or `alloc_script` replaces the other one, with its keys of `allocation`, and
    `controller`."""

    def __init__(self, name: str, documents: Sequence[Document]) -> None:
        self._name, self._documents = name, documents
        machines = {each.source_map.file: section(each.data, "machines") for each in documents}
        self._levels = {file: section(own, name) for file, own in machines.items() if name in own}
        self._data: dict[str, Any] = {}
        for own in reversed(self._levels.values()):
            for way, other in _WAYS.items():
                gone = way if not own.get(way) else other
                if way in own and gone in self._data and (gone == way or other not in own):
                    for key in (gone, "allocation", "controller"):
                        self._data.pop(key, None)
            self._data = merged(self._data, own)

    def _origin(self, *keys: str | int) -> tuple[Document, KeyPath]:
        """The file that defines a key, and the nearest key there."""
        path: KeyPath = ("machines", self._name, *keys)
        for length in range(len(path), 1, -1):
            for document in self._documents:
                if path[:length] in document.source_map.lines:
                    return document, path[:length]
        return self._documents[0], ()

    def _check(self, is_wrong: object, said: str, *keys: str | int) -> None:
        if is_wrong:
            document, path = self._origin(*keys)
            document.problems.add(path, said)

    def machine(self) -> Machine:
        data, allocation = self._data, section(self._data, "allocation")
        environment = data.get("load_env_script", "")
        if not isinstance(environment, dict):
            environment = {"on_login_node": environment, "on_machine": environment}
        keys = [*((key,) for key in data), *(("allocation", key) for key in allocation)]
        own: dict[str, Any] = {key: data.get(key) or None for key in _TEXTS}
        own |= {key: data[key] for key in _AS_READ if key in data}
        own |= {key: FrozenDict(section(data, key)) for key in ("facts", "quiet", "isolation")}
        machine = Machine(
            self._name,
            **own,
            allocation=self._allocation(allocation),
            controller=self._controller(section(data, "controller")),
            load_env_on_login_node=environment.get("on_login_node", ""),
            load_env_on_machine=environment.get("on_machine", ""),
            launchers=self._launchers(section(data, "launchers")),
            clean=Rules().changed_by(section(data, "clean")) if "clean" in data else None,
            files=tuple(self._levels),
            origins=FrozenDict((key[-1], self._origin(*key)[0].source_map.file) for key in keys),
        )
        # What is meant for the machine would run on this computer.
        said = "HOST or USER@HOST was expected; if this computer belongs to the machine, delete "
        self._check(data.get("login_host") == "", f"{said}the line, or write null", "login_host")
        said = "'local' stands for any computer; give these hosts to another machine"
        self._check(machine.name == LOCAL and machine.hosts, said, "hosts")
        said = "'alloc_script' has no effect with 'scheduler'; remove one of them"
        self._check(machine.scheduler and machine.alloc_script, said, "alloc_script")
        return machine

    def _allocation(self, data: Mapping[str, Any]) -> AllocationSettings:
        scheduler = self._data.get("scheduler") or ""
        settings = {key: data[key] for key in _SETTINGS if data.get(key) not in (None, "")}
        settings |= {"memory_mb": data["memory"]} if data.get("memory") else {}
        if (options := OPTIONS.get(scheduler)) is not None:
            limits = ((key, data[key]) for key in options.CONSTRAINTS if data.get(key))
            settings["constraints"] = FrozenDict(limits)
            words = data.get("arguments", ())
            for index, word in enumerate(words):
                wrong = options.argument_problem(word)
                self._check(wrong, wrong or "", "allocation", "arguments", index)
            try:
                settings["arguments"] = tuple(options.joined_options(words))
            except ValueError as error:
                self._check(True, str(error), "allocation", "arguments")
            said = "this key is for machines with an 'alloc_script'; "
            said += options.INSTEAD_OF_NODE_SPEC
            self._check("node_spec" in data, said, "allocation", "node_spec")
        if self._data.get("alloc_script"):
            # It may start all of them on one host, where they would wait for each other.
            settings.setdefault("max_workers", max(1, settings.get("min_workers", 0)))
        for key in data:
            users = [each for each in OPTIONS if key in (*OPTIONS[each].CONSTRAINTS, "arguments")]
            said = f"this key is for machines with 'scheduler: {' or '.join(users)}'"
            self._check(users and scheduler not in users, said, "allocation", key)
        found = AllocationSettings(**settings)
        least, most = found.min_workers, found.max_workers
        said = f"{least} is more than max_workers, which is {most}"
        self._check(least > most, said, "allocation", "min_workers")
        return found

    def _controller(self, data: Mapping[str, Any]) -> ControllerPlace:
        place = ControllerPlace(data.get("in_allocation", False), data.get("time") or None)
        said = "this is for machines with a scheduler, as 'scheduler: slurm'"
        is_wrong = place.in_allocation and not self._data.get("scheduler")
        self._check(is_wrong, said, "controller", "in_allocation")
        said = "this key is for controllers with 'in_allocation: true'"
        self._check(place.time and not place.in_allocation, said, "controller", "time")
        return place

    def _launchers(self, own: Mapping[str, str]) -> Launchers:
        default, scheduler = self._data.get("launcher", ""), self._data.get("scheduler") or None
        written: dict[tuple[str, ...], str] = {("launchers", name): own[name] for name in own}
        for place, text in (written | ({("launcher",): default} if default else {})).items():
            wrong = template_problem(text, own)
            self._check(wrong, f"{text!r}: {wrong}", *place)
        return Launchers(default, FrozenDict(own), launcher_of(scheduler) or MPIRUN)
