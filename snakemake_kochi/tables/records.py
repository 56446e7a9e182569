"""The runs that records describe, of artifact branches and of `results/`, and their metrics."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.branch_content import record_path
from snakemake_kochi.artifacts.reading import Published, RecordFile
from snakemake_kochi.artifacts.record import RECORD_VERSION, may_be_of
from snakemake_kochi.errors import (
    ConfigError,
    DamagedFileError,
    KochiError,
    NameNotFoundError,
    nearest,
)
from snakemake_kochi.phases.outputs import own_output_in
from snakemake_kochi.project.document import read_text
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import experiment_name, load_experiment

# Where a record has the values of columns, and their types. A value of another type is missing.
VALUES: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "name": (str, ("name",)),
    "rule": (str, ("rule", "name")),
    "outcome": (str, ("outcome",)),
    "reason": (str, ("reason",)),
    "seconds": (float, ("seconds",)),
    "environment_seconds": (float, ("environment_seconds",)),
    "started": (str, ("started",)),
    "node": (str, ("node",)),
    "user_seconds": (float, ("usage", "user_seconds")),
    "system_seconds": (float, ("usage", "system_seconds")),
    "peak_memory_mb": (int, ("usage", "peak_memory_mb")),
    "exit_status": (int, ("exit_status",)),
    "cpus": (str, ("cpus",)),
    "load": (float, ("system", "load")),
    "cpu_model": (str, ("hardware", "cpu_model")),
    "kernel": (str, ("system", "kernel")),
    "allocation": (str, ("allocation", "id")),
    "commit": (str, ("snapshot", "base")),
    "dirty": (bool, ("snapshot", "dirty")),
    "tree": (str, ("snapshot", "tree")),
    "rerun_of": (str, ("rerun_of",)),
}
# What else a table says of the node: of these there are no columns.
_BESIDE: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "warnings": (list, ("noise", "warnings")),
    "other_cpus": (float, ("noise", "other_cpus")),
    "other_cpu_seconds": (float, ("noise", "other_cpu_seconds")),
    "other_jobs": (int, ("noise", "other_jobs")),
    "load_limit": (float, ("noise", "load_limit")),
    "threads": (int, ("hardware", "threads")),
    "configuration": (str, ("configuration", "tree")),
}
_ALL = {**VALUES, **_BESIDE}
_INDEX = {name: index for index, name in enumerate(_ALL)}
_LARGEST = 1 << 63  # the numbers of a column have 64 bits
_MOST_NAMED = 3
SOURCES = "source files"

# What determines a result: of what it is (a word for people, then what tells it from others of the
# kind) -> its text or digest.
Traits = Mapping[tuple[str, ...], str]
Metrics = Mapping[str, "re.Pattern[str]"]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a record says of its run; `run[NAME]` is a value of VALUES, None if the record lacks it.

    `published_as` is the name under which the result is published, `file` that of the experiment.
    `more` are the outputs of the commands for facts and the variables of the environment, by the
    names of their columns. `output`: the `dest` of the artifact with the output, and its SHA-256
    ("" if unknown); `own`: the range of the run's own output in it, as the record has it.
    """

    published_as: str
    identity: str
    file: str
    experiment: str
    batch: str
    machine: str
    duplicate: int
    parameters: Mapping[str, str]
    values: tuple[Any, ...]
    more: Mapping[str, str]
    output: tuple[str, str] | None
    own: object
    code: Traits

    def __getitem__(self, name: str) -> Any:
        return self.values[_INDEX[name]]

    @property
    def output_path(self) -> str:
        """The path of the artifact with the output in the branch."""
        return "" if self.output is None else f"{self.published_as}/{self.output[0]}"

    @property
    def digest(self) -> str:
        """The SHA-256 of the output."""
        return "" if self.output is None else self.output[1]

    @classmethod
    def of(cls, record: Mapping[str, Any], identity: str, published_as: str = "") -> RecordedRun:
        """Of a record in `results/`, the traits of the code are left out: they are of one code.

        Raises DamagedFileError for a record that lacks what tells which run it is of.
        """
        try:
            version, parameters, duplicate = (
                record[key] for key in ("version", "parameters", "duplicate")
            )
            if version > RECORD_VERSION:
                raise DamagedFileError(
                    f"written by a newer snakemake_kochi (format {version}, this one reads up to "
                    f"{RECORD_VERSION}; install a newer snakemake_kochi)"
                )
            if type(duplicate) is not int or not 0 <= duplicate < _LARGEST:
                raise TypeError
            if not all(isinstance(text, str) for text in parameters.values()):
                raise TypeError
            experiment = _text(record["experiment"])
            whole = {"outcome": "success", **record} if version < 2 else record
            return cls(
                published_as,
                identity,
                experiment,
                _name_of(experiment),
                _text(record["batch"]),
                _text(record["machine"]),
                duplicate,
                parameters,
                tuple([_value(whole, kind, path) for kind, path in _ALL.values()]),
                _more(record.get("facts") or {}, record.get("environment") or {}),
                _output(record.get("artifacts") or ()),
                record.get("output"),
                traits_of(record, published_as) if published_as else {},
            )
        except (KeyError, TypeError, AttributeError):
            raise DamagedFileError("not a record, or damaged") from None

    def matches(self, content: bytes, metrics: Metrics) -> dict[str, str]:
        """What each metric matches last in the run's own output; `content`: of the artifact."""
        try:
            text = own_output_in({"output": self.own}, content)
        except (KeyError, TypeError):
            return {}
        found = ((name, pattern.findall(text)) for name, pattern in metrics.items())
        return {name: texts[-1] for name, texts in found if texts}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    # Of a hundred thousand runs most have the same texts.
    return sys.intern(value)


