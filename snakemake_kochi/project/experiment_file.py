"""Reading experiments: YAML files with a key `run` or `build`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.checks import check_references, note_grid_problems
from snakemake_kochi.project.destinations import dest_problem, normalise_dest, src_problem
from snakemake_kochi.project.document import (
    Document,
    Scalar,
    is_null,
    names,
    optional_text,
    read_yaml,
    script,
    section,
)
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import (
    ROUNDS,
    Artifact,
    Batch,
    Isolation,
    Phase,
    job_name_problem,
    queue_problem,
)
from snakemake_kochi.project.launchers import launcher_problem
from snakemake_kochi.project.machines import LOCAL
from snakemake_kochi.project.metrics import batch_metrics, batch_quantities, read_metrics
from snakemake_kochi.project.parameters import Given, Sweep, entries_of, flattened
from snakemake_kochi.project.plots import batch_plots, check_plots, read_plots
from snakemake_kochi.project.preparation import read_prepare
from snakemake_kochi.project.problems import MAXIMUM_LINES, KeyPath, Problems, check_name
from snakemake_kochi.project.recipes import Project
from snakemake_kochi.project.recording import read_recording
from snakemake_kochi.project.remarks import note_remarks
from snakemake_kochi.project.request_keys import check_request_keys, merged
from snakemake_kochi.project.requirements import check_recipes, requirements
from snakemake_kochi.project.shape import check_shape
from snakemake_kochi.project.short_forms import write_out
from snakemake_kochi.project.sweep_file import SweepReader
from snakemake_kochi.project.templates import Template, TemplateError, parse_value
from snakemake_kochi.project.values import CODE
from snakemake_kochi.project.visibility import depend_params

_DEFAULT_NAME = "ANON"
_UNKNOWN_TYPE = "unknown"  # of an artifact whose shape is wrong


def load_experiment(
    file: str, text: str, project: Project | None, given: Given | None = None
) -> Experiment:
    """Read an experiment; `file` is its path relative to the project.

    With a project its requirements are checked too. Without what is `given` with a freeze, no grid
    can be made that uses facts or other files. Raises ConfigError with a line per problem.
    """
    document = read_yaml(file, text)
    write_out(document)
    if not check_shape(document, "experiment.schema.yaml"):
        document.problems.raise_all()
    experiment = replace(_Reader(document, file).experiment(), given=given)
    if project is not None:
        check_recipes(project, document.data, (), document.problems)
        for name, data in section(document.data, "batches").items():
            path: KeyPath = ("batches", name)
            if isinstance(data, dict):
                check_recipes(project, data, path, document.problems)
        _check_launchers(experiment, project, document.problems)
        _check_machines(experiment, project, document.problems)
    machines = project.machines if project else {LOCAL}
    check_references(experiment, project, document.problems)
    check_plots(experiment, document.problems)
    if document.problems:
        # Reported together with the rest, because a person is going to edit the file anyway.
        note_grid_problems(experiment, machines, document.problems)
    document.problems.raise_all()
    note_remarks(experiment, document.remarks)
    return replace(experiment, remarks=tuple(document.remarks.lines(MAXIMUM_LINES)))


def _check_machines(experiment: Experiment, project: Project, problems: Problems) -> None:
    for batch in experiment.batches.values():
        path: KeyPath = ("batches", batch.name, "machines")
        for name in batch.machines:
            if name not in project.machines and not problems.is_unknown(path):
                said = nearest(name, project.machines)
                problems.add(path, f"there is no machine '{name}', {said}")


def _check_launchers(experiment: Experiment, project: Project, problems: Problems) -> None:
    own = [machine.launchers for machine in project.machines.values()]
    phases: list[tuple[KeyPath, Phase]] = [((), experiment.run)]
    phases += [(("batches", name), batch.run) for name, batch in experiment.batches.items()]
    for place, phase in phases:
        # One with parameters is known when its points are made.
        value = parse_value(phase.launcher)
        if not phase.launcher or value.names:
            continue
        if wrong := launcher_problem(value.render({}), own):
            shared: KeyPath = ("run", "launcher")
            path = problems.source_map.first((*place, *shared), shared)
            problems.add_once(path, wrong, shared)


def experiment_name(file: str) -> str:
    """The name of the experiment that a file describes: the file's stem as an identifier."""
    stem = re.sub(r"[^A-Za-z0-9_]", "_", PurePosixPath(file).stem)
    return f"_{stem}" if stem[:1].isdigit() else stem


