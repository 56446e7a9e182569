"""The runs that the records of the artifact branches describe, and the metrics in their outputs."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from snakemake_kochi.phases.printed import own_output_in
from snakemake_kochi.project.document import read_text
from snakemake_kochi.project.experiment_file import experiment_name, load_experiment
from snakemake_kochi.tables.codes import Traits, traits_of

_MOST_NAMED = 3


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
_LARGEST = 1 << 63  # the numbers of a column have 64 bits
_IN_VERSION_1 = {"outcome": "success"}


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a record says of its run.

    `published_as` is the name under which the result is published, `file` that of the
    experiment. `values` are those of VALUES, None for what the record lacks. `more` are the
    outputs of the commands for facts and the variables of the environment, by the names of
    their columns. `output` is the path in the branch of the artifact with the output, and its
    SHA-256 ("" if unknown); `own` the range of the run's own output in it, as the record has
    it. `code`: see `codes.py`.
    """

    published_as: str
    identity: str
    file: str
    experiment: str
    batch: str
    machine: str
    duplicate: int
    parameters: Mapping[str, str]
    values: tuple[object, ...]
    more: Mapping[str, str]
    output: tuple[str, str] | None
    own: object
    code: Traits

    @property
    def output_path(self) -> str:
        return "" if self.output is None else self.output[0]

    @classmethod
    def of(cls, file: RecordFile, record: Mapping[str, Any]) -> RecordedRun:
        """Raises KeyError, TypeError or AttributeError for a record that lacks what tells which run
        it is of."""
        parameters, duplicate = record["parameters"], record["duplicate"]
        if type(duplicate) is not int or not 0 <= duplicate < _LARGEST:
            raise TypeError
        if not all(isinstance(text, str) for text in parameters.values()):
            raise TypeError
        experiment = _text(record["experiment"])
        given = {**_IN_VERSION_1, **record} if record["version"] < 2 else record
        return cls(
            file.name,
            file.identity,
            experiment,
            _name_of(experiment),
            _text(record["batch"]),
            _text(record["machine"]),
            duplicate,
            parameters,
            tuple(_value(given, kind, path) for kind, path in VALUES.values()),
            _more(record.get("facts") or {}, record.get("environment") or {}),
            _output(file.name, record.get("artifacts") or ()),
            record.get("output"),
            traits_of(record, file.name),
        )


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
    if type(value) is int and not -_LARGEST <= value < _LARGEST:
        return None
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else None


def _more(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, str]:
    found = {f"fact.{name}": str(fact["output"]).strip() for name, fact in facts.items()}
    return found | {f"environment.{name}": str(text) for name, text in environment.items()}


def _output(name: str, artifacts: Iterable[Mapping[str, Any]]) -> tuple[str, str] | None:
    for artifact in artifacts:
        if artifact.get("type") == "stdout":
            return f"{name}/{artifact['dest']}", str(artifact.get("sha256") or "")
    return None


_name_of = functools.cache(experiment_name)


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
        for what, wanted, known in (
            ("batch", self.batch, {run.batch for run in of_it}),
            (
                "machine",
                self.machine,
                {name for run in of_it for name in (run.machine, run.published_as)},
            ),
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
        remarks.append(f"{len(paths)} {records} left out: {problem}: {_some(paths)}")
    if edited := branches.edited(files):
        paths = sorted(record_path(each.name, each.identity, each.failed) for each in edited)
        records = "record was" if len(paths) == 1 else "records were"
        remarks.append(f"{len(paths)} {records} edited after the run: {_some(paths)}")


# In a notebook the same records are read again and again. An object of git never changes.
_PARSED: dict[RecordFile, RecordedRun] = {}


def _parsed(file: RecordFile, content: bytes | None) -> RecordedRun:
    """Raises DamagedFileError with a message that does not name the record."""
    if content is None:
        raise DamagedFileError("not in this clone")
    try:
        # Texts with bytes that are not UTF-8 are written as they are.
        record = json.loads(content.decode("utf-8", "surrogateescape"))
        version = record["version"]
        if version > RECORD_VERSION:
            raise DamagedFileError(
                f"written by a newer snakemake_kochi (format {version}, this one reads up to "
                f"{RECORD_VERSION}; install a newer snakemake_kochi)"
            )
        return RecordedRun.of(file, record)
    except DamagedFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedFileError("not a record, or damaged") from None


def _some(names: Collection[str]) -> str:
    shown = sorted(names)[:_MOST_NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


# ---- metrics

Metrics = Mapping[str, "re.Pattern[str]"]


def metrics_of(
    repository: Path, runs: Iterable[RecordedRun], remarks: list[str]
) -> dict[tuple[str, str], Metrics]:
    """The metrics of each experiment's file and batch, as the working tree defines them now.

    A batch that its file no longer has gets those of the experiment. Files that are missing or
    wrong are remarked.
    """
    batches: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        if run.file:  # not of a rule outside of any experiment
            batches[run.file].add(run.batch)
    found: dict[tuple[str, str], Metrics] = {}
    missing = []
    for file, names in batches.items():
        # Anyone may have written the record.
        path = (repository / file).resolve()
        if not path.is_relative_to(repository.resolve()) or not path.is_file():
            missing.append(file)
            continue
        try:
            experiment = load_experiment(file, read_text(path, file), None)
        except KochiError as error:
            remarks.append(f"the metrics of {file} were left out: {error.sentences}")
            continue
        for name in names:
            known = experiment.batches.get(name)
            found[file, name] = compiled(experiment.metrics if known is None else known.metrics)
    if missing:
        remarks.append(
            f"not in the working tree, so no metrics are known: {_some(missing)}. To read some all "
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
    digests = {}
    for index, run in enumerate(runs):
        if metrics[index] and run.output is not None:
            path, digests[index] = run.output
            left[path].append(index)
    claims = Counter({path: len(indices) for path, indices in left.items()})
    for read in (branches.read_results, branches.read_history):
        for path, content in read(list(left)):
            digest = hashlib.sha256(content).hexdigest()
            others = []
            for index in left.get(path, ()):
                # A record of an earlier release does not say which content is its own.
                if digests[index] == digest or (not digests[index] and claims[path] == 1):
                    found[index] = _matches(runs[index], content, metrics[index])
                else:
                    others.append(index)
            left[path] = others
        left = defaultdict(list, {path: indices for path, indices in left.items() if indices})
    if left:
        count = sum(map(len, left.values()))
        lost = "the output of a run is" if count == 1 else f"the outputs of {count} runs are"
        remarks.append(
            f"{lost} not in this clone, so their metrics are missing: {_some(left)}. If they are "
            "large files, type: kochi artifact fetch --large"
        )
    return found


def _matches(run: RecordedRun, content: bytes, metrics: Metrics) -> dict[str, str]:
    try:
        text = own_output_in({"output": run.own}, content)
    except (KeyError, TypeError):
        return {}
    last = ((name, pattern.findall(text)) for name, pattern in metrics.items())
    return {name: matches[-1] for name, matches in last if matches}
