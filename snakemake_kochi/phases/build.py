"""Builds: source trees of the snapshot with the products of the build script; and what `prepare`
scripts make, which is named by what determines it, too, so that batches share it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from snakemake_kochi.files import make_directory, note_use, to_json, write_last
from snakemake_kochi.locks import find_lock_settings
from snakemake_kochi.paths import BuildPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.freeze import Freeze, pattern_of
from snakemake_kochi.phases.products import BUILD_VERSION, Build, Install, digest_of
from snakemake_kochi.phases.script import Environment, Stopwatch, run_script, source_variables
from snakemake_kochi.phases.workspace import give_repository, scratch_directory
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Phase, Step
from snakemake_kochi.snapshot import Entry, digest_sources, materialise, select_sources

PREPARED_VARIABLE = "KOCHI_PREPARED"
# Files that are no code of an experiment, unless its `sources:` say otherwise: Kochi's own files,
# the workflow and its documentation. Patterns as in .gitignore.
NOT_SOURCES = (
    "/kochi.yaml",
    "/kochi.lock",
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
                watch = _execute(freeze, step, variables, installs, timeout, scratch, place)
            record = {
                **description,
                "version": BUILD_VERSION,
                "digest": digest,
                "experiment": freeze.file,
                "snapshot": freeze.snapshot["tree"],
                **watch.record,
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
) -> Stopwatch:
    """Execute the script in a copy of the snapshot. Raises PhaseError when it fails."""
    kind, log = "build", place.log
    told = source_variables(freeze.snapshot["base"], freeze.snapshot["dirty"])
    told |= {"KOCHI_MACHINE": freeze.machine_name, **variables}
    # In its final place: compilers write the path of their working directory into products.
    directory = place.tree
    if isinstance(step, Step):
        kind, directory = "prepare", scratch / "workspace"
        told |= {PREPARED_VARIABLE: str(make_directory(place.tree))}
    environment, wrapper = Environment(freeze.load_environment, installs, told), tuple[str, ...]()
    materialise(freeze.paths.store, freeze.snapshot["tree"], directory)
    give_repository(freeze.git_directory, directory)
    container = None
    if isinstance(step, Phase) and step.isolation is not None:
        from snakemake_kochi.phases.isolation import Container

        where = (directory, scratch, installs, (), f"{freeze.file}: build")
        container = Container(step.isolation, freeze.machine_isolation, *where)
        environment, wrapper = container.around(environment)
    with Stopwatch() as watch:
        ended = run_script(
            step.script,
            f"{kind}_{freeze.experiment}",
            directory,
            environment,
            step.strict,
            scratch,
            output=log,
            timeout=timeout,
            wrapper=wrapper,
        )
    if container is not None:
        container.finish(ended, log)
    ended.require_success(freeze.file, f"the {kind} script", log)
    # A run of another commit may use the same build: it gets its own .git.
    give_repository(None, directory)
    return watch
