"""`python -m bench [NAME...] [--quick]`: run benchmarks and print tables."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from bench import (
    batches,
    chaos,
    cleaning,
    commits,
    farm,
    filesystems,
    generic,
    growth,
    history,
    local,
    metadata,
    remote,
    runners,
    site,
    sizing,
    slurm,
    statistics,
    tables,
    tickets,
)
from bench.measure import Row, Size, facts, table

# The benchmarks by their names on the command line. Each gets an empty directory.
BENCHES: dict[str, Callable[[Path, Size], list[Row]]] = {
    "local": local.shell,
    "script": local.script,
    "run": local.run,
    "slurm": slurm.measure,
    "generic": generic.measure,
    "runners": runners.measure,
    "growth": growth.measure,
    "batches": batches.measure,
    "farm": farm.measure,
    "latency": tickets.latency,
    "throughput": tickets.throughput,
    "claims": tickets.claims,
    "commits": commits.measure,
    "chaos": chaos.measure,
    "nodes": chaos.measure_nodes,
    "filesystems": filesystems.measure,
    "sizing": sizing.measure,
    "statistics": statistics.measure,
    "site": site.measure,
    "tables": tables.measure,
    "cleaning": cleaning.measure,
    "history": history.measure,
    "remote": remote.measure,
    "slow-queue": tickets.slow_queue,
    "slow-runs": metadata.slow_runs,
    "metadata": metadata.measure,
    "waiting": metadata.waiting,
}


@click.command(help=f"Run all benchmarks, or only the named ones: {', '.join(BENCHES)}.")
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(BENCHES)))
@click.option(
    "--quick", is_flag=True, help="Use tiny sizes, only to test that the benchmarks work."
)
@click.option(
    "--jobs",
    multiple=True,
    metavar="N",
    type=click.IntRange(min=2),
    help="The number of jobs, tickets, points or results. Benchmarks that compare several numbers "
    "(slurm, growth, batches) accept the option several times.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many times to measure each side of a comparison. The sides alternate.",
)
@click.option(
    "--cores",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many jobs run at a time. Default: the number of processors.",
)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure on the filesystem of this directory. Default: the filesystem of temporary files.",
)
@click.option(
    "--write",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the tables to this file, as Markdown, after each benchmark.",
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
            own = Path(made, name)
            own.mkdir(mode=0o700)
            click.echo(f"\n{name}\n")
            shown = table(BENCHES[name](own, size))
            click.echo(shown)
            text += f"\n\n### `{name}`\n\n{_description(name)}\n\n{shown}"
            if write is not None:
                write.write_text(f"{text}\n", "utf-8")


def _description(name: str) -> str:
    """The first paragraph of the docstring of the benchmark, after that of a module of its own."""
    measure = BENCHES[name]
    module = inspect.getmodule(measure)
    said = [
        inspect.getdoc(module) if measure.__name__ == "measure" else "",
        inspect.getdoc(measure),
    ]
    return " ".join(" ".join(part.split("\n\n")[0] for part in said if part).split())


if __name__ == "__main__":
    main(prog_name="python -m bench")
