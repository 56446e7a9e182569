"""From a result's file to its record: which run wrote the file, and whether it is still the same.

A file is found in `results/` of a working directory, in a worktree of an artifact branch, or by its
path in a commit of one. Reads only.
"""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from snakemake_kochi.artifacts.agreement import record_files
from snakemake_kochi.artifacts.branch_content import (
    changed_records,
    last_change,
    record_path,
    tip_of,
)
from snakemake_kochi.artifacts.code import CODE
from snakemake_kochi.artifacts.content import no_such_file
from snakemake_kochi.artifacts.large import digest_of
from snakemake_kochi.artifacts.published import (
    MERGED,
    branch_called,
    names_elsewhere,
    names_of,
    published_name,
    refs_elsewhere,
)
from snakemake_kochi.artifacts.record import checked_form, digest_written, parse_record
from snakemake_kochi.artifacts.restored import restored_from
from snakemake_kochi.errors import GitError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import is_name
from snakemake_kochi.git import FULL_IDENTITY, run_git
from snakemake_kochi.paths import WorkingPaths

# The keys of a record without which its story cannot be told.
_NEEDED = (
    *("identity", "experiment", "batch", "name", "parameters", "duplicate", "machine", "node"),
    *("worker", "queue", "job", "attempt", "snapshot", "started", "seconds", "exit_status"),
)

_TABLES = (".csv", ".md", ".png", ".svg")  # of tables and plots, which have no record of their own


@dataclass(frozen=True)
class Origin:
    """The run that wrote a file.

    `path` is that in the artifact branch. `commit` added the record to a branch, "" if it is in
    none yet. `file` says whether the file is byte for byte what the run wrote; `unknown` for a
    record of an earlier release, and if there is no file to compare with. `code` is the ref with
    the code of the run, "" if this repository has none; `changes` counts how that differs from the
    commit below, in git's words.
    """

    path: str
    record: Mapping[str, Any]
    commit: str
    file: Literal["identical", "changed", "unknown"]
    code: str
    changes: str


def find_origin(repository: Path, file: str, commit: str | None = None) -> Origin:
    """The origin of what a person names: a file, or a path in a branch, or in a `commit` of one.

    Raises as the two functions below.
    """
    if not file:
        raise NameNotFoundError("the name of the file is empty", "Type: kochi why FILE")
    if commit is None and (Path(file).exists() or not _may_be_in_branch(file)):
        return origin_of_file(repository, Path(file))
    return origin_in_commit(repository, commit or "", file)


def _may_be_in_branch(file: str) -> bool:
    """Whether a path that does not exist here may be one in a branch: it has a name before it."""
    first, separator, _ = file.partition("/")
    return bool(separator) and first not in ("", ".", "..", "results", "~")


def origin_of_file(repository: Path, file: Path) -> Origin:
    """The origin of a file in `results/`, or in a worktree of an artifact branch.

    Raises NameNotFoundError if there is no such file, KochiError if no run of Kochi wrote it.
    """
    if file.is_dir():
        inside = (each for each in file.rglob("*") if each.suffix not in _TABLES and each.is_file())
        raise _is_directory(str(file), str(next(inside, "")))
    if not file.is_file():
        raise NameNotFoundError(f"{file}: there is no such file", _beside(file))
    try:
        top, in_branch = place_in_worktree(file)
    except GitError as error:
        raise _is_no_result(file) from error
    with file.open("rb") as stream:
        digest = digest_of(stream, is_in_branch=bool(in_branch))
    if in_branch:
        return origin_in_commit(top, "HEAD", in_branch, digest)
    for working, dest in _own_working(file):
        if (record := _newest(working, dest, digest, working.own_records)) is not None:
            path = f"{published_name(repository, working.machine)}/{dest}"
            commit = _commit_of(repository, path, record)
            return _origin(repository, path, record, commit, digest)
    for working, dest in _working(file):
        record = _newest(working, dest, digest, working.records)
        path = f"{published_name(repository, working.machine)}/{dest}"
        if record is not None:
            restored = restored_from(working).get(record["identity"])
            if restored is not None:
                path = f"{restored[0]}/{dest}"
                place, commit = record_path(restored[0], record["identity"]), ""
                with suppress(GitError):
                    commit = last_change(repository, restored[1], [place])
            else:
                commit = _commit_of(repository, path, record)
            return _origin(repository, path, record, commit, digest)
        with suppress(GitError, KochiError):
            # .snakemake/ was deleted, or the file came from a clone.
            return origin_in_commit(repository, newest_commit(repository, path), path, digest)
        if (origin := _own_in_branch(repository, file.resolve(), top, digest)) is not None:
            return origin
        raise KochiError(
            f"{file}: no record of a run has this file",
            "Tables and plots are made from all records of their batch. Ask for one of its "
            f"artifacts; to list them, type: ls {working.results}",
        )
    if (origin := _own_in_branch(repository, file.resolve(), top, digest)) is not None:
        return origin
    raise _is_no_result(file)


