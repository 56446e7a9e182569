"""`kochi export`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from humanfriendly import format_size
from humanfriendly.text import pluralize

from snakemake_kochi.cli.options import json_option
from snakemake_kochi.cli.output import print_json, remark, say, shown
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import write_new

_MOST_NAMED = 10
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--ro-crate",
    "crate",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write code, records, results, tables and plots to DIR, as a Workflow Run RO-Crate. DIR "
    "must be new or empty.",
)
@click.option("--citation", type=_FILE, metavar="FILE", help="Write a CITATION.cff.")
@click.option(
    "--appendix",
    type=_FILE,
    metavar="FILE",
    help="Write an artifact appendix (Markdown): hardware, software, how to reproduce.",
)
@click.option(
    "--at", "commit", metavar="COMMIT", help="The results in this commit of an artifact branch."
)
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Only results that are published under NAME. May be given several times.",
)
@json_option
@click.argument("experiment", required=False, metavar="[FILE.yaml")
@click.argument("batches", nargs=-1, metavar="[BATCH]...]")
def command(
    crate: Path | None,
    citation: Path | None,
    appendix: Path | None,
    commit: str | None,
    names: tuple[str, ...],
    as_json: bool,
    experiment: str | None,
    batches: tuple[str, ...],
) -> int:
    """Export results for publication: all of the artifact branches, those of an experiment, or of
    some of its batches.

    A crate has the citation file and the appendix, too. A file that is missing, or not as its run
    wrote it, is left out of the crate and named; the exit status is then 1.
    """
    from snakemake_kochi.export.appendix import appendix as text_of_appendix
    from snakemake_kochi.export.citation import citation as text_of_citation
    from snakemake_kochi.export.publication import publication
    from snakemake_kochi.export.selection import select
    from snakemake_kochi.snapshot import toplevel

    if crate is None and citation is None and appendix is None:
        raise click.UsageError("--ro-crate DIR, --citation FILE or --appendix FILE was expected")
    _require_different(crate, citation, appendix)
    for file in filter(None, (citation, appendix)):
        _require_new(file)
    repository = toplevel(Path.cwd())
    path = None if experiment is None else _in_project(repository, experiment)
    selection = select(repository, path, batches, names, commit)
    found = publication(repository, selection)
    written: dict[str, object] = {"runs": len(found.runs)}
    problems = list(selection.unusable)
    if crate is not None:
        from snakemake_kochi.export.crate import left_behind, require_new, write_crate

        require_new(crate)
        for place in left_behind(crate):
            remark(f"{place} is of an export that was killed, unless one runs now: delete it.")
        content = write_crate(repository, found, crate)
        problems += content.problems
        written |= {"ro_crate": os.path.abspath(crate), **content.counts()}
    if citation is not None:
        _write(citation, text_of_citation(found))
        written["citation"] = os.path.abspath(citation)
    if appendix is not None:
        _write(appendix, text_of_appendix(found))
        written["appendix"] = os.path.abspath(appendix)
    if as_json:
        print_json({**written, "problems": problems})
    else:
        _say(found.summary, written, problems)
    return int(bool(problems))


def _say(summary: str, written: Mapping[str, object], problems: Sequence[str]) -> None:
    say(summary)
    if place := written.get("ro_crate"):
        size = format_size(int(str(written["bytes"])), binary=True)
        files = pluralize(int(str(written["files"])), "result file")
        say(f"Wrote {place}: {files} ({size}), {written['verified']} verified by SHA-256")
    for key in ("citation", "appendix"):
        if place := written.get(key):
            say(f"Wrote {place}")
    if problems:
        remark(f"Not exported: {pluralize(len(problems), 'thing')}")
        for problem in problems[:_MOST_NAMED]:
            remark(f"    {shown(problem)}")
        if (more := len(problems) - _MOST_NAMED) > 0:
            remark(f"    and {more} more; to list them all, add: --json")


def _in_project(repository: Path, word: str) -> str:
    """The path of an experiment in the project; it need not be checked out."""
    path = Path(os.path.abspath(word))
    for candidate, top in ((path, repository), (path.resolve(), repository.resolve())):
        if candidate.is_relative_to(top):
            return candidate.relative_to(top).as_posix()
    raise KochiError(
        f"{word} is outside of the project {repository}",
        "An experiment is a file of its project, such as fib.yaml.",
    )


def _require_different(crate: Path | None, citation: Path | None, appendix: Path | None) -> None:
    files = {"--citation": citation, "--appendix": appendix}
    places = {option: Path(os.path.realpath(file)) for option, file in files.items() if file}
    if len(set(places.values())) < len(places):
        raise KochiError(
            f"{citation}: --citation and --appendix are the same file",
            "Name two different files.",
        )
    for option, place in places.items():
        if crate is not None and place.is_relative_to(os.path.realpath(crate)):
            raise KochiError(
                f"{files[option]}: {option} is in the directory of --ro-crate",
                f"Leave {option} out: a crate has a CITATION.cff, and the appendix as README.md.",
            )


def _require_new(file: Path) -> None:
    if os.path.lexists(file):
        raise KochiError(f"{file} exists; a new file was expected", "Nothing is overwritten.")
    if not file.absolute().parent.is_dir():
        raise KochiError(f"{file.absolute().parent}: there is no such directory")


def _write(file: Path, text: str) -> None:
    write_new(file, text.encode("utf-8", "surrogateescape"), mode=0o666)
