"""The section `machines:` of kochi.yaml and of the files that it overrides.

Several files may describe a machine. The nearest file counts, key by key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.clean_rules import Rules, read_rule
from snakemake_kochi.project.document import (
    Document,
    is_null,
    names,
    optional_text,
    script,
    section,
)
from snakemake_kochi.project.launchers import (
    Launchers,
    is_launcher_name,
    preferred_launcher,
    template_problem,
)
from snakemake_kochi.project.machines import LOCAL, ControllerPlace, Machine
from snakemake_kochi.project.problems import KeyPath, check_name
from snakemake_kochi.project.quiet import read_quiet
from snakemake_kochi.project.values import path_problem, value_problem
from snakemake_kochi.quantities import memory_of, walltime_of
from snakemake_kochi.schedulers.interface import AllocationSettings
from snakemake_kochi.schedulers.native import OPTIONS, Options

_FACT_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NUMBERS = ("nodes", "cores", "gpus", "min_workers", "max_workers")


def read_machines(layers: Layers) -> FrozenDict[str, Machine]:
    """All machines by name, including `local`; notes their problems."""
    machines = {LOCAL: Machine(LOCAL)}
    for name in layers.names():
        path: KeyPath = ("machines", name)
        check_name("machine", name, path, layers)
        machines[name] = _machine(name, layers.data(name), path, layers)
    return FrozenDict(machines)


def _machine(name: str, data: Mapping[str, Any], path: KeyPath, layers: Layers) -> Machine:
    environment = data.get("load_env_script")
    if isinstance(environment, dict):
        on_login_node = script(environment.get("on_login_node"))
        on_machine = script(environment.get("on_machine"))
    else:
        on_login_node = on_machine = script(environment)
    machine = Machine(
        name=name,
        login_host=optional_text(data.get("login_host")),
        hosts=names(data.get("hosts")) or (),
        work_dir=optional_text(data.get("work_dir")),
        kochi_root=optional_text(data.get("kochi_root")),
        lock_dir=optional_text(data.get("lock_dir")),
        lock_kind=optional_text(data.get("lock_kind")),
        alloc_interact_script=script(data.get("alloc_interact_script")),
        alloc_script=script(data.get("alloc_script")),
        scheduler=optional_text(data.get("scheduler")),
        allocation=_allocation(data, (*path, "allocation"), layers),
        controller=_controller(data, (*path, "controller"), layers),
        load_env_on_login_node=on_login_node,
        load_env_on_machine=on_machine,
        launchers=_launchers(data, path, layers),
        facts=_facts(data, (*path, "facts"), layers),
        quiet=read_quiet(section(data, "quiet"), (*path, "quiet"), layers),
        clean=_clean(data, (*path, "clean"), layers),
        isolation=FrozenDict(
            (key, names(value) or ()) for key, value in section(data, "isolation").items()
        ),
        files=layers.files(name),
        root_file=layers.origin((*path, "kochi_root")).source_map.file,
        script_file=layers.origin((*path, "alloc_script")).source_map.file,
        allocation_files=FrozenDict(
            (key, layers.origin((*path, "allocation", key)).source_map.file)
            for key in section(data, "allocation")
        ),
    )
    _check(machine, data, path, layers)
    return machine


def _allocation(machine: Mapping[str, Any], path: KeyPath, problems: Layers) -> AllocationSettings:
    data = section(machine, "allocation")
    found: dict[str, Any] = {"node_spec": optional_text(data.get("node_spec"))}
    if (options := OPTIONS.get(optional_text(machine.get("scheduler")) or "")) is not None:
        texts = {key: optional_text(data.get(key)) for key in options.CONSTRAINTS}
        set_texts = {key: text for key, text in texts.items() if text is not None}
        found["constraints"] = FrozenDict(set_texts)
        found["arguments"] = _arguments(options, data, (*path, "arguments"), problems)
    for key in _NUMBERS:
        if key in data and not problems.is_unknown((*path, key)):
            found[key] = data[key].whole_number
    quantities: dict[str, tuple[str, Callable[[str], float]]] = {
        "time": ("time", walltime_of),
        "idle_timeout": ("idle_timeout", walltime_of),
        "memory": ("memory_mb", memory_of),
    }
    for key, (field, read) in quantities.items():
        text = optional_text(data.get(key))
        if text is None or problems.is_unknown((*path, key)):
            continue
        try:
            found[field] = read(text)
        except ValueError as error:
            problems.add((*path, key), f"{text!r}: {error}")
    if optional_text(machine.get("alloc_script")) is not None:
        # It may start all of them on one host, where they would wait for each other.
        found.setdefault("max_workers", max(1, found.get("min_workers", 0)))
    return AllocationSettings(**found)


def _controller(machine: Mapping[str, Any], path: KeyPath, problems: Layers) -> ControllerPlace:
    data = section(machine, "controller")
    in_allocation = "in_allocation" in data and data["in_allocation"].is_true
    if in_allocation and optional_text(machine.get("scheduler")) is None:
        problems.add(
            (*path, "in_allocation"), "this is for machines with a scheduler, as 'scheduler: slurm'"
        )
    text = optional_text(data.get("time"))
    if text is None or problems.is_unknown((*path, "time")):
        return ControllerPlace(in_allocation)
    if not in_allocation:
        problems.add((*path, "time"), "this key is for controllers with 'in_allocation: true'")
    try:
        return ControllerPlace(in_allocation, walltime_of(text))
    except ValueError as error:
        problems.add((*path, "time"), f"{text!r}: {error}")
    return ControllerPlace(in_allocation)


def _facts(machine: Mapping[str, Any], path: KeyPath, problems: Layers) -> FrozenDict[str, str]:
    found = {}
    for name, value in section(machine, "facts").items():
        if problems.is_unknown((*path, name)):
            continue
        wrong = value_problem(value.value_text)
        if not _FACT_NAME.fullmatch(name):
            wrong = "a fact's name has only letters, digits and _, and starts with a letter or _"
        elif name == "name":
            wrong = "$machine.name is the machine's own name; give the fact another name"
        if wrong:
            problems.add((*path, name), wrong)
        else:
            found[name] = value.value_text
    return FrozenDict(found)


def _launchers(machine: Mapping[str, Any], path: KeyPath, problems: Layers) -> Launchers:
    own = {name: optional_text(text) or "" for name, text in section(machine, "launchers").items()}
    for name, text in own.items():
        if not is_launcher_name(name):
            said = "the name of a launcher begins with a letter, and has letters, digits, _ . -"
            problems.add((*path, "launchers", name), said)
        if (wrong := template_problem(text, own)) is not None:
            problems.add((*path, "launchers", name), f"{text!r}: {wrong}")
    default = optional_text(machine.get("launcher")) or ""
    if default and (wrong := template_problem(default, own)) is not None:
        problems.add((*path, "launcher"), f"{default!r}: {wrong}")
    return Launchers(
        default, FrozenDict(own), preferred_launcher(optional_text(machine.get("scheduler")))
    )


def _clean(machine: Mapping[str, Any], path: KeyPath, problems: Layers) -> Rules | None:
    if "clean" not in machine:
        return None
    written: dict[str, Any] = {}
    for key, value in section(machine, "clean").items():
        if problems.is_unknown((*path, key)):
            continue
        text = names(value) if key == "keep" else optional_text(value)
        try:
            written[key] = text
            if text is not None:
                read_rule(key, text)
        except ValueError as error:
            written.pop(key)
            shown = text if key != "keep" else list(text or ())
            problems.add((*path, key), f"{shown!r}: {error}")
    return Rules().changed_by(written)


def _arguments(
    options: Options, data: Mapping[str, Any], path: KeyPath, problems: Layers
) -> tuple[str, ...]:
    """Further options of the scheduler's submission command, each in one word with its value."""
    written = data.get("arguments")
    words = names(written) or ()
    for index, word in enumerate(words):
        if (problem := options.argument_problem(word)) is not None:
            problems.add((*path, index) if isinstance(written, list) else path, problem)
    try:
        return tuple(options.joined_options(words))
    except ValueError as error:
        problems.add(path, str(error))
    return ()


