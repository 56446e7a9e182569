"""The rules of the scripts before and after the runs of a batch.

A `prepare` script has a rule like that of a build. What a `prepare_node` script does belongs to the
runs. A `finish` script has a rule after the table and the plot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snakemake_kochi.library.outputs import Outputs, identifier
from snakemake_kochi.library.requested import Verbatim, verbatim
from snakemake_kochi.library.run_group import wildcard_name
from snakemake_kochi.library.variants import BuildRule, values_of
from snakemake_kochi.phases.preparation import code_digest
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Grid, Point
from snakemake_kochi.project.preparation import Preparation
from snakemake_kochi.project.recipes import Recipe
from snakemake_kochi.project.requirements import fixed, requirements_at


@dataclass(frozen=True)
class FinishRule:
    """The rule of a `finish` script; `output` says that the script was run."""

    name: str
    output: str
    installs: tuple[str, ...]
    determined_by: Mapping[str, Verbatim]


@dataclass(frozen=True)
class PreparationRules:
    """The scripts of one batch as parts of rules. `node_code`: the digest of the code of
    `prepare_node`."""

    preparation: Preparation
    prepare: BuildRule | None
    node_code: str
    finish: FinishRule | None

    @classmethod
    def of(cls, outputs: Outputs, experiment: Experiment, grid: Grid) -> PreparationRules | None:
        """None for a batch without such scripts. They have the recipes that all points share, and
        the code of the working tree."""
        preparation = grid.preparation
        if preparation is None:
            return None
        shared = requirements_at(fixed(grid.requirements), {})
        recipes = outputs.freeze.recipes(shared, f"{experiment.file}: batch {grid.batch}")
        node, finish = preparation.prepare_node, None
        if preparation.finish is not None:
            name = f"finish_{identifier(experiment.name)}_{identifier(grid.batch)}"
            owner = f"the finish script of batch {grid.batch} of {experiment.file}"
            finish = FinishRule(
                name=outputs.take(name, owner),
                output=outputs.directories.finished(experiment.name, grid.batch),
                installs=tuple(map(outputs.manifest, recipes)),
                determined_by={
                    "script": verbatim(preparation.finish.script),
                    "strict": verbatim(preparation.finish.strict),
                    "load_environment": verbatim(outputs.freeze.machine.load_env_on_machine),
                },
            )
        return cls(
            preparation=preparation,
            prepare=_prepare_rule(outputs, experiment, grid, recipes),
            node_code=code_digest(outputs.freeze, experiment, node) if node else "",
            finish=finish,
        )

    def determining(self, point: Point) -> list[str]:
        """What determines a run besides its own script, see `Preparation.determining`."""
        prepared = self.prepare.file(point) if self.prepare else ""
        return self.preparation.determining(point.parameters, prepared, self.node_code)


def _prepare_rule(
    outputs: Outputs, experiment: Experiment, grid: Grid, recipes: Sequence[Recipe]
) -> BuildRule | None:
    freeze, step = outputs.freeze, grid.preparation.prepare if grid.preparation else None
    if step is None:
        return None
    default = experiment.preparation.prepare if experiment.preparation else None
    shared = step == default and grid.requirements == experiment.requirements_on(
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
