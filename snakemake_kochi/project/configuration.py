"""Finding and reading kochi.yaml."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError, GitError
from snakemake_kochi.files import expand_user, is_name
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.git import run_git
from snakemake_kochi.paths import SENT_VARIABLE, Root, SentPaths
from snakemake_kochi.project.document import (
    Document,
    KeyPath,
    Problems,
    merged,
    read_text,
    read_yaml,
    section,
)
from snakemake_kochi.project.expressions import Template
from snakemake_kochi.project.grid import request_of
from snakemake_kochi.project.machines import (
    CommonFile,
    Machine,
    common_files,
    read_machines,
)
from snakemake_kochi.project.recipes import (
    DEFAULT_FACTS,
    Project,
    Recipe,
    Recording,
    check_recipes,
    check_time_limit,
    requirements,
)
from snakemake_kochi.project.shape import PROJECT, read_shape
from snakemake_kochi.project.values import environment_name

FILE_NAME = "kochi.yaml"
_AS_READ = (
    *("name", "mirror", "on_machine", "strict"),
    *("before_script", "script", "after_script", "activate_script"),
)
_SOURCES = ("git", "branch", "commit_hash", "mirror_dir")
# Snakemake goes from rule to rule by recursion, and gives up after some 500.
_LONGEST_CHAIN = 300


# ---- finding


def find_project(start: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of the project to which `start` belongs: the top of its git repository.

    $KOCHI_CONF may name a kochi.yaml elsewhere; outside of any repository $KOCHI_ROOT/conf.yaml
    makes any directory a project. Raises ConfigError when there is no repository or no kochi.yaml,
    and names a kochi.yaml that is not at the top of a repository and therefore not read.
    """
    top, configured = repository(start), _configured(environment)
    if configured is not None and not configured.is_file():
        raise ConfigError(
            f"KOCHI_CONF names {configured}, which does not exist",
            "Correct the variable, or type: unset KOCHI_CONF",
        )
    has_own = top is None and Root.find(environment=environment).has_configuration()
    if configured is not None or has_own or (top is not None and (top / FILE_NAME).is_file()):
        return top or start.absolute()
    found, where = _nearest_file(start), top or start.absolute()
    if found is not None and (top is None or found.is_relative_to(top)):
        why = f"{found.parent} is not in a git repository"
        if top is not None:
            why = f"it is not at the top of its git repository, {top}; move it there"
        raise ConfigError(
            f"{found} is not read, because {why}",
            f"{'Or t' if top else 'T'}ype: git init {shlex.quote(str(found.parent))}",
        )
    said, hint = (
        f"there is no {FILE_NAME} in {where}",
        f"To write one, type: cd {top} && kochi init",
    )
    if top is None:
        said += ", and this directory is not in a git repository"
        hint = f"A project is a git repository with a {FILE_NAME}. To make one, type in its "
        hint += "directory: git init && kochi init"
    raise ConfigError(said, hint)


def _nearest_file(start: Path) -> Path | None:
    """The kochi.yaml in a directory or the nearest one above it, whether or not a project has
    it."""
    directory = start.resolve()
    files = (each / FILE_NAME for each in (directory, *directory.parents))
    return next((file for file in files if file.is_file()), None)


