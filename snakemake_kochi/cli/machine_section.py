"""Adding a machine to a kochi.yaml without changing anything else in it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.document import read_yaml
from snakemake_kochi.project.reading import section

_KEY_ALONE = re.compile(r"machines:\s*(#.*)?\Z")


def has_machine(file: Path, text: str, name: str) -> bool:
    """Raises ConfigError for what is not YAML."""
    data = read_yaml(str(file), text).data
    return name in section(data, "machines") if isinstance(data, dict) else False


def with_machine(file: Path, text: str, name: str, entry: str) -> str | None:
    """The text of a kochi.yaml with an entry of `machines:` more; None where that cannot be
    written without changing what is there. Raises ConfigError for what is not YAML."""
    document = read_yaml(str(file), text)
    if not isinstance(document.data, dict):
        return None
    lines = text.splitlines(keepends=True)
    if "machines" not in document.data:
        gap = "\n" if text.strip() else ""
        end = "" if not text or text.endswith("\n") else "\n"
        added = f"{text}{end}{gap}machines:\n{textwrap.indent(entry, '  ')}"
    else:
        line = document.locations.lines[("machines",)]
        if not _KEY_ALONE.match(lines[line - 1].rstrip("\n")):
            return None
        there = section(document.data, "machines")
        first = document.locations.line(("machines", next(iter(there)))) if there else None
        before = re.match(" *", lines[first - 1]) if first is not None else None
        lines.insert(line, textwrap.indent(entry, before[0] if before is not None else "  "))
        added = "".join(lines)
    return added if _is_there(file, added, name) else None


def _is_there(file: Path, text: str, name: str) -> bool:
    try:
        return load_project(file.parent, text, file).machine(name).scheduler is not None
    except KochiError:
        return False