def _check(machine: Machine, data: Mapping[str, Any], path: KeyPath, problems: Layers) -> None:
    settings = machine.allocation
    for key in ("work_dir", "kochi_root", "lock_dir"):
        if wrong := path_problem(getattr(machine, key) or ""):
            problems.add((*path, key), wrong)
    host = machine.login_host or ""
    if host.startswith("-") or len(host.split()) > 1:
        # ssh would take it for options, or for a host and a command.
        problems.add(
            (*path, "login_host"),
            f"{host!r}: HOST or USER@HOST was expected, or a name from ~/.ssh/config",
        )
    if "login_host" in data and not str(data["login_host"]):
        # What is meant for the machine would run on this computer.
        problems.add(
            (*path, "login_host"),
            "HOST or USER@HOST was expected, or a name from ~/.ssh/config; if this computer "
            "belongs to the machine, delete the line, or write null",
        )
    if machine.name == LOCAL and machine.hosts:
        problems.add(
            (*path, "hosts"), "'local' stands for any computer; give these hosts to another machine"
        )
    for pattern in machine.hosts:
        if not pattern.strip("*?"):
            problems.add(
                (*path, "hosts"), f"{pattern!r} matches every host name; write a narrower pattern"
            )
    if machine.scheduler is not None and machine.alloc_script:
        problems.add(
            (*path, "alloc_script"),
            "'alloc_script' has no effect with 'scheduler'; remove one of them",
        )
    if settings.min_workers > settings.max_workers:
        problems.add(
            (*path, "allocation", "min_workers"),
            f"{settings.min_workers} is more than max_workers, which is {settings.max_workers}",
        )
    written = section(data, "allocation")
    own = OPTIONS.get(machine.scheduler or "")
    for key in written:
        users = [each for each in OPTIONS if key in (*OPTIONS[each].CONSTRAINTS, "arguments")]
        if users and machine.scheduler not in users:
            schedulers = " or ".join(f"'scheduler: {each}'" for each in users)
            problems.add((*path, "allocation", key), f"this key is for machines with {schedulers}")
    if own is not None and "node_spec" in written:
        problems.add(
            (*path, "allocation", "node_spec"),
            f"this key is for machines with an 'alloc_script'; {own.INSTEAD_OF_NODE_SPEC}",
        )


