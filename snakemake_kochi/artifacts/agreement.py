"""Whether the branch has all results of the working directories, and which results it lacks.

The owner of a branch can delete or move it. Kochi therefore notes the commit up to which the branch
has all results. If the branch no longer contains that commit, each record in the working
directories is looked up in it.

Below artifacts/<machine>/:
  agreed.json                  {"version", "commit": "" if there is none, null during a comparison};
                               without this file no result counts as missing
  disagreed                    exists if a result may be in a working directory only
  discarded.json               {"version", "identities": of results that no commit is to contain}
  directories/<digest>.json    {"version", "directory": a directory in which Snakemake ran}
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.entry import Content, JournalEntry, check_destinations
from snakemake_kochi.artifacts.large import Pointer, Store, is_large, opened
from snakemake_kochi.artifacts.restored import restored_from
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    answered,
    is_name,
    is_there,
    list_names,
    make_directory,
    move,
    read_json,
    to_json,
    write_atomically,
)
from snakemake_kochi.later_log import LaterLog
from snakemake_kochi.paths import ProjectPaths, WorkingPaths

VERSION = 1

_logger = LaterLog(__name__)


def agreed_commit(paths: ProjectPaths, machine: str) -> str | None:
    """The newest commit up to which no result is missing; None if it is not known.

    It is "", with which every branch agrees, if no commit was ever noted: results of an earlier
    release, or from before KOCHI_ROOT was emptied, may have been discarded.
    """
    try:
        if is_there(paths.disagreement(machine)):
            return None
        commit = read_json(paths.agreement(machine), VERSION)["commit"]
    except FileNotFoundError:
        return ""
    except (OSError, KeyError, DamagedFileError):
        return None
    return commit if isinstance(commit, str) else None


def begin_to_agree(paths: ProjectPaths, machine: str) -> None:
    """Note that a comparison begins. Call with the committer's lock held."""
    with suppress(OSError):
        _note_agreed(paths, machine, None)
        paths.disagreement(machine).unlink(missing_ok=True)


def agree(paths: ProjectPaths, machine: str, commit: str) -> None:
    """Note that no result is missing in a commit.

    A process that disagreed in the meantime, without the lock, is not overruled. Call with the
    committer's lock held.
    """
    with suppress(OSError):  # an older note is just as true
        _note_agreed(paths, machine, commit)


def _note_agreed(paths: ProjectPaths, machine: str, commit: str | None) -> None:
    make_directory(paths.agreement(machine).parent)
    content = to_json({"version": VERSION, "commit": commit})
    write_atomically(paths.agreement(machine), content)


def disagree(paths: ProjectPaths, machine: str) -> None:
    """Note that a result may exist in a working directory only."""
    marker = paths.disagreement(machine)
    try:
        make_directory(marker.parent)
        marker.touch(mode=0o600)
    except OSError:
        with suppress(OSError):  # a full disk has no room for a new file, but for another name
            move(paths.agreement(machine), marker)


def note_directory(paths: ProjectPaths, machine: str, directory: Path) -> None:
    """Note that Snakemake runs in a directory, so that its results are examined, too."""
    file = paths.working_directory(machine, directory)
    with suppress(OSError):
        if not is_there(file):
            make_directory(file.parent)
            content = {"version": VERSION, "directory": os.fspath(directory)}
            write_atomically(file, to_json(content))


def discard_results(paths: ProjectPaths, machine: str, project: Path) -> None:
    """Note that no result that now is in a working directory is to be committed."""
    identities = []
    for working in working_directories(paths, machine, project):
        with _reading(working):
            identities += [record["identity"] for _, record in _records(working)]
    file = paths.discarded(machine)
    make_directory(file.parent)
    write_atomically(file, to_json({"version": VERSION, "identities": sorted(identities)}))


