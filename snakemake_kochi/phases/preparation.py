"""The `prepare` script, once per batch before its runs.

What a `prepare` script leaves in $KOCHI_PREPARED is named by what determines it, as a build is, so
that batches with the same preparation share it. The script runs in a private copy of the snapshot,
which is deleted afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import last_lines, make_directory
from snakemake_kochi.phases.build import (
    describe_surroundings,
    make_once,
    own_variables,
    source_files,
)
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.products import LAST_LINES, Build, Install, digest_of
from snakemake_kochi.phases.script import (
    Environment,
    Stopwatch,
    give_repository,
    run_script,
    scratch_directory,
)
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.preparation import Step
from snakemake_kochi.snapshot import Entry, materialise, select_sources

PREPARED_VARIABLE = "KOCHI_PREPARED"


def sources_of(freeze: Freeze, experiment: Experiment, step: Step) -> tuple[Entry, ...]:
    """The files of the snapshot that determine a script."""
    if step.sources is None:
        return source_files(freeze, experiment)
    return select_sources(freeze.entries, step.sources) if step.sources else ()


def code_digest(freeze: Freeze, experiment: Experiment, step: Step) -> str:
    """A digest of a script and of the files that determine it."""
    files = sources_of(freeze, experiment, step)
    return digest_of(
        {
            "script": step.script,
            "strict": step.strict,
            "sources": [(entry.path, entry.object, entry.mode) for entry in files],
        }
    )


def describe_preparation(
    freeze: Freeze,
    experiment: Experiment,
    step: Step,
    variables: Mapping[str, str],
    installs: Sequence[Install],
) -> dict[str, object]:
    """What determines what a `prepare` script makes; its digest (`digest_of`) names that.

    `variables`: KOCHI_PARAM_<NAME> -> value.
    """
    return {
        "prepare": code_digest(freeze, experiment, step),
        **describe_surroundings(freeze, variables, installs),
    }


def prepare_batch(
    freeze: Freeze,
    experiment: Experiment,
    step: Step,
    variables: Mapping[str, str],
    installs: Sequence[Install],
) -> Build:
    """Run a `prepare` script, unless what it makes exists already.

    The `tree` of what is returned is the directory that scripts find in $KOCHI_PREPARED.
    `variables`: as in `describe_preparation`. Raises PhaseError when the script fails.
    """
    description = describe_preparation(freeze, experiment, step, variables, installs)
    place = freeze.paths.prepared(freeze.machine_name, digest_of(description))

    def make() -> dict[str, object]:
        make_directory(place.tree)
        environment = Environment(
            freeze.machine.load_env_on_machine,
            installs,
            {**own_variables(freeze), **variables, PREPARED_VARIABLE: str(place.tree)},
        )
        with scratch_directory(freeze.workspaces) as scratch, Stopwatch() as watch:
            directory = scratch / "workspace"
            materialise(freeze.paths.store, freeze.snapshot.tree, directory)
            give_repository(freeze.git_directory, directory)
            ended = run_script(
                step.script,
                f"prepare_{experiment.name}",
                directory,
                environment,
                step.strict,
                scratch,
                output=place.log,
            )
        if ended.has_failed:
            raise PhaseError(
                f"{experiment.file}: the prepare script {ended.how}\nIts output is in {place.log}",
                reason=ended.reason("the prepare script"),
                output=last_lines(place.log, LAST_LINES),
            )
        return {"experiment": experiment.file, "script": step.script, **watch.record}

    return make_once(freeze, place, description, make)
