"""On the machine: the project is made as the computer at home has it, for one command.

A parcel (`snapshot/parcel.py`) was pushed to the project before. This process is about to read the
project's files. Until it has read them, which `phases/freeze.py` notes, no other command gets other
files.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.published import choose_name, published_name
from snakemake_kochi.errors import ROOM, DamagedFileError, KochiError, told
from snakemake_kochi.files import (
    answered,
    expand_path,
    lacks_room,
    list_names,
    make_directory,
    read_json,
    to_json,
    write_atomically,
)
from snakemake_kochi.locks import settle_locks
from snakemake_kochi.paths import Root, SentPaths
from snakemake_kochi.phases.freeze import have_read
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.project.sent import VERSION
from snakemake_kochi.snapshot import forget_others, keep_parcel, read_parcel, tidy, unpack

_USE_VERSION = 1
# Seconds after which a command on another login node has read the project's files, or was too slow
# for the others. Here it is known whether it goes on.
_PATIENCE = 120.0
# Seconds for which a command that has ended may have started another one that reads them.
_HANDED_OVER = 10.0
_SAYS_AFTER = 3.0
_POLL_INTERVAL = 0.05


def receive(place: SentPaths, parcel: str, token: str, pid: int) -> None:
    """Unpack a parcel and note that a process reads it; `token`: the name of the note.

    Raises KochiError, GitError, OSError.
    """
    before = os.umask(0o077)
    try:
        _receive(place, parcel, token, pid)
    except OSError as error:
        if not lacks_room(error):
            raise
        raise KochiError(
            f"the files of the project cannot be made on the machine: {told(error)}", ROOM
        ) from error
    finally:
        os.umask(before)  # the command's own files have the user's


def _receive(place: SentPaths, parcel: str, token: str, pid: int) -> None:
    description = read_parcel(place.project, parcel)
    about = description["machine"]
    root = Root(place.root, about["root_said_at"])
    root.secure(place.state)
    with root.explaining():
        lock_dir = about["lock_dir"] and expand_path(about["lock_dir"], "lock_dir")
        machine = root.machine(about["name"])
        locks = settle_locks(machine, lock_dir or None, about["lock_kind"])
    with locks.hold(locks.paths.sent(place.directory.name)) as held:
        _wait_for_others(place, parcel)
        _unpack(place, parcel, description)
        held.require()
        _note_use(place, parcel, token, pid)
    atexit.register(have_read)  # of a command that reads nothing, or fails


def write_machines(place: SentPaths, texts: Sequence[str]) -> None:
    """Write the files with machines for all projects of the computer at home."""
    for number, text in enumerate(texts):
        write_atomically(place.machine_file(number), text.encode("utf-8", "surrogateescape"))
    for file in place.machines[len(texts) :]:
        file.unlink(missing_ok=True)


def _unpack(place: SentPaths, parcel: str, description: Mapping[str, Any]) -> None:
    note, project = place.note(place.project), description["trees"][0]
    _remove_remains(place)
    keep_parcel(place.project, parcel)
    write_machines(place, description["machines"])
    if (text := description["configuration"]) is not None:
        write_atomically(place.configuration, text.encode("utf-8", "surrogateescape"))
    make_directory(note.parent)
    # Until all is there, it says of no snapshot that it is the one that was sent.
    content = {"version": VERSION, "sources": description["sources"], "parcel": "", "tree": ""}
    content |= {key: project[key] for key in ("base", "dirty")}
    content["directory"] = description["from"]["directory"]
    if _noted(note).get("parcel") != parcel:
        write_atomically(note, to_json(content))
    unpack(
        place.directory,
        description,
        {each["at"]: place.index(each["at"]) for each in description["trees"]},
    )
    for machine, name in description["published"].items():
        with suppress(KochiError):  # results under the previous name are not fetched yet
            if published_name(place.project, machine) != name:
                choose_name(place.project, machine, name)
    forget_others(place.project, parcel)
    tidy(place.project)
    write_atomically(note, to_json({**content, "parcel": parcel, "tree": project["tree"]}))


def _noted(note: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError, DamagedFileError):
        return dict(read_json(note, VERSION))
    return {}


def _remove_remains(place: SentPaths) -> None:
    """Remove what killed processes have left: half a push, for example."""
    objects = place.project / ".git" / "objects"
    old = time.time() - 24 * 3600
    for path in (*objects.glob("tmp_objdir-*/*/*"), *objects.glob("tmp_objdir-*/*")):
        with suppress(OSError):
            if path.is_file() and path.stat().st_mtime < old:
                path.unlink()
    for path in (*objects.glob("tmp_objdir-*/*"), *objects.glob("tmp_objdir-*")):
        with suppress(OSError):
            path.rmdir()  # if it is empty


def _note_use(place: SentPaths, parcel: str, token: str, pid: int) -> None:
    process = ProcessIdentity.of(pid)
    if process is None:
        raise KochiError(f"the process {pid} that began this command has ended")
    make_directory(place.uses)
    content = {
        "version": _USE_VERSION,
        "parcel": parcel,
        "node": vars(this_node()),
        "process": vars(process),
    }
    write_atomically(place.use(token), to_json(content))


def _wait_for_others(place: SentPaths, parcel: str) -> None:
    """Wait until no command is about to read other files."""
    begun = time.monotonic()
    is_told = False
    while any(_is_awaited(place.uses / name, parcel) for name in list_names(place.uses)):
        if not is_told and time.monotonic() - begun > _SAYS_AFTER:
            print("kochi: waiting for another command that reads this project", file=sys.stderr)
            is_told = True
        time.sleep(_POLL_INTERVAL)


def _is_awaited(file: Path, parcel: str) -> bool:
    """Whether a command reads other files now; the note of one that does not is removed."""
    try:
        age = time.time() - answered(file.stat).st_mtime
        note = read_json(file, _USE_VERSION)
        node, process = Node.from_dict(note["node"]), ProcessIdentity.from_dict(note["process"])
    except FileNotFoundError:
        return False
    except (DamagedFileError, KeyError, TypeError, ValueError):
        age, node, process = _PATIENCE, this_node(), ProcessIdentity(0, 0)
        note = {"parcel": ""}
    is_here = this_node().can_see(node)
    # A launched run may read nothing of which we know, and lives for long.
    is_late = age >= _PATIENCE and (not is_here or note.get("is_launched", False))
    if is_late or (is_here and age >= _HANDED_OVER and not process.is_alive()):
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return False
    return bool(note["parcel"] != parcel)
