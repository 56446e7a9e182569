"""Which machine is meant where none is named."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.machines import LOCAL, Machine

# Set by a process that has found a scheduler where nothing is configured: the machine that it and
# what it starts take instead of `local`.
FOUND_VARIABLE = "KOCHI_FOUND_MACHINE"
# Those by which a machine is named.
NAMING = ("KOCHI_DEFAULT_MACHINE", "KOCHI_MACHINE", FOUND_VARIABLE)


def chosen_machine(
    machines: Mapping[str, Machine],
    environment: Mapping[str, str] = os.environ,
    host: Callable[[], str] = socket.gethostname,
) -> str:
    """The name in $KOCHI_DEFAULT_MACHINE, which need not be one of the machines; else that in
    $KOCHI_MACHINE, which jobs have set, if it is one of them; else the one that this host belongs
    to; else the one in $KOCHI_FOUND_MACHINE, if it is one of them; else `local`.

    Raises ConfigError when this host belongs to several.
    """
    if name := environment.get("KOCHI_DEFAULT_MACHINE"):
        return name
    # A job may work on another project, which has no such machine.
    if (name := environment.get("KOCHI_MACHINE", "")) in machines:
        return name
    found = [each.name for each in machines.values() if each.name != LOCAL and is_of(each, host)]
    if len(found) > 1:
        raise ConfigError(
            f"this host, {host()}, belongs to several machines of kochi.yaml: {', '.join(found)}",
            f"Name the one that is meant with -m, or type: export KOCHI_DEFAULT_MACHINE={found[0]}",
        )
    if not found and (name := environment.get(FOUND_VARIABLE, "")) in machines:
        return name
    return found[0] if found else LOCAL


def is_said(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether somebody has named a machine, be it `local`."""
    return bool(environment.get("KOCHI_DEFAULT_MACHINE"))


def is_of(machine: Machine, host: Callable[[], str] = socket.gethostname) -> bool:
    """Whether a host, by default this one, belongs to a machine: by the machine's name, its
    `login_host` or a pattern of its `hosts`, any of them full or short, in any case of letters."""
    wanted = [machine.name, *machine.hosts]
    if machine.login_host is not None:
        wanted.append(machine.login_host.rpartition("@")[2])
    patterns = [pattern.lower() for pattern in wanted]
    name = host().lower()
    if _matches({name, name.partition(".")[0]}, patterns):
        return True
    # The full name may have to be asked for over the network: only where it matters.
    if "." in name or not any("." in pattern for pattern in patterns):
        return False
    return _matches({socket.getfqdn(name).lower()}, patterns)


def _matches(names: set[str], patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
