"""The rule of the `prepare` script of a batch, which is like that of a build."""

from __future__ import annotations

from snakemake_kochi.library.outputs import Outputs, identifier
from snakemake_kochi.library.run_group import wildcard_name
from snakemake_kochi.library.variants import BuildRule, values_of
from snakemake_kochi.phases.preparation import code_digest
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.project.preparation import Step
from snakemake_kochi.project.requirements import fixed, requirements_at


def prepare_rule(outputs: Outputs, experiment: Experiment, grid: Grid, step: Step) -> BuildRule:
    """The rule of a `prepare` script. It has the recipes that all points share, and the code of the
    working tree."""
    freeze = outputs.freeze
    common = requirements_at(fixed(grid.requirements), {})
    recipes = freeze.recipes(common, f"{experiment.file}: batch {grid.batch}")
    shared = step == experiment.prepare and grid.requirements == experiment.requirements_on(
        freeze.machine_name
    )
    label = identifier(experiment.name)
    name = f"prepare_{label}" if shared else f"prepare_{label}_{identifier(grid.batch)}"
    parts = [f"{p}~{{{wildcard_name(p)}}}" for p in step.depend_params]
    key = digest_of(
        {
            "prepare": code_digest(freeze, experiment, step),
            "installs": list(map(outputs.key, recipes)),
            "load_environment": freeze.machine.load_env_on_machine,
        }
    )
    owner = experiment.file if shared else f"batch {grid.batch} of {experiment.file}"
    return BuildRule(
        name=outputs.take(name, f"the prepare script of {owner}"),
        experiment=experiment,
        batch="" if shared else grid.batch,
        phase=step,
        output="/".join([outputs.directories.prepared(name, key), *parts, "prepared.json"]),
        constraints={wildcard_name(p): "[^/]+" for p in step.depend_params},
        installs=tuple(map(outputs.manifest, recipes)),
        values=values_of(grid.points, step.depend_params),
    )