def missing_results(
    paths: ProjectPaths,
    machine: str,
    project: Path,
    recorded: Collection[str],
    large: int | None = None,
) -> tuple[list[JournalEntry], bool]:
    """The results with a record in working directories that are not among the `recorded` ones.

    Returns them as journal entries, and whether all directories were read: one that cannot be read
    is logged and skipped. Also skipped are results that changed or vanished since their run,
    because their record does not describe them, discarded results, and those that were restored
    from the branch of somebody else. Contents of more than `large` bytes (by default LARGE) are put
    into the project's store. Raises OSError if KOCHI_ROOT cannot be read now.
    """
    store = Store.of(project)
    discarded = _discarded(paths, machine)
    entries, read = [], []
    for working in (directories := working_directories(paths, machine, project)):
        with _reading(working):
            left = discarded | restored_from(working).keys()
            for file, record in _records(working):
                if record["identity"] in recorded or record["identity"] in left:
                    continue
                try:
                    if (entry := _entry(working, file, record, store, large)) is not None:
                        entries.append(entry)
                except DamagedFileError as error:
                    _logger.warning("not committed: %s", error.message)
            read.append(working)
    whole = len(read) == len(directories)
    return sorted(entries, key=lambda entry: (entry.time, entry.identity)), whole


@contextmanager
def _reading(working: WorkingPaths) -> Iterator[None]:
    """Skip a directory that cannot be read now: its disk may never come back."""
    try:
        yield
    except OSError as error:
        _logger.warning(
            "%s: the results there cannot be read now, and are examined later: %s",
            working.directory,
            error,
        )


def told_missed(count: int, machine: str) -> str:
    """Describe `missing_results` for people."""
    results = "1 result" if count == 1 else f"{count} results"
    return (
        f"{results} in results/{machine} that no commit had: the branch was deleted or moved, or a "
        "result could not be kept when its run ended (on a full disk, for example)"
    )


def _discarded(paths: ProjectPaths, machine: str) -> set[str]:
    try:
        return set(read_json(paths.discarded(machine), VERSION)["identities"])
    except FileNotFoundError:
        return set()
    except (DamagedFileError, KeyError, TypeError) as error:
        raise DamagedFileError(
            f"{paths.discarded(machine)}: cannot be read ({error})",
            "To commit all results in results/, remove this file.",
        ) from error


def _records(working: WorkingPaths) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every record in a working directory, after its file."""
    for file in record_files(working.records):
        try:
            record = read_json(file)
            if is_name(record["identity"]) and record["machine"] == working.machine:
                yield file, record
        except FileNotFoundError:
            continue  # its run is just repeated
        except (DamagedFileError, KeyError, TypeError) as error:
            _logger.warning("%s: not a valid record; its result is not committed (%s)", file, error)


def working_directories(paths: ProjectPaths, machine: str, project: Path) -> Sequence[WorkingPaths]:
    """The directories in which Snakemake ran. Raises OSError if they are not known now."""
    place = paths.working_directories(machine)
    found = {project.resolve()}
    for name in list_names(place):
        if name.endswith(".json"):
            with suppress(DamagedFileError, KeyError):
                found.add(Path(str(read_json(place / name, VERSION)["directory"])))
    return [WorkingPaths(directory, machine) for directory in sorted(found)]


def record_files(directory: Path) -> list[Path]:
    """The files with the records below a directory, such as WorkingPaths.records.

    Raises OSError if one cannot be read.
    """

    def refuse(error: OSError) -> None:
        # If it were skipped, its results would count as examined.
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    name, walk = "record.json", os.walk(directory, onerror=refuse)
    return sorted(Path(parent, name) for parent, _, names in walk if name in names)


def _entry(
    working: WorkingPaths, file: Path, record: Mapping[str, Any], store: Store, limit: int | None
) -> JournalEntry | None:
    """The entry of one result; None if there is nothing to commit.

    Raises DamagedFileError and OSError.
    """
    written = answered(partial(os.stat, file)).st_mtime_ns
    files, large = {}, {}
    try:
        moment = int(datetime.fromisoformat(record["ended"]).timestamp() * 1e9)
        destinations = [str(artifact["dest"]) for artifact in record["artifacts"]]
        check_destinations(destinations)
    except (KeyError, TypeError, ValueError, KochiError) as error:
        raise DamagedFileError(f"{file}: not a valid record ({error})") from error
    for dest in destinations:
        place = working.artifact(record, dest)
        try:
            found = answered(partial(os.lstat, place))
        except (FileNotFoundError, NotADirectoryError):
            return None
        # A run writes its record last.
        if not stat.S_ISREG(found.st_mode) or found.st_mtime_ns > written:
            raise DamagedFileError(f"{place} was changed after the run whose record is {file}")
        with opened(place) as reader:
            if is_large(reader, limit):
                large[dest] = store.put(reader, Pointer.of_record(record, dest))
            else:
                files[dest] = Content(place, found.st_size)
    return JournalEntry(record["identity"], file.parent, moment, files, dict(record), large)
