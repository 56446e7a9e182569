"""A project that another computer sent: where the directories are that its kochi.yaml names.

What came from where is in the project's repository:
.git/kochi/sent.json   {"version", "parcel", "tree", "base", "dirty", "sources", "directory"}

`sources` has, by the key and the value in kochi.yaml (`mirror_dir ../lib`), a path relative to the
directory above the project. `parcel.py` describes what a parcel is; `tree`, `base` and `dirty` are
those of the snapshot that was sent. `directory` is that of the project at home.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import expand_user, read_json
from snakemake_kochi.paths import SentPaths

VERSION = 1


def source_key(key: str, text: str) -> str:
    return f"{key} {text}"


def sent_note(directory: Path) -> dict[str, Any] | None:
    """What was sent; None for a project that is at home. Raises DamagedFileError."""
    file = SentPaths.note(directory)
    try:
        note: dict[str, Any] = read_json(file, VERSION)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(note.get("sources"), dict):
        raise DamagedFileError(f"{file}: not a note of what was sent")
    return note


def path_here(directory: Path, path: Path) -> Path:
    """A path as it was typed at home, on this computer; `directory`: that of the project."""
    note = sent_note(directory) if path.is_absolute() else None
    home = None if note is None else note.get("directory")
    if home is None or not path.is_relative_to(home):
        return path
    return directory / path.relative_to(home)


def local_path(directory: Path, key: str, text: str, what: str) -> Path:
    """The path that a key of a recipe names on this computer; `directory`: that of the project.

    `what` is for messages. Raises KochiError for a user that does not exist.
    """
    note = sent_note(directory)
    if note is not None and (place := note["sources"].get(source_key(key, text))) is not None:
        return directory.parent / str(place)
    return directory / expand_user(text.removeprefix("file://") if key == "git" else text, what)
