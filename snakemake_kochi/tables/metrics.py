"""What metrics find in the outputs of runs, whether these are files or in artifact branches."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pandas

from snakemake_kochi.artifacts.reading import Published
from snakemake_kochi.errors import ConfigError, nearest, shortened
from snakemake_kochi.files import answered
from snakemake_kochi.phases.outputs import own_output_in
from snakemake_kochi.project.plots import FileMetric, Metric
from snakemake_kochi.tables.records import STDOUT, RecordedRun, some

# A metric, as what reads a text, or the texts of samples, from the content of an artifact.
Read = Callable[[RecordedRun, bytes], "str | list[str]"]
# The metrics of a run: of each the path of the artifact in the workspace, and what reads it.
Metrics = Mapping[str, tuple[str, Read]]
# Artifacts of runs. Of those that are wanted, by the number of their run and their path in the
# workspace, each that is there: also where it is, for people, and its content.
Outputs = Callable[
    [Sequence[RecordedRun], Iterable[tuple[int, str]]], Iterator[tuple[int, str, str, bytes]]
]
_SHOWN = 3
_LONGEST = 60  # characters of a text in a remark


class AbsentError(Exception):
    """Why a metric finds nothing in an artifact; without a text: an expression does not match."""


def readers(metrics: Mapping[str, Metric]) -> Metrics:
    """Raises ConfigError for what is no regular expression with one group."""
    found: dict[str, tuple[str, Read]] = {}
    for name, metric in metrics.items():
        if isinstance(metric, FileMetric):
            read = partial(_read_json if metric.kind == "json" else _read_csv, metric)
            found[name] = (metric.file, read)
            continue
        try:
            pattern = re.compile(metric, re.MULTILINE)
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
        found[name] = (STDOUT, partial(_read_output, pattern))
    return found


def _read_output(pattern: re.Pattern[str], run: RecordedRun, content: bytes) -> str:
    try:
        texts = pattern.findall(own_output_in({"output": run.own}, content))
    except (KeyError, TypeError):
        texts = []  # the record was edited
    if not texts:
        raise AbsentError
    return str(texts[-1])


def _read_json(metric: FileMetric, run: RecordedRun, content: bytes) -> str | list[str]:
    """The number or text at a path, or a list of numbers; numbers as they are written."""
    read: Any = {"parse_float": _Number, "parse_int": _Number, "parse_constant": _Number}
    at: Any = json.loads(content, **read)
    above = ""
    for step in metric.steps:
        where = f"at {above}" if above else "at its top"
        if isinstance(step, int):
            if not isinstance(at, list):
                raise AbsentError(f"{where} is no list")
            if step >= len(at):
                raise AbsentError(f"the list {where} has {len(at)} entries")
        elif not isinstance(at, dict):
            raise AbsentError(f"{where} is no mapping")
        elif step not in at:
            raise AbsentError(f"there is no '{step}' {where}, {nearest(step, at)}")
        at = at[step]
        above += f"[{step}]" if isinstance(step, int) else f"{'.' if above else ''}{step}"
    if isinstance(at, list) and any(isinstance(each, _Number) for each in at):
        return [each if isinstance(each, str) else json.dumps(each) for each in at]
    if not isinstance(at, str):
        shown = shortened(json.dumps(at, default=str), _LONGEST)
        raise AbsentError(f"a number or a list of numbers was expected, not {shown}")
    return at


class _Number(str):
    """A number as it is written in JSON."""


def _read_csv(metric: FileMetric, run: RecordedRun, content: bytes) -> str | list[str]:
    """The cells of a column that are not empty."""
    text = content.decode("utf-8-sig")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    rows = csv.reader(StringIO(text), delimiter=delimiter, skipinitialspace=True)
    names = [name.strip() for name in next(rows, ())]
    if metric.place not in names:
        raise AbsentError(f"there is no column '{metric.place}', {nearest(metric.place, names)}")
    index = names.index(metric.place)
    cells = [row[index].strip() for row in rows if len(row) > index and row[index].strip()]
    if not cells:
        raise AbsentError(f"column '{metric.place}' has no values")
    return cells if len(cells) > 1 else cells[0]


# ---- where the outputs are


def in_files(files: Sequence[Mapping[str, Path]]) -> Outputs:
    """Artifacts as files, those of each run by their destination."""

    def read(
        runs: Sequence[RecordedRun], wanted: Iterable[tuple[int, str]]
    ) -> Iterator[tuple[int, str, str, bytes]]:
        for number, path in wanted:
            if (file := files[number].get(runs[number].artifacts[path][0])) is not None:
                yield number, path, str(file), answered(file.read_bytes)

    return read


def in_branches(branches: Published) -> Outputs:
    """Artifacts as runs wrote them. One that a later run replaced is looked up in the history."""

    def read(
        runs: Sequence[RecordedRun], wanted: Iterable[tuple[int, str]]
    ) -> Iterator[tuple[int, str, str, bytes]]:
        left: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for number, path in wanted:
            left[runs[number].place(path)].append((number, path))
        for look in (branches.read_results, branches.read_history):
            for name, content in look(list(left)) if left else ():
                digest = hashlib.sha256(content).hexdigest()
                for number, path in left.pop(name, ()):
                    if runs[number].artifacts[path][1] == digest:
                        yield number, path, name, content
                    else:
                        left[name].append((number, path))

    return read


# ---- the values


@dataclass(frozen=True)
class Measured:
    """What the metrics of some runs found. `columns`: by metric a value per run; `counts`: how many
    samples it is the median of, where runs have several. `absent`: by metric the runs, by number,
    in which it found nothing, and why. `remarks`: what is lost."""

    columns: Mapping[str, pandas.Series[Any]]
    counts: Mapping[str, pandas.Series[Any]]
    absent: Mapping[str, Mapping[int, str]]
    remarks: Sequence[str]


def measure(runs: Sequence[RecordedRun], metrics: Sequence[Metrics], outputs: Outputs) -> Measured:
    """Read the metrics of each run from its artifacts.

    The value of a list of samples is their median. If at least half of the texts of a metric are
    numbers, its column is numeric, and each other text is a missing value with a remark: one
    misprint must not hide all other measurements. Else the texts stay. An artifact that is not
    there is remarked.
    """
    # Runs of one batch share their metrics.
    every = {name: () for own in {id(m): m for m in metrics}.values() for name in own}
    found: dict[str, list[Any]] = {name: [None] * len(runs) for name in every}
    files: dict[str, dict[int, str]] = {name: {} for name in every}
    absent: dict[str, dict[int, str]] = {name: {} for name in every}
    wanted: dict[tuple[int, str], list[str]] = defaultdict(list)
    for number, run in enumerate(runs):
        for name, (path, _) in metrics[number].items():
            if path in run.artifacts:
                wanted[number, path].append(name)
            else:
                absent[name][number] = path and f"no artifact of the run keeps '{path}'"
    for number, path, file, content in outputs(runs, sorted(wanted)):
        for name in wanted.pop((number, path), ()):
            files[name][number] = file
            try:
                found[name][number] = metrics[number][name][1](runs[number], content)
            except AbsentError as error:
                absent[name][number] = str(error)
            except (ValueError, RecursionError, csv.Error) as error:
                absent[name][number] = f"it cannot be read: {error}"
    remarks = []
    if wanted:
        numbers = {number for number, _ in wanted}
        lost = f"outputs of {len(numbers)} runs are" if len(numbers) > 1 else "output of a run is"
        remarks.append(
            f"the {lost} not in this clone, so their metrics are missing: "
            f"{some({runs[number].place(path) for number, path in wanted})}. If they are large "
            "files, type: kochi artifact fetch --large"
        )
        for (number, _), names in wanted.items():
            for name in names:
                absent[name][number] = ""
    columns, counts = {}, {}
    for name, values in found.items():
        if any(isinstance(each, list) for each in values):
            sizes = [len(v) if isinstance(v, list) else None if v is None else 1 for v in values]
            counts[name] = pandas.Series(sizes, dtype="Int64")
        columns[name], said = _as_numbers(name, values, files[name])
        remarks += said
    return Measured(columns, counts, {name: own for name, own in absent.items() if own}, remarks)


def _as_numbers(
    name: str, values: Sequence[Any], files: Mapping[int, str]
) -> tuple[pandas.Series[Any], list[str]]:
    texts: pandas.Series[Any] = pandas.Series(values, dtype=object)
    lost: list[tuple[int, str]] = []
    for number, samples in enumerate(values):
        if isinstance(samples, list):
            read = pandas.to_numeric(pandas.Series(samples, dtype=object), errors="coerce")
            lost += [(number, samples[index]) for index in read.index[read.isna()]]
            texts[number] = read.median() if read.notna().any() else None
    found = pandas.to_numeric(texts, errors="coerce")
    is_lost = found.isna() & texts.notna() & (texts.astype(str).str.lower() != "nan")
    if 2 * int(is_lost.sum()) > texts.notna().sum():
        return texts, []
    lost += [(number, texts[number]) for number in texts.index[is_lost]]
    if not lost:
        return found, []
    shown = [f"{text[:_LONGEST]!r} in {files[number]}" for number, text in lost[:_SHOWN]]
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    are = "is no number, so its value is"
    are = "are no numbers, so their values are" if len(lost) > 1 else are
    return found, [f"metric '{name}': {', '.join(shown)}{more} {are} missing"]
