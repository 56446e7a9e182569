"""`kochi history`: since which version of the code is a batch faster or slower?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from snakemake_kochi.cli.compare import (
    chosen_metric,
    metric_option,
    page_option,
    plain,
    write_page,
)
from snakemake_kochi.cli.options import json_option
from snakemake_kochi.cli.output import print_json
from snakemake_kochi.cli.tables import at_option, machine_option, named_batch
from snakemake_kochi.project.values import DEFAULT_BATCH


@click.command()
@machine_option
@at_option
@metric_option
@page_option
@json_option
@click.argument("file", metavar="FILE.yaml")
@click.argument("batch", default=DEFAULT_BATCH)
def command(
    machine: str | None,
    commit: str | None,
    metric: str | None,
    output: Path | None,
    as_json: bool,
    file: str,
    batch: str,
) -> None:
    """Tell between which versions of the code a metric changed, point by point.

    The versions are those with results in the artifact branches, in the order in which they first
    ran. A change needs at least 12 versions, and 5 on both sides of it.
    """
    if as_json and output is not None:
        raise click.UsageError("only one of --output and --json is possible")
    from snakemake_kochi.statistics.changes import NEEDED
    from snakemake_kochi.tables.history import histories
    from snakemake_kochi.tables.report import markdown_table, page, sentence

    report = named_batch(file, batch, commit, machine, all_code=True)
    name = chosen_metric(report, metric)
    found = histories(report, name)
    if as_json:
        points = [plain(dataclasses.asdict(each)) for each in found]
        print_json({"remarks": list(report.remarks), "metric": name, "points": points})
        return
    rows = []
    for each in found:
        count, own = str(len(each.codes)), list(each.point.values())
        few = "" if len(each.codes) >= NEEDED else f"too few versions ({NEEDED} are needed)"
        if not each.changes:
            rows.append([*own, count, few or "no change shown", "", "", "", ""])
        for change in each.changes:
            levels = (change.before_level, change.level)
            ratio = f"{levels[1] / levels[0]:.3f}" if levels[0] else ""
            ends = (change.after, change.begins)
            rows.append([*own, count, "change", *ends, *(f"{x:.4g}" for x in levels), ratio])
    unit = report.unit(name)
    keys = list(found[0].point) if found else []
    headers = [*keys, "versions", "", "after", "since", "before", "now", "ratio"]
    rows = [row + [""] * (len(headers) - len(row)) for row in rows]
    note = (
        "Of points without a change, 2 to 9 in 100 show one. Between two versions are the commits "
        "of `git log AFTER..SINCE`, both without what follows a `+`."
    )
    title = f"{report.title}: {name}{f' ({unit})' if unit else ''} over versions of the code"
    parts = [markdown_table(headers, rows), note, *map(sentence, report.remarks)]

    def draw(file: Path) -> None:
        # Only here: a text need not wait for Matplotlib.
        from snakemake_kochi.tables.comparison_figure import draw_histories

        draw_histories(found, name, title, file)

    write_page(page(title, parts), output, draw)
