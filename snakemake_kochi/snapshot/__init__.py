"""Snapshots: a working tree becomes a git tree in a store, and a tree becomes files again."""

from snakemake_kochi.snapshot.arrival import forget_others, keep_parcel, read_parcel, tidy, unpack
from snakemake_kochi.snapshot.commits import commits_between, find_commit, freeze_commit
from snakemake_kochi.snapshot.difference import difference
from snakemake_kochi.snapshot.listing import (
    Listing,
    ignored_files,
    is_ignored,
    matcher,
)
from snakemake_kochi.snapshot.parcel import Bare, Parcel, Tree, pack, send_parcel, sent_ref
from snakemake_kochi.snapshot.publication import (
    publish_commit,
    publish_mirror,
    publish_snapshot,
    restore_code,
    write_code,
)
from snakemake_kochi.snapshot.repository import keep_repository, keep_repository_at, keep_tree
from snakemake_kochi.snapshot.snapshot import (
    Entry,
    Snapshot,
    digest_sources,
    freeze,
    list_entries,
    materialise,
    read_file,
    renew,
    select_sources,
    toplevel,
)
from snakemake_kochi.snapshot.source import (
    fetch_source,
    has_commit,
    has_tree,
    history,
    resolve_source,
)

__all__ = [
    "Bare",
    "Entry",
    "Listing",
    "Parcel",
    "Snapshot",
    "Tree",
    "commits_between",
    "difference",
    "digest_sources",
    "fetch_source",
    "find_commit",
    "freeze_commit",
    "forget_others",
    "freeze",
    "has_commit",
    "has_tree",
    "ignored_files",
    "is_ignored",
    "keep_parcel",
    "history",
    "keep_repository",
    "keep_repository_at",
    "keep_tree",
    "list_entries",
    "matcher",
    "materialise",
    "pack",
    "publish_commit",
    "publish_mirror",
    "publish_snapshot",
    "read_file",
    "read_parcel",
    "renew",
    "resolve_source",
    "restore_code",
    "select_sources",
    "send_parcel",
    "sent_ref",
    "tidy",
    "toplevel",
    "unpack",
    "write_code",
]