def _is_no_result(file: Path) -> KochiError:
    return KochiError(
        f"{file} is no result: it is neither in results/ nor in a worktree of an artifact branch, "
        "nor an output marked with artifact() that was kept",
        "For a path in a branch, type: kochi why NAME/PATH",
    )


def _is_directory(path: str, example: str) -> KochiError:
    typed = shlex.join(["kochi", "why", example]) if example else "kochi why FILE"
    return KochiError(f"{path} is a directory, and not a file", f"Name a file in it: {typed}")


def place_in_worktree(file: Path) -> tuple[Path, str]:
    """The working tree that a file is in and, if that is one of an artifact branch, or of one of
    its commits, the path of the file in the branch, else "".

    Raises GitError outside of a repository.
    """
    top = Path(os.fsdecode(run_git(file.parent, "rev-parse", "--show-toplevel")[:-1]))
    branch = run_git(file.parent, "symbolic-ref", "--quiet", "HEAD", accept=(0, 1)).decode()
    is_of_results = branch.startswith(f"refs/heads/{MERGED}")
    if not branch:  # a commit is checked out, such as one of a fetched artifact branch
        patterns = (f"refs/heads/{MERGED}*", f"refs/remotes/*/{MERGED}*")
        words = ("for-each-ref", "--count=1", "--contains=HEAD")
        is_of_results = bool(run_git(file.parent, *words, *patterns))
    return top, file.resolve().relative_to(top).as_posix() if is_of_results else ""


def origin_in_commit(repository: Path, commit: str, path: str, digest: str = "") -> Origin:
    """The origin of a path in a commit of an artifact branch ("" for the newest one).

    `digest`: the SHA-256 of the file to compare, by default of the content in that commit. Raises
    NameNotFoundError for a path that is not there, KochiError for a file without a record,
    GitError for an unknown commit.
    """
    path = path.rstrip("/")
    commit = known_commit(repository, commit or newest_commit(repository, path))
    if not (blob := tip_of(repository, f"{commit}:{path}")):
        raise no_such_file(repository, commit, path)
    words = ("ls-tree", "-r", "-z", "--name-only", "--full-tree", f"{blob}")
    if run_git(repository, "cat-file", "-t", blob).strip() == b"tree":
        inside = (os.fsdecode(each) for each in run_git(repository, *words).split(b"\0"))
        first = next((each for each in inside if each and ".kochi" not in each), "")
        raise _is_directory(path, first and f"{path}/{first}")
    digest = digest or digest_of(io.BytesIO(run_git(repository, "cat-file", "blob", blob)))
    if changed := last_change(repository, commit, [path]):
        name = path.partition("/")[0]
        for record in changed_records(repository, name, changed):
            if path in _paths(name, record):
                return _origin(repository, path, record, changed, digest)
    raise KochiError(
        f"{path} has no record: commit {changed[:12] or commit[:12]}, which wrote it, is not of "
        "kochi, or its record was removed"
    )


def known_commit(repository: Path, named: str) -> str:
    """The commit of that name. Raises GitError if there is none."""
    found = "" if named.startswith("-") else tip_of(repository, f"{named}^{{commit}}")
    if not found:
        raise GitError(f"there is no commit {named}", "To list commits, type: kochi artifact log")
    return found


def _origin(
    repository: Path, path: str, record: Mapping[str, Any], commit: str, digest: str
) -> Origin:
    as_written = record
    record = checked_form(record, f"the record of {path}")
    if missing := [key for key in _NEEDED if key not in record]:
        raise KochiError(
            f"the record of {path} lacks {', '.join(missing)}: it was edited, or written by "
            "another version of snakemake_kochi"
        )
    written = digest_written(as_written, path.partition("/")[2])
    state: Literal["identical", "changed", "unknown"] = "unknown"
    if written and digest:
        state = "identical" if written == digest else "changed"
    snapshot = record["snapshot"]
    ref, base, changes = f"{CODE}/{snapshot['tree']}", str(snapshot["base"]), ""
    try:
        code = tip_of(repository, ref)
        # Anyone may have written the record: nothing in it may become an option of git.
        if code and code != base and FULL_IDENTITY.fullmatch(base):
            words = ("diff", "--shortstat", "--no-ext-diff", f"{base}..{ref}")
            changes = run_git(repository, *words).decode().strip()
    except GitError:
        code = ""  # its base is not in this clone
    return Origin(path, record, commit, state, ref if code else "", changes)


