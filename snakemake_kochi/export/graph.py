"""The graph of a research object crate: entities, each once, and what they refer to.

Files are named by their path in the crate, other things by a URL or by a fragment that begins with
'#'.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from datetime import datetime
from mimetypes import MimeTypes
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from rocrate.model.contextentity import ContextEntity
from rocrate.model.data_entity import DataEntity
from rocrate.rocrate import ROCrate

from snakemake_kochi.export.publication import plain

# Not from the files of this computer: a crate is the same wherever it is made.
_TYPES = MimeTypes(filenames=())
_OTHER_TYPES = {
    ".cff": "application/yaml",
    ".log": "text/plain",
    ".md": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}


class Graph:
    """A crate in a `directory`, in which its files are already. `version`: that of RO-Crate."""

    def __init__(self, directory: Path, version: str) -> None:
        self.crate = ROCrate(version=version)
        self._directory = directory
        self._made: dict[str, Any] = {}

    def write(self) -> None:
        """Write ro-crate-metadata.json. Raises OSError."""
        self.crate.metadata.write(self._directory)

    def get(self, identifier: str) -> Any:
        """What was made under an id, a path, or the path of a directory with '/'; else None."""
        return self._made.get(identifier)

    def thing(self, identifier: str, type_: str, **properties: Any) -> Any:
        """The entity with an id; it is made when it is wanted for the first time."""
        if identifier not in self._made:
            entity = ContextEntity(self.crate, identifier, {"@type": type_})
            put(entity, **properties)
            self._made[identifier] = self.crate.add(entity)
        return self._made[identifier]

    def work(self, identifier: str, **properties: Any) -> Any:
        """A work that is elsewhere."""
        return self.thing(identifier, "CreativeWork", **properties)

    def file(self, path: str, types: str | Sequence[str] = "File", **properties: Any) -> Any:
        """The entity of a file, with its size and format."""
        if path not in self._made:
            suffix = PurePosixPath(path).suffix
            guessed = _OTHER_TYPES.get(suffix) or _TYPES.guess_type(f"x{suffix}")[0]
            entity = DataEntity(self.crate, quote(os.fsencode(path)), {"@type": types})
            size = {"contentSize": str((self._directory / path).stat().st_size)}
            form = {"encodingFormat": guessed or "application/octet-stream"}
            put(entity, **{**form, **size, **properties})
            self._made[path] = self.crate.add(entity)
        return self._made[path]

    def directory(self, path: str, **properties: Any) -> Any:
        """The entity of a directory."""
        entity = DataEntity(self.crate, f"{quote(os.fsencode(path))}/", {"@type": "Dataset"})
        put(entity, **properties)
        self._made[f"{path}/"] = self.crate.add(entity)
        return entity


def put(entity: Any, **properties: Any) -> None:
    """Set the properties that are known."""
    for name, value in properties.items():
        if value not in (None, "", []):
            entity[name] = plain(value) if isinstance(value, str) else value


def one(values: list[Any]) -> Any:
    """As JSON-LD wants it: a single value is not in a list."""
    return values[0] if len(values) == 1 else values


def fragment(kind: str, *parts: str) -> str:
    """The id of an entity that is no file: a fragment of a URI."""
    return "/".join((f"#{kind}", *map(quoted, parts)))


def quoted(text: str) -> str:
    """A text as a part of an id."""
    return quote(os.fsencode(text), safe="")


def milliseconds(text: str) -> str:
    """A time as the profile wants it."""
    return datetime.fromisoformat(text).isoformat(timespec="milliseconds")


def digest(text: str) -> str:
    """A few digits that stand for a text."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]
