"""Finding and reading kochi.yaml."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError, GitError
from snakemake_kochi.files import expand_user
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.git import run_git
from snakemake_kochi.paths import Root
from snakemake_kochi.project.document import (
    Document,
    Scalar,
    optional_text,
    read_text,
    read_yaml,
    script,
    section,
)
from snakemake_kochi.project.machine_file import Layers, read_machines
from snakemake_kochi.project.machines import CommonFile, common_files
from snakemake_kochi.project.problems import KeyPath, Problems, chain, check_name
from snakemake_kochi.project.quiet import read_quiet
from snakemake_kochi.project.recipes import Project, Recipe
from snakemake_kochi.project.recording import DEFAULT_FACTS, Recording, read_recording
from snakemake_kochi.project.request_keys import plain_request_of
from snakemake_kochi.project.requirements import check_recipes, requirements
from snakemake_kochi.project.shape import check_shape
from snakemake_kochi.project.short_forms import write_out_recipes
from snakemake_kochi.project.values import environment_name, path_problem, value_problem
from snakemake_kochi.quantities import memory_of

FILE_NAME = "kochi.yaml"
_SCHEMA = "kochi.schema.yaml"
_OF_PROJECTS = ("dependencies", "large_files", "facts", "recorded_variables", "quiet")
# Snakemake goes from rule to rule by recursion, and gives up after some 500.
_LONGEST_CHAIN = 300
# MiB. Hosting services refuse larger files in git.
_LARGEST_IN_GIT = 100


def find_project(start: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of the project to which `start` belongs: the top of its git repository.

    $KOCHI_CONF may name a kochi.yaml elsewhere; outside of any repository $KOCHI_ROOT/conf.yaml
    makes any directory a project. Raises ConfigError when there is no repository or no kochi.yaml,
    and names a kochi.yaml that is not at the top of a repository and therefore not read.
    """
    top = repository(start)
    configured = _configured(environment)
    if configured is not None:
        if not configured.is_file():
            raise ConfigError(
                f"KOCHI_CONF names {configured}, which does not exist",
                "Correct the variable, or type: unset KOCHI_CONF",
            )
        return top or start.absolute()
    if top is None:
        if Root.find(environment=environment).has_configuration():
            return start.absolute()
        if (found := nearest_file(start)) is not None:
            raise ConfigError(
                f"{found} is not read, because {found.parent} is not in a git repository",
                f"Type: git init {shlex.quote(str(found.parent))}",
            )
        raise ConfigError(
            f"there is no {FILE_NAME} in {start.absolute()}, and this directory is not in a git "
            "repository",
            f"A project is a git repository with a {FILE_NAME}. To make one, type in its "
            "directory: git init && kochi init",
        )
    if not (top / FILE_NAME).is_file():
        if (found := nearest_file(start)) is not None and found.is_relative_to(top):
            raise ConfigError(
                f"{found} is not read, because it is not at the top of its git repository, {top}",
                f"Move it there, or type: git init {shlex.quote(str(found.parent))}",
            )
        raise ConfigError(
            f"there is no {FILE_NAME} in {top}", f"To write one, type: cd {top} && kochi init"
        )
    return top


def nearest_file(start: Path) -> Path | None:
    """The kochi.yaml in a directory or the nearest one above it, whether or not a project has
    it."""
    directory = start.resolve()
    files = (each / FILE_NAME for each in (directory, *directory.parents))
    return next((file for file in files if file.is_file()), None)


