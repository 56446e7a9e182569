"""Reading experiments: YAML files with a key `run` or `build`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.checks import check_references, note_grid_problems, note_remarks
from snakemake_kochi.project.destinations import dest_problem, normalise_dest, src_problem
from snakemake_kochi.project.document import (
    Document,
    Scalar,
    names,
    optional_text,
    read_yaml,
    script,
    section,
)
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import (
    Artifact,
    Batch,
    ParameterValues,
    Phase,
    job_name_problem,
    queue_problem,
)
from snakemake_kochi.project.machines import LOCAL
from snakemake_kochi.project.problems import MAXIMUM_LINES, KeyPath, Problems, check_name
from snakemake_kochi.project.recipes import Project, check_recipes, requirements
from snakemake_kochi.project.recording import read_recording
from snakemake_kochi.project.shape import check_shape
from snakemake_kochi.project.templates import Template, TemplateError, parse_value
from snakemake_kochi.project.values import (
    looks_like_numbers,
    metric_problem,
    name_problem,
    value_problem,
)

_DEFAULT_NAME = "ANON"
_UNKNOWN_TYPE = "unknown"  # of an artifact whose shape is wrong


def load_experiment(file: str, text: str, project: Project | None) -> Experiment:
    """Read an experiment; `file` is its path relative to the project.

    With a project its requirements are checked too. Raises ConfigError with a line per problem.
    """
    document = read_yaml(file, text)
    if not check_shape(document, "experiment.schema.yaml"):
        document.problems.raise_all()
    experiment = _Reader(document, file).experiment()
    if project is not None:
        check_recipes(project, document.data, (), document.problems)
        for name, data in section(document.data, "batches").items():
            path: KeyPath = ("batches", name)
            if isinstance(data, dict):
                check_recipes(project, data, path, document.problems)
    machines = project.machines if project else {LOCAL}
    check_references(experiment, machines, document.problems)
    if document.problems:
        # Reported together with the rest, because a person is going to edit the file anyway.
        note_grid_problems(experiment, machines, document.problems)
    document.problems.raise_all()
    note_remarks(experiment, document.remarks)
    return replace(experiment, remarks=tuple(document.remarks.lines(MAXIMUM_LINES)))


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

    def experiment(self) -> Experiment:
        data = self.data
        sources = data.get("sources")
        defaults = {
            name: self._default(value, ("default_params", name))
            for name, value in section(data, "default_params").items()
        }
        self._check_parameters(defaults, ("default_params",))
        self._check_rule_names(section(data, "batches"))
        return Experiment(
            name=experiment_name(self.file),
            file=self.file,
            default_parameters=FrozenDict(defaults),
            default_name=self._default_name,
            default_queue=self._default_queue,
            default_duplicates=self._duplicates(data.get("default_duplicates"), 1),
            build=self._phase(section(data, "build"), ("build",)),
            run=self._phase(section(data, "run"), ("run",)),
            batches=FrozenDict(
                (name, self._batch(name, value if isinstance(value, dict) else {}))
                for name, value in section(data, "batches").items()
            ),
            sources=None if sources is None else self._sources(sources),
            metrics=FrozenDict(self._metrics(section(data, "metrics"), ("metrics",))),
            requirements=requirements(data, (), self.problems),
            source_map=self.source_map,
            recording=read_recording(data, self.problems),
        )

    def _batch(self, name: str, data: dict[str, Any]) -> Batch:
        path: KeyPath = ("batches", name)
        check_name("batch", name, path, self.problems)
        top = self.data
        default_duplicates = self._duplicates(top.get("default_duplicates"), 1)
        parameters = {
            parameter: self._choices(value, (*path, "params", parameter))
            for parameter, value in section(data, "params").items()
        }
        self._check_parameters(parameters, (*path, "params"))
        artifacts = self._artifacts(data.get("artifacts"), (*path, "artifacts"))
        return Batch(
            name=name,
            job_name=self._job_name(data.get("name"), (*path, "name")) or self._default_name,
            queue=self._queue(data.get("queue"), (*path, "queue")) or self._default_queue,
            duplicates=self._duplicates(data.get("duplicates"), default_duplicates),
            parameters=FrozenDict(parameters),
            artifacts=artifacts,
            requirements=requirements(data, path, self.problems),
            build=self._phase(section(top, "build") | section(data, "build"), (*path, "build")),
            run=self._phase(section(top, "run") | section(data, "run"), (*path, "run")),
            metrics=self._batch_metrics(section(data, "metrics"), artifacts, path),
        )

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

    def _check_parameters(self, names: Iterable[str], path: KeyPath) -> None:
        for name in names:
            if wrong := name_problem(name):
                self.problems.add((*path, name), wrong)

    def _value(self, scalar: Scalar, path: KeyPath) -> str | None:
        text = scalar.value_text
        wrong = value_problem(text)
        try:
            value = parse_value(text)
            if not value.names:
                value.render({})
        except TemplateError as error:
            wrong = str(error)
        if wrong:
            self.problems.add(path, wrong)
            self.problems.mark_unknown(path[: 4 if path[0] == "batches" else 2])  # the parameter
        if scalar.is_plain and looks_like_numbers(text):
            where = "" if path[0] == "batches" else " in the params of a batch"
            said = f'several values are written [{text}]{where}, a text "{text}"'
            self.remarks.add(path, f"'{text}' is one text; {said}")
        return None if wrong else text

    def _values(self, value: Any, path: KeyPath) -> tuple[str, ...]:
        if not isinstance(value, list):
            return (self._value(value, path) or "",)
        texts: dict[str, None] = {}
        for index, scalar in enumerate(value):
            text = self._value(scalar, (*path, index))
            if text is None:
                continue
            if text in texts:
                self.problems.add(
                    (*path, index),
                    f"the value '{text}' is in the list twice; to repeat runs, use 'duplicates'",
                )
            texts[text] = None
        return tuple(texts)

    def _choices(self, value: Any, path: KeyPath) -> tuple[ParameterValues, ...]:
        if not isinstance(value, list) or not any(isinstance(entry, dict) for entry in value):
            return (ParameterValues(self._values(value, path)),)
        choices = []
        for index, entry in enumerate(value):
            if not isinstance(entry, dict):
                self.problems.add(
                    (*path, index),
                    "the entries must be either all values or all {value: ..., machines: [...]}",
                )
                self.problems.mark_unknown(path)
                continue
            values = self._values(entry["value"], (*path, index, "value"))
            choices.append(ParameterValues(values, names(entry.get("machines"))))
        return tuple(choices)

    def _default(self, value: Any, path: KeyPath) -> tuple[ParameterValues, ...]:
        """As `_choices`, with one value in each."""
        entries = value if isinstance(value, list) else []
        if any(not isinstance(each, dict) or isinstance(each["value"], list) for each in entries):
            said = "a single value was expected, not a list; lists go into the params of a batch"
            self.problems.add(path, said)
            self.problems.mark_unknown(path)
            return ()
        return self._choices(value, path)

    def _duplicates(self, value: Scalar | None, default: int) -> int:
        return default if value is None else value.whole_number

    def _phase(self, data: Mapping[str, Any], path: KeyPath) -> Phase:
        depend = data.get("depend_params")
        named = depend if isinstance(depend, list) else []
        return Phase(
            depend_params=tuple(dict.fromkeys(str(name) for name in named if name is not None)),
            script=script(data.get("script")),
            strict="strict" not in data or data["strict"].is_true,
            exclusive="exclusive" not in data or data["exclusive"].is_true,
            cores=self._cores(data.get("cores"), (*path, "cores")),
        )

    def _cores(self, value: Scalar | None, path: KeyPath) -> str:
        text = optional_text(value) or ""
        try:
            parse_value(text)
        except TemplateError as error:
            self.problems.add(self.source_map.first(path, ("run", "cores")), str(error))
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

    def _batch_metrics(
        self, own: dict[str, Scalar], artifacts: Iterable[Artifact], path: KeyPath
    ) -> FrozenDict[str, str]:
        """The metrics of the file and of one batch; none if no artifact has the output from which
        they are read, which is a mistake only if the batch itself has metrics."""
        metrics = self._metrics(own, (*path, "metrics"))
        types = {artifact.type for artifact in artifacts}
        if "stdout" in types:
            return FrozenDict(self._metrics(section(self.data, "metrics"), ("metrics",)) | metrics)
        if metrics and _UNKNOWN_TYPE not in types:
            self.problems.add(
                (*path, "metrics"),
                "metrics are read from a run's standard output; add an artifact of type stdout",
            )
        return FrozenDict()

    def _metrics(self, data: Mapping[str, Scalar], path: KeyPath) -> dict[str, str]:
        for name, value in data.items():
            if wrong := metric_problem(name):
                self.problems.add((*path, name), wrong)
            try:
                groups = re.compile(str(value)).groups
            except (re.error, RecursionError, OverflowError) as error:
                self.problems.add((*path, name), f"not a Python regular expression: {error}")
                continue
            if groups != 1:
                self.problems.add(
                    (*path, name),
                    f"one group (...) around the number was expected, not {groups}; "
                    "write other groups as (?:...)",
                )
        return {name: str(value) for name, value in data.items()}

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
