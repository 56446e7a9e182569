"""The section `machines:` of kochi.yaml and of the files that it overrides.

Several files may describe a machine. The nearest file counts, key by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.clean_rules import Rules, read_rule
from snakemake_kochi.project.document import Document, merged, section
from snakemake_kochi.project.launchers import (
    Launchers,
    preferred_launcher,
    template_problem,
)
from snakemake_kochi.project.machines import LOCAL, ControllerPlace, Machine
from snakemake_kochi.project.problems import KeyPath
from snakemake_kochi.schedulers.interface import AllocationSettings
from snakemake_kochi.schedulers.native import OPTIONS

_NUMBERS = ("nodes", "cores", "gpus", "min_workers", "max_workers")
_SETTINGS = ("node_spec", *_NUMBERS, "time", "idle_timeout")
_TEXTS = ("login_host", "work_dir", "kochi_root", "lock_dir", "lock_kind", "scheduler")
_HOST = "HOST or USER@HOST was expected, or a name from ~/.ssh/config"


def read_machines(layers: Layers) -> FrozenDict[str, Machine]:
    """All machines by name, including `local`; notes their problems."""
    machines = {LOCAL: Machine(LOCAL)}
    for name in layers.names():
        machines[name] = _Reader(name, layers).machine()
    return FrozenDict(machines)


class _Reader:
    """Reads one machine, noting problems."""

    def __init__(self, name: str, layers: Layers) -> None:
        self._name = name
        self._layers = layers
        self._data = layers.data(name)

    def _add(self, *place: str | int, said: str) -> None:
        path = ("machines", self._name, *place)
        document = self._layers.origin(path)
        document.problems.add(document.source_map.nearest(path), said)

    def _file(self, *keys: str) -> str:
        return self._layers.origin(("machines", self._name, *keys)).source_map.file

    def machine(self) -> Machine:
        data = self._data
        environment = data.get("load_env_script", "")
        if not isinstance(environment, dict):
            environment = {"on_login_node": environment, "on_machine": environment}
        machine = Machine(
            self._name,
            **{key: data.get(key) or None for key in _TEXTS},
            hosts=data.get("hosts", ()),
            alloc_interact_script=data.get("alloc_interact_script", ""),
            alloc_script=data.get("alloc_script", ""),
            allocation=self._allocation(),
            controller=self._controller(),
            load_env_on_login_node=environment.get("on_login_node", ""),
            load_env_on_machine=environment.get("on_machine", ""),
            launchers=self._launchers(),
            facts=FrozenDict(section(data, "facts")),
            quiet=FrozenDict(section(data, "quiet")),
            clean=self._clean(),
            isolation=FrozenDict(section(data, "isolation")),
            files=self._layers.files(self._name),
            root_file=self._file("kochi_root"),
            script_file=self._file("alloc_script"),
            allocation_files=FrozenDict(
                (key, self._file("allocation", key)) for key in section(data, "allocation")
            ),
        )
        self._check(machine)
        return machine

    def _allocation(self) -> AllocationSettings:
        data = section(self._data, "allocation")
        found = {key: data[key] for key in _SETTINGS if data.get(key) not in (None, "")}
        found |= {"memory_mb": data["memory"]} if data.get("memory") else {}
        if (options := OPTIONS.get(self._data.get("scheduler", ""))) is not None:
            limits = ((key, data[key]) for key in options.CONSTRAINTS if data.get(key))
            found["constraints"] = FrozenDict(limits)
            words = data.get("arguments", ())
            place: tuple[str | int, ...] = ("allocation", "arguments")
            for index, word in enumerate(words):
                if (wrong := options.argument_problem(word)) is not None:
                    self._add(*place, index, said=wrong)
            try:
                found["arguments"] = tuple(options.joined_options(words))
            except ValueError as error:
                self._add(*place, said=str(error))
        if self._data.get("alloc_script"):
            # It may start all of them on one host, where they would wait for each other.
            found.setdefault("max_workers", max(1, found.get("min_workers", 0)))
        return AllocationSettings(**found)

    def _controller(self) -> ControllerPlace:
        data = section(self._data, "controller")
        in_allocation, time = data.get("in_allocation", False), data.get("time")
        if in_allocation and not self._data.get("scheduler"):
            said = "this is for machines with a scheduler, as 'scheduler: slurm'"
            self._add("controller", "in_allocation", said=said)
        if not time:
            return ControllerPlace(in_allocation)
        if not in_allocation:
            said = "this key is for controllers with 'in_allocation: true'"
            self._add("controller", "time", said=said)
        return ControllerPlace(in_allocation, time)

    def _launchers(self) -> Launchers:
        own, default = section(self._data, "launchers"), self._data.get("launcher", "")
        written: dict[tuple[str, ...], str] = {("launchers", each): own[each] for each in own}
        for place, text in (written | ({("launcher",): default} if default else {})).items():
            if (wrong := template_problem(text, own)) is not None:
                self._add(*place, said=f"{text!r}: {wrong}")
        preferred = preferred_launcher(self._data.get("scheduler") or None)
        return Launchers(default, FrozenDict(own), preferred)

    def _clean(self) -> Rules | None:
        if "clean" not in self._data:
            return None
        found: dict[str, Any] = {}
        for key, written in section(self._data, "clean").items():
            if not written:
                continue
            try:
                read_rule(key, written)
                found[key] = written
            except ValueError as error:
                shown = list(written) if key == "keep" else written
                self._add("clean", key, said=f"{shown!r}: {error}")
        return Rules().changed_by(found)

    def _check(self, machine: Machine) -> None:
        settings, written = machine.allocation, section(self._data, "allocation")
        host = machine.login_host or ""
        if host.startswith("-") or len(host.split()) > 1:
            # ssh would take it for options, or for a host and a command.
            self._add("login_host", said=f"{host!r}: {_HOST}")
        if self._data.get("login_host") == "":
            # What is meant for the machine would run on this computer.
            delete = "if this computer belongs to the machine, delete the line, or write null"
            self._add("login_host", said=f"{_HOST}; {delete}")
        if machine.name == LOCAL and machine.hosts:
            said = "'local' stands for any computer; give these hosts to another machine"
            self._add("hosts", said=said)
        if machine.scheduler is not None and machine.alloc_script:
            said = "'alloc_script' has no effect with 'scheduler'; remove one of them"
            self._add("alloc_script", said=said)
        if settings.min_workers > settings.max_workers:
            said = (
                f"{settings.min_workers} is more than max_workers, which is {settings.max_workers}"
            )
            self._add("allocation", "min_workers", said=said)
        for key in written:
            users = [each for each in OPTIONS if key in (*OPTIONS[each].CONSTRAINTS, "arguments")]
            if users and machine.scheduler not in users:
                schedulers = " or ".join(f"'scheduler: {each}'" for each in users)
                said = f"this key is for machines with {schedulers}"
                self._add("allocation", key, said=said)
        own = OPTIONS.get(machine.scheduler or "")
        if own is not None and "node_spec" in written:
            said = f"this key is for machines with an 'alloc_script'; {own.INSTEAD_OF_NODE_SPEC}"
            self._add("allocation", "node_spec", said=said)


# The two ways to a compute node; each has other keys in `allocation`.
_WAYS = {"scheduler": "alloc_script", "alloc_script": "scheduler"}


@dataclass(frozen=True)
class Layers:
    """Files with a section `machines:`, the nearest first, whose shape was read. The problems of a
    key are noted in its file."""

    documents: tuple[Document, ...]

    def names(self) -> dict[str, None]:
        """The names of all machines, those of the nearest file first."""
        return dict.fromkeys(name for each in self.documents for name in _machines(each))

    def files(self, name: str) -> tuple[str, ...]:
        """The files that describe a machine."""
        return tuple(each.source_map.file for each in self.documents if name in _machines(each))

    def data(self, name: str) -> dict[str, Any]:
        """The merged description of a machine: the nearest file counts for each key.

        A nearer `scheduler` or `alloc_script` replaces the other one, with its keys of
        `allocation`, and `controller`.
        """
        found: dict[str, Any] = {}
        for document in reversed(self.documents):
            own = section(_machines(document), name)
            for way, other in _WAYS.items():
                gone = way if not own.get(way) else other
                if way in own and gone in found and (gone == way or other not in own):
                    for key in (gone, "allocation", "controller"):
                        found.pop(key, None)
            found = merged(found, own)
        return found

    def origin(self, path: KeyPath) -> Document:
        """The file that defines a key."""
        for length in range(len(path), 1, -1):
            for document in self.documents:
                if path[:length] in document.source_map.lines:
                    return document
        return self.documents[0]


def _machines(document: Document) -> Mapping[str, Any]:
    return section(document.data, "machines")
