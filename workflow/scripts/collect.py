"""Collects a batch: records and captured output -> CSV, Markdown and plot."""

from pathlib import Path
from typing import Any

from snakemake_kochi.results import draw, read_runs, summarise, write_markdown

# Put there by Snakemake before this starts.
snakemake: Any = globals()["snakemake"]

runs = read_runs(
    [Path(file) for file in snakemake.input.records],
    [Path(file) for file in snakemake.input.captured],
    snakemake.params.metrics,
)
runs.to_csv(snakemake.output.table, index=False)
summary = summarise(runs, snakemake.params.varying)
write_markdown(summary, snakemake.params.title, Path(snakemake.output.markdown))
draw(runs, snakemake.params.varying, snakemake.params.title, Path(snakemake.output.plot))
