"""Runners and task lists in the INI files of PyTaskFarmer: what is put around each command.

The files are data: a class of Python that one names is told apart by its name, and never loaded.
"""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.errors import KochiError, nearest
from snakemake_kochi.phases.isolation import (
    PATHS,
    PROGRAMS,
    first_words,
    image_words,
    module_words,
)

DEFAULT = "default"  # which is always there
_BASIC = ("taskfarmer.runners.BasicRunner",)
_RUNNERS = {"taskfarmer.runners.ShifterRunner": "shifter", **{name: name for name in PROGRAMS}}
_LISTS = ("taskfarmer.task.ListTaskList", "taskfarmer.tasks.ListTaskList")
_KEYS = ("image", "setup", "volumes", "modules", "tempdir")
# How a program starts, for bash. Unlike in a measurement, a task keeps the user's variables.
_APPTAINER = 'exec --pwd="$PWD" --bind="$PWD"'
_PODMAN = (
    "run --rm --log-driver none --security-opt label=disable --network host --env-host "
    '--workdir="$PWD" --volume="$PWD:$PWD"'
)
_STARTS = {"apptainer": _APPTAINER, "singularity": _APPTAINER, "shifter": '--workdir="$PWD"'}
_TEMPORARY = """d=$(mktemp -d) && cd "$d" || exit
trap 'cd /; rm -rf "$d"' EXIT
"""


@dataclass(frozen=True)
class Runner:
    """Runs each command in a container of `program`, one of PROGRAMS; without any, as it is."""

    program: str = ""
    image: str = ""
    setup: str = ""
    volumes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    tempdir: bool = False

    def around(self, command: str) -> str:
        """A text for bash that executes the command."""
        if not self.program:
            return command
        form = PROGRAMS[self.program]
        words = module_words(form, self.modules) if self.modules else []
        for volume in self.volumes:
            source, *target = volume.removesuffix(":ro").removesuffix(":rw").split(":", 1)
            how = "ro" if volume.endswith(":ro") else "rw"
            words.append(form[how].format(source, *(target or [source])))
        text = f"{self.setup} || exit\n{command}" if self.setup else command
        words += [*image_words(form, self.image), *first_words(form), "/bin/bash", "-c", text]
        start = f"{self.program} {_STARTS.get(self.program, _PODMAN)}"
        before = _TEMPORARY if self.tempdir else ""
        # BASH_ENV names a file of the host.
        return f"{before}BASH_ENV= {start} {shlex.join(words)}"


def around_tasks(runner: str | None, kind: str | None) -> Callable[[str], str]:
    """What bash executes for a command, by the names of a runner and a kind of list in the files.
    Raises KochiError."""
    _check_list(kind or DEFAULT)
    return _runner(runner or DEFAULT).around


def _runner(name: str) -> Runner:
    path, data = _section("Runner", name)
    kind = data.pop("Runner", _BASIC[0])
    if kind not in (*_BASIC, *_RUNNERS):
        raise _refused(path, name, kind, (*_BASIC, *_RUNNERS), "name one of these")
    for key in data:
        if kind in _BASIC or key not in _KEYS:
            said = "this runner has no keys" if kind in _BASIC else nearest(key, _KEYS)
            raise KochiError(f"{path}: [{name}]: unknown key '{key}', {said}")
    if kind in _BASIC:
        return Runner()
    image, program = data.get("image", ""), _RUNNERS[kind]
    if not image:
        raise KochiError(f"{path}: [{name}]: the key 'image' is missing")
    if image.startswith((*PATHS, ".")):
        image = os.path.abspath(os.path.expanduser(os.path.expandvars(image)))
    volumes, modules = (tuple(data.get(key, "").split()) for key in ("volumes", "modules"))
    for key, form, is_used in (("image", "file", image[:1] == "/"), ("modules", "module", modules)):
        if is_used and form not in PROGRAMS[program]:
            raise KochiError(f"{path}: [{name}]: {key}: {program} cannot take '{data[key]}'")
    tempdir = data.get("tempdir", "False")
    if tempdir not in ("True", "False"):
        raise KochiError(f"{path}: [{name}]: tempdir: True or False was expected, not '{tempdir}'")
    return Runner(program, image, data.get("setup", ""), volumes, modules, tempdir == "True")


def _check_list(name: str) -> None:
    """One that is anything but a command per line is refused."""
    path, data = _section("TaskList", name)
    if (kind := data.get("TaskList", _LISTS[0])) not in _LISTS:
        instead = "to make a command of each line, type: kochi farm --each TASKS -- 'COMMAND {}'"
        raise _refused(path, name, kind, _LISTS[:1], instead)


def _refused(path: Path, name: str, kind: str, known: tuple[str, ...], instead: str) -> KochiError:
    said = f"{path}: [{name}]: '{kind}' is a class of Python, and no code is loaded from such files"
    return KochiError(said, f"Possible are {', '.join(known)}; {instead}")


def _section(kind: str, name: str) -> tuple[Path, dict[str, str]]:
    """What the files of a user, then those of this directory, say under a name."""
    own = Path.home() / ".pytaskfarmer" / f"{kind.lower()}s.d"
    known: dict[str, tuple[Path, Mapping[str, str]]] = {DEFAULT: (Path(), {})}
    for path in (path for place in (own, Path()) for path in sorted(place.glob("*.ini"))):
        parser = configparser.ConfigParser()
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        try:
            parser.read_string(path.read_text("utf-8"), path.name)
            sections = {each: dict(parser[each]) for each in parser.sections()}
        except (configparser.Error, OSError, ValueError) as error:
            raise KochiError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        known |= {each: (path, data) for each, data in sections.items() if kind in data}
    if name not in known:
        option = f"--{kind.lower()} {name}"
        read = f"It reads {own}/*.ini, and *.ini in this directory."
        raise KochiError(f"{option}: there is no such section, {nearest(name, known)}", read)
    path, data = known[name]
    return path, dict(data)
