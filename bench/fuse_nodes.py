"""The files and directories that the kernel knows by a number, and what their names are now."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from bench.fuse_protocol import ROOT


@dataclass
class _Node:
    """`name` is None when it is gone; the file may be open."""

    parent: int
    name: str | None
    inode: int
    lookups: int = 0
    handles: list[int] = field(default_factory=list)


class Nodes:
    """Each name is a node of its own. The kernel forgets it when it needs it no more."""

    def __init__(self) -> None:
        self._nodes = {ROOT: _Node(ROOT, "", 0)}
        self._children: dict[tuple[int, str], int] = {}
        self._next = ROOT + 1

    def path(self, number: int, name: str | None = None) -> str:
        """The path of a node, or of a name in it, with a slash first. Raises FileNotFoundError if
        it has none any more."""
        parts = [] if name is None else [name]
        while number != ROOT:
            node = self._nodes[number]
            if node.name is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            parts.append(node.name)
            number = node.parent
        return "/" + "/".join(reversed(parts))

    def area(self, number: int) -> str:
        """The first name of the path. Empty for the root, and if that name is gone."""
        while number != ROOT:
            node = self._nodes[number]
            if node.parent == ROOT:
                return node.name or ""
            number = node.parent
        return ""

    def look_up(self, parent: int, name: str, inode: int) -> int:
        """The node of a name that is that inode."""
        number = self._children.get((parent, name))
        if number is None or self._nodes[number].inode != inode:
            self.remove(parent, name)
            number, self._next = self._next, self._next + 1
            self._nodes[number] = _Node(parent, name, inode)
            self._children[parent, name] = number
        self._nodes[number].lookups += 1
        return number

    def remove(self, parent: int, name: str) -> None:
        number = self._children.pop((parent, name), None)
        if number is not None:
            self._nodes[number].name = None

    def rename(self, parent: int, name: str, new_parent: int, new_name: str) -> None:
        number = self._children.pop((parent, name), None)
        self.remove(new_parent, new_name)
        if number is not None:
            self._nodes[number].parent, self._nodes[number].name = new_parent, new_name
            self._children[new_parent, new_name] = number

    def forget(self, number: int, lookups: int) -> None:
        node = self._nodes.get(number)
        if node is None or number == ROOT:
            return
        node.lookups -= lookups
        if node.lookups <= 0:
            if node.name is not None:
                self._children.pop((node.parent, node.name), None)
            del self._nodes[number]

    def opened(self, number: int, handle: int) -> None:
        self._nodes[number].handles.append(handle)

    def closed(self, number: int, handle: int) -> None:
        if number in self._nodes:
            self._nodes[number].handles.remove(handle)

    def handle_of_removed(self, number: int) -> int | None:
        """A file that has no name any more, and is open."""
        node = self._nodes[number]
        return node.handles[-1] if node.name is None and node.handles else None
