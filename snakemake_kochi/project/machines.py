"""Machines: their data, which one is used when none is named, and the files for all projects.

Three files describe machines for all projects: the user's, the site's, and one with what a
scheduler said about itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.files import expand_path, expand_user, is_name
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.ownership import OthersError, check_followed
from snakemake_kochi.paths import Root, SentPaths
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.project.document import read_text
from snakemake_kochi.project.launchers import Launchers
from snakemake_kochi.project.quiet import Thresholds
from snakemake_kochi.schedulers.interface import AllocationSettings

LOCAL = "local"
SITE_VARIABLE = "KOCHI_SITE_CONF"
SITE_FILE = Path("/etc/kochi/conf.yaml")
# Names the directory of a project that another computer sent; see `SentPaths`.
SENT_VARIABLE = "KOCHI_SENT"
# the variables that name a machine
NAMING = ("KOCHI_DEFAULT_MACHINE", "KOCHI_MACHINE")


@dataclass(frozen=True)
class ControllerPlace:
    """Where the controllers of launched runs are: on the login node, or in an allocation of their
    own with a time limit in seconds; None: the scheduler's."""

    in_allocation: bool = False
    time: float | None = None


@dataclass(frozen=True)
class Machine:
    """A named place to run. Scripts are one text, "" if there is none. `files`: those that describe
    it, the nearest first; `root_file`: the one with its `kochi_root`; `script_file`: the one
    with its `alloc_script`; `allocation_files`: the one with each key of its `allocation`."""

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
    quiet: Thresholds = field(default_factory=FrozenDict)
    clean: Rules | None = None  # by which runs clean up by themselves; None if they do not
    files: tuple[str, ...] = field(default=(), compare=False)
    root_file: str = field(default="kochi.yaml", compare=False)
    script_file: str = field(default="kochi.yaml", compare=False)
    allocation_files: Mapping[str, str] = field(default_factory=FrozenDict, compare=False)

    @property
    def lock_directory(self) -> Path | None:
        """Its directory of locks as a path here. Raises KochiError when a variable is not set."""
        return expand_path(self.lock_dir, f"lock_dir of {self.name}") if self.lock_dir else None

    @property
    def root_said_at(self) -> str:
        """Where its kochi_root is set, for people."""
        return f"machines: {self.name}: kochi_root in {self.root_file}"

    @property
    def script_at(self) -> str:
        """Where its alloc_script is set, for people."""
        return f"machines: {self.name}: alloc_script in {self.script_file}"

    def allocation_at(self, keys: Iterable[str]) -> str:
        """Where these keys of its `allocation` are set, or may be, for people."""
        keys = list(keys)
        found = [self.allocation_files[key] for key in keys if key in self.allocation_files]
        file = next(iter([*found, *self.files]), "kochi.yaml")
        return f"machines: {self.name}: allocation: {', '.join(keys) or '...'} in {file}"

    @property
    def has_allocations(self) -> bool:
        """Whether it has a way to request allocations: a known scheduler, or a script."""
        return self.scheduler is not None or bool(self.alloc_script)

    def has_host(self, host: Callable[[], str] = socket.gethostname) -> bool:
        """Whether a host, by default this one, belongs to the machine: by the machine's name, its
        `login_host` or a pattern of its `hosts`, full or short, case-insensitive."""
        wanted = [self.name, *self.hosts]
        if self.login_host is not None:
            wanted.append(self.login_host.rpartition("@")[2])
        patterns = [pattern.lower() for pattern in wanted]
        name = host().lower()
        if _matches({name, name.partition(".")[0]}, patterns):
            return True
        # Finding the full name may need the network: only where it matters.
        if "." in name or not any("." in pattern for pattern in patterns):
            return False
        return _matches({socket.getfqdn(name).lower()}, patterns)

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


def _matches(names: set[str], patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


@dataclass(frozen=True)
class CommonFile:
    """A file with a section `machines:` that a project overrides, and its text.

    The file of a site has nothing else; the user's own may have more, for directories outside of
    any repository.
    """

    file: str
    text: str
    is_of_site: bool = False


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
    found: list[CommonFile] = []
    if sent := environment.get(SENT_VARIABLE):
        place = SentPaths(Path(sent))
        Root(place.root).secure(place.state)
        found += map(_read, place.machines)
    if root.has_configuration():
        found.append(_read(root.configuration))
    if (site := site_file(environment)) is not None:
        found.append(_read(site, is_of_site=True))
    named = dict.fromkeys([*machines, *map(environment.get, NAMING)])
    for name in named:
        if name and is_name(name) and (file := root.machine(name).found).is_file():
            root.secure(file.parent)
            found.append(_read(file))
    return tuple(found)


def site_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file of the site, if any; an empty $KOCHI_SITE_CONF means none. Raises ConfigError."""
    named = environment.get(SITE_VARIABLE)
    if named is None:
        return SITE_FILE if SITE_FILE.exists() else None
    if not named:
        return None
    file = expand_user(named, SITE_VARIABLE).absolute()
    if not file.exists():
        raise ConfigError(
            f"{SITE_VARIABLE} names {file}, which does not exist",
            f"Correct the variable, or type: unset {SITE_VARIABLE}",
        )
    return file


def _read(file: Path, is_of_site: bool = False) -> CommonFile:
    try:
        if is_of_site:
            _check_site(file)
        return CommonFile(str(file), read_text(file, str(file)), is_of_site)
    except ConfigError as error:
        hint = f"To go on without it, type: export {SITE_VARIABLE}=" if is_of_site else None
        raise ConfigError(error.message, error.hint or hint) from error


def _check_site(file: Path) -> None:
    try:
        check_followed(file)
    except OthersError as error:
        message = f"the machines in {file} are for the whole site and run commands as you, but "
        raise ConfigError(f"{message}{error.message}", error.hint) from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
