"""Machines, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.files import expand_path
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.schedulers.interface import AllocationSettings

LOCAL = "local"


@dataclass(frozen=True)
class Machine:
    """A named place to run. Scripts are one text, "" if there is none. `files`: those that describe
    it, the nearest first; `root_file`: the one with its `kochi_root`; `allocation_files`: the one
    with each key of its `allocation`."""

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
    load_env_on_login_node: str = ""
    load_env_on_machine: str = ""
    files: tuple[str, ...] = field(default=(), compare=False)
    root_file: str = field(default="kochi.yaml", compare=False)
    allocation_files: Mapping[str, str] = field(default_factory=FrozenDict, compare=False)

    @property
    def lock_directory(self) -> Path | None:
        """Its directory of locks as a path here. Raises KochiError when a variable is not set."""
        return expand_path(self.lock_dir, f"lock_dir of {self.name}") if self.lock_dir else None

    @property
    def root_said_at(self) -> str:
        """Where its kochi_root is set, for people."""
        return f"machines: {self.name}: kochi_root in {self.root_file}"

    def allocation_at(self, keys: Iterable[str]) -> str:
        """Where these keys of its `allocation` are set, or may be, for people."""
        keys = list(keys)
        found = [self.allocation_files[key] for key in keys if key in self.allocation_files]
        file = next(iter([*found, *self.files]), "kochi.yaml")
        return f"machines: {self.name}: allocation: {', '.join(keys)} in {file}"

    @property
    def has_allocations(self) -> bool:
        """Whether it has a way to request allocations: a known scheduler, or a script."""
        return self.scheduler is not None or bool(self.alloc_script)

    def installs_on_login_node(self, on_machine: bool) -> bool:
        """Whether a recipe is installed where the user types, because compute nodes often cannot
        reach its source. `on_machine`: the key of the recipe."""
        return not on_machine and (self.has_allocations or self.login_host is not None)

    def load_env_for_install(self, on_machine: bool) -> str:
        """The script that runs before that of a recipe."""
        if self.installs_on_login_node(on_machine):
            return self.load_env_on_login_node
        return self.load_env_on_machine
