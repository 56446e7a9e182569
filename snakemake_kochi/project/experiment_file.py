"""Reading experiments: YAML files with a key `run` or `build`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.checks import check_references, depend_params
from snakemake_kochi.project.document import (
    ABOVE,
    KeyPath,
    Problems,
    merged,
    read_yaml,
    section,
)
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import (
    ROUNDS,
    Artifact,
    Batch,
    Isolation,
    Phase,
    Repeat,
    Step,
)
from snakemake_kochi.project.plots import (
    SECONDS,
    Metric,
    default_plots,
    read_metrics,
    read_plots,
    read_references,
)
from snakemake_kochi.project.recipes import Project, Recording, check_time_limit, requirements
from snakemake_kochi.project.shape import EXPERIMENT, read_shape
from snakemake_kochi.project.sweeps import Given, ParameterValues, Sweep, SweepReader, flattened
from snakemake_kochi.project.values import CODE, dest_problem, normalise_dest

# What batches take from the file, by the keys that they have for it.
_SHARED = {key: above for key, above in ABOVE.items() if key != "params"} | {
    key: key
    for key in ("repeat", "references", "order", "seed", "metrics", "prepare", "build", "run")
}
_NOT_IN_RULES = re.compile(r"[^A-Za-z0-9_]")


def load_experiment(
    file: str, text: str, project: Project | None, given: Given | None = None
) -> Experiment:
    """Read an experiment; `file` is its path relative to the project.

    Without what is `given` with a freeze, no grid can be made that uses facts or other files.
    Raises ConfigError with a line per problem: those of its shape, else those of its values, else
    those of references, for which a project has to be given if they are to recipes, machines or
    launchers.
    """
    document = read_yaml(file, text)
    data = read_shape(document, EXPERIMENT)
    experiment = _Reader(data, document.problems).experiment(file, given)
    document.problems.raise_all()
    check_references(experiment, project, document.problems)
    document.problems.raise_all()
    return experiment


def experiment_name(file: str) -> str:
    """The name of the experiment that a file describes: the file's stem as an identifier."""
    stem = _NOT_IN_RULES.sub("_", PurePosixPath(file).stem)
    return f"_{stem}" if stem[:1].isdigit() else stem


