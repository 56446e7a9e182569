"""The program that rules run for a batch: `python -m snakemake_kochi.tables EXPERIMENT BATCH ...`.

$KOCHI_FREEZE names the freeze of the run, which lists the runs of the batch: there may be too many
for arguments.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.library.files import BatchFiles
from snakemake_kochi.phases.freeze import load_freeze
from snakemake_kochi.tables.collect import LeftOut, Run, Target, collect


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect one batch; exit status 1 and a message when that fails."""
    options = _parser().parse_args(arguments)
    try:
        _collect(options)
    except (KochiError, OSError) as error:
        print(f"kochi: {error}", file=sys.stderr)
        return 1
    return 0


def _collect(options: argparse.Namespace) -> None:
    freeze = load_freeze(Path(os.environ["KOCHI_FREEZE"]))
    experiment = freeze.experiment(options.experiment)
    grid = experiment.grid(options.batch, freeze.machine_name)
    files = BatchFiles.of(experiment.name, grid)
    # In a module with a `prefix:` all files are below another directory.
    is_below = options.table.endswith(f"/{files.table}")
    top = options.table.removesuffix(files.table) if is_below else ""
    captured = files.captured or [""] * len(files.places)
    runs = [
        Run(
            place.point,
            Path(top, place.record),
            Path(top, output) if output else None,
            {dest: Path(top, file) for dest, file in place.by_destination.items()},
        )
        for place, output in zip(files.places, captured, strict=True)
    ]
    figures = tuple(tuple(Path(top + each) for each in of_plot) for of_plot in files.figures)
    target = Target(Path(options.table), Path(options.markdown), figures)
    left_out = None
    if options.left_out:
        left_out = {record: LeftOut(**each) for record, each in json.load(sys.stdin).items()}
    collect(grid, experiment.file, runs, target, left_out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m snakemake_kochi.tables", description=__doc__)
    parser.add_argument("experiment", help="path of the experiment's file in the project")
    parser.add_argument("--batch", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--markdown", required=True)
    parser.add_argument(
        "--left-out",
        action="store_true",
        help="use only the runs with a result; standard input has the reasons for the others, as "
        "JSON by record",
    )
    return parser


if __name__ == "__main__":
    # What is made of thousands of records lasts until the end: a fifth of the time went into
    # searches for garbage among it.
    gc.disable()
    sys.exit(main())
