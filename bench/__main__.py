"""`python -m bench [NAME...] [--quick]`: measure, and print tables."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from bench import (
    batches,
    chaos,
    claims,
    commits,
    generic,
    growth,
    handover,
    idle,
    latency,
    local,
    runners,
    sizing,
    slurm,
    throughput,
)
from bench.measure import Row, Size, facts, table

# By the name on the command line: what it measures of a place on disk.
BENCHES: dict[str, Callable[[Path, Size], list[Row]]] = {
    "local": local.shell,
    "script": local.script,
    "run": local.run,
    "slurm": slurm.measure,
    "generic": generic.measure,
    "runners": runners.measure,
    "growth": growth.measure,
    "batches": batches.measure,
    "latency": latency.measure,
    "throughput": throughput.measure,
    "claims": claims.measure,
    "handover": handover.measure,
    "commits": commits.measure,
    "idle": idle.measure,
    "chaos": chaos.measure,
    "sizing": sizing.measure,
}


@click.command(help=f"Measure all, or those named: {', '.join(BENCHES)}.")
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(BENCHES)))
@click.option("--quick", is_flag=True, help="Tiny sizes: only to see that it works.")
@click.option(
    "--jobs",
    multiple=True,
    metavar="N",
    type=click.IntRange(min=2),
    help="How many jobs, tickets or results. For those that compare several numbers (slurm, "
    "growth) it may be given several times.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(min=1),
    help="How often what is compared is measured, in turns.",
)
@click.option(
    "--cores",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many jobs run at a time. Default: as many as there are processors.",
)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure on the filesystem of this directory. Default: that of temporary files.",
)
@click.option(
    "--write",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what is printed there, too, as Markdown, after each measurement.",
)
def main(
    names: tuple[str, ...],
    quick: bool,
    jobs: tuple[int, ...],
    rounds: int | None,
    cores: int | None,
    directory: Path | None,
    write: Path | None,
) -> None:
    size = Size(quick, jobs, rounds, cores)
    with tempfile.TemporaryDirectory(prefix="kochi-bench-", dir=directory) as made:
        text = facts(Path(made))
        click.echo(text)
        for name in names or BENCHES:
            place = Path(made, name)
            place.mkdir(mode=0o700)
            click.echo(f"\n{name}\n")
            shown = table(BENCHES[name](place, size))
            click.echo(shown)
            text += f"\n\n### `{name}`\n\n{_description(name)}\n\n{shown}"
            if write is not None:
                write.write_text(f"{text}\n", "utf-8")


def _description(name: str) -> str:
    """What the measurement says of itself; where it says nothing, its module does."""
    measure = BENCHES[name]
    module = inspect.getmodule(measure)
    said = [
        inspect.getdoc(module) if measure.__name__ == "measure" else "",
        inspect.getdoc(measure),
    ]
    return " ".join(" ".join(part.split("\n\n")[0] for part in said if part).split())


if __name__ == "__main__":
    main(prog_name="python -m bench")
