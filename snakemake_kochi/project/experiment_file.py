"""Reading experiments: YAML files with a key `run` or `build`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.checks import check_references
from snakemake_kochi.project.destinations import dest_problem, normalise_dest, src_problem
from snakemake_kochi.project.document import merged, read_yaml, section
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import (
    ROUNDS,
    Artifact,
    Batch,
    Isolation,
    Phase,
    Step,
    job_name_problem,
    queue_problem,
)
from snakemake_kochi.project.parameters import Given, Sweep, entries_of, flattened
from snakemake_kochi.project.plots import Metric, batch_plots, read_metrics, read_plots
from snakemake_kochi.project.problems import MAXIMUM_LINES, KeyPath, Problems
from snakemake_kochi.project.recipes import Project, Recording
from snakemake_kochi.project.remarks import depend_params, note_remarks
from snakemake_kochi.project.requests import check_time_limit
from snakemake_kochi.project.requirements import requirements
from snakemake_kochi.project.shape import read_shape
from snakemake_kochi.project.short_forms import write_out
from snakemake_kochi.project.sweep_file import SweepReader
from snakemake_kochi.project.templates import Template, TemplateError, parse_value
from snakemake_kochi.project.values import CODE

# What batches take from the file, by the keys that they have for it.
_SHARED = {
    "name": "default_name",
    "queue": "default_queue",
    "duplicates": "default_duplicates",
    **{key: key for key in ("order", "seed", "metrics", "prepare", "build", "run")},
}


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
    write_out(document)
    data = read_shape(document, "experiment.schema.yaml")
    reader = _Reader(data, file, document.problems, document.remarks)
    experiment = replace(reader.experiment(), given=given)
    document.problems.raise_all()
    check_references(experiment, project, document.problems)
    document.problems.raise_all()
    note_remarks(experiment, document.remarks)
    return replace(experiment, remarks=tuple(document.remarks.lines(MAXIMUM_LINES)))


def experiment_name(file: str) -> str:
    """The name of the experiment that a file describes: the file's stem as an identifier."""
    stem = re.sub(r"[^A-Za-z0-9_]", "_", PurePosixPath(file).stem)
    return f"_{stem}" if stem[:1].isdigit() else stem


