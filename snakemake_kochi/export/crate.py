"""A directory with results, their code and their records, as a Workflow Run RO-Crate.

    code/<tree>/                  the files of a snapshot, or of a local source of a recipe
    results/<name>/<dest>         artifacts, as their runs wrote them
    records/<name>/               a record for each run
    tables/<name>/<experiment>/   the table and the plot of each batch
    README.md                     the artifact appendix
    CITATION.cff                  how to cite it
    LICENSE                       the license file of the project, if it has one
    ro-crate-metadata.json        what belongs to what

It is written aside and appears complete or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snakemake_kochi.artifacts.branch_content import paths_in
from snakemake_kochi.artifacts.content import read_artifacts
from snakemake_kochi.errors import KochiError, MissingContentError
from snakemake_kochi.export.appendix import appendix
from snakemake_kochi.export.citation import citation
from snakemake_kochi.export.content import Content
from snakemake_kochi.export.metadata import write_metadata
from snakemake_kochi.export.publication import Publication
from snakemake_kochi.export.repository import CITATION
from snakemake_kochi.export.tables import write_tables
from snakemake_kochi.files import LARGE_BLOCK, blocks_of, lacks_room, random_word
from snakemake_kochi.snapshot import write_code

README = "README.md"
_ASIDE, _TOKEN = ".{}.", 8  # the beginning of a temporary name, and the digits after it
_LONGEST = 200


def write_crate(repository: Path, publication: Publication, directory: Path) -> Content:
    """Write a crate to a directory that does not exist or is empty.

    Files that are missing, or not as their runs wrote them, are left out and named in `problems`.
    Raises KochiError when the directory is something else, cannot be written, or when no run's
    code is in this clone.
    """
    require_new(directory)
    if not publication.workflow_file(publication.newest):
        if publication.newest.tree in publication.code:
            raise KochiError(
                "the code of these results has neither their experiments nor a Snakefile, and a "
                "crate needs a workflow",
                "Name an experiment: kochi export --ro-crate DIR FILE.yaml",
            )
        raise KochiError(
            "the code of these results is not in this clone, and a crate needs it",
            "Where the results were made, type: kochi artifact push; then here: kochi artifact "
            "fetch",
        )
    content = Content()
    try:
        with _aside(directory) as crate:
            _write_code(repository, publication, crate, content)
            _write_results(repository, publication, crate, content)
            _write_records(publication, crate, content)
            outputs = {run: content.outputs_of(run) for run in publication.runs}
            content.tables, problems = write_tables(publication, crate, outputs)
            content.problems += problems
            # Each becomes an item of a list.
            content.problems = [" ".join(each.split("\n")) for each in content.problems]
            text = appendix(publication, content)
            (crate / README).write_bytes(text.encode("utf-8", "surrogateescape"))
            (crate / CITATION).write_bytes(citation(publication).encode())
            if publication.about.license_file:
                license_file = crate / publication.about.license_file
                license_file.write_bytes(publication.about.license_text)
            write_metadata(publication, content, crate)
    except OSError as error:
        why = "the disk is full" if lacks_room(error) else error.strerror or str(error)
        raise KochiError(
            f"{directory}: it could not be written: {why}", "Nothing was left there."
        ) from error
    return content


def require_new(directory: Path) -> None:
    """Raises KochiError for a path at which no new directory can be written."""
    if not os.path.lexists(directory):
        if not directory.parent.is_dir():
            raise KochiError(
                f"{directory.parent}: there is no such directory",
                f"Type: mkdir -p {directory.parent}",
            )
        return
    if directory.is_symlink() or not directory.is_dir():
        raise KochiError(f"{directory} exists; a new or an empty directory was expected")
    if any(directory.iterdir()):
        raise KochiError(
            f"{directory} is not empty; a new or an empty directory was expected",
            "Name another one: nothing is ever overwritten.",
        )


def left_behind(directory: Path) -> list[Path]:
    """What exports to a directory that were killed have left beside it; or one that is running."""
    place = Path(os.path.abspath(directory))
    begin, end = _ASIDE.format(place.name[:_LONGEST]), ".tmp"
    found = (each for each in place.parent.iterdir() if each.name.startswith(begin))
    return sorted(each for each in found if each.name.removeprefix(begin)[_TOKEN:] == end)


@contextmanager
def _aside(directory: Path) -> Iterator[Path]:
    """A new directory, which becomes `directory` when the block has filled it."""
    place = Path(os.path.abspath(directory))
    begin = _ASIDE.format(place.name[:_LONGEST])
    new = place.with_name(f"{begin}{random_word(_TOKEN // 2)}.tmp")
    new.mkdir()
    try:
        yield new
        os.rename(new, place)  # also onto an empty directory
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write_code(repository: Path, publication: Publication, crate: Path, content: Content) -> None:
    for code in publication.code.values():
        target = crate / code.directory
        target.parent.mkdir(exist_ok=True)
        write_code(repository, code.commit, target)
        # Made for one user alone, as everything below KOCHI_ROOT is.
        shutil.copymode(crate, target)
        for link in _links_outside(target):
            link.unlink()
            content.problems.append(
                f"{link.relative_to(crate)}: a link that leads out of the code was left out"
            )
    content.problems += [
        f"the code of {run.identity} is not in this clone" for run in publication.without_code
    ]


def _links_outside(directory: Path) -> Iterator[Path]:
    """Who packs or uploads the crate would follow them, to any file of the computer."""
    top = directory.resolve()
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(place, name)
            if path.is_symlink() and not _leads_into(path, top):
                yield path


def _leads_into(link: Path, top: Path) -> bool:
    try:
        return link.resolve().is_relative_to(top)
    except (OSError, RuntimeError):  # a circle of links
        return False


def _write_results(
    repository: Path, publication: Publication, crate: Path, content: Content
) -> None:
    """The artifacts that are as their runs wrote them."""
    recorded: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    records = {hashlib.sha256(run.text).hexdigest() for run in publication.runs}
    for run in publication.runs:
        for each in run.record["artifacts"]:
            path = run.path(each["dest"])
            recorded[run.commit][path].add(str(each.get("sha256") or ""))
            content.newest_runs[path] = run
    for commit, wanted in recorded.items():
        there = paths_in(repository, commit, list(wanted))
        missing = wanted.keys() - set(there)
        content.problems += [f"{path}: it is not in the branch" for path in sorted(missing)]
        if twice := [path for path in there if path in content.files]:
            # Clones whose branches were never joined.
            content.problems += [f"{path}: another branch has it, too" for path in twice]
            there = [path for path in there if path not in content.files]
        for path, file, size, digest in _copied(repository, commit, there, crate, content):
            if digest not in wanted[path] and "" not in wanted[path]:
                file.unlink()
                content.problems.append(f"{path}: it has changed since its run, and was left out")
                continue
            content.files[path] = (file, size, digest)
            # An artifact of type stats is a copy of its record.
            if digest in wanted[path] or digest in records:
                content.verified.add(path)


def _copied(
    repository: Path, commit: str, paths: list[str], crate: Path, content: Content
) -> Iterator[tuple[str, Path, int, str]]:
    """Write files of a commit to the crate; give each one's path, file, size and SHA-256."""
    try:
        streams = read_artifacts(repository, commit, paths)
        first = next(streams, None)
    except MissingContentError as error:
        all_of_them = "To fetch them, type: kochi artifact fetch --large"
        how = error.hint if len(error.paths) == 1 else all_of_them
        content.problems.append(f"{error.message}. {how}")
        paths = [path for path in paths if path not in error.paths]
        streams = read_artifacts(repository, commit, paths)
        first = next(streams, None)
    while first is not None:
        path, stream = first
        file = crate / "results" / _readable(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with file.open("xb") as target:
            for block in blocks_of(stream, LARGE_BLOCK):
                digest.update(block)
                size += target.write(block)
        yield path, file, size, digest.hexdigest()
        first = next(streams, None)


def _readable(path: str) -> str:
    """A path in a crate, whose file of metadata can only name what is UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _write_records(publication: Publication, crate: Path, content: Content) -> None:
    for run in publication.runs:
        file = crate / "records" / _readable(f"{run.name}/{run.identity}.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(run.text)
        content.records[run] = file
