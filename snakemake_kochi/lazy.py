"""Packages whose names are imported when somebody asks for them.

A process that is started often, or has to stay small, would import a whole room for one of its
names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` (PEP 562) of a package that re-exports names of its modules.

    `modules` maps a module of the package to its names; none of them may be called as a module.
    """
    origins = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{origins[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
