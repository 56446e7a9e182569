"""Records as runs with typed values, and the wanted ones of the artifact branches."""

from __future__ import annotations

import functools
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from snakemake_kochi.artifacts.branch_content import record_path
from snakemake_kochi.artifacts.reading import Published, RecordFile
from snakemake_kochi.artifacts.record import RECORD_VERSION, may_be_of
from snakemake_kochi.errors import DamagedFileError, NameNotFoundError, nearest
from snakemake_kochi.project.experiment_file import experiment_name
from snakemake_kochi.tables.codes import Traits, traits_of

# The columns that a record has values for: their types, and where these are. A value of another
# type is missing.
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
# What remarks tell: of these there are no columns.
_BESIDE: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "warmup_seconds": (float, ("warmup_seconds",)),
    "warnings": (list, ("noise", "warnings")),
    "other_cpus": (float, ("noise", "other_cpus")),
    "other_cpu_seconds": (float, ("noise", "other_cpu_seconds")),
    "load_limit": (float, ("noise", "load_limit")),
    "configuration": (str, ("configuration", "tree")),
    "governor": (str, ("system", "governor")),
    "isolation": (dict, ("isolation",)),
    "launcher": (str, ("launcher", "name")),
}
_ALL = {**VALUES, **_BESIDE}
_INDEX = {name: index for index, name in enumerate(_ALL)}
_LARGEST = 1 << 63  # the numbers of a column have 64 bits
_MOST_NAMED = 3
STDOUT = ""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a record says of its run; `run[NAME]` is a value of VALUES, None if the record lacks it.

    `published_as` is the name under which the result is published, `file` that of the experiment.
    `more` are the commits of dependencies, the outputs of the commands for facts and the variables
    of the environment, by the names of their columns. `artifacts`: destination and SHA-256 ("" if
    unknown) of each, by its path in the workspace, STDOUT for the output; `own`: the range of the
    run's own output in it, as the record has it. `edited`: a later commit changed the record.
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
    artifacts: Mapping[str, tuple[str, str]]
    own: object
    code: Traits
    edited: bool = False

    def __getitem__(self, name: str) -> Any:
        return self.values[_INDEX[name]]

    @property
    def age(self) -> tuple[str, str]:
        """By this, the newest run is the last one."""
        return self["started"] or "", self.identity

    @property
    def point(self) -> tuple[Any, ...]:
        """What tells it from other runs, whatever its code."""
        point = tuple(sorted(self.parameters.items()))
        return (self.published_as, self.machine, self.file, point, self.duplicate)

    @property
    def unit(self) -> tuple[str | None, str | None]:
        """What runs share whose measurements share its effect: an allocation, and a node of it."""
        return (self["allocation"], self["node"])

    def place(self, path: str) -> str:
        """Where its artifact is in the branch."""
        return f"{self.published_as}/{self.artifacts[path][0]}"

    @classmethod
    def of(cls, record: Mapping[str, Any], identity: str, published_as: str = "") -> RecordedRun:
        """Of a record in `results/`, the traits of the code are left out: they are of one code.

        Raises DamagedFileError for a record that lacks what tells which run it is of.
        """
        try:
            version, duplicate = record["version"], record["duplicate"]
            if version > RECORD_VERSION:
                raise DamagedFileError(
                    f"written by a newer snakemake_kochi (format {version}, this one reads up to "
                    f"{RECORD_VERSION}; install a newer snakemake_kochi)"
                )
            texts = (record["experiment"], record["batch"], record["machine"])
            is_text = all(isinstance(t, str) for t in (*texts, *record["parameters"].values()))
            if not is_text or type(duplicate) is not int or not 0 <= duplicate < _LARGEST:
                raise TypeError
            whole = {"outcome": "success", **record} if version < 2 else record
            # Of a hundred thousand runs most have the same texts.
            file, batch, machine = map(sys.intern, texts)
            return cls(
                published_as,
                identity,
                file,
                _name_of(file),
                batch,
                machine,
                duplicate,
                record["parameters"],
                tuple([_value(whole, kind, path) for kind, path in _ALL.values()]),
                _more(record),
                {
                    sys.intern(str(each.get("src") or STDOUT)): (
                        str(each["dest"]),
                        str(each.get("sha256") or ""),
                    )
                    for each in record.get("artifacts") or ()
                    if each.get("type") in ("stdout", "file")
                },
                record.get("output"),
                traits_of(record, published_as) if published_as else {},
            )
        except (KeyError, TypeError, AttributeError):
            raise DamagedFileError("not a record, or damaged") from None


