"""`kochi artifact sync`: results are merged, after those of a machine elsewhere came home."""

from __future__ import annotations

import shlex

from humanfriendly.text import pluralize

from snakemake_kochi.artifacts import branches
from snakemake_kochi.artifacts.agreement import told_missed
from snakemake_kochi.artifacts.branch_content import tip_of
from snakemake_kochi.artifacts.branches import SyncReport, commit_all
from snakemake_kochi.artifacts.large import Store
from snakemake_kochi.artifacts.published import branch_called, published_name
from snakemake_kochi.artifacts.replaced import take_replaced
from snakemake_kochi.cli.output import print_json, remark, say
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.location import Location
from snakemake_kochi.paths import WorkingPaths


def synchronise(location: Location, as_json: bool) -> None:
    """Merge a machine's results into kochi_artifacts, and tell. Raises KochiError."""
    project, paths = location.require_project(), location.project_paths
    name = location.machine.name
    if location.is_elsewhere:
        is_here = False
        bring(location, as_json)
    elif is_here := _is_here(location):
        location.prepare_machine()
    report = branches.synchronise(project.directory, paths, name, is_here, project.large_files)
    restored = _restore(location, as_json) if location.is_elsewhere else None
    if as_json:
        fields = ("machine", "name", "results", "missed", "commits", "commit")
        data = {name: getattr(report, name) for name in fields}
        data |= {"directory": str(report.directory)}
        print_json(data if restored is None else data | {"restored": restored})
        return
    _tell(location, report)


def commit_only(location: Location) -> None:
    """On a login host: commit, for the computer to which the results then go."""
    project, name = location.require_project(), location.machine.name
    location.prepare_machine()
    paths, large = location.project_paths, project.large_files
    results, missed = commit_all(project.directory, paths, name, large)
    published = published_name(project.directory, name)
    print_json(
        {
            "repository": str(project.directory),
            "name": published,
            "results": results,
            "missed": missed,
            "commit": tip_of(project.directory, f"refs/heads/{branch_called(published)}"),
            "large_files": str(Store.of(project.directory).directory),
        }
    )


def bring(location: Location, as_json: bool) -> None:
    """Bring the results of a machine elsewhere here."""
    from snakemake_kochi.remote.connection import Connection
    from snakemake_kochi.remote.results import bring_results

    host, machine = location.machine.login_host, location.machine.name
    assert host is not None
    repository = location.require_project().directory
    name = published_name(repository, machine)
    with Connection(host) as connection:
        brought = bring_results(connection, location)
    if brought is not None and brought.name != name:
        remark(
            f"Results of {machine} are published as '{brought.name}' and not as '{name}': those "
            "that are there already have that name."
        )
    if as_json:
        return
    if brought is None:
        remark(f"This project was not sent to {host} yet, so there are no results of it.")
    elif brought.large:
        say(f"The content of {pluralize(brought.large, 'large file')} came from {host}")
    if brought is not None and brought.lost:
        again = f"kochi rerun -m {shlex.quote(machine)}"
        files = pluralize(brought.lost, "large file")
        remark(
            f"The content of {files} is not on {host} any more; the branch has size and checksum. "
            f"To repeat a run, type: {again}"
        )


def _restore(location: Location, as_json: bool) -> int:
    """Have the results of the present code in results/; return how many are there."""
    from snakemake_kochi.cli.restore import restore_batches, tell_briefly
    from snakemake_kochi.library.restoring import Asked

    try:
        batches = restore_batches(location, Asked("", "", "", "", False))
    except KochiError as error:
        # They are in the branch, which was what was asked for.
        if not as_json:
            again = f"kochi artifact restore -m {shlex.quote(location.machine.name)}"
            remark(f"The results are not in results/: {error.message}. To try again: {again}")
        return 0
    if not as_json:
        tell_briefly(batches, location.machine.name)
    return sum(batch.there for batch in batches)


def _tell(location: Location, report: SyncReport) -> None:
    name = branch_called(report.name)
    if report.missed:
        say(f"Committed {told_missed(report.missed, report.machine)}")
    if report.commits:
        where = report.directory / report.name
        say(f"Merged {pluralize(report.commits, 'commit')} of {name}: see {where}")
    else:
        say(f"There is nothing new in {name}.")
    if (replaced := take_replaced(location.project_paths, location.machine.name)) is not None:
        remark(f"Note: {replaced.describe()}")
    if report.stranger:
        merge = f"git -C {shlex.quote(str(report.directory))} merge"
        remark(
            f"{name} and {report.stranger} have no commit in common, so neither can be pushed to "
            f"the other. To join them, type: {merge} --allow-unrelated-histories -X ours "
            f"{report.stranger} && git branch -f {name} kochi_artifacts"
        )
    for ref, count in report.ahead:
        remark(_told_ahead(report, ref, count))


def _told_ahead(report: SyncReport, ref: str, count: int) -> str:
    merge = f"git -C {shlex.quote(str(report.directory))} merge"
    name = branch_called(report.name)
    commits = pluralize(count, "commit")
    if ref.endswith(f"/{name}"):
        what = f"{ref} has {commits} of another clone that {name} lacks"
        typed = f"{merge} -X ours {ref} && git branch -f {name} kochi_artifacts"
    else:
        what = f"{ref} has {commits} that kochi_artifacts lacks"
        typed = f"{merge} {ref}"
    return f"{what}. To join them, type: {typed}"


def _is_here(location: Location) -> bool:
    """Whether the machine is below KOCHI_ROOT here, or has uncommitted results here."""
    name, project = location.machine.name, location.require_project().directory
    left = (location.project_paths.journal(name), WorkingPaths(project, name).records)
    try:
        return any(is_there(path) for path in (location.machine_paths.directory, *left))
    except PermissionError:
        return False  # it belongs to a colleague
