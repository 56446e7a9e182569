"""A working tree as it stands becomes a git tree in a store of ours; a tree becomes files again."""

from snakemake_kochi.snapshot.snapshot import (
    Entry,
    Snapshot,
    digest_sources,
    freeze,
    list_entries,
    materialise,
    read_file,
    select_sources,
    toplevel,
)
from snakemake_kochi.snapshot.source import fetch_source, resolve_source

__all__ = [
    "Entry",
    "Snapshot",
    "digest_sources",
    "fetch_source",
    "freeze",
    "list_entries",
    "materialise",
    "read_file",
    "resolve_source",
    "select_sources",
    "toplevel",
]