def _value(record: Mapping[str, Any], kind: type, path: Sequence[str]) -> object:
    value: Any = record
    for key in path:
        value = value.get(key)
        if value is None:
            return None
    if kind is str:
        return sys.intern(value) if isinstance(value, str) else None
    if kind is list:
        return sys.intern("; ".join(map(str, value)))
    if type(value) is int and not -_LARGEST <= value < _LARGEST:
        return None
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else None


def _more(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, str]:
    found = {f"fact.{name}": str(fact["output"]).strip() for name, fact in facts.items()}
    return found | {f"environment.{name}": str(text) for name, text in environment.items()}


def _output(artifacts: Iterable[Mapping[str, Any]]) -> tuple[str, str] | None:
    own = (each for each in artifacts if each.get("type") == "stdout")
    return next(((str(each["dest"]), str(each.get("sha256") or "")) for each in own), None)


_name_of = functools.cache(experiment_name)


def traits_of(record: Mapping[str, Any], published_as: str) -> Traits:
    """The traits of the code of a record, which anyone may have written."""
    return dict(_traits(record, published_as))


def _traits(record: Mapping[str, Any], published_as: str) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, word in (("run_script", "run script"), ("build_script", "build script")):
        if isinstance(text := record.get(key), str):
            yield (word,), sys.intern(text)
    with suppress(KeyError, TypeError, AttributeError):
        place = (published_as, str(record["machine"]))
        # Of another commit, the points with this parameter are meant to have other code.
        code = str(record["parameters"].get("code", "")) if record.get("configuration") else ""
        if sources := (record.get("built") or {}).get("sources"):
            yield (SOURCES, code), sys.intern(str(sources))
        recipes = record.get("recipes") or ()
        names = [f"{each['dependency']}:{each['recipe']}" for each in recipes]
        # Points that name their recipes may have others than the rest.
        values = set(map(str, record["parameters"].values()))
        own = [name for name in names if _is_of_point(name.partition(":")[2], values)]
        variant = (*place, code, *own)
        if "recipes" in record:
            dependencies = " ".join(str(each["dependency"]) for each in recipes)
            yield ("set of recipes", *variant), sys.intern(dependencies)
        for name, each in zip(names, recipes, strict=True):
            yield (f"recipe {name}", *place), sys.intern(str(each["digest"]))
            if name not in own:
                dependency, _, recipe = name.partition(":")
                yield (f"recipe of {dependency}", *variant), sys.intern(recipe)
        if build := record.get("build"):
            parameters = record["build_parameters"]
            yield ("build", "parameters", *variant), sys.intern(" ".join(parameters))
            seen = (f"{name}={value}" for name, value in parameters.items())
            named = (*place, code, *seen, *names)
            yield ("build", *map(sys.intern, named)), sys.intern(str(build))


