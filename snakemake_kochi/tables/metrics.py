"""What metrics find in the outputs of runs, whether these are files or in artifact branches."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas

from snakemake_kochi.artifacts.reading import Published
from snakemake_kochi.errors import ConfigError
from snakemake_kochi.files import answered
from snakemake_kochi.phases.outputs import own_output_in
from snakemake_kochi.tables.records import STDOUT, RecordedRun, some

Metrics = Mapping[str, "re.Pattern[str]"]
_SHOWN = 3


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


# ---- where the outputs are


class Outputs(Protocol):
    """The artifacts of some runs, each by the number of its run and its path in the workspace."""

    def name(self, number: int, path: str) -> str:
        """Where it is, for people."""

    def read(self, wanted: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, bytes]]:
        """Those of the wanted ones that are there, in any order."""


@dataclass(frozen=True)
class Files:
    """Artifacts as files, those of each run by their destination."""

    runs: Sequence[RecordedRun]
    files: Sequence[Mapping[str, Path]]

    def name(self, number: int, path: str) -> str:
        return str(self._file(number, path))

    def read(self, wanted: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, bytes]]:
        for number, path in wanted:
            if (file := self._file(number, path)) is not None:
                yield number, path, answered(file.read_bytes)

    def _file(self, number: int, path: str) -> Path | None:
        return self.files[number].get(self.runs[number].artifacts[path][0])


@dataclass(frozen=True)
class InBranches:
    """Artifacts as runs wrote them. One that a later run replaced is looked up in the history."""

    runs: Sequence[RecordedRun]
    branches: Published

    def name(self, number: int, path: str) -> str:
        run = self.runs[number]
        return f"{run.published_as}/{run.artifacts[path][0]}"

    def read(self, wanted: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, bytes]]:
        left: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for each in wanted:
            left[self.name(*each)].append(each)
        for read in (self.branches.read_results, self.branches.read_history):
            for name, content in read(list(left)) if left else ():
                digest = hashlib.sha256(content).hexdigest()
                for number, path in left.pop(name, ()):
                    if self.runs[number].artifacts[path][1] == digest:
                        yield number, path, content
                    else:
                        left[name].append((number, path))


# ---- the values


@dataclass(frozen=True)
class Measured:
    """What the metrics of some runs found. `columns`: by metric a value per run. `absent`: by
    metric the runs, by number, in which it found nothing. `remarks`: what is lost."""

    columns: Mapping[str, pandas.Series[Any]]
    absent: Mapping[str, Sequence[int]]
    remarks: Sequence[str]


def measure(runs: Sequence[RecordedRun], metrics: Sequence[Metrics], outputs: Outputs) -> Measured:
    """Read the metrics of each run from its output, in which they match last.

    If at least half of the texts of a metric are numbers, its column is numeric, and each other
    text is a missing value with a remark: one misprint must not hide all other measurements. Else
    the texts stay. An output that is not there is remarked.
    """
    found: list[dict[str, str]] = [{} for _ in runs]
    wanted = {(n, STDOUT) for n, run in enumerate(runs) if metrics[n] and STDOUT in run.artifacts}
    for number, path, content in outputs.read(sorted(wanted)):
        wanted.discard((number, path))
        found[number] |= _matches(runs[number], content, metrics[number])
    remarks = []
    if wanted:
        lost = f"outputs of {len(wanted)} runs are" if len(wanted) > 1 else "output of a run is"
        remarks.append(
            f"the {lost} not in this clone, so their metrics are missing: "
            f"{some({outputs.name(*each) for each in wanted})}. If they are large files, type: "
            "kochi artifact fetch --large"
        )
    columns, absent = {}, {}
    # Runs of one batch share their metrics.
    for name in dict.fromkeys(name for own in {id(m): m for m in metrics}.values() for name in own):
        absent[name] = [n for n, own in enumerate(metrics) if name in own and name not in found[n]]
        texts = pandas.Series([each.get(name) for each in found], dtype=object)
        columns[name], said = _as_numbers(name, texts, lambda n: outputs.name(n, STDOUT))
        remarks += said
    return Measured(columns, absent, remarks)


def _matches(run: RecordedRun, content: bytes, metrics: Metrics) -> dict[str, str]:
    try:
        text = own_output_in({"output": run.own}, content)
    except (KeyError, TypeError):
        return {}
    found = ((name, pattern.findall(text)) for name, pattern in metrics.items())
    return {name: texts[-1] for name, texts in found if texts}


def _as_numbers(
    name: str, texts: pandas.Series[Any], file: Callable[[int], str]
) -> tuple[pandas.Series[Any], list[str]]:
    found = pandas.to_numeric(texts, errors="coerce")
    lost = found.isna() & texts.notna() & (texts.astype(str).str.lower() != "nan")
    count = int(lost.sum())
    if 2 * count > texts.notna().sum():
        return texts, []
    if not count:
        return found, []
    shown = [f"{texts[index][:60]!r} in {file(index)}" for index in texts.index[lost][:_SHOWN]]
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    are = "is no number, so its value is" if count == 1 else "are no numbers, so their values are"
    return found, [f"metric '{name}': {', '.join(shown)}{more} {are} missing"]