def is_configured(start: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a configuration exists for the project of a directory, read or not."""
    return bool(environment.get("KOCHI_CONF")) or nearest_file(start) is not None


def configuration_file(directory: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The kochi.yaml of a project's directory (which need not exist): $KOCHI_CONF, else the one in
    the directory, else $KOCHI_ROOT/conf.yaml if that exists."""
    configured = _configured(environment)
    if configured is not None:
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
    if text is None:
        file = file or configuration_file(directory)
        text = _read(file)
        common = common_files() if common is None else common
    shown = FILE_NAME
    if file is not None:
        inside = file.is_relative_to(directory)
        shown = file.relative_to(directory).as_posix() if inside else str(file)
    document = read_yaml(shown, text)
    write_out_recipes(document)
    if not check_shape(document, _SCHEMA):
        document.problems.raise_all()
    below = tuple(_read_common(each) for each in common or () if each.file != str(file))
    layers = Layers((document, *below))
    project = Project(
        directory=directory,
        file=file,
        machines=read_machines(layers),
        dependencies=_dependencies(document),
        recording=Recording(DEFAULT_FACTS).and_those_of(
            read_recording(document.data, document.problems)
        ),
        common_files=tuple(each.source_map.file for each in below),
        large_files=_large_files(document),
        quiet=read_quiet(section(document.data, "quiet"), ("quiet",), document.problems),
    )
    _check_requirements(project, document)
    _check_circles(project, document)
    for each in (*below, document):
        each.problems.raise_all()
    return project


def _read_common(common: CommonFile) -> Document:
    document = read_yaml(common.file, common.text)
    if not check_shape(document, _SCHEMA):
        document.problems.raise_all()
    for key in document.data if common.is_of_site else ():
        if key in _OF_PROJECTS:
            said = "this key is for projects; the file of a site has only 'machines'"
            document.problems.add((key,), said)
    return document


def _read(file: Path) -> str:
    try:
        return read_text(file, str(file))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {file}", "To write one, type: kochi init") from None


def _large_files(document: Document) -> int | None:
    text = optional_text(document.data.get("large_files"))
    if text is None:
        return None
    try:
        size = memory_of(text)
    except ValueError:
        size = 0
    if not 1 <= size <= _LARGEST_IN_GIT:
        said = f"{text!r}: a size like 10M was expected, from 1 MiB to {_LARGEST_IN_GIT} MiB"
        document.problems.add(("large_files",), said)
    return size << 20


def _dependencies(document: Document) -> FrozenDict[str, FrozenDict[str, Recipe]]:
    problems = document.problems
    dependencies = {}
    variables: dict[str, str] = {}
    for name, data in section(document.data, "dependencies").items():
        path: KeyPath = ("dependencies", name)
        check_name("dependency", name, path, problems)
        other = variables.setdefault(environment_name(name), name)
        if other != name:
            problems.add(
                path, f"'{name}' and '{other}' would share their environment variables; rename one"
            )
        recipes: dict[str, Recipe] = {}
        for index, own in enumerate(data["recipes"]):
            if own is None:  # its shape was wrong; the recipes after it keep their index
                continue
            recipe = _recipe(name, data, own, (*path, "recipes", index), problems)
            if recipe.name in recipes:
                problems.add(
                    (*path, "recipes", index), f"there are two recipes '{recipe.name}'; rename one"
                )
            recipes[recipe.name] = recipe
        dependencies[name] = FrozenDict(recipes)
    return FrozenDict(dependencies)


def _recipe(
    dependency: str, parent: Mapping[str, Any], own: Mapping[str, Any], path: KeyPath, p: Problems
) -> Recipe:
    data = {**parent, **own}
    mirror = "mirror" in data and data["mirror"].is_true
    branch = None if mirror else optional_text(data.get("branch"))
    commit_hash = None if mirror or branch else optional_text(data.get("commit_hash"))
    envs: dict[str, str] = {}
    for level, place in ((parent, path[:2]), (own, path)):
        envs |= _envs(section(level, "envs"), (*place, "envs"), p)
    recipe = Recipe(
        dependency=dependency,
        name=str(own["name"]),
        git=optional_text(data.get("git")),
        branch=branch,
        commit_hash=commit_hash,
        mirror=mirror,
        mirror_dir=optional_text(data.get("mirror_dir")),
        envs=FrozenDict(envs),
        before_script=script(data.get("before_script")),
        script=script(data.get("script")),
        after_script=script(data.get("after_script")),
        activate_script=script(data.get("activate_script")),
        depends=requirements(data, path if "depends" in own else path[:2], p),
        on_machine="on_machine" in data and data["on_machine"].is_true,
        strict="strict" not in data or data["strict"].is_true,
        request=plain_request_of(parent, own, path, p),
        source_at=FrozenDict(
            (key, p.source_map.position(p.source_map.first((*path, key), (*path[:2], key), path)))
            for key in ("git", "branch", "commit_hash", "mirror_dir")
        ),
    )
    _check_recipe(recipe, path, p)
    return recipe


def _check_recipe(recipe: Recipe, path: KeyPath, problems: Problems) -> None:
    if not problems.is_unknown((*path, "name")):
        check_name("recipe", recipe.name, (*path, "name"), problems)
    if not recipe.install_script.strip():
        problems.add(path, f"{recipe} has nothing to run: a key 'script' was expected")
    for key in ("git", "mirror", "mirror_dir"):
        if any(problems.is_unknown((*place, key)) for place in (path, path[:2])):
            return  # the origin of the source is not known
    _check_places(recipe, path, problems)
    if recipe.mirror and not recipe.mirror_dir:
        problems.add(path, f"{recipe} mirrors nothing: a key 'mirror_dir' was expected")
    if recipe.git is None:
        for key in ("branch", "commit_hash"):
            if getattr(recipe, key):
                problems.add((*path, key), f"{recipe} has the key '{key}' but no key 'git'")


def _check_places(recipe: Recipe, path: KeyPath, problems: Problems) -> None:
    def place(key: str) -> KeyPath:
        return problems.source_map.first((*path, key), (*path[:2], key))

    if recipe.git is not None:
        is_path = ":" not in recipe.git.partition("/")[0]
        if wrong := path_problem(recipe.git, is_path):
            problems.add(place("git"), wrong)
    if recipe.mirror_dir is not None:
        if wrong := path_problem(recipe.mirror_dir):
            problems.add(place("mirror_dir"), wrong)
        if os.path.normpath(recipe.mirror_dir) in ("/", "//"):
            said = "this is the whole filesystem; the directory of the sources was expected"
            problems.add(place("mirror_dir"), said)


def _envs(data: Mapping[str, Scalar], path: KeyPath, problems: Problems) -> dict[str, str]:
    for name, value in data.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            problems.add((*path, name), "the name of an environment variable was expected")
        wrong = value_problem(value.value_text)
        if wrong:
            problems.add((*path, name), wrong)
    return {name: value.value_text for name, value in data.items()}


def _check_requirements(project: Project, document: Document) -> None:
    """Every recipe on which another one depends must exist."""
    for name, data in section(document.data, "dependencies").items():
        own = (
            (entry or {}, ("dependencies", name, "recipes", index))
            for index, entry in enumerate(data["recipes"])
        )
        for level, path in ((data, ("dependencies", name)), *own):
            check_recipes(project, level, path, document.problems)


def _check_circles(project: Project, document: Document) -> None:
    circles = list(project.circles())
    if not circles and (length := project.longest_chain()) > _LONGEST_CHAIN:
        said = f"{length} recipes depend on each other in a row"
        document.problems.add(("dependencies",), f"{said}; at most {_LONGEST_CHAIN} are possible")
    for circle in circles:
        first = circle[0]
        entries = document.data["dependencies"][first.dependency]["recipes"]
        index = next(i for i, own in enumerate(entries) if own and str(own["name"]) == first.name)
        names = chain((*circle, first))
        document.problems.add(
            ("dependencies", first.dependency, "recipes", index),
            f"recipes depend on each other in a circle: {names}",
        )