def _is_of_point(recipe: str, values: set[str]) -> bool:
    """Whether the name of a recipe was probably made of a point's parameters."""
    return any(value == recipe or (len(value) > 1 and value in recipe) for value in values)


@dataclass(frozen=True)
class Wanted:
    """Which runs are wanted; None: all. `experiment` is a name or a file, `machine` a machine or a
    name under which its results are published."""

    experiment: str | None = None
    batch: str | None = None
    machine: str | None = None

    def may_be(self, file: RecordFile) -> bool:
        """Whether the record may be of a wanted run, as far as its name says that."""
        name = None if self.experiment is None else experiment_name(self.experiment)
        batch = None if self.batch is None else self.batch or "single"
        return may_be_of(file.label, name, batch)

    def has(self, run: RecordedRun) -> bool:
        return (
            self.experiment in (None, run.experiment, run.file)
            and self.batch in (None, run.batch)
            and self.machine in (None, run.machine, run.published_as)
        )

    def nothing_found(self, runs: Collection[RecordedRun]) -> NameNotFoundError:
        """The error when none of all runs is wanted."""
        of_it = [run for run in runs if self.experiment in (None, run.experiment, run.file)]
        if not of_it:
            said = nearest(str(self.experiment), {run.experiment for run in runs})
            return NameNotFoundError(f"no result is of experiment '{self.experiment}', {said}")
        machines = {name for run in of_it for name in (run.machine, run.published_as)}
        for what, wanted, known in (
            ("batch", self.batch, {run.batch for run in of_it}),
            ("machine", self.machine, machines),
        ):
            if wanted is not None and wanted not in known:
                of = f" of experiment '{self.experiment}'" if self.experiment else ""
                said = nearest(wanted, known)
                return NameNotFoundError(f"no result{of} is of {what} '{wanted}', {said}")
        return NameNotFoundError(
            f"no result is of batch '{self.batch}' and of machine '{self.machine}'",
            "Leave one of them out.",
        )


def read_runs(
    branches: Published, wanted: Wanted, failed: bool = False
) -> tuple[list[RecordedRun], list[str]]:
    """The wanted runs, and remarks about records that cannot be read.

    With `failed`, attempts that failed are runs, too. Raises NameNotFoundError if records exist and
    none is wanted; GitError.
    """
    files = branches.records() + (branches.records(failed=True) if failed else [])
    remarks: list[str] = []
    some = [file for file in files if wanted.may_be(file)]
    runs = [run for run in _read(branches, some, remarks) if wanted.has(run)]
    if runs or not files:
        return runs, remarks
    remarks.clear()
    found = list(_read(branches, files, remarks))
    runs = [run for run in found if wanted.has(run)]
    if found and not runs:
        raise wanted.nothing_found(found)
    return runs, remarks


def _read(
    branches: Published, files: Sequence[RecordFile], remarks: list[str]
) -> Iterator[RecordedRun]:
    wrong: dict[str, list[str]] = defaultdict(list)
    for file, content in branches.read_records([file for file in files if file not in _PARSED]):
        try:
            _PARSED[file] = _parsed(file, content)
        except DamagedFileError as error:
            wrong[error.message].append(record_path(file.name, file.identity, file.failed))
    yield from (_PARSED[file] for file in files if file in _PARSED)
    for problem, paths in wrong.items():
        records = "record was" if len(paths) == 1 else "records were"
        remarks.append(f"{len(paths)} {records} left out: {problem}: {some(paths)}")
    if edited := branches.edited(files):
        paths = sorted(record_path(each.name, each.identity, each.failed) for each in edited)
        records = "record was" if len(paths) == 1 else "records were"
        remarks.append(f"{len(paths)} {records} edited after the run: {some(paths)}")


