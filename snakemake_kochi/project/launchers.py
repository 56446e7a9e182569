"""Launchers of machines: what starts the tasks of a run.

A launcher is one that Kochi knows, by its name, or a template of a machine. Every run of a batch
loads this module, so it imports little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from snakemake_kochi.errors import ConfigError, nearest
from snakemake_kochi.frozen import FrozenDict

SPREADS = ("nodes", "none")
# Nothing is in front of the command: the script starts one task.
NONE = "none"
# That of Open MPI.
MPIRUN = "mpirun"
# The one of the machine's scheduler, else MPIRUN.
AUTO = "auto"
# What a template may contain.
FIELDS = ("tasks", "nodes", "tasks_per_node", "cpus_per_task", "nodelist", "hostfile")
# Without one of these, a launcher could not know how many tasks it starts.
_NUMBERS = ("tasks", "tasks_per_node", "hostfile")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_FIELD = re.compile(r"\{([^{}]*)\}")
# bash splits $KOCHI_LAUNCH at blanks, and does nothing else to it.
_WITHOUT_EFFECT = re.compile(r"[\"'\\$`;&|<>*?\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Launcher:
    """A launcher on one machine. `name`: as the experiment or the machine names it, "" if none is
    named. `text`: a template, or the name of a launcher that Kochi knows."""

    name: str = ""
    text: str = NONE

    @property
    def starts_tasks(self) -> bool:
        return self.text != NONE

    @property
    def is_template(self) -> bool:
        return not _NAME.fullmatch(self.text)

    def filled(self, values: Mapping[str, str]) -> str:
        """The template with its fields replaced."""
        return _FIELD.sub(lambda field: values[field[1]], self.text)


NO_LAUNCHER = Launcher()


@dataclass(frozen=True)
class Launchers:
    """The launchers of one machine. `default`: that of experiments that name none, "" for no
    launcher. `own`: by name, templates or other names. `preferred`: what AUTO stands for."""

    default: str = ""
    own: Mapping[str, str] = FrozenDict()
    preferred: str = MPIRUN

    def of(self, name: str, machine: str) -> Launcher:
        """That of an experiment that names this one, "" for none. Raises ConfigError if there is
        none of that name."""
        given = name or self.default
        if not given:
            return NO_LAUNCHER
        text, seen = given, {given}
        while (own := self.own.get(text)) is not None and own not in seen:
            text = own
            seen.add(own)
        launcher = Launcher(given, self.preferred if text == AUTO else text)
        if not launcher.is_template and launcher.text not in known_launchers():
            raise ConfigError(
                f"machine '{machine}' has no launcher '{text}', "
                f"{nearest(text, [*self.own, *known_launchers()])}",
                f"Add it to kochi.yaml: machines: {machine}: launchers: {{{text}: TEMPLATE}}",
            )
        return launcher


def known_launchers() -> tuple[str, ...]:
    """The names of those that Kochi knows."""
    # Imported here: few runs have a launcher.
    from snakemake_kochi.schedulers.launchers import LAUNCHERS

    return (*LAUNCHERS, MPIRUN, AUTO, NONE)


def launcher_problem(name: str, machines: Iterable[Launchers]) -> str | None:
    """Why no launcher has this name, none that Kochi knows and none of the machines; or None."""
    known = dict.fromkeys((*known_launchers(), *(own for each in machines for own in each.own)))
    if name in known:
        return None
    said = nearest(name, list(known))
    if not _NAME.fullmatch(name):
        said = "a template goes into kochi.yaml: machines: MACHINE: launchers: {NAME: TEMPLATE}"
    return f"there is no launcher '{name}', {said}"


def template_problem(text: str, names: Iterable[str] = ()) -> str | None:
    """Why a text cannot be a launcher of a machine: a template, the name of a launcher that Kochi
    knows, or one of the `names`; or None."""
    rest = _FIELD.sub("", text)
    wrong = [each for each in _FIELD.findall(text) if each not in FIELDS]
    if _NAME.fullmatch(text):
        if text in (known := [*known_launchers(), *names]):
            return None
        said = f"there is no launcher '{text}', {nearest(text, known)}"
        return f"{said}; a template of your own has fields, as in 'mpiexec -n {{tasks}}'"
    if wrong:
        return f"unknown field {{{wrong[0]}}}, {nearest(wrong[0], FIELDS)}"
    if "{" in rest or "}" in rest:
        return "a { or } that is no field; fields are written {tasks}"
    if found := _WITHOUT_EFFECT.search(rest):
        return f"{found[0]!r} has no effect there: bash only splits $KOCHI_LAUNCH at blanks"
    if _FIELD.match(text) or not text.split():
        return "it begins with the program, as in 'mpiexec -n {tasks}'"
    if not any(f"{{{name}}}" in text for name in _NUMBERS):
        numbers = " or ".join(f"{{{name}}}" for name in _NUMBERS)
        return f"it does not say how many tasks it starts: {numbers} was expected"
    return None
