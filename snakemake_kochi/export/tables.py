"""The table and the plot of each batch in a crate, made from the records and outputs in it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import KochiError
from snakemake_kochi.export.publication import Publication, batch_title
from snakemake_kochi.export.selection import Run
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Batch
from snakemake_kochi.project.plots import stems
from snakemake_kochi.project.values import encode_component
from snakemake_kochi.tables.codes import codes_of
from snakemake_kochi.tables.metrics import in_files, readers
from snakemake_kochi.tables.records import RecordedRun
from snakemake_kochi.tables.report import report_of

_FIGURES = (".png", ".svg")
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")


@dataclass(frozen=True)
class Table:
    """The table of a batch of one name: `files` are paths in the crate, `runs` the rows.

    `summary` is its Markdown; `remark` says what it lacks.
    """

    name: str
    experiment: str
    batch: str
    runs: tuple[Run, ...]
    files: tuple[str, ...]
    summary: str
    remark: str = ""

    @property
    def title(self) -> str:
        return batch_title(self.experiment, self.batch)


def write_tables(
    publication: Publication,
    crate: Path,
    outputs: Mapping[Run, Mapping[str, Path]],
) -> tuple[list[Table], list[str]]:
    """Write the tables and plots of all batches; return also what went wrong, a sentence each.

    They have the newest run of each point, of the code of the newest run, as `kochi table` does.
    `outputs`: where the artifacts of each run were written, by destination. Raises OSError.
    """
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in publication.runs:
        # Of a rerun, the table has the run that was repeated.
        if run.batch and run.has_succeeded and not run.is_rerun:
            groups[run.name, run.experiment, run.batch].append(run)
    tables, problems = [], []
    for (name, experiment, batch), found in groups.items():
        newest = [run for run in found if run not in publication.selection.replaced]
        recorded = {run: RecordedRun.of(run.record, run.identity, run.name) for run in newest}
        codes, _ = codes_of(list(recorded.values()))
        newest = [run for run, code in zip(newest, codes, strict=True) if code == 0]
        runs = sorted(newest, key=_by_parameters)
        shown, remark = _shown(publication, crate, runs)
        rows = runs
        for path, _ in readers(shown.metrics).values() if shown is not None else ():
            rows = [r for r in rows if recorded[r].artifacts.get(path, ("",))[0] in outputs[r]]
        remark = _remark(remark, len(runs) - len(rows), len(found) - len(newest))
        top = f"tables/{name}/{encode_component(experiment)}"
        made = [f"{top}/{encode_component(batch)}{suffix}" for suffix in (".csv", ".md")]
        try:
            if not rows:
                raise ValueError("no output of its runs is here")
            some = [recorded[run] for run in rows]
            report = report_of(some, in_files([outputs[run] for run in rows]), shown)
            figures = [f"{top}/{stem}" for stem in stems(batch, report.plots)]
            made += [f"{stem}{suffix}" for stem in figures for suffix in _FIGURES]
            remark = "; ".join(filter(None, (remark, *report.lost)))
            table = Table(name, experiment, batch, tuple(rows), tuple(made), report.summary, remark)
            table_file, markdown = (crate / path for path in made[:2])
            table_file.parent.mkdir(parents=True, exist_ok=True)
            table_file.write_bytes(report.csv())
            markdown.write_bytes(report.markdown(with_remarks=False))
            report.draw([[crate / f"{stem}{suffix}" for suffix in _FIGURES] for stem in figures])
        except (KochiError, KeyError, TypeError, ValueError) as error:
            problems.append(f"{experiment}: batch {batch} of {name} has no table: {error}")
            for path in made:
                (crate / path).unlink(missing_ok=True)
            continue
        tables.append(table)
    return tables, problems


def _by_parameters(run: Run) -> tuple[Any, ...]:
    values = [*run.record["parameters"].values(), str(run.record["duplicate"])]
    return tuple((0, float(v), v) if _NUMBER.fullmatch(v) else (1, 0.0, v) for v in values)


def _remark(first: str, missing: int, older: int) -> str:
    """What a table lacks: `missing` runs without their output, and `older` ones."""
    remarks = [first] if first else []
    if missing:
        are = "run without its output is" if missing == 1 else "runs without their output are"
        remarks.append(f"{missing} {are} not in the table")
    if older:
        are = "older run is" if older == 1 else "older runs are"
        remarks.append(f"{older} {are} not in the table, replaced by newer ones or of other code")
    return "; ".join(remarks)


def _shown(publication: Publication, crate: Path, runs: Sequence[Run]) -> tuple[Batch | None, str]:
    """The batch as the newest run's experiment has it, or why there are no metrics."""
    newest = max(
        (run for run in runs if publication.workflow_file(run)),
        key=lambda run: str(run.record["started"]),
        default=None,
    )
    if newest is None:
        return None, "it has no metrics, because the code of these runs is not in this clone"
    try:
        text = (crate / publication.workflow_file(newest)).read_text(encoding="utf-8")
        return load_experiment(newest.experiment, text, None).batch(newest.batch), ""
    except (KochiError, OSError, ValueError):
        why = f"it has no metrics, because {newest.experiment} in the code is no experiment"
        return None, why