# In a notebook the same records are read again and again. An object of git never changes.
_PARSED: dict[RecordFile, RecordedRun] = {}


def _parsed(file: RecordFile, content: bytes | None) -> RecordedRun:
    """Raises DamagedFileError with a message that does not name the record."""
    if content is None:
        raise DamagedFileError("not in this clone")
    try:
        # Texts with bytes that are not UTF-8 are written as they are.
        record = json.loads(content.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        raise DamagedFileError("not a record, or damaged") from None
    return RecordedRun.of(record, file.identity, file.name)


def some(names: Collection[str]) -> str:
    """Some names in a sentence."""
    shown = sorted(names)[:_MOST_NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


# ---- metrics


def experiment_here(repository: Path, file: str) -> Experiment | None:
    """The experiment of the working tree, None if there is no such file. Raises KochiError."""
    path = (repository / file).resolve()
    # Anyone may have written the record that names the file.
    if not path.is_relative_to(repository.resolve()) or not path.is_file():
        return None
    return load_experiment(file, read_text(path, file), None)


def metrics_of(
    repository: Path, runs: Iterable[RecordedRun], remarks: list[str]
) -> dict[tuple[str, str], Metrics]:
    """The metrics of each experiment's file and batch, as the working tree defines them now.

    A batch that its file no longer has gets those of the experiment. Files that are missing or
    wrong are remarked.
    """
    found: dict[tuple[str, str], Metrics] = {}
    missing = []
    batches = dict.fromkeys((run.file, run.batch) for run in runs)
    for file in dict.fromkeys(file for file, _ in batches if file):  # or of a rule of one's own
        try:
            if (experiment := experiment_here(repository, file)) is None:
                missing.append(file)
                continue
        except KochiError as error:
            remarks.append(f"the metrics of {file} were left out: {error.sentences}")
            continue
        for key in batches:
            if key[0] == file:
                own = experiment.batches.get(key[1])
                found[key] = compiled(experiment.metrics if own is None else own.metrics)
    if missing:
        remarks.append(
            f"not in the working tree, so no metrics are known: {some(missing)}. To read some all "
            "the same: results(..., metrics={'NAME': r'REGULAR EXPRESSION'})"
        )
    return found


def compiled(metrics: Mapping[str, str]) -> Metrics:
    """Raises ConfigError for what is no regular expression with one group."""
    found = {}
    for name, expression in metrics.items():
        try:
            pattern = re.compile(expression, re.MULTILINE)
        except (re.error, RecursionError, OverflowError, TypeError) as error:
            raise ConfigError(
                f"metric '{name}': not a Python regular expression: {error}"
            ) from None
        if pattern.groups != 1:
            raise ConfigError(
                f"metric '{name}': one group (...) around the number was expected, not "
                f"{pattern.groups}",
                "Write other groups as (?:...)",
            )
        found[name] = pattern
    return found


def measured(
    branches: Published,
    runs: Sequence[RecordedRun],
    metrics: Sequence[Metrics],
    remarks: list[str],
) -> list[dict[str, str]]:
    """The texts that the metrics of each run match in its output.

    An output that a later run replaced is looked up in the history. One that is in no commit of
    this clone is remarked.
    """
    found: list[dict[str, str]] = [{} for _ in runs]
    left: dict[str, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        if metrics[index] and run.output is not None:
            left[run.output_path].append(index)
    for read in (branches.read_results, branches.read_history):
        for path, content in read(list(left)):
            digest = hashlib.sha256(content).hexdigest()
            own = {index for index in left.get(path, ()) if runs[index].digest == digest}
            for index in own:
                found[index] = runs[index].matches(content, metrics[index])
            if others := [index for index in left.pop(path, ()) if index not in own]:
                left[path] = others
    if left:
        count = sum(map(len, left.values()))
        lost = "the output of a run is" if count == 1 else f"the outputs of {count} runs are"
        remarks.append(
            f"{lost} not in this clone, so their metrics are missing: {some(left)}. If they are "
            "large files, type: kochi artifact fetch --large"
        )
    return found
