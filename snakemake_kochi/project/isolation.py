"""The keys `isolate`, `visible` and `container` of an experiment, and `isolation` of a machine.

Runs that are not isolated do not load this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.problems import KeyPath, Notes, Problems
from snakemake_kochi.project.values import path_problem, unusable_character

ENVIRONMENT, FILES, NETWORK = "environment", "files", "network"
WORDS = (ENVIRONMENT, FILES, NETWORK)
# In the order in which they are tried.
FOR_FILES = ("bwrap", "apptainer", "singularity")
FOR_CONTAINERS = ("apptainer", "singularity", "podman-hpc", "podman", "shifter")
PROGRAMS = tuple(dict.fromkeys((*FOR_FILES, *FOR_CONTAINERS)))

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_%]*\*?")
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# The name of an image in a registry, with or without the beginning that Apptainer or Shifter wants.
_REGISTRY = re.compile(r"(?:[a-z][a-z0-9+.-]*:(?://)?)?[A-Za-z0-9][A-Za-z0-9_./:@+-]*")
_IMAGE_FILE = re.compile(r"\.(sif|sqsh|squashfs|img|simg|tar)$")
_PATH_STARTS = ("/", "~", "$")


@dataclass(frozen=True)
class Shared:
    """A path of the host that a script sees, as it is written: `source` may begin with `~` or a
    variable. `target` is where it is seen, "" at the same place."""

    source: str
    target: str = ""
    writable: bool = False

    @classmethod
    def parse(cls, text: str, writable: bool, with_target: bool) -> Shared:
        """`SOURCE[:rw|:ro]`, or `SOURCE[:TARGET][:rw|:ro]` `with_target`; `writable` without an
        ending. Raises ValueError."""
        parts = text.split(":")
        if len(parts) > 1 and parts[-1] in ("rw", "ro"):
            writable = parts.pop() == "rw"
        if len(parts) > 1 + with_target:
            form = "SOURCE, SOURCE:TARGET" if with_target else "PATH"
            raise ValueError(f"{form}, and after that :ro or :rw, was expected")
        source, target = parts[0], parts[1] if len(parts) > 1 else ""
        if not source.startswith(_PATH_STARTS) or (target and not target.startswith("/")):
            raise ValueError("an absolute path was expected; it may begin with ~ or a variable")
        for path in (source, target):
            if ".." in path.split("/"):
                raise ValueError("a path without '..' was expected")
            if wrong := path_problem(path) or unusable_character(path):
                raise ValueError(wrong)
        if not (target or source).strip("/"):
            raise ValueError("this is every file; name the directories that the script needs")
        return cls(source, target, writable)


@dataclass(frozen=True)
class Container:
    """The key `container`. `modules`: of the image, as Shifter and podman-hpc have them."""

    image: str
    volumes: tuple[Shared, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def is_file(self) -> bool:
        """Whether the image is a path, and not a name in a registry."""
        return self.image.startswith(_PATH_STARTS)


@dataclass(frozen=True)
class Isolation:
    """How a script is isolated: some of WORDS, `visible` paths, or a container."""

    words: tuple[str, ...] = ()
    visible: tuple[Shared, ...] = ()
    container: Container | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Isolation:
        """From JSON of `dataclasses.asdict`. Raises KeyError and TypeError."""
        container = data["container"]
        if container is not None:
            volumes = tuple(Shared(**each) for each in container["volumes"])
            modules = tuple(container["modules"])
            container = Container(container["image"], volumes, modules)
        visible = tuple(Shared(**each) for each in data["visible"])
        return cls(tuple(data["words"]), visible, container)

    @property
    def needs_program(self) -> bool:
        """Whether a program has to make it; a cleared environment needs none."""
        return self.container is not None or FILES in self.words or NETWORK in self.words

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that could make it, in the order in which they are tried."""
        if not self.needs_program:
            return ()
        if self.container is None:
            return FOR_FILES
        return FOR_CONTAINERS


@dataclass(frozen=True)
class MachineIsolation:
    """The key `isolation` of a machine: what isolated scripts need there. `environment`: names of
    variables, or the beginnings of names with a `*`; `programs`: those to try, in this order."""

    visible: tuple[Shared, ...] = ()
    environment: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MachineIsolation:
        """From JSON of `dataclasses.asdict`. Raises KeyError and TypeError."""
        visible = tuple(Shared(**each) for each in data["visible"])
        return cls(visible, tuple(data["environment"]), tuple(data["programs"]))


