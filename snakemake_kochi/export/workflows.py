"""The experiments and recipes of runs, as workflows and applications of a research object crate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from snakemake_kochi.export.graph import Graph, fragment, one
from snakemake_kochi.export.publication import Publication, Recipe
from snakemake_kochi.export.selection import Run

_WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
_PARAMETER_PROFILE = "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"
_FORMAT = "https://snakemake-kochi.readthedocs.io/en/latest/formats.html"
_SNAKEMAKE = "https://snakemake.readthedocs.io/"


class Workflows:
    """Describes code in a graph. The directories of the code are in it already."""

    def __init__(self, graph: Graph, publication: Publication) -> None:
        self._graph, self._publication = graph, publication
        self._paths = {run: publication.workflow_file(run) for run in publication.runs}
        self._runs_of: dict[str, list[Run]] = defaultdict(list)
        for run, path in self._paths.items():
            self._runs_of[path].append(run)

    def workflow(self, run: Run) -> Any:
        """The experiment or Snakefile of a run, in the run's own code."""
        path = self._paths[run]
        base, tree = run.configuration["base"], str(run.configuration["tree"])
        common = {
            "name": run.experiment or "Snakefile",
            "version": tree,
            "url": self._publication.about.address,
            "programmingLanguage": self._language(run),
        }
        if not path:
            name = fragment("code", tree, run.workflow)
            return self._graph.thing(name, "SoftwareSourceCode", **common)
        if (known := self._graph.get(path)) is not None:
            return known
        inputs, outputs = {}, {}
        for other in self._runs_of[path]:
            for name in (*other.record["parameters"], "duplicate"):
                inputs[other.workflow, name] = self.parameter(other, "input", name, "Text")
            for each in other.record["artifacts"]:
                name = output_name(other, each)
                outputs[other.workflow, name] = self.parameter(other, "output", name, "File")
        return self._graph.file(
            path,
            ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            conformsTo=self._graph.thing(
                _WORKFLOW_PROFILE, "CreativeWork", name="ComputationalWorkflow"
            ),
            description=f"Its code: commit {base or 'none'}, snapshot {tree}",
            input=one(list(inputs.values())),
            output=one(list(outputs.values())),
            **common,
        )

    def _language(self, run: Run) -> Any:
        if PurePosixPath(run.experiment).suffix in (".yaml", ".yml"):
            return self._graph.thing(
                "#kochi",
                "ComputerLanguage",
                name="Kochi experiment",
                description="Parameters, build and run scripts, executed by Snakemake",
                url=_FORMAT,
            )
        return self._graph.thing("#snakemake", "ComputerLanguage", name="Snakemake", url=_SNAKEMAKE)

    def recipe(self, recipe: Recipe) -> Any:
        """What a recipe installed."""
        code = self._publication.code.get(recipe.source)
        return self._graph.thing(
            fragment("recipe", recipe.name, recipe.digest[:12]),
            "SoftwareApplication",
            name=recipe.name,
            softwareVersion=recipe.commit or recipe.source or recipe.digest,
            url=recipe.git,
            hasPart=code and self._graph.get(f"{code.directory}/"),
        )

    def parameter(self, run: Run, kind: str, name: str, type_: str) -> Any:
        """An input or an output of the workflow of a run."""
        return self._graph.thing(
            fragment(kind, run.workflow, name),
            "FormalParameter",
            name=name,
            additionalType=type_,
            conformsTo=self._graph.thing(
                _PARAMETER_PROFILE, "CreativeWork", name="FormalParameter"
            ),
        )


def output_name(run: Run, artifact: Mapping[str, Any]) -> str:
    """The name of the output of a workflow that an artifact is."""
    if not run.experiment:
        return f"output of {run.workflow}"
    return str(artifact.get("src") or artifact.get("type") or "file")
