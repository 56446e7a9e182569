"""`snakemake_kochi.results`: a table of all runs in the artifact branches, for pandas."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from snakemake_kochi.artifacts.reading import published
from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.project.grid import Repeat
from snakemake_kochi.snapshot import toplevel
from snakemake_kochi.tables.branch import experiment_here
from snakemake_kochi.tables.intervals import Points
from snakemake_kochi.tables.metrics import Measured, Metrics, in_branches, measure, readers
from snakemake_kochi.tables.records import VALUES, RecordedRun, read_runs, some

_BEFORE = (
    *("experiment", "batch", "rule", "name", "machine", "published_as", "duplicate", "outcome"),
)
_AFTER = (*(name for name in VALUES if name not in _BEFORE), "identity")
_FIXED = (*_BEFORE, *_AFTER)
_DTYPES = {float: "float64", int: "Int64", bool: "boolean"}
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_BOOLEANS = {"true": True, "false": False}


def results(
    directory: str | os.PathLike[str] = ".",
    *,
    experiment: str | None = None,
    batch: str | None = None,
    machine: str | None = None,
    at: str | None = None,
    failed: bool = False,
    metrics: bool | Collection[str] | Mapping[str, str] = True,
) -> pandas.DataFrame:
    """A table of runs, one row each: those with a record in the artifact branches.

    The branches are those of the git repository of `directory`, also as fetched from remotes, or
    what the commit `at` has of one of them. `experiment` (a name or a file), `batch` and `machine`
    (also the name under which its results are published) select runs.

    `failed`: also list attempts that failed. `metrics`: True reads the metrics that the experiments
    of the working tree define from the outputs of the runs, names only these, a mapping of names to
    regular expressions with one group instead of these, and False none, without reading the
    outputs.

    The columns, see docs/python.md: what the run is of, its `outcome`, the parameters, typed, the
    metrics, floats if at least half are numbers, with the interval of the run's point if it was
    repeated (`NAME_lower`, `NAME_upper`, `NAME_n`, `NAME_units`), and what the record says of the
    run (VALUES); `commit.DEPENDENCY`, `fact.NAME`, `environment.NAME`, and `text.NAME`, the exact
    text of parameter NAME. A parameter or metric whose name another column has is `param.NAME` or
    `metric.NAME`.

    Records that cannot be read are named in a warning. Raises KochiError: GitError without a
    repository, without an artifact branch and for an unknown commit; NameNotFoundError for an
    unknown experiment, batch, machine or metric; ConfigError for a wrong expression.
    """
    place = Path(directory)
    if not place.is_dir():
        raise NameNotFoundError(f"{place}: there is no such directory")
    repository = toplevel(place)
    branches = published(repository, at)
    runs, remarks = read_runs(branches, experiment, batch, machine, failed)
    if at is not None and not runs and not remarks:
        raise NameNotFoundError(
            f"commit '{at}' has no records of results",
            "A commit of an artifact branch was expected. To list them, type: kochi artifact log",
        )
    repeats: dict[tuple[str, str], Repeat] = {}
    chosen = _chosen(repository, runs, metrics, remarks, repeats)
    measured = measure(runs, chosen, in_branches(branches))
    for remark in (*remarks, *measured.remarks):
        warnings.warn(remark, stacklevel=2)
    return _frame(runs, measured, repeats)


def _chosen(
    repository: Path,
    runs: Sequence[RecordedRun],
    metrics: bool | Collection[str] | Mapping[str, str],
    remarks: list[str],
    repeats: dict[tuple[str, str], Repeat],
) -> list[Metrics]:
    """The metrics of each run; notes which batches have `repeat`."""
    is_asked = metrics is not False and not isinstance(metrics, Mapping)
    defined = _defined(repository, runs, remarks if is_asked else [], repeats)
    if isinstance(metrics, Mapping):
        return [readers(metrics)] * len(runs)
    if metrics is False or not runs:
        return [{}] * len(runs)
    if metrics is not True:
        names = [metrics] if isinstance(metrics, str) else list(metrics)
        known = {name for each in defined.values() for name in each}
        if unknown := [name for name in names if name not in known]:
            raise NameNotFoundError(
                f"no experiment has a metric '{unknown[0]}', {nearest(unknown[0], known)}",
                "To define it here, type: results(..., metrics={'NAME': r'REGULAR EXPRESSION'})",
            )
        defined = {key: {n: each[n] for n in names if n in each} for key, each in defined.items()}
    return [defined.get((run.file, run.batch), {}) for run in runs]


def _defined(
    repository: Path,
    runs: Sequence[RecordedRun],
    remarks: list[str],
    repeats: dict[tuple[str, str], Repeat],
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
        for key in (each for each in batches if each[0] == file):
            batch = experiment.batches.get(key[1])
            found[key] = readers((batch or experiment).metrics)
            if batch is not None and batch.repeat is not None:
                repeats[key] = batch.repeat
    if missing:
        remarks.append(
            f"not in the working tree, so no metrics are known: {some(missing)}. To read some all "
            "the same: results(..., metrics={'NAME': r'REGULAR EXPRESSION'})"
        )
    return found


def _frame(
    runs: Sequence[RecordedRun], measured: Measured, repeats: Mapping[tuple[str, str], Repeat]
) -> pandas.DataFrame:
    names = list(dict.fromkeys(name for run in runs for name in run.parameters))
    texts = {name: [run.parameters.get(name) for run in runs] for name in names}
    fixed: dict[str, Any] = {}
    for name in _FIXED:
        values = [run[name] if name in VALUES else getattr(run, name) for run in runs]
        dtype = _DTYPES.get(VALUES[name][0] if name in VALUES else type(None))
        fixed[name] = pandas.Series(values, dtype=dtype) if dtype else _texts(values)
    fixed["duplicate"] = pandas.array([run.duplicate for run in runs], dtype="Int64")
    fixed["started"] = pandas.to_datetime(
        fixed["started"].astype(object), format="ISO8601", errors="coerce", utc=True
    )
    more = dict.fromkeys(name for run in runs for name in run.more)
    columns = {name: fixed[name] for name in _BEFORE}
    taken = {*_FIXED, *(f"text.{name}" for name in names), *more}
    metrics = measured.columns
    for name, column in texts.items():
        columns[_free("param", name, taken | metrics.keys(), columns)] = typed(column)
    for name, found in metrics.items():
        is_number = pandas.api.types.is_numeric_dtype(found) or bool(found.isna().all())
        free = _free("metric", name, taken | texts.keys(), columns)
        columns[free] = found.astype("float64") if is_number else found
        taken_now = taken | texts.keys() | metrics.keys()
        if name in measured.counts:
            columns[_free("metric", f"{name}_samples", taken_now, columns)] = measured.counts[name]
        if is_number:
            columns |= _intervals(runs, free, columns[free], repeats, {*taken_now, *columns})
    for name in _AFTER:
        columns[name] = fixed[name]
        if name == "seconds":
            taken_now = {*taken, *texts, *metrics, *columns}
            columns |= _intervals(runs, name, fixed[name], repeats, taken_now)
    columns |= {name: _texts([run.more.get(name) for run in runs]) for name in more}
    columns |= {f"text.{name}": _texts(column) for name, column in texts.items()}
    return pandas.DataFrame(columns)


def _intervals(
    runs: Sequence[RecordedRun],
    name: str,
    column: pandas.Series[float],
    repeats: Mapping[tuple[str, str], Repeat],
    taken: Collection[str],
) -> dict[str, Any]:
    """The columns of the intervals of the runs' points, of each batch as its table has them, if a
    point ran several times."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for row, run in enumerate(runs):
        key = (run.published_as, run.machine, run["outcome"] or "", run.file, run.batch)
        groups.setdefault(key, []).append(row)
    parts = []
    for (*_, file, batch), rows in groups.items():
        own = [runs[row] for row in rows]
        points = Points.of(map(_point, own), own, repeats.get((file, batch)))
        if points.are_repeated:
            parts.append(points.measured(column.iloc[rows]).columns().set_axis(rows))
    if not parts:
        return {}
    whole = pandas.concat(parts).reindex(range(len(runs)))
    found = whole.astype({"n": "Int64", "units": "Int64"})
    return {_free("metric", f"{name}_{kind}", taken, ()): own.array for kind, own in found.items()}


