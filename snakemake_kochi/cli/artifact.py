"""`kochi artifact`."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from pathlib import Path

import click
from humanfriendly import format_size
from humanfriendly.text import pluralize

from snakemake_kochi.artifacts.branches import discard, initialise, log
from snakemake_kochi.artifacts.content import write_artifact
from snakemake_kochi.artifacts.git_lfs import check_out_contents
from snakemake_kochi.artifacts.origin import known_commit, newest_commit, place_in_worktree
from snakemake_kochi.artifacts.published import branch_called, published_name, refs_elsewhere
from snakemake_kochi.artifacts.remotes import (
    Content,
    Exchange,
    fetch,
    fetch_content,
    push,
    split_remote,
)
from snakemake_kochi.cli.main import Group
from snakemake_kochi.cli.options import COUNT, json_option, machine_option, yes_option
from snakemake_kochi.cli.output import agreed, local_time, print_json, print_table, remark, say
from snakemake_kochi.errors import GitError, KochiError
from snakemake_kochi.git import run_git
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.project.configuration import configuration_file, find_project


@click.group(cls=Group)
def command() -> None:
    """Collect results in git: a branch for each machine, merged into the branch kochi_artifacts."""


@command.command("init")
@machine_option
@click.option(
    "--name",
    metavar="NAME",
    help="Publish the machine's results as NAME; by default its own name, and for 'local' your "
    "name and that of this computer.",
)
@click.argument("directory", type=click.Path(path_type=Path))
def init_command(machine: str | None, name: str | None, directory: Path) -> None:
    """Check out the branch kochi_artifacts in DIRECTORY.

    Creates the branch if it does not exist.
    """
    location = _find_location(machine)
    repository, here = location.require_project().directory, location.machine.name
    name = initialise(repository, directory, location.root.directory, here, name)
    say(f"To collect results in {directory.resolve()}, type: kochi artifact sync")
    say(f"They are published as '{name}': in the branch {branch_called(name)}, directory {name}/")
    again = f"kochi artifact init --name {{}} {shlex.quote(os.fspath(directory))}"
    if name != here:
        remark(f"For another name, type: {again.format('NAME')}")
        if theirs := next(iter(refs_elsewhere(repository, branch_called(here))), None):
            where = theirs[0].removeprefix("refs/remotes/")
            remark(f"If {where} is yours, type: {again.format(here)}")


@command.command("sync")
@machine_option
@click.option("--no-merge", is_flag=True, hidden=True)
@json_option
def sync_command(machine: str | None, no_merge: bool, as_json: bool) -> None:
    """Merge a machine's results into the branch kochi_artifacts.

    Results of a machine behind a login host are brought here first, and are then in results/, too.
    """
    from snakemake_kochi.cli.synchronisation import commit_only, synchronise

    location = _find_location(machine)
    if no_merge:
        commit_only(location)
    else:
        synchronise(location, as_json)


@command.command("push")
@click.argument("remote", required=False)
@json_option
def push_command(remote: str | None, as_json: bool) -> None:
    """Push the results of all machines to a remote, with the code of each result.

    REMOTE is by default the one that git pushes to. The code includes uncommitted and untracked
    files, except those whose names suggest secrets. The contents of large files are pushed by
    git-lfs, which has to be installed for them.
    """
    location = _find_location(None)
    project = location.require_project()
    exchange = push(project.directory, location.project_paths, remote)
    _say_exchange(exchange, "Pushed", exchange.remote, as_json)
    if exchange.without_code:
        count = pluralize(exchange.without_code, "snapshot or source", "snapshots or sources")
        remark(f"The code of some results is not in this repository: {count}. The log says why.")
    if exchange.without_large:
        files = pluralize(exchange.without_large, "large file")
        remark(f"The content of {files} is not in this repository, and was not pushed.")


@command.command("fetch")
@click.argument("words", nargs=-1, metavar="[REMOTE] [FILE]...")
@click.option("--large", is_flag=True, help="Also fetch the content of all large files.")
@click.option("--at", "commit", metavar="COMMIT", help="FILE is a path in this commit.")
@click.option(
    *("-o", "--output"),
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the content of FILE to this file.",
)
@json_option
def fetch_command(
    words: tuple[str, ...], large: bool, commit: str | None, output: Path | None, as_json: bool
) -> None:
    """Fetch results, with the code of each result, that were pushed to a remote; or the content of
    each FILE, which is large.

    REMOTE is by default the one that git pushes to. A first word that is the name of a remote is
    REMOTE; write ./NAME for a file of that name. FILE is a path in an artifact branch, such as
    local/fib/30.bin, or a file in a worktree of one.
    """
    repository = _find_directory()
    remote, files = split_remote(repository, words)
    if not files:
        if commit is not None or output is not None:
            raise click.UsageError("--at and --output need a FILE.")
        _say_exchange(fetch(repository, remote, large), "Fetched", "This clone", as_json)
        return
    if large:
        raise click.UsageError("--large is for all files: name no FILE.")
    if output is not None and len(files) > 1:
        raise click.UsageError("--output is for one FILE.")
    contents = [_fetch_file(repository, remote, file, commit, output) for file in files]
    if as_json:
        print_json([{**asdict(each), "file": each.file and str(each.file)} for each in contents])
        return
    for each in contents:
        size = format_size(each.size, binary=True)
        where = "in the branch itself" if each.file is None else "in this clone"
        verb = "is" if each.was_here else "was fetched and is"
        say(f"{each.path} ({size}) {verb} {where}.")
    if output is not None:
        say(f"Wrote {output}")
    elif any(not Path(file).is_file() for file in files):
        remark("To write a file, add: --output FILE")


def _fetch_file(
    repository: Path, remote: str | None, file: str, commit: str | None, output: Path | None
) -> Content:
    """Have the content of a file in this clone, in its worktree and in `output`."""
    path, is_checked_out = file, commit is None and Path(file).is_file()
    if is_checked_out:
        repository, path = place_in_worktree(Path(file))
        commit = "HEAD"
        if not path:
            raise KochiError(
                f"{file} is a file, and not one in a worktree of an artifact branch",
                "For a path in a branch, type: kochi artifact fetch NAME/PATH",
            )
    elif path.partition("/")[0] in ("", ".", ".."):
        raise KochiError(
            f"{file}: there is no such file",
            "For a path in a branch, type: kochi artifact fetch NAME/PATH",
        )
    else:
        commit = commit or newest_commit(repository, path)
        known_commit(repository, commit)
    content = fetch_content(repository, commit, path, remote)
    if is_checked_out:
        check_out_contents(repository, [path])
    if output is not None:
        write_artifact(repository, commit, path, output)
    return content


@command.command("restore")
@machine_option
@click.option(
    "--from",
    "name",
    metavar="NAME",
    default="",
    help="Restore what is published under NAME, if several people have results of a batch.",
)
@click.option(
    "--at",
    "commit",
    metavar="COMMIT",
    default="",
    help="Restore from this commit of an artifact branch instead of the newest one.",
)
@click.option("--force", is_flag=True, help="Replace files in results/ that have another content.")
@click.argument("experiment", required=False, default="")
@click.argument("batch", required=False, default="")
@json_option
def restore_command(
    machine: str | None,
    name: str,
    commit: str,
    force: bool,
    experiment: str,
    batch: str,
    as_json: bool,
) -> int:
    """Put results of an artifact branch into results/, with tables and plots.

    Restored are the results of the present code; for Snakemake they are finished. EXPERIMENT (a
    name or a file) and BATCH restrict them. Files that are there stay.
    """
    from snakemake_kochi.cli.restore import restore
    from snakemake_kochi.library.restoring import Asked

    asked = Asked(experiment, batch, name, commit, force)
    return restore(_find_location(machine), asked, as_json)


def _say_exchange(exchange: Exchange, verb: str, owner: str, as_json: bool) -> None:
    ran = [shlex.join(["git", *words]) for words in (exchange.command, exchange.large_command)]
    command, large_command = ran[0], ran[1] if exchange.large_command else ""
    if as_json:
        print_json({**asdict(exchange), "command": command, "large_command": large_command})
        return
    for each in filter(None, (command, large_command)):
        remark(f"Ran: {each}")
    for name in exchange.changed:
        say(f"{verb} {name}")
    if not exchange.changed:
        say("The results are the same on both sides.")
    branches = pluralize(exchange.branches, "artifact branch", "artifact branches")
    snapshots = pluralize(exchange.snapshots, "snapshot")
    say(f"{owner} has {branches} and {snapshots} of code.")


@command.command("discard")
@machine_option
@yes_option
@json_option
def discard_command(machine: str | None, yes: bool, as_json: bool) -> int:
    """Delete a machine's unmerged results and their branch."""
    location = _find_location(machine)
    project, name = location.require_project(), location.machine.name
    branch = branch_called(published_name(project.directory, name))
    question = f"Delete the branch {branch} and the results waiting for it?"
    for ref, _ in refs_elsewhere(project.directory, branch):
        remote = ref.removeprefix("refs/remotes/").removesuffix(f"/{branch}")
        remark(
            f"{remote} has this branch, too. The next results are added to it, with the results "
            f"that are deleted here. To delete it there, type: git push {remote} --delete {branch}"
        )
    if not agreed(question, yes):
        return 1
    location.prepare_machine()
    results = discard(project.directory, location.project_paths, name)
    if as_json:
        print_json({"machine": name, "results": results})
    else:
        say(f"Deleted the branch {branch} with {pluralize(results, 'result')}.")
    return 0


