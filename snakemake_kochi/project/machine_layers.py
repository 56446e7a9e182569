"""Machines that several files say something about: the nearest file counts, key by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snakemake_kochi.project.document import Document, KeyPath
from snakemake_kochi.project.reading import section

# The two ways to a compute node, with which `allocation` has other keys.
_WAYS = {"scheduler": "alloc_script", "alloc_script": "scheduler"}


@dataclass(frozen=True)
class Layers:
    """The sections `machines:` of files, the nearest first. What is wrong with a key is noted in
    the file from which it is."""

    documents: tuple[Document, ...]

    def names(self) -> dict[str, None]:
        """Of all machines, those of the nearest file first."""
        return dict.fromkeys(name for each in self.documents for name in _machines(each))

    def files(self, name: str) -> tuple[str, ...]:
        """Those that say something of a machine."""
        return tuple(each.locations.file for each in self.documents if name in _machines(each))

    def data(self, name: str) -> dict[str, Any]:
        """What they say of it: the nearest counts for each key, and for each of `allocation`. A
        nearer `scheduler` or `alloc_script` takes the place of the other one, and of what is said
        for allocations by that."""
        merged: dict[str, Any] = {}
        for document in reversed(self.documents):
            own = section(_machines(document), name)
            for way, other in _WAYS.items():
                if way in own and other in merged and other not in own:
                    merged.pop(other)
                    merged.pop("allocation", None)
            allocation = section(merged, "allocation") | section(own, "allocation")
            merged |= own
            if allocation:
                merged["allocation"] = allocation
        return merged

    def origin(self, path: KeyPath) -> Document:
        """The file from which a key is."""
        for length in range(len(path), 1, -1):
            for document in self.documents:
                if path[:length] in document.locations.lines:
                    return document
        return self.documents[0]

    def add(self, path: KeyPath, message: str) -> None:
        """Note a problem."""
        self.origin(path).problems.add(path, message)

    def is_unknown(self, path: KeyPath) -> bool:
        return self.origin(path).problems.is_unknown(path)


def _machines(document: Document) -> dict[str, Any]:
    return section(document.data, "machines")
