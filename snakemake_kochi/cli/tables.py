"""`kochi table` and `kochi plot`: what a batch shows, made again from an artifact branch."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snakemake_kochi.cli.options import json_option
from snakemake_kochi.cli.output import print_json, remark, say
from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.project.values import DEFAULT_BATCH

if TYPE_CHECKING:
    from snakemake_kochi.project.plots import Plot
    from snakemake_kochi.tables.report import Report

FORMATS = (".png", ".svg", ".pdf")  # of figures
_SCALE = click.Choice(["log", "linear"])

machine_option = click.option(
    *("-m", "--machine"),
    metavar="NAME",
    help="Only runs on this machine, or published under this name. By default all; several names "
    "are told apart as a parameter would be.",
)
at_option = click.option(
    "--at",
    "commit",
    metavar="COMMIT",
    help="The results in this commit of an artifact branch. By default those of all artifact "
    "branches of this clone, also fetched ones.",
)
_all_code = click.option(
    "--all-code",
    is_flag=True,
    help="Also results of other code than that of the newest run, told apart by the column "
    "code_commit as a parameter would be.",
)


@click.command()
@machine_option
@at_option
@_all_code
@click.option(
    *("-o", "--output"),
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to a file: .csv has a row for each run, .md one for each point.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, a row for each run.")
@json_option
@click.argument("file", metavar="FILE.yaml")
@click.argument("batch", default=DEFAULT_BATCH)
def table_command(
    machine: str | None,
    commit: str | None,
    all_code: bool,
    output: Path | None,
    as_csv: bool,
    as_json: bool,
    file: str,
    batch: str,
) -> None:
    """Print the table of a batch, made from an artifact branch alone: a row for each point.

    Metrics are those of FILE.yaml in the working tree; if it is not there, those of the code of the
    results. FILE.yaml may also be the name of the experiment.
    """
    if sum([as_csv, as_json, output is not None]) > 1:
        raise click.UsageError("only one of --output, --csv and --json is possible")
    if output is not None and output.suffix not in (".csv", ".md"):
        raise click.UsageError(f"{output}: a file that ends in .csv or .md was expected")
    found = named_batch(file, batch, commit, machine, all_code)
    if as_json:
        remarks = [*found.about_intervals(), *found.remarks]
        rows = found.rows.to_json(orient="records", double_precision=15)
        print_json({"remarks": remarks, "runs": json.loads(rows)})
        return
    if output is None:
        click.echo(found.csv() if as_csv else found.markdown(False), nl=False)
        for each in found.about_intervals():
            remark(f"kochi: {each}")
    else:
        write_table(found, output)
        say(f"Wrote {output}")
    say_remarks(found)


def write_table(found: Report, output: Path) -> None:
    """Write a table: as CSV, or with the remarks for people, as the file's name says."""
    content = found.csv() if output.suffix == ".csv" else found.markdown()
    with whole_file(output) as beside:
        beside.write_bytes(content)


@click.command()
@machine_option
@at_option
@_all_code
@click.option(
    *("-o", "--output"),
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A directory for PNG and SVG of each figure (by default results/plots/EXPERIMENT), or a "
    "file that ends in .png, .svg or .pdf for a single figure.",
)
@click.option("--metric", metavar="NAME", help="Only figures of this metric, or of run_seconds.")
@click.option("-x", "--x", metavar="PARAM", help="The parameter on the horizontal axis.")
@click.option("--lines", metavar="PARAM", help="The parameter with a line for each value.")
@click.option(
    "--panels",
    metavar="PARAM",
    multiple=True,
    help="A parameter with a panel for each value. May be given several times.",
)
@click.option(
    *("-w", "--where"),
    metavar="PARAM=VALUE",
    multiple=True,
    help="Only points with this value. May be given several times, also for one parameter.",
)
@click.option("--scale", type=_SCALE, help="The scale of the vertical axis.")
@click.option("--x-scale", type=_SCALE, help="The scale of the horizontal axis.")
@click.option(
    "--y-from-zero/--no-y-from-zero",
    default=None,
    help="Whether a linear vertical axis begins at zero.",
)
@click.argument("file", metavar="FILE.yaml")
@click.argument("batch", default=DEFAULT_BATCH)
def plot_command(
    machine: str | None,
    commit: str | None,
    all_code: bool,
    output: Path | None,
    metric: str | None,
    x: str | None,
    lines: str | None,
    panels: tuple[str, ...],
    where: tuple[str, ...],
    scale: str | None,
    x_scale: str | None,
    y_from_zero: bool | None,
    file: str,
    batch: str,
) -> None:
    """Draw the figures of a batch, made from an artifact branch alone.

    They are those that `plots` of FILE.yaml chooses, changed by the options; with --metric of a
    metric without a figure, a new one. If FILE.yaml is not in the working tree, metrics and plots
    are those of the code of the results. FILE.yaml may also be the name of the experiment.
    """
    found = named_batch(file, batch, commit, machine, all_code)
    given = {
        "x": x,
        "lines": lines,
        "panels": panels or None,
        "scale": scale,
        "x_scale": x_scale,
        "y_from_zero": y_from_zero,
        "where": _conditions(where) or None,
    }
    chosen = {key: value for key, value in given.items() if value is not None}
    plots = _plots(found, metric, chosen)
    if output is None:
        from snakemake_kochi.snapshot import toplevel

        output = own_place(toplevel(Path.cwd()), found)
    for files in draw_figures(found, plots, output):
        say(f"Wrote {' and '.join(map(str, files))}")
    say_remarks(found)


