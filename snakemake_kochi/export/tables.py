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
from snakemake_kochi.project.values import encode_component
from snakemake_kochi.tables.measurements import as_markdown, draw, read_runs, summarise

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
    outputs: Mapping[Run, Path | None],
    records: Mapping[Run, Path],
) -> tuple[list[Table], list[str]]:
    """Write the tables and plots of all batches; return also what went wrong, a sentence each.

    They have the newest run of each point, as the project's own do. `outputs` and `records`: where
    the output and the record of each run were written. Raises OSError.
    """
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in publication.runs:
        # Of a rerun, the table has the run that was repeated.
        if run.batch and run.has_succeeded and not run.is_rerun:
            groups[run.name, run.experiment, run.batch].append(run)
    tables, problems = [], []
    for (name, experiment, batch), found in groups.items():
        newest = [run for run in found if run not in publication.selection.replaced]
        runs = sorted(newest, key=_by_parameters)
        metrics, remark = _metrics(publication, crate, runs)
        known = {run: output for run in runs if (output := outputs[run]) is not None}
        rows = [run for run in runs if run in known] if metrics else runs
        remarks = [remark] if remark else []
        if missing := len(runs) - len(rows):
            are = "run without its output is" if missing == 1 else "runs without their output are"
            remarks.append(f"{missing} {are} not in the table")
        if older := len(found) - len(newest):
            are = "older run is" if older == 1 else "older runs are"
            remarks.append(f"{older} {are} not in the table, because newer ones replaced them")
        remark = "; ".join(remarks)
        stem = f"tables/{name}/{encode_component(experiment)}/{encode_component(batch)}"
        made = tuple(f"{stem}{suffix}" for suffix in (".csv", ".md", ".png"))
        try:
            if not rows:
                raise ValueError("no output of its runs is here")
            captured = [known[run] for run in rows] if metrics else []
            frame, _ = read_runs([records[run] for run in rows], captured, metrics)
            varying = [each for each in rows[0].record["parameters"] if frame[each].nunique() > 1]
            summary = as_markdown(summarise(frame, varying))
            table = Table(name, experiment, batch, tuple(rows), made, summary, remark)
            table_file, markdown, plot = (crate / path for path in made)
            table_file.parent.mkdir(parents=True, exist_ok=True)
            frame.to_csv(table_file, index=False)
            text = f"# {table.title}\n\n{summary}\n"
            markdown.write_bytes(text.encode("utf-8", "surrogateescape"))
            draw(frame, varying, table.title, plot)
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


def _metrics(
    publication: Publication, crate: Path, runs: Sequence[Run]
) -> tuple[Mapping[str, str], str]:
    """The metrics as the newest run's experiment defines them, and why there are none."""
    newest = max(
        (run for run in runs if publication.workflow_file(run)),
        key=lambda run: str(run.record["started"]),
        default=None,
    )
    if newest is None:
        return {}, "it has no metrics, because the code of these runs is not in this clone"
    try:
        text = (crate / publication.workflow_file(newest)).read_text(encoding="utf-8")
        return load_experiment(newest.experiment, text, None).batch(newest.batch).metrics, ""
    except (KochiError, OSError, ValueError):
        return {}, f"it has no metrics, because {newest.experiment} in the code is no experiment"
