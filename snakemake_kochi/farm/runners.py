"""Runners and task lists in the INI files of PyTaskFarmer: what is put around each command.

The files are data: a class of Python that one names is told apart by its name, and never loaded.
"""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Callable, Sequence
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
_BASIC = "taskfarmer.runners.BasicRunner"
_PROGRAMS = {"taskfarmer.runners.ShifterRunner": "shifter", **{name: name for name in PROGRAMS}}
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


def around_tasks(runner: str | None, kind: str | None) -> Callable[[str], str]:
    """What bash executes for a command, by the names of a runner and a kind of list in the files.
    Raises KochiError."""
    _section(
        *("TaskList", kind, _LISTS),
        "to make a command of each line, type: kochi farm --each TASKS -- 'COMMAND {}'",
    )
    where, data = _section("Runner", runner, (_BASIC, *_PROGRAMS), "name one of these")
    program = _PROGRAMS.get(data.pop("Runner"))
    for key in data:
        if program is None or key not in _KEYS:
            said = "this runner has no keys" if program is None else nearest(key, _KEYS)
            raise KochiError(f"{where}: unknown key '{key}', {said}")
    return str if program is None else _in_container(where, program, data)


def _in_container(where: str, program: str, data: dict[str, str]) -> Callable[[str], str]:
    form, image, setup = PROGRAMS[program], data.get("image", ""), data.get("setup", "")
    volumes, modules = (tuple(data.get(key, "").split()) for key in ("volumes", "modules"))
    if not image:
        raise KochiError(f"{where}: the key 'image' is missing")
    if image.startswith((*PATHS, ".")):
        image = os.path.abspath(os.path.expanduser(os.path.expandvars(image)))
    for key, needed, is_used in (
        ("image", "file", image[0] == "/"),
        ("modules", "module", modules),
    ):
        if is_used and needed not in form:
            raise KochiError(f"{where}: {key}: {program} cannot take '{data[key]}'")
    if (tempdir := data.get("tempdir", "False")) not in ("True", "False"):
        raise KochiError(f"{where}: tempdir: True or False was expected, not '{tempdir}'")
    words = module_words(form, modules) if modules else []
    for volume in volumes:
        source, *target = volume.removesuffix(":ro").removesuffix(":rw").split(":", 1)
        how = "ro" if volume.endswith(":ro") else "rw"
        words.append(form[how].format(source, *(target or [source])))
    words += [*image_words(form, image), *first_words(form), "/bin/bash", "-c"]
    # BASH_ENV names a file of the host.
    start = f"BASH_ENV= {program} {_STARTS.get(program, _PODMAN)} {shlex.join(words)}"
    start = f"{_TEMPORARY if tempdir == 'True' else ''}{start}"
    before = f"{setup} || exit\n" if setup else ""
    return lambda command: f"{start} {shlex.quote(before + command)}"


def _section(
    kind: str, name: str | None, known: Sequence[str], instead: str
) -> tuple[str, dict[str, str]]:
    """Where it is, and what the files of a user, then those of this directory, say under a name:
    at the key `kind`, one that is known."""
    own, name = Path.home() / ".pytaskfarmer" / f"{kind.lower()}s.d", name or DEFAULT
    sections = {DEFAULT: ("", {kind: known[0]})}
    for path in (path for place in (own, Path()) for path in sorted(place.glob("*.ini"))):
        parser = configparser.ConfigParser()
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        try:
            parser.read_string(path.read_text("utf-8"), path.name)
            found = {each: (f"{path}: [{each}]", dict(parser[each])) for each in parser.sections()}
        except (configparser.Error, OSError, ValueError) as error:
            raise KochiError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        sections |= {each: of for each, of in found.items() if kind in of[1]}
    if name not in sections:
        option = f"--{kind.lower()} {name}"
        read = f"It reads {own}/*.ini, and *.ini in this directory."
        raise KochiError(f"{option}: there is no such section, {nearest(name, sections)}", read)
    where, data = sections[name]
    if data[kind] not in known:
        raise KochiError(
            f"{where}: '{data[kind]}' is a class of Python, and no code is loaded from such files",
            f"Possible are {', '.join(known)}; {instead}",
        )
    return where, data