_name_of = functools.cache(experiment_name)


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
    if kind is dict:
        return sys.intern(", ".join(_texts(value)))
    if type(value) is int and not -_LARGEST <= value < _LARGEST:
        return None
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else None


def _texts(value: Any) -> Iterator[str]:
    """All that a value is made of, in one order."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif value is not None:
        yield str(value)


def _more(record: Mapping[str, Any]) -> dict[str, str]:
    found = {
        f"commit.{each['dependency']}": sys.intern(str(source["commit"]))
        for each in record.get("recipes") or ()
        if "commit" in (source := each.get("source") or {})
    }
    facts, environment = record.get("facts") or {}, record.get("environment") or {}
    found |= {f"fact.{name}": str(fact["output"]).strip() for name, fact in facts.items()}
    return found | {f"environment.{name}": str(text) for name, text in environment.items()}


# ---- those of artifact branches


# How people name a run: what it may be called, the first ones of which are suggested.
_NAMES: Mapping[str, tuple[int, Callable[[RecordedRun], tuple[str, ...]]]] = {
    "experiment": (1, lambda run: (run.experiment, run.file)),
    "batch": (1, lambda run: (run.batch,)),
    "machine": (2, lambda run: (run.machine, run.published_as)),
}


def read_runs(
    branches: Published,
    experiment: str | None = None,
    batch: str | None = None,
    machine: str | None = None,
    failed: bool = False,
) -> tuple[list[RecordedRun], list[str]]:
    """The wanted runs, the newest last, and remarks about records that cannot be read. None: all.

    `experiment` is a name or a file, `machine` a machine or a name under which its results are
    published. With `failed`, attempts that failed are runs, too. Raises NameNotFoundError if
    records exist and none is wanted; GitError.
    """
    wanted = {"experiment": experiment, "batch": batch, "machine": machine}
    files = branches.records() + (branches.records(failed=True) if failed else [])
    name = None if experiment is None else experiment_name(experiment)
    label = None if batch is None else batch or "single"
    # Those that may be wanted, as far as the names of the records say that; else all, to tell which
    # names there are.
    some = [file for file in files if may_be_of(file.label, name, label)]
    for chosen in (some, files):
        runs, remarks = _read(branches, chosen)
        try:
            if (runs := _among(runs, wanted)) or chosen is files:
                break
        except NameNotFoundError:
            if chosen is files:
                raise
    return sorted(runs, key=lambda run: run.age), remarks


def _among(runs: Sequence[RecordedRun], wanted: Mapping[str, str | None]) -> list[RecordedRun]:
    found, of = list(runs), ""
    for what, (count, names_of) in _NAMES.items():
        if (name := wanted[what]) is None:
            continue
        known = {each for run in found for each in names_of(run)[:count]}
        found = [run for run in found if name in names_of(run)]
        if known and not found:
            said = nearest(name, known)
            raise NameNotFoundError(f"no result{of} is of {what} '{name}', {said}")
        of = f"{of or ' of'} {what} '{name}'"
    return found


# In a notebook the same records are read again and again. An object of git never changes.
_PARSED: dict[RecordFile, RecordedRun] = {}


def _read(branches: Published, files: Sequence[RecordFile]) -> tuple[list[RecordedRun], list[str]]:
    wrong: dict[str, list[RecordFile]] = defaultdict(list)
    for file, content in branches.read_records([file for file in files if file not in _PARSED]):
        try:
            if content is None:
                raise DamagedFileError("not in this clone")
            try:
                # Texts with bytes that are not UTF-8 are written as they are.
                record = json.loads(content.decode("utf-8", "surrogateescape"))
            except (ValueError, RecursionError):
                raise DamagedFileError("not a record, or damaged") from None
            _PARSED[file] = RecordedRun.of(record, file.identity, file.name)
        except DamagedFileError as error:
            wrong[error.message].append(file)
    edited = branches.edited(files)
    groups = [(f"left out: {problem}", each) for problem, each in wrong.items()]
    remarks = [
        f"{len(each)} {'record was' if len(each) == 1 else 'records were'} {what}: "
        + some(record_path(one.name, one.identity, one.failed) for one in each)
        for what, each in (*groups, ("edited after the run", edited))
        if each
    ]
    runs = ((file, _PARSED[file]) for file in files if file in _PARSED)
    return [replace(run, edited=True) if file in edited else run for file, run in runs], remarks


def some(names: Iterable[str]) -> str:
    """Some names in a sentence."""
    every = sorted(names)
    more = len(every) - _MOST_NAMED
    return ", ".join(every[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