def is_configured(start: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a configuration exists for the project of a directory, read or not."""
    return bool(environment.get("KOCHI_CONF")) or _nearest_file(start) is not None


def configuration_file(directory: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The kochi.yaml of a project's directory (which need not exist): $KOCHI_CONF, else the one in
    the directory, else $KOCHI_ROOT/conf.yaml if that exists."""
    if (configured := _configured(environment)) is not None:
        return configured
    own = directory / FILE_NAME
    root = Root.find(environment=environment)
    return root.configuration if not own.exists() and root.has_configuration() else own


def _configured(environment: Mapping[str, str]) -> Path | None:
    configured = environment.get("KOCHI_CONF")
    return expand_user(configured, "KOCHI_CONF").absolute() if configured else None


def repository(start: Path) -> Path | None:
    """The top of the git repository of a directory. Raises GitError, and ConfigError."""
    if not start.is_dir():
        raise ConfigError(f"there is no directory {start}")
    try:
        top = run_git(start, "rev-parse", "--show-toplevel")
    except GitError as error:
        if "not a git repository" in str(error):
            return None
        raise
    return Path(os.fsdecode(top.removesuffix(b"\n")))


# ---- reading


def load_project(
    directory: Path,
    text: str | None = None,
    file: Path | None = None,
    common: Collection[CommonFile] | None = None,
) -> Project:
    """Read a project's kochi.yaml, which overrides the machines of the `common` files.

    `text` is its content if it was read already; else `file`, else the directory's
    `configuration_file`, is read. By default `common` are the existing files. Raises ConfigError
    with a line per problem.
    """
    if text is None and file is None:
        file = configuration_file(directory)
    shown = FILE_NAME
    if file is not None:
        inside = file.is_relative_to(directory)
        shown = file.relative_to(directory).as_posix() if inside else str(file)
    if text is None and file is not None:
        common = common_files() if common is None else common
        try:
            text = read_text(file, shown)
        except FileNotFoundError:
            hint = "To write one, type: kochi init"
            raise ConfigError(f"there is no file {file}", hint) from None
    document = _shaped(shown, text or "")
    below = [_shaped(each.file, each.text) for each in common or () if each.file != str(file)]
    data, problems = document.data, document.problems
    written = section(data, "dependencies")
    project = Project(
        directory=directory,
        file=file,
        machines=read_machines([document, *below]),
        dependencies=_dependencies(written, problems),
        recording=Recording(DEFAULT_FACTS).and_those_of(Recording.of(data)),
        common_files=tuple(each.source_map.file for each in below),
        large_files=data.get("large_files") or None,
        quiet=FrozenDict(section(data, "quiet")),
    )
    for each in (*below, document):
        each.problems.raise_all()
    _check_requirements(project, written, problems)
    problems.raise_all()
    return project


def sent_machine(name: str, environment: Mapping[str, str]) -> Machine | None:
    """The machine as another computer describes it that has sent a project to it; None if none has.

    For somebody who is on a machine behind a login host, and in no project: KOCHI_ROOT is there, so
    this host belongs to the machine. It is a compute node on which somebody starts a worker, for
    example. Raises KochiError.
    """
    root = Root.find(environment=environment)
    if not is_name(name) or not root.machine(name).directory.is_dir():
        return None
    for place in SentPaths.all_below(root.directory):
        root.secure(place.state)
        own = (place.configuration, place.project / FILE_NAME)
        file = next((each for each in own if each.is_file()), None)
        common = common_files({**environment, SENT_VARIABLE: str(place.directory)}, [name])
        # What is wrong in its files is told to who sends them.
        with suppress(ConfigError, OSError):
            text = read_text(file, str(file)) if file is not None else ""
            if found := load_project(place.project, text, file, common).machines.get(name):
                return replace(found, hosts=(*found.hosts, socket.gethostname()))
    return None


def _shaped(shown: str, text: str) -> Document:
    document = read_yaml(shown, text)
    return replace(document, data=read_shape(document, PROJECT))


def _dependencies(
    data: Mapping[str, Any], problems: Problems
) -> FrozenDict[str, FrozenDict[str, Recipe]]:
    dependencies, variables = {}, dict[str, str]()
    for name, common in data.items():
        path: KeyPath = ("dependencies", name)
        if (other := variables.setdefault(environment_name(name), name)) != name:
            said = f"'{name}' and '{other}' would share their environment variables; rename one"
            problems.add(path, said)
        recipes: dict[str, Recipe] = {}
        for index, own in enumerate(common["recipes"]):
            place = (*path, "recipes", index)
            recipe = _recipe(name, common, own, place, problems)
            if recipes.setdefault(recipe.name, recipe) is not recipe:
                problems.add(place, f"there are two recipes '{recipe.name}'; rename one")
        dependencies[name] = FrozenDict(recipes)
    return FrozenDict(dependencies)


def _recipe(
    dependency: str,
    parent: Mapping[str, Any],
    own: Mapping[str, Any],
    path: KeyPath,
    problems: Problems,
) -> Recipe:
    data = merged(parent, own)
    mirror = data.get("mirror", False)
    branch = None if mirror else data.get("branch") or None

    def place(*keys: str | int) -> KeyPath:
        """Of the recipe, or of the dependency if that has the key."""
        every = ((*path, *keys), (*path[:2], *keys))
        return next((each for each in every if each in problems.source_map.lines), path)

    check_time_limit(parent, path[:2], problems)
    check_time_limit(own, path, problems)
    wanted: dict[KeyPath, str] = {("timeout",): data["timeout"]} if data.get("timeout") else {}
    wanted |= {("resources", name): text for name, text in section(data, "resources").items()}
    request, wrong = request_of({key: Template((text,)) for key, text in wanted.items()}, {})
    for (_, *key), said in wrong.items():
        problems.add(place(*key), said)
    recipe = Recipe(
        dependency=dependency,
        **{key: data[key] for key in _AS_READ if key in data},
        git=data.get("git") or None,
        branch=branch,
        commit_hash=None if mirror or branch else data.get("commit_hash") or None,
        mirror_dir=data.get("mirror_dir") or None,
        envs=FrozenDict(section(data, "envs")),
        depends=requirements(data, path if "depends" in own else path[:2], problems),
        request=request,
        source_at=FrozenDict((key, problems.source_map.position(place(key))) for key in _SOURCES),
    )
    if not recipe.install_script.strip():
        problems.add(path, f"{recipe} has nothing to run: a key 'script' was expected")
    if recipe.mirror and recipe.mirror_dir is None:
        problems.add(path, f"{recipe} mirrors nothing: a key 'mirror_dir' was expected")
    for lost in ("branch", "commit_hash"):
        if recipe.git is None and getattr(recipe, lost):
            problems.add((*path, lost), f"{recipe} has the key '{lost}' but no key 'git'")
    return recipe


def _check_requirements(project: Project, data: Mapping[str, Any], problems: Problems) -> None:
    """Every recipe on which another one depends must exist, and there must be no circle."""
    for name, common in data.items():
        for index, own in enumerate(common["recipes"]):
            path = ("dependencies", name, *(("recipes", index) if "depends" in own else ()))
            required = project.dependencies[name][own["name"]].depends
            check_recipes(project, required, path, problems)
    ended = set[str]()  # recipes from which no way leads into a circle that was not noted

    def follow(recipe: Recipe, way: Sequence[str]) -> None:
        name = str(recipe)
        if name in way:
            index = list(project.dependencies[recipe.dependency]).index(recipe.name)
            circle = " -> ".join((*way[way.index(name) :], name))
            said = f"recipes depend on each other in a circle: {circle}"
            problems.add(("dependencies", recipe.dependency, "recipes", index), said)
        elif len(way) == _LONGEST_CHAIN:
            said = f"more than {len(way)} recipes depend on each other in a row"
            problems.add_first(("dependencies",), f"{said}: {' -> '.join(way)}")
        elif name not in ended:
            for each in recipe.depends:
                if project.recipe_problem(each) is None:
                    follow(project.recipe(each), (*way, name))
            ended.add(name)

    for recipes in project.dependencies.values():
        for recipe in recipes.values():
            follow(recipe, ())
