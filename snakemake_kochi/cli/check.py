"""`kochi check`: is a batch worse than its references?"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from snakemake_kochi.cli.compare import plain
from snakemake_kochi.cli.options import json_option
from snakemake_kochi.cli.output import print_json
from snakemake_kochi.cli.run_first import (
    experiment_to_run,
    machine_names,
    run_first,
    run_option,
)
from snakemake_kochi.cli.tables import at_option, machine_option, named_batch, whole_file
from snakemake_kochi.errors import KochiError
from snakemake_kochi.project.values import DEFAULT_BATCH

if TYPE_CHECKING:
    from snakemake_kochi.project.plots import Reference
    from snakemake_kochi.tables.report import Report


@click.command()
@machine_option
@at_option
@run_option
@click.option(
    "--junit",
    type=click.Path(path_type=Path),
    metavar="FILE.xml",
    help="Also write the checks as JUnit XML, for continuous integration.",
)
@json_option
@click.argument("file", metavar="FILE.yaml")
@click.argument("batch", default=DEFAULT_BATCH)
def command(
    machine: str | None,
    commit: str | None,
    is_run: bool,
    junit: Path | None,
    as_json: bool,
    file: str,
    batch: str,
) -> int:
    """Check the results of a batch against the `references` of its experiment.

    A point is worse if the whole interval of its difference is beyond what does not matter. The
    exit status is 1 if one is, unless the reference accepts it until a later day; if one has too
    few runs for an interval, and its median is beyond; and if one has no result.
    """
    if junit is not None:
        try:
            if os.path.lexists(junit) and not stat.S_ISREG(junit.lstat().st_mode):
                raise KochiError(f"{junit} cannot be written: a regular file was expected")
            junit.unlink(missing_ok=True)  # that of an earlier check would stay after an error
        except OSError as error:
            raise KochiError(f"{junit} cannot be written: {error.strerror}") from error

    @functools.cache
    def earlier(which: str) -> Report:
        return named_batch(file, batch, which, machine, all_code=False)

    if is_run:
        if (experiment := experiment_to_run(file, batch, commit)) is not None:
            own = experiment.batch(batch).references
            _require(own, f"{experiment.name} {batch}", file)
            names = machine_names(experiment, batch, machine)
            for each in own:
                if each.commit and each.machine in {"", *names}:
                    earlier(each.commit)
        if status := run_first(machine, file, batch):
            return status
    from snakemake_kochi.tables import check as checks

    report = named_batch(file, batch, commit, machine, all_code=False)
    _require(report.references, report.title, file)
    found = checks.check(report, report.references, earlier, datetime.date.today())
    if junit is not None:
        with whole_file(junit) as beside:
            beside.write_bytes(checks.junit(found, report.title))
    if as_json:
        said = [plain(dataclasses.asdict(each)) for each in found]
        print_json({"remarks": [*checks.remarks_on(found, report)], "checks": said})
    else:
        click.echo(checks.as_page(found, report), nl=False)
    return int(any(each.fails for each in found))


def _require(references: Sequence[Reference], title: str, file: str) -> None:
    if not references:
        raise KochiError(
            f"{title} has no references",
            f"Add some to {file}, such as: references: [{{value: 12.5, within: 5%}}]",
        )