def _working(file: Path) -> Iterator[tuple[WorkingPaths, str]]:
    """The working directories in whose results a file may be, with its destination."""
    path = Path(os.path.abspath(file))
    for results in path.parents:
        if results.name == "results" and len(parts := path.relative_to(results).parts) > 1:
            dest = PurePosixPath(*parts[1:]).as_posix()
            yield WorkingPaths(results.parent, parts[0]), dest


def _own_working(file: Path) -> Iterator[tuple[WorkingPaths, str]]:
    """The working directories in which a rule of one's own may have made a file, with its path."""
    path = Path(os.path.abspath(file))
    for directory in path.parents:
        for machine in WorkingPaths.machines_in(directory):
            yield WorkingPaths(directory, machine), path.relative_to(directory).as_posix()


def _own_in_branch(repository: Path, file: Path, top: Path, digest: str) -> Origin | None:
    """The origin of an output of a rule of one's own without its .snakemake/, as in a clone."""
    # A link may lead out of the working tree.
    for directory in (each for each in file.parents if each.is_relative_to(top)):
        for name in dict.fromkeys((*names_of(repository), *names_elsewhere(repository))):
            path = f"{name}/{file.relative_to(directory).as_posix()}"
            with suppress(GitError, KochiError):
                origin = origin_in_commit(repository, newest_commit(repository, path), path, digest)
                if origin.record.get("rule"):
                    return origin
    return None


def _newest(
    working: WorkingPaths, dest: str, digest: str, records: Path
) -> Mapping[str, Any] | None:
    """The record of a destination: of several, that of the file's content, else the newest."""
    found = []
    # Not parsed unless it may be the one: there may be many thousands.
    name = json.dumps(dest, ensure_ascii=False).encode("utf-8", "surrogateescape")
    is_own = records == working.own_records
    for file in record_files(records):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if name in (text := file.read_bytes()):
                record = parse_record(text)
                own = [each for each in record["artifacts"] if each["dest"] == dest]
                if own and bool(record.get("rule")) == is_own:
                    is_same = own[0].get("sha256") == digest
                    found.append((is_same, str(record["ended"]), str(file), record))
    return max(found)[-1] if found else None


def _commit_of(repository: Path, path: str, record: Mapping[str, Any]) -> str:
    """The commit that brought the record.

    Not the newest commit of the path: a run that wrote the same file again did not change it.
    """
    with suppress(GitError, KochiError):
        place = record_path(path.partition("/")[0], str(record["identity"]))
        return last_change(repository, newest_commit(repository, path), [place])
    return ""


def newest_commit(repository: Path, path: str) -> str:
    """The newest commit with results under the name that a path in a branch begins with.

    Raises NameNotFoundError, with the nearest name, and GitError.
    """
    name = path.partition("/")[0]
    refs = [f"refs/heads/{branch_called(name)}", f"refs/heads/{MERGED}"]
    refs += [ref for ref, _ in refs_elsewhere(repository, branch_called(name))]
    refs += [ref for ref, _ in refs_elsewhere(repository, MERGED)]
    for ref in refs:
        if tip := tip_of(repository, ref):
            return tip
    elsewhere = (ref for ref, _ in refs_elsewhere(repository, f"{MERGED}_*"))
    names = {*names_of(repository), *(ref.partition(f"/{MERGED}_")[2] for ref in elsewhere)}
    hint = nearest(name, names)
    if is_name(name) and (other := published_name(repository, name)) in names - {name}:
        # People type the directory in results/, which is the machine's name.
        hint = f"Those of machine '{name}' are published as '{other}': {other}{path[len(name) :]}"
    raise NameNotFoundError(f"{path}: no artifact branch has results under the name '{name}'", hint)


def _paths(name: str, record: Mapping[str, Any]) -> set[str]:
    with suppress(KeyError, TypeError):
        return {f"{name}/{each['dest']}" for each in record["artifacts"]}
    return set()


def _beside(file: Path) -> str:
    with suppress(OSError):
        return nearest(file.name, os.listdir(file.parent))
    return f"there is no directory {file.parent}"
