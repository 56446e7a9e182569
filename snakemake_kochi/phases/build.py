"""Builds: source trees of the snapshot with the products of the build script; and what `prepare`
scripts make, which is named by what determines it, too, so that batches share it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import last_lines, make_directory, note_use, to_json, write_last
from snakemake_kochi.locks import find_lock_settings
from snakemake_kochi.paths import BuildPaths
from snakemake_kochi.phases.freeze import Freeze, pattern_of
from snakemake_kochi.phases.products import BUILD_VERSION, LAST_LINES, Build, Install, digest_of
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


def code_digest(freeze: Freeze, experiment: Experiment, step: Step) -> str:
    """A digest of a `prepare` script and of the files that determine it."""
    files: Sequence[Entry] = ()
    if step.sources is None:
        files = source_files(freeze, experiment)
    elif step.sources:
        files = select_sources(freeze.entries, step.sources)
    sources = [(entry.path, entry.object, entry.mode) for entry in files]
    return digest_of({"script": step.script, "strict": step.strict, "sources": sources})


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
        **phase.beside_script,
        "sources": digest_sources(freeze.entries, *_source_patterns(freeze, experiment)),
        "script": phase.script,
        "strict": phase.strict,
        **_describe_surroundings(freeze, variables, installs),
    }


def describe_preparation(
    freeze: Freeze,
    experiment: Experiment,
    step: Step,
    variables: Mapping[str, str],
    installs: Sequence[Install],
) -> dict[str, object]:
    """What determines what a `prepare` script makes; as `describe_build`."""
    return {
        "prepare": code_digest(freeze, experiment, step),
        **_describe_surroundings(freeze, variables, installs),
    }


def _describe_surroundings(
    freeze: Freeze, variables: Mapping[str, str], installs: Sequence[Install]
) -> dict[str, object]:
    """What determines what a script makes, beside the script and the files that it reads."""
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
    script = _Script("build", freeze, experiment, phase, place.tree, variables, installs, timeout)
    return script.make_once(place, description)


def prepare_batch(
    freeze: Freeze,
    experiment: Experiment,
    step: Step,
    variables: Mapping[str, str],
    installs: Sequence[Install],
) -> Build:
    """Run a `prepare` script, unless what it makes exists already.

    The script runs in a private copy of the snapshot, which is deleted afterwards. The `tree` of
    what is returned is the directory that scripts find in $KOCHI_PREPARED. `variables`: as in
    `describe_preparation`. Raises PhaseError when the script fails.
    """
    description = describe_preparation(freeze, experiment, step, variables, installs)
    place = freeze.paths.prepared(freeze.machine_name, digest_of(description))
    given = {**variables, PREPARED_VARIABLE: str(place.tree)}
    script = _Script("prepare", freeze, experiment, step, None, given, installs)
    return script.make_once(place, description)


@dataclass(frozen=True)
class _Script:
    """A script that is executed in a copy of the snapshot, in `tree` or in a private directory."""

    kind: str
    freeze: Freeze
    experiment: Experiment
    step: Phase | Step
    tree: Path | None
    variables: Mapping[str, str]
    installs: Sequence[Install]
    timeout: float | None = None

    def make_once(self, place: BuildPaths, description: Mapping[str, object]) -> Build:
        """What the digest of a description names, made unless it exists.

        Made in its final place: compilers write the path of their working directory into products.
        """
        freeze, digest = self.freeze, digest_of(description)
        locks = find_lock_settings(freeze.root.machine(freeze.machine_name))
        own = locks.paths.project(freeze.paths.directory).build(digest)
        with freeze.root.explaining(), locks.hold(own) as lock:
            if not note_use(place.manifest):
                shutil.rmtree(place.directory, ignore_errors=True)
                make_directory(place.directory if self.tree else place.tree)
                record = {
                    **description,
                    "version": BUILD_VERSION,
                    "digest": digest,
                    "experiment": self.experiment.file,
                    "script": self.step.script,
                    "snapshot": freeze.snapshot.tree,
                    **self.execute(place.log),
                }
                lock.require()
                write_last(place.manifest, to_json(record), place.directory)
        return Build(digest, place.tree)

    def execute(self, log: Path) -> dict[str, str | float]:
        """Returns when and where. Raises PhaseError when it fails."""
        freeze, step = self.freeze, self.step
        own = source_variables(freeze.snapshot.base, freeze.snapshot.dirty)
        own |= {"KOCHI_MACHINE": freeze.machine_name, **self.variables}
        environment = Environment(freeze.machine.load_env_on_machine, self.installs, own)
        wrapper: tuple[str, ...] = ()
        container = None
        with scratch_directory(freeze.workspaces) as scratch:
            directory = self.tree or scratch / "workspace"
            materialise(freeze.paths.store, freeze.snapshot.tree, directory)
            give_repository(freeze.git_directory, directory)
            if isinstance(step, Phase) and step.isolation is not None:
                from snakemake_kochi.phases.isolation import Container

                place = (directory, scratch, self.installs, (), f"{self.experiment.file}: build")
                container = Container(step.isolation, freeze.machine.isolation, *place)
                environment, wrapper = container.around(environment)
            with Stopwatch() as watch:
                ended = run_script(
                    step.script,
                    f"{self.kind}_{self.experiment.name}",
                    directory,
                    environment,
                    step.strict,
                    scratch,
                    output=log,
                    timeout=self.timeout,
                    wrapper=wrapper,
                )
            if container is not None:
                container.finish(ended, log)
            if ended.has_failed:
                raise PhaseError(
                    f"{self.experiment.file}: the {self.kind} script {ended.how}\n"
                    f"Its output is in {log}",
                    reason=ended.reason(f"the {self.kind} script"),
                    output=last_lines(log, LAST_LINES),
                )
            # A run of another commit may use the same build: it gets its own .git.
            give_repository(None, directory)
        return watch.record
