"""Installations of recipes, and builds: making one, and which installation is in use.

An installation has a permanent prefix of its own. Its manifest is written last, and then it becomes
the one in use: a file has the name of that, which is replaced by one rename. A manifest has the
keys of `Install`, "machine", "node", "started" as ISO time, "seconds", and "depends": the
installations on which it depends.

A build is a source tree of the snapshot with the products of the build script. What a `prepare`
script makes is named by what determines it, too, so that batches share it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from snakemake_kochi.paths import BuildPaths, InstallPaths, ProjectPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.freeze import Freeze, pattern_of
from snakemake_kochi.phases.products import (
    VERSION,
    Build,
    Install,
    digest_of,
    give_repository,
    merge,
    scratch_directory,
)
from snakemake_kochi.phases.script import Ended, Environment, run_script, source_variables
from snakemake_kochi.phases.sources import determining, fetch, find_source
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Phase, Step
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.project.recipes import Recipe, Requirement
from snakemake_kochi.snapshot import Entry, digest_sources, materialise, select_sources

# Recipes to install again, as DEPENDENCY:RECIPE and separated by blanks.
AGAIN_VARIABLE = "KOCHI_INSTALL_AGAIN"
State = Literal["installed", "stale", "NOT installed"]
# Files that are no code of an experiment, unless its `sources:` say otherwise: Kochi's own files,
# the workflow and its documentation. Patterns as in .gitignore.
NOT_SOURCES = (
    *("/kochi.yaml", "/kochi.lock", "Snakefile", "*.smk", "/workflow/", "/profiles/", "docs/"),
    *("doc/", "*.md", "*.rst", "LICENSE*", ".gitignore", ".github/"),
)


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
    depends = [dependency.identity for dependency in dependencies]
    description = recipe_description(machine, recipe)
    return digest_of(description | {"source": determining(source), "depends": depends})


def _place(paths: ProjectPaths, machine: str, recipe: Recipe, name: str) -> InstallPaths:
    return paths.install(machine, recipe.dependency, recipe.name, name)


def _install_of(recipe: Recipe, place: InstallPaths, source: Mapping[str, str]) -> Install:
    names = (recipe.dependency, recipe.name, place.directory.name, str(place.prefix))
    return Install(*names, source, recipe.activate_script)


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
    name = before.digest if before and before.digest.partition("-")[0] == digest else digest
    locks = find_lock_settings(freeze.root.machine(machine))
    own = locks.paths.project(paths.directory).install(recipe.dependency, recipe.name)
    current = paths.current_install(machine, recipe.dependency, recipe.name)

    def is_made(name: str) -> bool:
        return is_there(_place(paths, machine, recipe, name).manifest)

    with freeze.root.explaining(), locks.hold(own) as lock:
        number = int(name.partition("-")[2] or 1)
        while is_made(following := f"{digest}-{number + 1}"):
            name, number = following, number + 1
        place = _place(paths, machine, recipe, following if again and is_made(name) else name)
        install = _install_of(recipe, place, source)
        if note_use(place.manifest) and is_there(place.prefix):
            print(f"{recipe} is installed already in {place.prefix}")
        else:
            _install(freeze, recipe, dependencies, install, place, lock)
        if freeze.rerun is None:  # else it may be an old one, which is not for `kochi run`
            write_atomically(current, os.fsencode(install.digest))
    return (*dependencies, install)


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
    load = freeze.machine.load_env_for_install(recipe.on_machine)
    told = {"KOCHI_INSTALL_PREFIX": str(place.prefix), "KOCHI_MACHINE": freeze.machine_name}
    print(f"Installing {recipe} into {place.prefix}", flush=True)
    with scratch_directory(freeze.workspaces) as scratch:
        ended = run_script(
            *(recipe.install_script, f"install_{recipe.dependency}_{recipe.name}", place.source),
            *(Environment(load, dependencies, {**recipe.envs, **told}), recipe.strict, scratch),
            output=place.log,
            timeout=recipe.request.timeout,
        )
    ended.require_success(str(recipe), "the install script", place.log)
    record = asdict(install) | ended.made | {"machine": freeze.machine_name, "version": VERSION}
    record["depends"] = [asdict(dependency) for dependency in dependencies]
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
    freeze: Freeze, recipe: Recipe, dependencies: Sequence[Install], recorded: Mapping[str, Any]
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
            return read_json(place.manifest, VERSION)
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
        said = f"not installed on machine '{machine.name}': {', '.join(missing)}"
        raise PhaseError(said, _line_to_type(missing))
    if stale := [str(each.recipe) for each in states if each.state == "stale"]:
        said = "the recipe or one of its dependencies has changed since it was installed"
        raise PhaseError(f"{', '.join(stale)}: {said}", _line_to_type(stale))
    installs = tuple(each.install for each in states if each.install is not None)
    for install in installs:
        note_use(InstallPaths(Path(install.prefix).parent).manifest)
    return installs


def current_digests(paths: ProjectPaths, machine: str) -> set[tuple[str, str, str]]:
    """The installations in use, and those on which they depend: dependency, recipe and digest.

    Raises OSError and DamagedFileError if they are not known now.
    """
    every = (_current(paths, machine, p.parent.name, p.name) for p in paths.recipes(machine))
    return {
        (each["dependency"], each["recipe"], each["digest"])
        for own in every
        if own is not None
        for each in (own, *own["depends"])
    }


def read_install(paths: ProjectPaths, machine: str, recipe: Recipe, digest: str) -> Install:
    """One installation of a recipe, in use or not. Raises PhaseError when it is gone,
    DamagedFileError."""
    place = _place(paths, machine, recipe, digest)
    try:
        return _present(read_json(place.manifest, VERSION), recipe)
    except FileNotFoundError:
        raise PhaseError(
            f"{recipe}: the installation {place.directory} is gone", _line_to_type([str(recipe)])
        ) from None


def _line_to_type(recipes: Sequence[str]) -> str:
    return "Type: kochi install " + " ".join(f"-d {recipe}" for recipe in recipes)


def _present(manifest: Mapping[str, Any], recipe: Recipe) -> Install:
    # An edited activate_script needs no new installation, so the recorded one is out of date.
    return replace(Install.of(manifest), activate_script=recipe.activate_script)


# ---- builds


def sources_of(
    entries: Iterable[Entry], freeze: Freeze, experiment: Experiment
) -> tuple[Entry, ...]:
    """The code of an experiment among the files of any snapshot: those under its `sources:`. An
    edited README or an empty commit changes nothing."""
    return select_sources(entries, *_patterns(freeze, experiment))


def _patterns(freeze: Freeze, experiment: Experiment) -> tuple[Sequence[str], Sequence[str]]:
    if experiment.sources is None:
        # A file with values of parameters is like the experiment: a further point changes no other.
        own = (*freeze.experiments, *map(pattern_of, freeze.tables))
        return ("*",), (*NOT_SOURCES, *(f"/{file}" for file in own))
    return experiment.sources, ()


def code_digest(freeze: Freeze, experiment: Experiment, step: Phase | Step) -> str:
    """A digest of the files that determine what a script `build` or `prepare` makes."""
    patterns = _patterns(freeze, experiment)
    if isinstance(step, Step) and step.sources is not None:
        if not step.sources:
            return ""
        patterns = (step.sources, ())
    return digest_sources(freeze.entries, *patterns)


def describe_script(step: Phase | Step, sources: str) -> dict[str, object]:
    """What determines what a script makes, beside its parameters and its environment; `sources`:
    see `code_digest`."""
    beside = step.beside_script if isinstance(step, Phase) else {}
    return {**beside, "sources": sources, "script": step.script, "strict": step.strict}


def make(
    freeze: BatchFreeze,
    step: Phase | Step,
    parameters: Mapping[str, str],
    installs: Sequence[Install],
    timeout: float | None = None,
) -> Build:
    """Execute the script `build` or `prepare` of a batch, unless what it makes exists already.

    What determines it names it. An experiment without a build script gets the bare source tree. A
    `prepare` script runs in a private copy of the snapshot, which is deleted afterwards; the `tree`
    of what is returned is then the directory that scripts find in $KOCHI_PREPARED. `parameters`:
    of a point, or those that the script sees; `timeout`: seconds. Raises PhaseError when the script
    fails.
    """
    kind = "prepare" if isinstance(step, Step) else "build"
    variables = step.environment(parameters)
    description = {
        **describe_script(step, freeze.sources[kind]),
        "variables": variables,
        "installs": [install.identity for install in installs],
        "load_environment": freeze.load_environment,
    }
    digest = digest_of(description)
    named = freeze.paths.prepared if isinstance(step, Step) else freeze.paths.build
    place = named(freeze.machine_name, digest)
    locks = find_lock_settings(freeze.kochi_root.machine(freeze.machine_name))
    own = locks.paths.project(freeze.paths.directory).build(digest)
    with freeze.kochi_root.explaining(), locks.hold(own) as lock:
        if not note_use(place.manifest):
            shutil.rmtree(place.directory, ignore_errors=True)
            with scratch_directory(freeze.workspaces) as scratch:
                ended = _execute(freeze, step, variables, installs, timeout, scratch, place)
            record = {
                **description,
                "version": VERSION,
                "digest": digest,
                "experiment": freeze.file,
                "snapshot": freeze.snapshot["tree"],
                **ended.made,
            }
            lock.require()
            write_last(place.manifest, to_json(record), place.directory)
    return Build(digest, place.tree)


def _execute(
    freeze: BatchFreeze,
    step: Phase | Step,
    variables: Mapping[str, str],
    installs: Sequence[Install],
    timeout: float | None,
    scratch: Path,
    place: BuildPaths,
) -> Ended:
    """Execute the script in a copy of the snapshot. Raises PhaseError when it fails."""
    kind, log = "build", place.log
    told = source_variables(freeze.snapshot["base"], freeze.snapshot["dirty"])
    told |= {"KOCHI_MACHINE": freeze.machine_name, **variables}
    # In its final place: compilers write the path of their working directory into products.
    directory = place.tree
    if isinstance(step, Step):
        kind, directory = "prepare", scratch / "workspace"
        told |= {"KOCHI_PREPARED": str(make_directory(place.tree))}
    environment, wrapper = Environment(freeze.load_environment, installs, told), tuple[str, ...]()
    materialise(freeze.paths.store, freeze.snapshot["tree"], directory)
    give_repository(freeze.git_directory, directory)
    container = None
    if isinstance(step, Phase) and step.isolation is not None:
        from snakemake_kochi.phases.isolation import Container

        where = (directory, scratch, installs, (), f"{freeze.file}: build")
        container = Container(step.isolation, freeze.machine_isolation, *where)
        environment, wrapper = container.around(environment)
    ended = run_script(
        *(step.script, f"{kind}_{freeze.experiment}", directory, environment, step.strict, scratch),
        output=log,
        timeout=timeout,
        wrapper=wrapper,
    )
    if container is not None:
        container.finish(ended, log)
    ended.require_success(freeze.file, f"the {kind} script", log)
    # A run of another commit may use the same build: it gets its own .git.
    give_repository(None, directory)
    return ended