class _Reader:
    """Makes the dataclasses of one document, noting problems."""

    def __init__(self, document: Document, file: str) -> None:
        self.data: dict[str, Any] = document.data
        self.source_map = document.source_map
        self.problems: Problems = document.problems
        self.remarks: Problems = document.remarks
        self.file = file
        self._sweeps = SweepReader(document)

    def experiment(self) -> Experiment:
        data = self.data
        sources = data.get("sources")
        self._check_rule_names(section(data, "batches"))
        batches = {
            name: self._batch(name, value if isinstance(value, dict) else {})
            for name, value in section(data, "batches").items()
        }
        anywhere = dict.fromkeys(section(data, "default_params"))
        for batch in batches.values():
            anywhere |= dict.fromkeys(batch.parameters)
        return Experiment(
            name=experiment_name(self.file),
            file=self.file,
            default_parameters=self._sweeps.defaults(),
            default_name=self._default_name,
            default_queue=self._default_queue,
            default_duplicates=self._duplicates(data.get("default_duplicates"), 1),
            build=self._phase(self._merged({}, "build", ()), ("build",), anywhere),
            run=self._phase(self._merged({}, "run", ()), ("run",), anywhere),
            batches=FrozenDict(batches),
            sources=None if sources is None else self._sources(sources),
            metrics=FrozenDict(read_metrics(section(data, "metrics"), ("metrics",), self.problems)),
            requirements=requirements(data, (), self.problems),
            source_map=self.source_map,
            recording=read_recording(data, self.problems),
            quantities=batch_quantities(data, {}, (), self.problems),
            plots=read_plots(data.get("plots"), ("plots",), self.problems),
            prepare=read_prepare(data, {}, (), anywhere, self.problems),
        )

    def _batch(self, name: str, data: dict[str, Any]) -> Batch:
        path: KeyPath = ("batches", name)
        check_name("batch", name, path, self.problems)
        default_duplicates = self._duplicates(self.data.get("default_duplicates"), 1)
        seeds: list[Scalar | None] = [data.get("seed"), self.data.get("seed")]
        sweeps = self._sweeps.sweeps(name, data)
        own = [flattened(sweep.parameters) for sweep in sweeps]
        entries = entries_of(own)
        known = (*section(self.data, "default_params"), *entries)
        run = self._phase(self._merged(data, "run", path), (*path, "run"), known)
        artifacts = self._artifacts(data.get("artifacts"), (*path, "artifacts"))
        if "artifacts" not in data and run.script.strip():
            artifacts = (Artifact("stdout", self._default_dest(name, sweeps), None),)
        types = {artifact.type for artifact in artifacts}
        has_output = "stdout" in types or (None if _UNKNOWN_TYPE in types else False)
        metrics = batch_metrics(self.data, data, path, has_output, self.problems)
        return Batch(
            name=name,
            job_name=self._job_name(data.get("name"), (*path, "name")) or self._default_name,
            queue=self._queue(data.get("queue"), (*path, "queue")) or self._default_queue,
            duplicates=self._duplicates(data.get("duplicates"), default_duplicates),
            parameters=FrozenDict(entries),
            artifacts=artifacts,
            requirements=requirements(data, path, self.problems),
            build=self._phase(self._merged(data, "build", path), (*path, "build"), known),
            run=run,
            metrics=metrics,
            quantities=batch_quantities(self.data, data, path, self.problems),
            plots=batch_plots(self.data, data, path, metrics, self.problems),
            sweeps=sweeps,
            sometimes=self._sweeps.sometimes(sweeps),
            prepare=read_prepare(self.data, data, path, known, self.problems),
            has_code=CODE in data and not is_null(data[CODE]),
            machines=self._machines(data.get("machines"), (*path, "machines")),
            order=optional_text(data.get("order") or self.data.get("order")) or ROUNDS,
            seed=next((each.whole_number for each in seeds if each is not None), None),
        )

    def _default_dest(self, batch: str, sweeps: Iterable[Sweep]) -> str:
        """A destination for the output of each point: by the parameters with several values."""
        names = dict.fromkeys(name for sweep in sweeps for name in sweep.varying)
        parts = [f"{name}=${{{name}}}" for name in names]
        # Two in each component of the path, which has 255 bytes.
        parts = ["_".join(parts[index : index + 2]) for index in range(0, len(parts), 2)]
        last = f"{parts.pop()}_" if parts else ""
        above = "/".join([experiment_name(self.file), "${batch_name}", *parts])
        return f"{above}/{last}${{duplicate}}.log"

    def _machines(self, value: Any, path: KeyPath) -> tuple[str, ...]:
        found = names(value) or ()
        for index, name in enumerate(found):
            if name in found[:index]:
                place = (*path, index) if isinstance(value, list) else path
                self.problems.add(place, f"machine '{name}' is there twice; remove one")
        return tuple(dict.fromkeys(found))

    @property
    def _default_name(self) -> str:
        return self._job_name(self.data.get("default_name"), ("default_name",)) or _DEFAULT_NAME

    @property
    def _default_queue(self) -> str | None:
        return self._queue(self.data.get("default_queue"), ("default_queue",))

    def _job_name(self, value: Scalar | None, path: KeyPath) -> str | None:
        return self._checked(optional_text(value) or None, path, job_name_problem)

    def _queue(self, value: Scalar | None, path: KeyPath) -> str | None:
        return self._checked(optional_text(value) or None, path, queue_problem)

    def _checked(
        self, text: str | None, path: KeyPath, problem: Callable[[str], str | None]
    ) -> str | None:
        """A template, or None if it is wrong whatever is substituted in it."""
        try:
            wrong = None if text is None else problem(_example(text))
        except TemplateError as error:
            wrong = str(error)
        if wrong:
            self.problems.add(path, f"{text!r}: {wrong}")
            return None
        return text

    def _check_rule_names(self, batches: Iterable[str]) -> None:
        rules: dict[str, str] = {}
        for name in batches:
            other = rules.setdefault(re.sub(r"[^A-Za-z0-9_]", "_", name), name)
            if other != name:
                said = f"'{other}' and '{name}' would share the name of a rule; rename one"
                self.problems.add(("batches", name), said)

    def _duplicates(self, value: Scalar | None, default: int) -> int:
        return default if value is None else value.whole_number

    def _phase(self, data: Mapping[str, Any], path: KeyPath, known: Collection[str]) -> Phase:
        """`known`: the parameters that there are."""
        return Phase(
            depend_params=depend_params(data, known),
            script=script(data.get("script")),
            strict="strict" not in data or data["strict"].is_true,
            exclusive="exclusive" not in data or data["exclusive"].is_true,
            cores=self._requested(optional_text(data.get("cores")) or "", (*path, "cores")),
            resources=FrozenDict(
                (name, self._requested(value.value_text, (*path, "resources", name)))
                for name, value in section(data, "resources").items()
            ),
            timeout=self._requested(optional_text(data.get("timeout")) or "", (*path, "timeout")),
            isolation=self._isolation(data, path),
            launcher=self._requested(str(data.get("launcher", "")), (*path, "launcher")),
            spread=optional_text(data.get("spread")) or "",
        )

    def _isolation(self, data: Mapping[str, Any], path: KeyPath) -> Isolation | None:
        container = section(data, "container")
        isolation = Isolation(
            words=tuple(sorted(set(names(data.get("isolate")) or ()))),
            visible=names(data.get("visible")) or (),
            image=str(container.get("image", "")),
            volumes=names(container.get("volumes")) or (),
            modules=names(container.get("modules")) or (),
        )
        if isolation.image and "files" in isolation.words:
            said = "a container has files of its own; remove 'files', or the container"
            key = (*path, "isolate")
            self.problems.add(self.source_map.first(key, (path[-1], "isolate")), said)
        if isolation.visible and "files" not in isolation.words:
            said = "'visible' has no effect without 'isolate: files'; a container has 'volumes'"
            key = (*path, "visible")
            self.remarks.add(self.source_map.first(key, (path[-1], "visible")), said)
        return isolation if isolation.words or isolation.image else None

    def _merged(self, batch: Mapping[str, Any], key: str, path: KeyPath) -> dict[str, Any]:
        """The keys of a phase, and over them those of a batch at a key path."""
        above, own = section(self.data, key), section(batch, key)
        check_request_keys(own if path else above, (*path, key), self.problems)
        return merged(above, own)

    def _requested(self, text: str, path: KeyPath) -> str:
        """The text of a request's value, or "" if it is no value."""
        try:
            parse_value(text)
        except TemplateError as error:
            default = path[2:] if path[0] == "batches" else path
            self.problems.add(self.source_map.first(path, default), str(error))
            return ""
        return text

    def _artifacts(self, value: Any, path: KeyPath) -> tuple[Artifact, ...]:
        artifacts = []
        for index, entry in enumerate(value if isinstance(value, list) else []):
            if entry is None:  # its shape was wrong; the entries after it keep their index
                artifacts.append(Artifact(_UNKNOWN_TYPE, "", None))
                continue
            dest, src = normalise_dest(str(entry["dest"])), optional_text(entry.get("src"))
            if entry["type"] == "file" and not src:
                self.problems.add(
                    (*path, index),
                    "the key 'src' is missing; it names the file of the workspace to keep",
                )
            dest = self._checked(dest, (*path, index, "dest"), dest_problem) or ""
            src = self._checked(src, (*path, index, "src"), src_problem)
            artifacts.append(Artifact(str(entry["type"]), dest, src))
        return tuple(artifacts)

    def _sources(self, values: Iterable[Scalar]) -> tuple[str, ...]:
        for index, value in enumerate(values):
            # A leading / means the top of the project, as in .gitignore.
            if ".." in value.split("/") or not value.strip("/ "):
                self.problems.add(
                    ("sources", index), "a glob relative to the project, without '..', was expected"
                )
        return tuple(map(str, values))


def _example(text: str) -> str:
    """A template with something harmless for each reference."""
    template = Template.parse(text)
    return template.render(dict.fromkeys(template.names, "x"))