# The two ways to a compute node; each has other keys in `allocation`.
_WAYS = {"scheduler": "alloc_script", "alloc_script": "scheduler"}


@dataclass(frozen=True)
class Layers:
    """The sections `machines:` of files, the nearest first. The problems of a key are noted in its
    file."""

    documents: tuple[Document, ...]

    def names(self) -> dict[str, None]:
        """The names of all machines, those of the nearest file first."""
        return dict.fromkeys(name for each in self.documents for name in _machines(each))

    def files(self, name: str) -> tuple[str, ...]:
        """The files that describe a machine."""
        return tuple(each.source_map.file for each in self.documents if name in _machines(each))

    def data(self, name: str) -> dict[str, Any]:
        """The merged description of a machine: the nearest file counts for each key, also within
        `allocation` and `facts`.

        A nearer `scheduler` or `alloc_script` replaces the other one, with its keys of
        `allocation`, and `controller`. A null removes a key.
        """
        merged: dict[str, Any] = {}
        for document in reversed(self.documents):
            own = section(_machines(document), name)
            for way, other in _WAYS.items():
                gone = way if is_null(own.get(way)) else other
                if way in own and gone in merged and (gone == way or other not in own):
                    for key in (gone, "allocation", "controller"):
                        merged.pop(key, None)
            inner = {
                key: section(merged, key) | section(own, key)
                for key in ("allocation", "facts")
                if not (is_null(own.get(key)) and str(own[key]))
            }
            merged |= own | {key: _without_nulls(value) for key, value in inner.items() if value}
            # Nothing after `clean:` is an empty section, and after `login_host:` a mistake.
            merged = {key: v for key, v in merged.items() if not (is_null(v) and str(v))}
        return merged

    def origin(self, path: KeyPath) -> Document:
        """The file that defines a key."""
        for length in range(len(path), 1, -1):
            for document in self.documents:
                if path[:length] in document.source_map.lines:
                    return document
        return self.documents[0]

    def add(self, path: KeyPath, message: str) -> None:
        """Note a problem."""
        self.origin(path).problems.add(path, message)

    def is_unknown(self, path: KeyPath) -> bool:
        return self.origin(path).problems.is_unknown(path)


def _without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if not is_null(value)}


def _machines(document: Document) -> dict[str, Any]:
    return section(document.data, "machines")
