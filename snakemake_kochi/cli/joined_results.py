"""The results of a batch on several machines: one branch, one table, one set of figures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from snakemake_kochi.artifacts.branches import is_collected
from snakemake_kochi.cli.output import remark, say
from snakemake_kochi.cli.tables import draw_figures, own_place, say_remarks, write_table
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.plots import stems


def join_results(
    location: Location,
    experiment: Experiment,
    batch: str,
    machines: Sequence[str],
    away: Sequence[str],
) -> None:
    """Bring home the results of all machines but those that are away, and make the table and the
    figures of all that is here.

    What cannot be done is said.
    """
    for machine in machines:
        if machine not in away:
            collect(find_location(machine))
    if not is_collected(location.require_project().directory):
        remark("To collect results in one branch, type: kochi artifact init DIR")
    try:
        _tabulate(location, experiment, batch)
    except KochiError as error:
        remark(f"kochi: no table: {error.sentences}")


def end_of_run(
    location: Location, follow: Callable[[], tuple[int, bool]], collects: bool = True
) -> int:
    """Follow a run on a login host to its end, and bring its results home if it `collects`; return
    the exit status of the run. `follow` gives it, and whether there was a run."""
    status, has_run = follow()
    if has_run and collects and location.project is not None:
        collect(location)
        if not is_collected(location.project.directory):
            remark(
                "To have its results as files here, type: kochi artifact init DIR && "
                f"kochi artifact sync -m {shlex.quote(location.machine.name)}"
            )
    return status


def collect(location: Location) -> None:
    """Bring the results of a machine home, and merge them into the branch for all if there is one.
    What cannot be done is said."""
    from snakemake_kochi.cli.synchronisation import bring, synchronise

    try:
        if is_collected(location.require_project().directory):
            synchronise(location, as_json=False)
        elif location.is_elsewhere:
            bring(location, as_json=False)
    except KochiError as error:
        remark(f"kochi: the results of {location.machine.name}: {error.sentences}")


def _tabulate(location: Location, experiment: Experiment, batch: str) -> None:
    from snakemake_kochi.tables.branch import read_batch

    repository = location.require_project().directory
    found = read_batch(repository, experiment.file, batch)
    place = own_place(repository, found)
    stem = stems(batch, found.plots)[0]
    written = [place / f"{stem}.csv", place / f"{stem}.md"]
    for file in written:
        write_table(found, file)
    for files in draw_figures(found, None, place):
        written += files
    say(f"Wrote {', '.join(map(str, written))}")
    say_remarks(found)