class _Reader:
    """Makes the dataclasses of one document, noting problems."""

    def __init__(
        self, data: Mapping[str, Any], file: str, problems: Problems, remarks: Problems
    ) -> None:
        # In a batch, null removes what the file says.
        self.data = {**merged(data), "batches": data.get("batches")}
        self.file = file
        self.problems = problems
        self.remarks = remarks
        self.plots = read_plots(self.data.get("plots", ()), ("plots",), problems)
        self.sweeps = SweepReader(self.data, problems, remarks)
        self.shared = {own: self.data[key] for own, key in _SHARED.items() if key in self.data}

    def experiment(self) -> Experiment:
        data = self.data
        written = {name: own or {} for name, own in section(data, "batches").items()}
        self._check_rule_names(written)
        batches = {name: self._batch(name, own, ("batches", name)) for name, own in written.items()}
        self.anywhere = {name: () for each in batches.values() for name in each.parameters}
        top = self._batch("", {}, ())
        return Experiment(
            name=experiment_name(self.file),
            file=self.file,
            default_parameters=self.sweeps.defaults(),
            default_name=top.job_name,
            default_queue=top.queue,
            default_duplicates=top.duplicates,
            build=top.build,
            run=top.run,
            batches=FrozenDict(batches),
            sources=tuple(data["sources"]) if "sources" in data else None,
            metrics=top.metrics,
            requirements=top.requirements,
            source_map=self.problems.source_map,
            recording=Recording.of(data),
            quantities=top.quantities,
            plots=self.plots,
            prepare=top.prepare,
        )

    def _batch(self, name: str, own: Mapping[str, Any], path: KeyPath) -> Batch:
        """A batch, or with neither name nor path what the file says outside of its batches."""

        def place(*keys: str | int) -> KeyPath:
            above = _SHARED.get(str(keys[0]), keys[0])
            return self.problems.source_map.first((*path, *keys), (above, *keys[1:]))

        data, own = merged(self.shared, own), merged(own)
        sweeps = self.sweeps.sweeps(own, path) if path else ()
        entries = entries_of([flattened(each.parameters) for each in sweeps])
        known = {**section(self.data, "default_params"), **(entries if path else self.anywhere)}
        run = self._phase(section(data, "run"), place, "run", known)
        artifacts = self._artifacts(data.get("artifacts", ()), place)
        if path and "artifacts" not in own and run.script.strip():
            artifacts = (Artifact("stdout", self._default_dest(sweeps), None),)
        metrics, quantities = read_metrics(section(data, "metrics"), place, self.problems)
        if path and not any(artifact.type == "stdout" for artifact in artifacts):
            if any(isinstance(metrics[name], str) for name in section(own, "metrics")):
                said = (
                    "metrics are read from a run's standard output; add an artifact of type stdout"
                )
                self.problems.add(place("metrics"), said)
            metrics = {name: each for name, each in metrics.items() if not isinstance(each, str)}
        if path and run.script.strip():
            artifacts = (*artifacts, *self._measured(metrics, artifacts, sweeps, place))
        for key in ("build", "run"):
            check_time_limit(section(own if path else data, key), (*path, key), self.problems)
        prepare = section(data, "prepare")
        # A batch may give the script of a section that the file begins.
        if prepare and "script" not in prepare and (path or not self.data.get("batches")):
            self.problems.add(place("prepare"), "the key 'script' is missing")
        machines = data.get("machines", ())
        for index, machine in enumerate(machines):
            if machine in machines[:index]:
                at = self.problems.source_map.nearest((*path, "machines", index))
                self.problems.add(at, f"machine '{machine}' is there twice; remove one")
        plots = read_plots(own.get("plots", ()), (*path, "plots"), self.problems)
        return Batch(
            name=name,
            job_name=self._checked(data.get("name"), place("name"), job_name_problem) or "ANON",
            queue=self._checked(data.get("queue"), place("queue"), queue_problem) or None,
            duplicates=data.get("duplicates", 1),
            parameters=FrozenDict(entries),
            artifacts=artifacts,
            requirements=requirements(own if path else self.data, path, self.problems),
            build=self._phase(section(data, "build"), place, "build", known),
            run=run,
            metrics=FrozenDict(metrics),
            quantities=FrozenDict(quantities),
            plots=plots or batch_plots(self.plots, metrics),
            sweeps=sweeps,
            sometimes=self.sweeps.sometimes(sweeps),
            prepare=Step.of({**prepare, "depend_params": depend_params(prepare, known)}),
            has_code=any(each.places.get(CODE) == (*path, CODE) for each in sweeps),
            machines=tuple(dict.fromkeys(machines)),
            order=data.get("order", ROUNDS),
            seed=data.get("seed"),
        )

    def _phase(
        self,
        data: Mapping[str, Any],
        place: Callable[..., KeyPath],
        key: str,
        known: Collection[str],
    ) -> Phase:
        """`known`: the parameters that there are."""

        def requested(*keys: str) -> str:
            inner = section(data, "resources") if len(keys) > 1 else data
            text = inner.get(keys[-1]) or ""
            try:
                parse_value(text)
            except TemplateError as error:
                self.problems.add(place(key, *keys), str(error))
            return text

        return Phase(
            depend_params=depend_params(data, known),
            script=data.get("script", ""),
            strict=data.get("strict", True),
            exclusive=data.get("exclusive", True),
            cores=requested("cores"),
            resources=FrozenDict(
                (name, requested("resources", name)) for name in section(data, "resources")
            ),
            timeout=requested("timeout"),
            isolation=self._isolation(data, functools.partial(place, key)),
            launcher=requested("launcher"),
            spread=data.get("spread", ""),
        )

    def _isolation(
        self, data: Mapping[str, Any], place: Callable[..., KeyPath]
    ) -> Isolation | None:
        container = section(data, "container")
        isolation = Isolation(
            words=tuple(sorted({*data.get("isolate", ())})),
            visible=data.get("visible", ()),
            image=container.get("image", ""),
            volumes=container.get("volumes", ()),
            modules=container.get("modules", ()),
        )
        if isolation.image and "files" in isolation.words:
            said = "a container has files of its own; remove 'files', or the container"
            self.problems.add(place("isolate"), said)
        if isolation.visible and "files" not in isolation.words:
            said = "'visible' has no effect without 'isolate: files'; a container has 'volumes'"
            self.remarks.add(place("visible"), said)
        return isolation if isolation.words or isolation.image else None

    def _checked(
        self, text: str | None, path: KeyPath, problem: Callable[[str], str | None]
    ) -> str:
        """A template; a problem is noted if it is wrong whatever is substituted in it."""
        try:
            template = Template.parse(text or "")
            wrong = problem(template.render(dict.fromkeys(template.names, "x"))) if text else None
        except TemplateError as error:
            wrong = str(error)
        if wrong:
            self.problems.add(path, f"{text!r}: {wrong}")
        return text or ""

    def _measured(
        self,
        metrics: Mapping[str, Metric],
        artifacts: Collection[Artifact],
        sweeps: Iterable[Sweep],
        place: Callable[..., KeyPath],
    ) -> Iterator[Artifact]:
        """Artifacts for the files that metrics read and that no artifact keeps."""
        kept = {each.src for each in artifacts}
        for name, metric in metrics.items():
            if isinstance(metric, str):
                continue
            at = place("metrics", name, metric.kind)
            self._checked(metric.file, at, src_problem)
            if "$" in metric.file:
                said = "one name for all runs was expected: each has a workspace of its own"
                self.problems.add(at, f"'{metric.file}': {said}")
            elif metric.file not in kept:
                kept.add(metric.file)
                ending = metric.file.replace("/", "_")
                yield Artifact("file", self._default_dest(sweeps, ending), metric.file)

    def _default_dest(self, sweeps: Iterable[Sweep], ending: str = "log") -> str:
        """A destination for the output of each point: by the parameters with several values, in
        one grid or in all of them."""
        grids = [flattened(sweep.parameters) for sweep in sweeps]
        names = dict.fromkeys(
            name
            for grid in grids
            for name, choices in grid.items()
            if any(each.has_several for each in choices)
            or any(other.get(name) != choices for other in grids)
        )
        parts = [f"{name}=${{{name}}}" for name in names]
        # Two in each component of the path, which has 255 bytes.
        parts = ["_".join(parts[index : index + 2]) for index in range(0, len(parts), 2)]
        last = f"{parts.pop()}_" if parts else ""
        above = "/".join([experiment_name(self.file), "${batch_name}", *parts])
        return f"{above}/{last}${{duplicate}}.{ending}"

    def _check_rule_names(self, batches: Iterable[str]) -> None:
        rules: dict[str, str] = {}
        for name in batches:
            other = rules.setdefault(re.sub(r"[^A-Za-z0-9_]", "_", name), name)
            if other != name:
                said = f"'{other}' and '{name}' would share the name of a rule; rename one"
                self.problems.add(("batches", name), said)

    def _artifacts(
        self, entries: Iterable[Mapping[str, Any]], place: Callable[..., KeyPath]
    ) -> tuple[Artifact, ...]:
        found = []
        for index, entry in enumerate(entries):
            dest, src = normalise_dest(entry["dest"]), entry.get("src") or None
            if entry["type"] == "file" and not src:
                said = "the key 'src' is missing; it names the file of the workspace to keep"
                self.problems.add(place("artifacts", index), said)
            if not dest:
                self.problems.add(place("artifacts", index, "dest"), f"'': {dest_problem('')}")
            self._checked(dest, place("artifacts", index, "dest"), dest_problem)
            self._checked(src, place("artifacts", index, "src"), src_problem)
            found.append(Artifact(entry["type"], dest, src))
        return tuple(found)
