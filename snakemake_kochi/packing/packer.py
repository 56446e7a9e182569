"""One packing of a machine: shard by shard, the newest first."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import list_names, modified, time_of_server
from snakemake_kochi.locks import LockBusyError, find_lock_settings
from snakemake_kochi.packing.automatic import FEW, removed_controllers
from snakemake_kochi.packing.candidates import DAY, Candidate, Keeping, Selection, select
from snakemake_kochi.packing.writing import remove_packed, write_index, write_pack
from snakemake_kochi.packs.pack import Pack
from snakemake_kochi.paths import SHARD, MachinePaths, PackGroupPaths
from snakemake_kochi.queue.entries import Kind, old_ranges, raise_floor, read_next

_log = logging.getLogger(__name__)

# So many calls of the filesystem are on their way at a time: they overlap on a slow disk, and a
# file server has many other clients.
_THREADS = 4
# A gentle packer rests after a shard as long as it took, so many seconds at most.
_LONGEST_REST = 5.0
# Seconds. An older temporary file was left by a packer that was killed.
_LEFTOVER_AGE = 3600.0
# Fewer old ranges of numbers than this are not worth the lock.
_FEW_RANGES = 16


@dataclass
class Packing:
    """What was packed: how many jobs. `faults`: what stays because of an error."""

    jobs: int = 0
    faults: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def tolerating(self, what: str) -> Iterator[None]:
        """Go on with the next thing after an error: this one stays as it is."""
        try:
            yield
        except (OSError, KochiError) as error:
            said = error.message if isinstance(error, KochiError) else str(error)
            self.faults.append(f"{what}: {said}")
            _log.warning("%s: %s", what, said)


def pack(machine: MachinePaths, is_gentle: bool = False) -> Packing:
    """Pack the ended jobs of a machine that nothing needs as files of their own.

    It is safe beside everything, and may be killed at any time: the next call goes on. If another
    process packs, it does nothing. With `is_gentle`, it uses half of the time at most. Raises
    OSError and KochiError when nothing can be done.
    """
    packing = Packing()
    for directory in removed_controllers(machine):
        shutil.rmtree(directory, ignore_errors=True)
    if not list_names(machine.jobs) and not list_names(machine.packs):
        return packing  # also: the locks of an unused machine stay unsettled
    settings = find_lock_settings(machine)
    # The lock only saves two packers from the same work: see `writing`.
    lock = settings.hold(settings.paths.packing, patience=0.0)
    with contextlib.suppress(LockBusyError), lock:
        _pack(machine, packing, is_gentle)
    return packing


def _pack(machine: MachinePaths, packing: Packing, is_gentle: bool) -> None:
    keeping, following = Keeping(time_of_server(machine.directory)), 0
    with contextlib.suppress(DamagedFileError):  # then all shards may get more jobs
        following = read_next(machine, "job")
    shards = {int(n) for n in list_names(machine.jobs) if n.isdecimal()}
    with ThreadPoolExecutor(_THREADS) as executor:
        for shard in sorted(shards | _with_several_packs(machine), reverse=True):
            began = time.monotonic()
            with packing.tolerating(f"jobs in {machine.job(shard * SHARD).directory.parent}"):
                is_full = (shard + 1) * SHARD <= following
                packing.jobs += _pack_shard(machine, shard, is_full, keeping, packing, executor)
            if is_gentle:
                time.sleep(min(time.monotonic() - began, _LONGEST_REST))
    for name in sorted(list_names(machine.packs)):
        if name.isdecimal():
            group = machine.pack_group(int(name) * SHARD)
            with packing.tolerating(f"index of {group.directory}"):
                _tidy(group, keeping.now)
    for kind in get_args(Kind):
        with packing.tolerating(f"ranges of {kind} numbers"):
            _forget_ranges(machine, kind)


def _with_several_packs(machine: MachinePaths) -> set[int]:
    """The shards of which a killed packer has left more than one pack."""
    found: Counter[int] = Counter()
    for name in list_names(machine.packs):
        if name.isdecimal():
            group = machine.pack_group(int(name) * SHARD)
            shards = map(group.shard_of, list_names(group.directory))
            found.update(shard for shard in shards if shard is not None)
    return {shard for shard, count in found.items() if count > 1}


def _pack_shard(
    machine: MachinePaths,
    shard: int,
    is_full: bool,
    keeping: Keeping,
    packing: Packing,
    executor: Executor,
) -> int:
    """Pack jobs of a shard; returns how many."""
    directory, group = machine.job(shard * SHARD).directory.parent, machine.pack_group(shard)
    with contextlib.ExitStack() as stack:
        packs = []
        for name in list_names(group.directory):
            if group.shard_of(name) == shard:
                # A damaged pack stays as it is, beside the new one.
                with packing.tolerating(f"pack {name}"), contextlib.suppress(FileNotFoundError):
                    packs.append(stack.enter_context(Pack(group.directory / name)))
        chosen: tuple[Candidate, ...] = ()
        if is_full or _is_looked_at(directory, keeping.now):
            packed = {job for pack in packs for job in pack.jobs}
            selection = select(machine, directory, packed, keeping, executor)
            if _is_worth(selection, is_full, keeping):
                chosen = selection.chosen
        # The last packer may have been killed before it had removed a pack, or a directory.
        if len(packs) > 1 or any(each.files for each in chosen):
            _write(group, shard, chosen, packs, packing)
        list(executor.map(remove_packed, chosen))
    # Fails while it has files; `make_directory` copes with the rest.
    with contextlib.suppress(OSError):
        os.rmdir(directory)
    return len(chosen)


def _is_looked_at(directory: Path, now: float) -> bool:
    """Whether the newest shard has enough jobs to look at them, or old ones."""
    with contextlib.suppress(FileNotFoundError):
        return len(list_names(directory)) >= FEW or modified(directory) < now - DAY
    return False


def _write(
    group: PackGroupPaths,
    shard: int,
    chosen: Collection[Candidate],
    packs: Collection[Pack],
    packing: Packing,
) -> None:
    """Write one pack of these jobs and packs, and remove the latter. Raises OSError."""
    try:
        write_pack(group, shard, chosen, packs)
    except DamagedFileError as error:
        packing.faults.append(error.sentences)
        packs = ()  # they stay beside the new one
        if chosen:
            write_pack(group, shard, chosen)
    for old in packs:
        with contextlib.suppress(FileNotFoundError):
            old.path.unlink()


def _is_worth(selection: Selection, is_full: bool, keeping: Keeping) -> bool:
    """Whether to write a pack now: otherwise it would soon be written again."""
    chosen = selection.chosen
    is_complete = is_full and not selection.has_others
    return bool(chosen) and (len(chosen) >= FEW or is_complete or any(map(keeping.is_old, chosen)))


def _tidy(group: PackGroupPaths, now: float) -> None:
    """Remove what killed packers left, and write the index if it does not cover all packs."""
    names = list_names(group.directory)
    for name in names:
        path = group.directory / name
        if name.startswith(".") and name.endswith(".tmp"):
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(path).st_mtime < now - _LEFTOVER_AGE:
                    path.unlink()
    write_index(group)


def _forget_ranges(machine: MachinePaths, kind: Kind) -> None:
    """Delete all ranges of numbers but the newest one: the floor tells that they are taken."""
    old = old_ranges(machine, kind)
    if len(old) < _FEW_RANGES:
        return
    raise_floor(machine, kind, old)
    for path in old:
        path.unlink(missing_ok=True)
    for parent in {path.parent for path in old}:
        with contextlib.suppress(OSError):
            os.rmdir(parent)