@command.command("log")
@machine_option
@click.option(
    *("-l", "--limit"),
    type=COUNT,
    default=30,
    show_default=True,
    help="How many commits to list, the newest first.",
)
@json_option
def log_command(machine: str | None, limit: int, as_json: bool) -> None:
    """List the newest commits of a machine's branch."""
    location = _find_location(machine)
    commits = log(location.require_project().directory, location.machine.name, limit)
    if as_json:
        print_json([{"commit": c.commit, "time": c.time, "subject": c.subject} for c in commits])
        return
    print_table(
        ("Commit", "Time", "Subject"),
        [(c.commit[:12], local_time(c.time), c.subject) for c in commits],
        "There are no commits.",
    )


def _find_location(machine: str | None) -> Location:
    """The location, also in the worktree of the results."""
    return find_location(machine, start=_find_directory())


def _find_directory() -> Path:
    """The project's directory, whatever its kochi.yaml says.

    The worktree of the results belongs to the project but has no kochi.yaml.
    """
    try:
        return find_project(Path.cwd())
    except KochiError:
        for directory in _worktrees():
            if configuration_file(directory).is_file():
                return find_project(directory)
        raise


def _worktrees() -> list[Path]:
    try:
        listed = run_git(Path.cwd(), "worktree", "list", "--porcelain", "-z")
    except GitError:
        return []
    return [
        Path(os.fsdecode(line.removeprefix(b"worktree ")))
        for line in listed.split(b"\0")
        if line.startswith(b"worktree ")
    ]