def own_place(repository: Path, found: Report) -> Path:
    """The directory for tables and figures of a batch of which the user has named none."""
    # Not the current directory: in a project, new files there are code, and all runs are repeated.
    return Path(os.path.relpath(repository)) / "results/plots" / found.experiment


def draw_figures(
    found: Report, plots: Sequence[tuple[str, Plot]] | None, output: Path
) -> Iterator[list[Path]]:
    """Draw figures, by default those of the batch, each with the name of its files; yields their
    files."""
    plots = _plots(found, None, {}) if plots is None else plots
    for (_, plot), files in zip(plots, _places(plots, output), strict=True):
        with ExitStack() as stack:
            # In one call: each format would have a layout of its own.
            found.draw([[stack.enter_context(whole_file(each)) for each in files]], [plot])
        yield files


def named_batch(
    file: str, batch: str, commit: str | None, machine: str | None, all_code: bool
) -> Report:
    """The report of a batch from artifact branches; `file` as it was typed. Raises KochiError."""
    from snakemake_kochi.snapshot import toplevel
    from snakemake_kochi.tables.branch import read_batch

    repository = toplevel(Path.cwd())
    named = in_repository(repository, file)
    return read_batch(repository, named, batch, commit, machine, all_code)


def in_repository(repository: Path, word: str) -> str:
    """The path of an experiment in the repository, where it need not be; or a name, as it is."""
    if not word.endswith((".yaml", ".yml")):
        return word
    path = Path(os.path.abspath(word))
    for candidate, top in ((path, repository), (path.resolve(), repository.resolve())):
        if candidate.is_relative_to(top):
            return candidate.relative_to(top).as_posix()
    raise KochiError(
        f"{word} is outside of the repository {repository}",
        "An experiment is a file of its project, such as fib.yaml.",
    )


def _conditions(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, is_given, value = word.partition("=")
        if not is_given or not name:
            raise click.UsageError(f"--where {shlex.quote(word)}: PARAM=VALUE was expected")
        found[name] = (*found.get(name, ()), value)
    return found


def _plots(found: Report, metric: str | None, chosen: Mapping[str, Any]) -> list[tuple[str, Plot]]:
    """The plots with what is chosen on the command line, and the names of their files. Raises
    NameNotFoundError."""
    from dataclasses import replace

    from snakemake_kochi.frozen import FrozenDict
    from snakemake_kochi.project.plots import SECONDS, Plot, stems

    plots = list(found.plots)
    if metric is not None and metric not in {plot.metric for plot in plots}:
        if metric not in (known_metrics := [*found.metrics, SECONDS]):
            known = nearest(metric, known_metrics)
            raise NameNotFoundError(f"{found.title} has no metric '{metric}', {known}")
        plots.append(Plot(metric, metric))
    _check(found, chosen)
    named = zip(stems(found.batch, plots), plots, strict=True)
    given = {**chosen, "where": FrozenDict(chosen["where"])} if "where" in chosen else chosen
    used = {chosen.get("x"), chosen.get("lines"), *chosen.get("panels", ())}
    return [
        (stem, replace(_without(plot, used), **given))
        for stem, plot in named
        if metric in (None, plot.metric)
    ]


def _check(found: Report, chosen: Mapping[str, Any]) -> None:
    from snakemake_kochi.project.plots import DUPLICATE

    where = chosen.get("where", {})
    names = found.parameters
    wanted = [chosen[key] for key in ("x", "lines") if key in chosen]
    for name in (*wanted, *chosen.get("panels", ()), *where):
        if name not in names and not name == chosen.get("x") == DUPLICATE:
            known = nearest(name, names)
            raise NameNotFoundError(f"{found.title} has no parameter '{name}', {known}")
    for name, values in where.items():
        there = dict.fromkeys(map(str, found.runs[name]))
        for value in values:
            if value not in there:
                said = nearest(value, there)
                raise NameNotFoundError(f"no run has {name} = '{value}', {said}")


def _without(plot: Plot, used: Collection[str | None]) -> Plot:
    """A plot without the parameters that the command line uses for something else."""
    from dataclasses import replace

    return replace(
        plot,
        x="" if plot.x in used else plot.x,
        lines="" if plot.lines in used else plot.lines,
        panels=tuple(name for name in plot.panels if name not in used),
    )


def _places(plots: Sequence[tuple[str, Plot]], output: Path) -> list[list[Path]]:
    """The files of each plot. Raises KochiError."""
    if output.suffix in FORMATS and not output.is_dir():
        if len(plots) > 1:
            names = ", ".join(dict.fromkeys(plot.metric for _, plot in plots))
            raise KochiError(
                f"{output} is one file, and there are {len(plots)} figures",
                f"Choose one by --metric ({names}), or name a directory.",
            )
        return [[output]]
    if output.suffix and not output.is_dir():
        raise KochiError(
            f"{output}: a directory, or a file that ends in {', '.join(FORMATS)}, was expected",
            f"For a new directory, type: mkdir {shlex.quote(str(output))}",
        )
    return [[output / f"{stem}{suffix}" for suffix in (".png", ".svg")] for stem, _ in plots]


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """A file beside another, which replaces it when it is complete. Raises KochiError."""
    from snakemake_kochi.files import random_word

    beside = file.with_name(f".{random_word()}{file.suffix}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        os.replace(beside, file)
    except OSError as error:
        raise KochiError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            beside.unlink()


def say_remarks(found: Report) -> None:
    """Say what a table lacks."""
    for each in found.remarks:
        remark(f"kochi: {each}")