class _Reader:
    """Makes the dataclasses of one document, noting problems."""

    def __init__(self, data: Mapping[str, Any], problems: Problems) -> None:
        # In a batch, null removes what the file says.
        self.data = {**merged(data), "batches": data.get("batches")}
        self.problems = problems
        self.defaults = section(self.data, "default_params")
        self.sweeps = SweepReader(self.defaults, problems)
        self.shared = {own: self.data[key] for own, key in _SHARED.items() if key in self.data}
        self.plots = read_plots(self.data.get("plots", ()), ("plots",), problems)

    def experiment(self, file: str, given: Given | None) -> Experiment:
        data, name, batches = self.data, experiment_name(file), dict[str, Batch]()
        rules: dict[str, str] = {}
        for batch, own in section(data, "batches").items():
            other = rules.setdefault(_NOT_IN_RULES.sub("_", batch), batch)
            if other != batch:
                said = f"'{other}' and '{batch}' would share the name of a rule; rename one"
                self.problems.add(("batches", batch), said)
            batches[batch] = self._batch(batch, own or {}, name)
        anywhere = dict.fromkeys(n for each in batches.values() for n in each.parameters)
        top = {**self.shared, "depends": data.get("depends")}
        return Experiment(
            **self._settings(top, (), {**self.defaults, **anywhere}),
            name=name,
            file=file,
            default_parameters=self.sweeps.defaults(),
            batches=FrozenDict(batches),
            sources=tuple(data["sources"]) if "sources" in data else None,
            source_map=self.problems.source_map,
            recording=Recording.of(data),
            given=given,
            plots=self.plots,
        )

    def _batch(self, name: str, written: Mapping[str, Any], experiment: str) -> Batch:
        path: KeyPath = ("batches", name)
        own, data = merged(written), merged(self.shared, written)
        sweeps = self.sweeps.sweeps(own, path)
        parameters: dict[str, tuple[ParameterValues, ...]] = {}
        for sweep in sweeps:  # those that are the same in several grids once
            for parameter, choices in flattened(sweep.parameters).items():
                known = parameters.get(parameter, ())
                parameters[parameter] = known + tuple(c for c in choices if c not in known)
        has_code = any(sweep.has_code for sweep in sweeps)
        names = {**self.defaults, **parameters, **({CODE: ()} if has_code else {})}
        settings = self._settings(data, path, {**self.defaults, **parameters})
        always = set.intersection(*({*sweep.parameters} for sweep in sweeps))
        self._artifacts(settings, own, path, experiment, sweeps)
        metrics, machines = settings["metrics"], data.get("machines", ())
        for machine in {each for each in machines if machines.count(each) > 1}:
            said = f"machine '{machine}' is there twice; remove one"
            self.problems.add((*path, "machines"), said)
        repeat = None
        if (wanted := data.get("repeat")) is not None:
            if "duplicates" in data and ("duplicates" in own or "repeat" not in own):
                said = "'repeat' says how often a point runs; remove this key, or give the batch "
                self.problems.add((*path, "duplicates"), f"{said}repeat: 3")
            if isinstance(wanted, Mapping):
                repeat = self._repeat(wanted, metrics, [*parameters, CODE], (*path, "repeat"))
            settings["duplicates"] = wanted if repeat is None else repeat.most
        at, references = (*path, "references"), data.get("references", ())
        # Without figures of its own, it has those of the file for which it has the metrics.
        plots = read_plots(own.get("plots", ()), (*path, "plots"), self.problems)
        plots = plots or tuple(each for each in self.plots if each.metric in (*metrics, SECONDS))
        return Batch(
            **settings,
            name=name,
            has_code=has_code,
            sweeps=sweeps,
            parameters=FrozenDict(parameters),
            plots=plots or default_plots(metrics),
            sometimes=frozenset({*parameters} - always - {*self.defaults}),
            machines=tuple(dict.fromkeys(machines)),
            order=data.get("order", ROUNDS),
            seed=data.get("seed"),
            repeat=repeat,
            references=read_references(references, metrics, names, at, self.problems),
        )

    def _artifacts(
        self,
        settings: dict[str, Any],
        own: Mapping[str, Any],
        path: KeyPath,
        experiment: str,
        sweeps: Iterable[Sweep],
    ) -> None:
        """Add the default artifacts, and leave out metrics for which there are none."""
        metrics: dict[str, Metric] = settings["metrics"]
        has_run = settings["run"].script.strip()
        if "artifacts" not in own and has_run:
            dest = _default_dest(experiment, sweeps)
            settings["artifacts"] = (Artifact("stdout", dest, None),)
        if not any(artifact.type == "stdout" for artifact in settings["artifacts"]):
            if any(isinstance(metrics[each], str) for each in section(own, "metrics")):
                said = "metrics are read from a run's standard output; add an artifact of type "
                self.problems.add((*path, "metrics"), f"{said}stdout")
            files = ((key, each) for key, each in metrics.items() if not isinstance(each, str))
            settings["metrics"] = metrics = FrozenDict(files)
        kept = {each.src for each in settings["artifacts"]}
        for file in dict.fromkeys(m.file for m in metrics.values() if not isinstance(m, str)):
            if file not in kept and has_run:
                dest = _default_dest(experiment, sweeps, file.replace("/", "_"))
                settings["artifacts"] += (Artifact("file", dest, file),)

    def _repeat(
        self,
        data: Mapping[str, Any],
        metrics: Collection[str],
        parameters: Collection[str],
        path: KeyPath,
    ) -> Repeat:
        keys = {"min": "least", "max": "most", "of": "metric"}
        given = {keys.get(key, key): value for key, value in data.items()}
        repeat = Repeat(**({"metric": [*metrics, SECONDS][0]} | given))
        self.problems.check_known((*path, "of"), "metric", repeat.metric, [*metrics, SECONDS])
        if repeat.by and repeat.by not in parameters:
            said = f"the batch gives no parameter '{repeat.by}' values"
            self.problems.add((*path, "by"), f"{said}, {nearest(repeat.by, parameters)}")
        if repeat.least > repeat.most:
            said = f"{repeat.least} or more was expected, as 'min' is"
            self.problems.add((*path, "max"), said)
        return repeat

    def _settings(
        self, data: Mapping[str, Any], path: KeyPath, known: Iterable[str]
    ) -> dict[str, Any]:
        """Fields of Settings. `known`: the parameters that there are."""
        artifacts = enumerate(data.get("artifacts", ()))
        metrics, quantities = read_metrics(
            section(data, "metrics"), (*path, "metrics"), self.problems
        )
        prepare = section(data, "prepare")
        # A batch may give the script of a section that the file begins.
        if prepare and "script" not in prepare and (path or not self.data.get("batches")):
            self.problems.add((*path, "prepare"), "the key 'script' is missing")
        step = None
        if prepare.get("script", "").strip():
            lists = {"depend_params": depend_params(prepare, known)}
            if "sources" in prepare:
                lists["sources"] = tuple(dict.fromkeys(prepare["sources"]))
            step = Step(**(prepare | lists))
        return {
            "job_name": data.get("name") or "ANON",
            "queue": data.get("queue") or None,
            "duplicates": data.get("duplicates", 1),
            "artifacts": tuple(self._artifact(e, (*path, "artifacts", i)) for i, e in artifacts),
            "requirements": requirements(data, path, self.problems),
            "build": self._phase(section(data, "build"), (*path, "build"), known),
            "run": self._phase(section(data, "run"), (*path, "run"), known),
            "metrics": FrozenDict(metrics),
            "quantities": FrozenDict(quantities),
            "prepare": step,
        }

    def _phase(self, data: Mapping[str, Any], path: KeyPath, known: Iterable[str]) -> Phase:
        check_time_limit(data, path, self.problems)
        words = tuple(sorted({*data.get("isolate", ())}))
        isolation = Isolation(words, data.get("visible", ()), **section(data, "container"))
        if isolation.image and "files" in words:
            said = "a container has files of its own; remove 'files', or the container"
            self.problems.add((*path, "isolate"), said)
        others = {key: data[key] for key in data if key not in ("isolate", "visible", "container")}
        others["isolation"] = isolation if words or isolation.image else None
        others["resources"] = FrozenDict(section(data, "resources"))
        return Phase(**(others | {"depend_params": depend_params(data, known)}))

    def _artifact(self, entry: Mapping[str, Any], path: KeyPath) -> Artifact:
        dest, src = normalise_dest(entry["dest"]), entry.get("src") or None
        if entry["type"] == "file" and not src:
            said = "the key 'src' is missing; it names the file of the workspace to keep"
            self.problems.add(path, said)
        if not dest:
            self.problems.add((*path, "dest"), f"'': {dest_problem('')}")
        return Artifact(entry["type"], dest, src)


def _default_dest(experiment: str, sweeps: Iterable[Sweep], ending: str = "log") -> str:
    """A destination for the output of each point: by the parameters with several values, in one
    grid or in all of them."""
    grids = [flattened(sweep.parameters) for sweep in sweeps]
    names = dict.fromkeys(
        name
        for grid in grids
        for name, choices in grid.items()
        if any(each.has_several and not each.is_command for each in choices)
        or any(other.get(name) != choices for other in grids)
    )
    parts = [f"{name}=${{{name}}}" for name in names]
    # Two in each component of the path, which has 255 bytes.
    parts = ["_".join(parts[index : index + 2]) for index in range(0, len(parts), 2)]
    last = f"{parts.pop()}_" if parts else ""
    return f"{'/'.join([experiment, '${batch_name}', *parts])}/{last}${{duplicate}}.{ending}"