def _point(run: RecordedRun) -> tuple[Hashable, ...]:
    """What runs of a batch share that differ in their duplicate only: also the code."""
    return (*sorted(run.code.items()), *sorted(run.parameters.items()))


def _texts(values: Sequence[str | None]) -> pandas.Series[Any]:
    try:
        return pandas.Series(list(values))
    except UnicodeEncodeError:
        # pyarrow, which pandas uses where it is installed, refuses what is not UTF-8.
        return pandas.Series(list(values), dtype=object)


def _free(kind: str, name: str, taken: Collection[str], columns: Collection[str]) -> str:
    """The name of a column that neither `taken` nor `columns` has."""
    free = name
    while free in taken or free in columns:
        free = f"{kind}.{free}"
    return free


def typed(texts: Sequence[str | None]) -> Any:
    """A column of the values that texts stand for, if all of them stand for the same type.

    Integers of up to 18 digits, decimal numbers, or `true` and `false`; otherwise the texts. An
    empty text is a missing number.
    """
    values = set(texts) - {None, ""}
    if values and values <= _BOOLEANS.keys():
        return pandas.array([_BOOLEANS.get(text or "") for text in texts], dtype="boolean")
    if values and all(_WHOLE.fullmatch(text) for text in values if text):
        return pandas.array([int(text) if text else None for text in texts], dtype="Int64")
    if values and all(_NUMBER.fullmatch(text) for text in values if text):
        return [float(text) if text else None for text in texts]
    return _texts(texts)