Add = Callable[[KeyPath, str], None]


def read_isolation(
    data: Mapping[str, Any], path: KeyPath, problems: Problems, remarks: Problems
) -> Isolation | None:
    """The isolation of a `build` or `run` at a key path, with the keys that a batch takes from its
    experiment; None without one. Notes problems, and in `remarks` what is probably not intended."""

    def place(keys: KeyPath) -> KeyPath:
        return problems.source_map.first((*path, *keys), (path[-1], *keys))

    def add(keys: KeyPath, said: str) -> None:
        problems.add(place(keys), said)

    words = _listed(data, "isolate")
    for index, word in words:
        if word not in WORDS:
            add(index, f"there is no isolation '{word}', {nearest(word, WORDS)}")
    kinds = tuple(each for each in WORDS if each in [word for _, word in words])
    visible = _shared(data, "visible", add, writable=False, with_target=False)
    container = _container(data.get("container"), add)
    if container is not None and FILES in kinds:
        add(("isolate",), "a container has files of its own; remove 'files', or the container")
    if visible and FILES not in kinds:
        said = "'visible' has no effect without 'isolate: files'"
        use = "; in a container, use its 'volumes'" if container is not None else ""
        remarks.add(place(("visible",)), said + use)
    if not kinds and container is None:
        return None
    return Isolation(kinds, visible if FILES in kinds else (), container)


def read_machine_isolation(
    data: Mapping[str, Any], path: KeyPath, problems: Notes
) -> MachineIsolation | None:
    """The key `isolation` of a machine, whose keys `data` has; notes problems."""

    def add(keys: KeyPath, said: str) -> None:
        problems.add((*path, *keys), said)

    for index, name in (variables := _listed(data, "environment")):
        if not _VARIABLE.fullmatch(name):
            add(
                index, f"'{name}': the name of an environment variable was expected; a * may end it"
            )
    for index, name in (programs := _listed(data, "programs")):
        if name not in PROGRAMS:
            add(index, f"there is no program '{name}' for isolation, {nearest(name, PROGRAMS)}")
    return MachineIsolation(
        _shared(data, "visible", add, writable=False, with_target=False),
        tuple(name for _, name in variables),
        tuple(name for _, name in programs),
    )


def _listed(data: Mapping[str, Any], key: str) -> list[tuple[KeyPath, str]]:
    """The texts of a key that has one or a list, each with its key path."""
    from snakemake_kochi.project.document import names, optional_text

    value = data.get(key)
    if not isinstance(value, list) and optional_text(value) is None:
        return []
    texts = names(value) or ()
    return [((key, i) if isinstance(value, list) else (key,), text) for i, text in enumerate(texts)]


def _shared(
    data: Mapping[str, Any], key: str, add: Add, writable: bool, with_target: bool
) -> tuple[Shared, ...]:
    found = []
    for path, text in _listed(data, key):
        try:
            found.append(Shared.parse(text, writable, with_target))
        except ValueError as error:
            add(path, f"'{text}': {error}")
    return tuple(found)


def _container(data: Any, add: Add) -> Container | None:
    if not isinstance(data, dict) or "image" not in data:
        return None

    def below(keys: KeyPath, said: str) -> None:
        add(("container", *keys), said)

    image = str(data["image"])
    if wrong := _image_problem(image):
        below(("image",), f"'{image}': {wrong}")
    for path, name in (modules := _listed(data, "modules")):
        if not _MODULE.fullmatch(name):
            below(path, f"'{name}': the name of a module of the image was expected, such as gpu")
    volumes = _shared(data, "volumes", below, writable=True, with_target=True)
    return Container(image, volumes, tuple(name for _, name in modules))


def _image_problem(image: str) -> str | None:
    if image.startswith(_PATH_STARTS):
        return path_problem(image) or unusable_character(image)
    if image.startswith(".") or _IMAGE_FILE.search(image):
        return "an absolute path was expected, because each run has a directory of its own"
    if not _REGISTRY.fullmatch(image):
        return "an absolute path, or a name in a registry such as docker.io/library/debian:12"
    return None
