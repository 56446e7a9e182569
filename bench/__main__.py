"""`python -m bench [NAME...] [--quick]`: measure, and print tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from bench import chaos, claims, handover, idle, latency, throughput
from bench.measure import Row, facts, table

# By the name on the command line: what it measures of a place on disk, small or whole.
BENCHES: dict[str, Callable[[Path, bool], list[Row]]] = {
    "claims": claims.measure,
    "handover": handover.measure,
    "latency": latency.measure,
    "throughput": throughput.measure,
    "idle": idle.measure,
    "chaos": chaos.measure,
}


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(BENCHES)))
@click.option("--quick", is_flag=True, help="Tiny sizes: only to see that it works.")
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure on the filesystem of this directory. Default: that of temporary files.",
)
def main(names: tuple[str, ...], quick: bool, directory: Path | None) -> None:
    """Measure all, or those named: claims, handover, latency, throughput, idle, chaos."""
    with tempfile.TemporaryDirectory(prefix="kochi-bench-", dir=directory) as made:
        click.echo(facts(Path(made)))
        for name in names or BENCHES:
            place = Path(made, name)
            place.mkdir(mode=0o700)
            click.echo(f"\n{name}\n")
            click.echo(table(BENCHES[name](place, quick)))


if __name__ == "__main__":
    main(prog_name="python -m bench")
