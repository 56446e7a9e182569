"""Installations of recipes: making one, and which one is in use.

Each has a permanent prefix of its own. Its manifest is written last, and then it becomes the one in
use: a file has the name of that, which is replaced by one rename. A manifest has the keys of
`Install`, "machine", "node", "started" as ISO time, "seconds", and "depends": the installations on
which it depends.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import (
    answered,
    is_there,
    make_directory,
    note_use,
    read_json,
    to_json,
    write_atomically,
    write_last,
)
from snakemake_kochi.locks import Held, find_lock_settings
from snakemake_kochi.paths import InstallPaths, ProjectPaths
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.products import (
    MANIFEST_VERSION,
    Install,
    digest_of,
    merge,
)
from snakemake_kochi.phases.script import Environment, Stopwatch, run_script
from snakemake_kochi.phases.sources import determining, fetch, find_source
from snakemake_kochi.phases.workspace import scratch_directory
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.project.recipes import Recipe, Requirement

# Recipes to install again, as DEPENDENCY:RECIPE and separated by blanks.
AGAIN_VARIABLE = "KOCHI_INSTALL_AGAIN"
State = Literal["installed", "stale", "NOT installed"]


@dataclass(frozen=True)
class RecipeState:
    """A recipe and the installation in use, if any.

    "stale": since then, the recipe was changed, or one of its dependencies was installed again.
    Newer sources are not looked up. `since` is ISO 8601.
    """

    recipe: Recipe
    state: State
    install: Install | None
    since: str | None


def recipe_description(machine: Machine, recipe: Recipe) -> dict[str, object]:
    """What determines the installation, of a recipe and its machine: a change makes it stale."""
    return {
        "recipe": {
            "git": recipe.git,
            "branch": recipe.branch,
            "commit_hash": recipe.commit_hash,
            "mirror": recipe.mirror,
            "envs": dict(recipe.envs),
            "script": recipe.install_script,
            "strict": recipe.strict,
        },
        "load_environment": machine.load_env_for_install(recipe.on_machine),
    }


def _digest(
    machine: Machine, recipe: Recipe, dependencies: Sequence[Install], source: Mapping[str, str]
) -> str:
    """The name of an installation. One that was made again has a number after it."""
    return digest_of(
        recipe_description(machine, recipe)
        | {
            "source": determining(source),
            "depends": [dependency.identity for dependency in dependencies],
        }
    )


def _place(paths: ProjectPaths, machine: str, recipe: Recipe, name: str) -> InstallPaths:
    return paths.install(machine, recipe.dependency, recipe.name, name)


def _install_of(recipe: Recipe, place: InstallPaths, source: Mapping[str, str]) -> Install:
    return Install(
        dependency=recipe.dependency,
        recipe=recipe.name,
        digest=place.directory.name,
        prefix=str(place.prefix),
        source=source,
        activate_script=recipe.activate_script,
    )


def install_recipe(
    freeze: Freeze,
    recipe: Recipe,
    dependencies: Sequence[Install],
    again: bool = False,
    before: Install | None = None,
) -> tuple[Install, ...]:
    """Install a recipe, unless the same installation exists already; return its install set.

    The recipe, the machine's environment, the commit or tree of its source and the installations on
    which it depends determine an installation. With `again` it is installed again, in a new prefix.
    `before` is its last installation: a remote repository that no lock file names is used at that
    commit. The previously current installation stays for jobs that use it; a failed
    installation changes nothing that worked. Raises PhaseError when the script fails, GitError when
    the source is not available.
    """
    source = find_source(recipe, freeze.sources.get(str(recipe)), freeze.directory, before)
    paths, machine = freeze.paths, freeze.machine_name
    digest = _digest(freeze.machine, recipe, dependencies, source)
    # After KOCHI_ROOT was emptied, the same installation is made again, under the same name.
    names = [before.digest] if before and before.digest.partition("-")[0] == digest else [digest]
    locks = find_lock_settings(freeze.root.machine(machine))
    own = locks.paths.project(paths.directory).install(recipe.dependency, recipe.name)
    current = paths.current_install(machine, recipe.dependency, recipe.name)
    with freeze.root.explaining(), locks.hold(own) as lock:
        while is_there(_place(paths, machine, recipe, following := _following(names[-1])).manifest):
            names.append(following)
        if again and is_there(_place(paths, machine, recipe, names[-1]).manifest):
            names.append(following)
        place = _place(paths, machine, recipe, names[-1])
        install = _install_of(recipe, place, source)
        if note_use(place.manifest) and is_there(place.prefix):
            print(f"{recipe} is installed already in {place.prefix}")
        else:
            _install(freeze, recipe, dependencies, install, place, lock)
        if freeze.rerun is None:  # else it may be an old one, which is not for `kochi run`
            write_atomically(current, os.fsencode(install.digest))
    return (*dependencies, install)


def _following(name: str) -> str:
    """The name of the next installation of the same digest."""
    digest, _, number = name.partition("-")
    return f"{digest}-{int(number or 1) + 1}"


def _install(
    freeze: Freeze,
    recipe: Recipe,
    dependencies: Sequence[Install],
    install: Install,
    place: InstallPaths,
    lock: Held,
) -> None:
    # No process uses a directory without a manifest: a failed installation left it.
    shutil.rmtree(place.directory, ignore_errors=True)
    make_directory(place.prefix)
    tree = freeze.source_trees.get(str(recipe))
    fetch(recipe, install.source, freeze.paths.store, freeze.directory, place.source, tree)
    environment = Environment(
        load_environment=freeze.machine.load_env_for_install(recipe.on_machine),
        installs=dependencies,
        variables={
            **recipe.envs,
            "KOCHI_INSTALL_PREFIX": str(place.prefix),
            "KOCHI_MACHINE": freeze.machine_name,
        },
    )
    print(f"Installing {recipe} into {place.prefix}", flush=True)
    with scratch_directory(freeze.workspaces) as scratch, Stopwatch() as watch:
        ended = run_script(
            recipe.install_script,
            f"install_{recipe.dependency}_{recipe.name}",
            place.source,
            environment,
            recipe.strict,
            scratch,
            output=place.log,
            timeout=recipe.request.timeout,
        )
    ended.require_success(str(recipe), "the install script", place.log)
    record = asdict(install) | {
        "version": MANIFEST_VERSION,
        "machine": freeze.machine_name,
        **watch.record,
        "depends": [asdict(dependency) for dependency in dependencies],
    }
    lock.require()
    write_last(place.manifest, to_json(record), place.directory)


def install_again(freeze: Freeze, install: Install, others: Sequence[Install]) -> None:
    """Make an installation again whose prefix is gone; `others` are those on which it may depend.

    Raises PhaseError if this is no place to install it, or if the same one cannot be made any more.
    """
    recipe = freeze.project.recipe(Requirement(install.dependency, install.recipe, None))
    needed = {str(each.dependency) for each in recipe.depends}
    below = [each for each in others if each.dependency in needed]
    is_here = not freeze.machine.installs_on_login_node(recipe.on_machine)
    if not is_here or install not in install_recipe(freeze, recipe, below, before=install):
        raise PhaseError(
            f"the installation of {recipe} in {install.prefix} is gone",
            _line_to_type([str(recipe)]),
        )


def as_recorded(
    freeze: Freeze,
    recipe: Recipe,
    dependencies: Sequence[Install],
    recorded: Mapping[str, Any],
) -> tuple[Install, ...] | None:
    """The install set that a run elsewhere used, as it would be made here by the present recipe.

    `recorded` is the installation in the run's record; of it, only the digest and the commit of a
    remote source are used. None if it was made by another recipe, or from another source.
    """
    source = freeze.sources.get(str(recipe)) or dict(recorded["source"] or {})
    digest, name = _digest(freeze.machine, recipe, dependencies, source), str(recorded["digest"])
    if recorded["recipe"] != recipe.name or not re.fullmatch(rf"{digest}(-\d{{1,9}})?", name):
        return None
    place = _place(freeze.paths, freeze.machine_name, recipe, name)
    return (*dependencies, _install_of(recipe, place, source))


def expected_digests(freeze: Freeze, recipes: Sequence[Recipe]) -> Iterator[tuple[Recipe, str]]:
    """The digest of what determines each installation, before it is made.

    `recipes` as `Project.resolve` returns them. Those whose source is not known before are left
    out, and so are those that depend on them.
    """
    known: dict[str, tuple[Install, ...]] = {}
    for recipe in recipes:
        needed = [each.dependency for each in recipe.depends if each.on(freeze.machine_name)]
        has_none = recipe.git is None and not recipe.mirror
        source = {} if has_none else freeze.sources.get(str(recipe))
        if source is None or not known.keys() >= set(needed):
            continue
        below = merge(known[name] for name in needed)
        digest = _digest(freeze.machine, recipe, below, source)
        place = _place(freeze.paths, freeze.machine_name, recipe, digest)
        known[recipe.dependency] = (*below, _install_of(recipe, place, source))
        yield recipe, digest


def _current(
    paths: ProjectPaths, machine: str, dependency: str, recipe: str
) -> dict[str, Any] | None:
    """The manifest of the installation in use, or None when the recipe is not installed."""
    current = paths.current_install(machine, dependency, recipe)
    with suppress(FileNotFoundError):
        place = InstallPaths(current.with_name(os.fsdecode(answered(current.read_bytes))))
        if is_there(place.prefix):
            return read_json(place.manifest, MANIFEST_VERSION)
    return None


def recipe_states(
    paths: ProjectPaths, machine: Machine, recipes: Sequence[Recipe]
) -> tuple[RecipeState, ...]:
    """The states of recipes. Raises DamagedFileError for a manifest that cannot be read."""

    def state_of(recipe: Recipe) -> RecipeState:
        found = _current(paths, machine.name, recipe.dependency, recipe.name)
        if found is None:
            return RecipeState(recipe, "NOT installed", None, None)
        depends = list(map(Install.of, found["depends"]))
        digest = _digest(machine, recipe, depends, found["source"])
        same = found["digest"].partition("-")[0] == digest
        for used in depends:
            now = _current(paths, machine.name, used.dependency, used.recipe)
            same = same and now is not None and now["digest"] == used.digest
        state: State = "installed" if same else "stale"
        return RecipeState(recipe, state, _present(found, recipe), found["started"])

    return tuple(map(state_of, recipes))


def current_installs(
    paths: ProjectPaths, machine: Machine, recipes: Sequence[Recipe]
) -> tuple[Install, ...]:
    """The installations in use of recipes as `Project.resolve` returns them, in the same order.

    Raises PhaseError, with the line to type, when one is not installed or is stale.
    """
    states = recipe_states(paths, machine, recipes)
    if missing := [str(each.recipe) for each in states if each.install is None]:
        raise PhaseError(
            f"not installed on machine '{machine.name}': {', '.join(missing)}",
            _line_to_type(missing),
        )
    if stale := [str(each.recipe) for each in states if each.state == "stale"]:
        raise PhaseError(
            f"{', '.join(stale)}: the recipe or one of its dependencies has changed since it was "
            "installed",
            _line_to_type(stale),
        )
    installs = tuple(each.install for each in states if each.install is not None)
    for install in installs:
        note_use(InstallPaths(Path(install.prefix).parent).manifest)
    return installs


def current_digests(paths: ProjectPaths, machine: str) -> set[tuple[str, str, str]]:
    """The installations in use, and those on which they depend: dependency, recipe and digest.

    Raises OSError and DamagedFileError if they are not known now.
    """
    found: set[tuple[str, str, str]] = set()
    for place in paths.recipes(machine):
        if (own := _current(paths, machine, place.parent.name, place.name)) is not None:
            each = (own, *own["depends"])
            found.update((i["dependency"], i["recipe"], i["digest"]) for i in each)
    return found


def read_install(paths: ProjectPaths, machine: str, recipe: Recipe, digest: str) -> Install:
    """One installation of a recipe, in use or not. Raises PhaseError when it is gone,
    DamagedFileError."""
    place = _place(paths, machine, recipe, digest)
    try:
        return _present(read_json(place.manifest, MANIFEST_VERSION), recipe)
    except FileNotFoundError:
        raise PhaseError(
            f"{recipe}: the installation {place.directory} is gone", _line_to_type([str(recipe)])
        ) from None


def _line_to_type(recipes: Sequence[str]) -> str:
    return "Type: kochi install " + " ".join(f"-d {recipe}" for recipe in recipes)


def _present(manifest: Mapping[str, Any], recipe: Recipe) -> Install:
    # An edited activate_script needs no new installation, so the recorded one is out of date.
    return replace(Install.of(manifest), activate_script=recipe.activate_script)
