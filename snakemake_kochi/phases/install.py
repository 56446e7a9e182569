"""Installations of recipes: making one, and which one is in use.

Each has a permanent prefix of its own. Its manifest is written last, and then it becomes the one in
use.
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
    last_lines,
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
    LAST_LINES,
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
# Those at a branch or commit, which no batch need use.
REVISIONS_VARIABLE = "KOCHI_INSTALL_REVISIONS"
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
    digest = digest_of(_description(freeze.machine, recipe, dependencies, source))
    locks = find_lock_settings(freeze.root.machine(machine))
    own = locks.paths.project(paths.directory).install(recipe.dependency, recipe.name)
    with freeze.root.explaining(), locks.hold(own) as lock:
        serial = _serial(paths, machine, recipe, digest, again, before)
        name = digest if serial == 1 else f"{digest}-{serial}"
        place = paths.install(machine, recipe.dependency, recipe.name, name)
        install = _install_of(recipe, name, place, source)
        if note_use(place.manifest) and is_there(place.prefix):
            print(f"{recipe} is installed already in {place.prefix}")
        else:
            _install(freeze, recipe, dependencies, install, place, lock)
        if freeze.rerun is None:  # else it may be an old one, which is not for `kochi run`
            current = paths.current_install(machine, recipe.dependency, recipe.name)
            write_atomically(current, os.fsencode(name))
    return merge([*[(dependency,) for dependency in dependencies], (install,)])


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


def _description(
    machine: Machine, recipe: Recipe, dependencies: Sequence[Install], source: Mapping[str, str]
) -> dict[str, object]:
    return recipe_description(machine, recipe) | {
        "source": determining(source),
        "depends": [dependency.identity for dependency in dependencies],
    }


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
    digest = digest_of(_description(freeze.machine, recipe, dependencies, source))
    name = str(recorded["digest"])
    if recorded["recipe"] != recipe.name or not re.fullmatch(rf"{digest}(-\d{{1,9}})?", name):
        return None
    place = freeze.paths.install(freeze.machine_name, recipe.dependency, recipe.name, name)
    install = _install_of(recipe, name, place, source)
    return merge([*[(dependency,) for dependency in dependencies], (install,)])


def _install_of(
    recipe: Recipe, digest: str, place: InstallPaths, source: Mapping[str, str]
) -> Install:
    return Install(
        dependency=recipe.dependency,
        recipe=recipe.name,
        digest=digest,
        prefix=str(place.prefix),
        source=source,
        activate_script=recipe.activate_script,
    )


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
        digest = digest_of(_description(freeze.machine, recipe, below, source))
        own = Install(recipe.dependency, recipe.name, digest, "", source, recipe.activate_script)
        known[recipe.dependency] = (*below, own)
        yield recipe, digest


def _is_described_by(record: Mapping[str, Any], machine: Machine, recipe: Recipe) -> bool:
    """Whether an installation (its `_current_record`) was made from a recipe as it is now, by
    kochi.yaml only, without looking for newer sources."""
    dependencies = list(map(Install.of, record["depends"]))
    digest = digest_of(_description(machine, recipe, dependencies, record["source"]))
    # An installation made again has a number after its digest.
    return bool(record["digest"].partition("-")[0] == digest)


def _serial(
    paths: ProjectPaths,
    machine: str,
    recipe: Recipe,
    digest: str,
    again: bool,
    before: Install | None,
) -> int:
    """The number of the newest installation of this digest, or of the next one."""
    known, _, number = before.digest.partition("-") if before is not None else ("", "", "")
    # After KOCHI_ROOT was emptied, the same installation is made again, under the same name.
    serial = int(number) if known == digest and number else 1
    while True:
        following = paths.install(machine, recipe.dependency, recipe.name, f"{digest}-{serial + 1}")
        if not is_there(following.manifest):
            break
        serial += 1
    name = digest if serial == 1 else f"{digest}-{serial}"
    installed = is_there(paths.install(machine, recipe.dependency, recipe.name, name).manifest)
    return serial + 1 if again and installed else serial


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
    if ended.has_failed:
        current = freeze.paths.current_install(freeze.machine_name, recipe.dependency, recipe.name)
        good = is_there(current)
        raise PhaseError(
            f"{recipe}: the install script {ended.how} in {place.source}; its output is in "
            f"{place.log}",
            "The installation that worked before is still in place." if good else None,
            reason=ended.reason("the install script"),
            output=last_lines(place.log, LAST_LINES),
        )
    record = asdict(install) | {
        "version": MANIFEST_VERSION,
        "machine": freeze.machine_name,
        **watch.record,
        "depends": [asdict(dependency) for dependency in dependencies],
    }
    write_atomically(place.record, to_json(record))
    lock.require()
    manifest = {"version": MANIFEST_VERSION, **asdict(install)}
    write_last(place.manifest, to_json(manifest), place.directory)


def _current_place(current: Path) -> InstallPaths | None:
    """The installation in use, of which a file has the name: it is replaced by one rename, and
    always names a complete one."""
    try:
        return InstallPaths(current.with_name(os.fsdecode(answered(current.read_bytes))))
    except FileNotFoundError:
        return None


def _current_record(
    paths: ProjectPaths, machine: str, dependency: str, recipe: str
) -> dict[str, Any] | None:
    """The record of the installation in use (its manifest's keys, node, started as ISO time,
    seconds), or None when the recipe is not installed."""
    place = _current_place(paths.current_install(machine, dependency, recipe))
    if place is None or not is_there(place.prefix):
        return None
    try:
        return read_json(place.record, MANIFEST_VERSION)
    except FileNotFoundError:
        return None


def recipe_states(
    paths: ProjectPaths, machine: Machine, recipes: Sequence[Recipe]
) -> tuple[RecipeState, ...]:
    """The states of recipes. Raises DamagedFileError for a record that cannot be read."""
    return tuple(_state(paths, machine, recipe) for recipe in recipes)


def current_installs(
    paths: ProjectPaths, machine: Machine, recipes: Sequence[Recipe]
) -> tuple[Install, ...]:
    """The installations in use of recipes as `Project.resolve` returns them, in the same order.

    Raises PhaseError, with the line to type, when one is not installed or is stale.
    """
    states = recipe_states(paths, machine, recipes)
    missing = [str(state.recipe) for state in states if state.install is None]
    if missing:
        raise PhaseError(
            f"not installed on machine '{machine.name}': {', '.join(missing)}",
            _line_to_type(missing),
        )
    stale = [str(state.recipe) for state in states if state.state == "stale"]
    if stale:
        raise PhaseError(
            f"{', '.join(stale)}: the recipe or one of its dependencies has changed since it was "
            "installed",
            _line_to_type(stale),
        )
    installs = tuple(state.install for state in states if state.install is not None)
    for install in installs:
        note_use(InstallPaths(Path(install.prefix).parent).manifest)
    return installs


def current_digests(paths: ProjectPaths, machine: str) -> set[tuple[str, str, str]]:
    """The installations in use, and those on which they depend: dependency, recipe and digest.

    Raises OSError and DamagedFileError if they are not known now.
    """
    found = set()
    for place in paths.recipes(machine):
        file = paths.current_install(machine, place.parent.name, place.name)
        if (current := _current_place(file)) is None:
            continue
        found.add((place.parent.name, place.name, current.directory.name))
        with suppress(FileNotFoundError):
            record = read_json(current.record, MANIFEST_VERSION)
            found.update((i["dependency"], i["recipe"], i["digest"]) for i in record["depends"])
    return found


def read_install(paths: ProjectPaths, machine: str, recipe: Recipe, digest: str) -> Install:
    """One installation of a recipe, in use or not. Raises PhaseError when it is gone,
    DamagedFileError."""
    place = paths.install(machine, recipe.dependency, recipe.name, digest)
    try:
        return _recorded(read_json(place.manifest, MANIFEST_VERSION), recipe)
    except FileNotFoundError:
        raise PhaseError(
            f"{recipe}: the installation {place.directory} is gone", _line_to_type([str(recipe)])
        ) from None


def _line_to_type(recipes: Sequence[str]) -> str:
    return "Type: kochi install " + " ".join(f"-d {recipe}" for recipe in recipes)


def _recorded(record: Mapping[str, Any], recipe: Recipe) -> Install:
    # An edited activate_script needs no new installation, so the recorded one is out of date.
    return replace(Install.of(record), activate_script=recipe.activate_script)


def _state(paths: ProjectPaths, machine: Machine, recipe: Recipe) -> RecipeState:
    record = _current_record(paths, machine.name, recipe.dependency, recipe.name)
    if record is None:
        return RecipeState(recipe, "NOT installed", None, None)
    same = _is_described_by(record, machine, recipe)
    for used in record["depends"]:
        now = _current_record(paths, machine.name, used["dependency"], used["recipe"])
        same = same and now is not None and now["digest"] == used["digest"]
    state: State = "installed" if same else "stale"
    return RecipeState(recipe, state, _recorded(record, recipe), record["started"])
