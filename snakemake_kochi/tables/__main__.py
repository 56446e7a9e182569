"""The program that rules run for a batch: `python -m snakemake_kochi.tables FILE BATCH OUTPUT`.

FILE is that of the experiment, OUTPUT the `.csv`. $KOCHI_FREEZE names the freeze of the run, which
lists the runs of the batch: there may be too many for arguments. With `--left-out`, the table has
only runs with a result; standard input has the others, JSON: by record whether they are stale. With
`--look N`, OUTPUT is the file of a look (`library/looks.py`), the N-th from 0. With `--check`, it
is JUnit XML of the results checked against `references`; the exit status is 1 if one fails.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from pathlib import Path


def main(file: str, name: str, output: str, option: str = "", number: str = "") -> int:
    """Collect one batch, look at it or check it; exit status 1 and a message when that fails."""
    # Here: an interrupt may come while they are loaded.
    from snakemake_kochi.errors import KochiError
    from snakemake_kochi.library.batch import BatchRules
    from snakemake_kochi.library.products import Products
    from snakemake_kochi.phases.freeze import load_freeze
    from snakemake_kochi.tables.collect import collect

    try:
        freeze = load_freeze(Path(os.environ["KOCHI_FREEZE"]))
        batch = BatchRules.of(Products(freeze), freeze.experiment(file), name)
        grid, files = batch.grid, batch.files
        outputs = {"--look": files.look.format(look=number), "--check": files.checks}
        ends = f"/{outputs.get(option, files.table)}"
        # In a module with a `prefix:` all files are below another directory.
        top = Path(output.removesuffix(ends[1:]) if output.endswith(ends) else "")
        if option == "--look":
            from snakemake_kochi.tables.looking import look

            look(batch, int(number), top, Path(output))
            return 0
        files = batch.files_now(top)
        runs = files.below(top)
        # That of an earlier check would stay after an error.
        (top / files.checks).unlink(missing_ok=True)
        if option == "--check":
            from snakemake_kochi.tables.check import check_results

            return int(check_results(grid, file, runs, Path(output)))
        figures = [[top / each for each in of_plot] for of_plot in files.figures]
        left_out = json.load(sys.stdin) if option == "--left-out" else None
        looked = files.looks[-1] if files.looks else None
        collect(grid, file, runs, Path(output), figures, left_out, looked)
    except (KochiError, OSError) as error:
        print(f"kochi: {error}", file=sys.stderr)
        return 1
    return 0


def _interrupted(number: int, frame: object) -> None:
    # No exception: in the middle of an import or of a figure, libraries would show or hide it.
    os.write(2, b"kochi: interrupted: the table and the figures are not complete\n")
    os._exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _interrupted)
    # What is made of thousands of records lasts until the end: a fifth of the time went into
    # searches for garbage among it.
    gc.disable()
    sys.exit(main(*sys.argv[1:]))
