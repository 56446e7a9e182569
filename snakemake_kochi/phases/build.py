"""Building an experiment: a source tree of the snapshot, with the products of the build script."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import last_lines, make_directory, note_use, to_json, write_last
from snakemake_kochi.locks import find_lock_settings
from snakemake_kochi.paths import BuildPaths
from snakemake_kochi.phases.freeze import Freeze, pattern_of
from snakemake_kochi.phases.products import BUILD_VERSION, LAST_LINES, Build, Install, digest_of
from snakemake_kochi.phases.script import (
    Environment,
    Stopwatch,
    give_repository,
    run_script,
    scratch_directory,
    source_variables,
)
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Phase
from snakemake_kochi.snapshot import Entry, digest_sources, materialise, select_sources

# Files that are no code of an experiment, unless its `sources:` say otherwise: Kochi's own files,
# the workflow and its documentation. Patterns as in .gitignore.
NOT_SOURCES = (
    "/kochi.yaml",
    "Snakefile",
    "*.smk",
    "/workflow/",
    "/profiles/",
    "docs/",
    "doc/",
    "*.md",
    "*.rst",
    "LICENSE*",
    ".gitignore",
    ".github/",
)


def source_files(freeze: Freeze, experiment: Experiment) -> tuple[Entry, ...]:
    """The code of an experiment: the files under its `sources:`. An edited README or an empty
    commit changes nothing."""
    return sources_of(freeze.entries, freeze, experiment)


def sources_of(
    entries: Iterable[Entry], freeze: Freeze, experiment: Experiment
) -> tuple[Entry, ...]:
    """The code of an experiment among the files of any snapshot."""
    return select_sources(entries, *_source_patterns(freeze, experiment))


def _source_patterns(freeze: Freeze, experiment: Experiment) -> tuple[Sequence[str], Sequence[str]]:
    if experiment.sources is None:
        # A file with values of parameters is like the experiment: a further point changes no other.
        own = (*freeze.experiments, *map(pattern_of, freeze.tables))
        return ("*",), (*NOT_SOURCES, *(f"/{file}" for file in own))
    return experiment.sources, ()


def describe_build(
    freeze: Freeze,
    experiment: Experiment,
    phase: Phase,
    variables: Mapping[str, str],
    installs: Sequence[Install],
) -> dict[str, object]:
    """What determines a build; its digest (`digest_of`) names the build.

    `variables`: KOCHI_PARAM_<NAME> -> value.
    """
    return {
        **phase.isolated,
        "sources": digest_sources(freeze.entries, *_source_patterns(freeze, experiment)),
        "script": phase.script,
        "strict": phase.strict,
        **describe_surroundings(freeze, variables, installs),
    }


def describe_surroundings(
    freeze: Freeze, variables: Mapping[str, str], installs: Sequence[Install]
) -> dict[str, object]:
    """What determines what a script makes, beside the script and the files that it reads.

    `variables`: KOCHI_PARAM_<NAME> -> value.
    """
    return {
        "variables": dict(variables),
        "installs": [install.identity for install in installs],
        "load_environment": freeze.machine.load_env_on_machine,
    }


def build_experiment(
    freeze: Freeze,
    experiment: Experiment,
    phase: Phase,
    variables: Mapping[str, str],
    installs: Sequence[Install],
    timeout: float | None = None,
) -> Build:
    """Build, unless the same build exists already.

    An experiment without a build script gets the bare source tree. `variables`: as in
    `describe_build`. `timeout`: seconds. Raises PhaseError when the script fails.
    """
    description = describe_build(freeze, experiment, phase, variables, installs)
    place = freeze.paths.build(freeze.machine_name, digest_of(description))

    def make() -> dict[str, object]:
        materialise(freeze.paths.store, freeze.snapshot.tree, place.tree)
        give_repository(freeze.git_directory, place.tree)
        environment = Environment(
            freeze.machine.load_env_on_machine, installs, {**variables, **own_variables(freeze)}
        )
        with scratch_directory(freeze.workspaces) as scratch, Stopwatch() as watch:
            container, wrapper = None, tuple[str, ...]()
            if phase.isolation is not None:
                from snakemake_kochi.phases.isolation import Container

                container = Container(
                    phase.isolation,
                    freeze.machine.isolation,
                    *(place.tree, scratch, installs),
                    trees=(),
                    key=f"{experiment.file}: build",
                )
                environment, wrapper = container.around(environment)
            ended = run_script(
                phase.script,
                f"build_{experiment.name}",
                place.tree,
                environment,
                phase.strict,
                scratch,
                output=place.log,
                timeout=timeout,
                wrapper=wrapper,
            )
            if container is not None:
                container.finish(ended, place.log)
        if ended.has_failed:
            raise PhaseError(
                f"{experiment.file}: the build script {ended.how} in {place.tree}",
                reason=ended.reason("the build script"),
                output=last_lines(place.log, LAST_LINES),
            )
        # A run of another commit may use the same build: it gets its own .git.
        give_repository(None, place.tree)
        return {"experiment": experiment.file, "snapshot": freeze.snapshot.tree, **watch.record}

    return make_once(freeze, place, description, make)


def own_variables(freeze: Freeze) -> dict[str, str]:
    """What a script learns of its code and its machine."""
    return {
        **source_variables(freeze.snapshot.base, freeze.snapshot.dirty),
        "KOCHI_MACHINE": freeze.machine_name,
    }


def make_once(
    freeze: Freeze,
    place: BuildPaths,
    description: Mapping[str, object],
    make: Callable[[], dict[str, object]],
) -> Build:
    """A build, or what else the digest of a description names, made unless it exists.

    `make` makes it in the tree of the place, and returns what the manifest has beside the
    description. Made in its final place: compilers write the path of their working directory into
    products.
    """
    digest = digest_of(description)
    locks = find_lock_settings(freeze.root.machine(freeze.machine_name))
    own = locks.paths.project(freeze.paths.directory).build(digest)
    with freeze.root.explaining(), locks.hold(own) as lock:
        if note_use(place.manifest):
            return Build(digest, place.tree)
        shutil.rmtree(place.directory, ignore_errors=True)
        make_directory(place.directory)
        record = {**description, "version": BUILD_VERSION, "digest": digest, **make()}
        lock.require()
        write_last(place.manifest, to_json(record), place.directory)
    return Build(digest, place.tree)
