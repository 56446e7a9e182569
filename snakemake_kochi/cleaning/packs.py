"""Ended jobs in packs: a pack without its old jobs takes the place of the one with them.

A job is packed only after the controller that submitted it has ended in good order, and its ticket
is in no queue. So only its age counts, and what keeps it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from snakemake_kochi.cleaning.removal import BLOCK, Freed, Removal
from snakemake_kochi.files import list_names
from snakemake_kochi.packing.writing import write_index, write_pack
from snakemake_kochi.packs.pack import Pack
from snakemake_kochi.paths import SHARD, MachinePaths, PackGroupPaths
from snakemake_kochi.project.clean_rules import Rules


def clean_packs(
    machine: MachinePaths, rules: Rules, removal: Removal, needed: Collection[int]
) -> None:
    """Delete old jobs in packs. `needed` are jobs that others need (see `artifacts`)."""
    for name in sorted(list_names(machine.packs)):
        if name.isdecimal():
            with removal.tolerating(f"packs in {machine.packs / name}"):
                group = machine.pack_group(int(name) * SHARD)
                _clean_group(group, rules, removal, needed)


def _clean_group(
    group: PackGroupPaths, rules: Rules, removal: Removal, needed: Collection[int]
) -> None:
    removal.sweep(group.directory)
    gone: set[int] = set()
    try:
        for name in sorted(list_names(group.directory)):
            if (shard := group.shard_of(name)) is not None and not name.startswith("."):
                removal.check_time()
                with removal.tolerating(f"jobs in {group.directory / name}"):
                    gone |= _clean_pack(group, shard, name, rules, removal, needed)
    finally:
        if gone and not removal.is_dry:
            write_index(group, gone)
            # Fails while there are packs.
            with contextlib.suppress(OSError):
                os.rmdir(group.directory)


def _clean_pack(
    group: PackGroupPaths,
    shard: int,
    name: str,
    rules: Rules,
    removal: Removal,
    needed: Collection[int],
) -> set[int]:
    """Delete the old jobs of a pack; returns them."""
    path = group.directory / name
    with Pack(path) as pack:
        names = {job: each.name for each, jobs in pack.summaries().items() for job in jobs}
        old = {
            job
            for job, files in pack.jobs.items()
            if max(file.modified for file in files.values()) <= removal.now - rules.jobs
            and job not in needed
            and not rules.keeps("jobs", (str(job), *filter(None, (names.get(job),))))
        }
        if not old:
            return set()
        if is_whole := len(old) == len(pack.jobs):
            size = os.lstat(path).st_blocks * BLOCK
        else:
            files = (file for job in old for file in pack.jobs[job].values())
            size = sum(file.compressed_size for file in files)
            if not removal.is_dry:
                write_pack(group, shard, (), [pack], without=old)
    if not removal.is_dry:
        path.unlink(missing_ok=True)
    removal.count("jobs", Freed(len(old), int(is_whole), size))
    return old
