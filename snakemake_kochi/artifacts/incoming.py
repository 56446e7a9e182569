"""An artifact branch that came from another computer joins the one here.

refs/kochi/there/<machine>   the branch as it was there, at the last `kochi artifact sync -m`
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from snakemake_kochi.artifacts.branch_content import tip_of
from snakemake_kochi.artifacts.large import LONGEST_POINTER, Pointer, parse_pointer
from snakemake_kochi.errors import GitError
from snakemake_kochi.git import read_objects, run_git, update_ref

_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_ATTEMPTS = 3


def there_ref(machine: str) -> str:
    return f"refs/kochi/there/{machine}"


def pointers_between(repository: Path, branch: str, ref: str) -> Iterator[Pointer]:
    """The pointers to large files that a ref has, and a branch has not. Raises GitError."""
    old = tip_of(repository, branch) or _EMPTY_TREE
    words = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--diff-filter=AM")
    parts = run_git(repository, *words, old, ref).split(b"\0")
    blobs = list(dict.fromkeys(each.split(b" ")[3].decode() for each in parts[:-1:2]))
    asked = "".join(f"{blob}\n" for blob in blobs).encode()
    sizes = run_git(
        repository, "cat-file", "--batch-check=%(objectname) %(objectsize)", stdin=asked
    )
    small = [
        blob
        for blob, size in (line.split(" ") for line in sizes.decode().splitlines())
        if size.isdecimal() and int(size) <= LONGEST_POINTER
    ]
    for content in read_objects(repository, small):
        if content is not None and (pointer := parse_pointer(content)) is not None:
            yield pointer


def join(repository: Path, branch: str, ref: str) -> None:
    """Have a branch contain the commits of a ref; nothing is lost. Raises GitError.

    If both have commits of their own, they are merged; of a file that both have changed, the
    version of the ref counts, which is newer.
    """
    for attempt in range(_ATTEMPTS):
        here, there = tip_of(repository, branch), tip_of(repository, ref)
        if here and _contains(repository, here, there):
            return
        joined = there if not here or _contains(repository, there, here) else ""
        try:
            update_ref(repository, branch, joined or _merge(repository, here, there), here)
            return
        except GitError:
            # Results of this computer may have been committed just now.
            if attempt == _ATTEMPTS - 1 or tip_of(repository, branch) == here:
                raise


def _contains(repository: Path, commit: str, other: str) -> bool:
    words = ("merge-base", other, commit)
    return os.fsdecode(run_git(repository, *words, accept=(0, 1))).strip() == other


def _merge(repository: Path, here: str, there: str) -> str:
    """The commit that merges two, without a working tree."""
    words = ("merge-base", here, there)
    base = os.fsdecode(run_git(repository, *words, accept=(0, 1))).strip() or _EMPTY_TREE
    with tempfile.TemporaryDirectory(prefix="kochi-") as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        run_git(
            repository,
            "read-tree",
            "-i",
            "-m",
            "--aggressive",
            base,
            here,
            there,
            environment=index,
        )
        unmerged = run_git(repository, "ls-files", "-u", "-z", environment=index)
        lines: dict[bytes, bytes] = {}
        for entry in filter(None, unmerged.split(b"\0")):
            description, _, path = entry.partition(b"\t")
            mode, blob, stage = description.split(b" ")
            if stage != b"1":  # the last one counts, in the order of stages
                lines[path] = b"%s %s 0\t%s\0" % (mode, blob, path)
        run_git(
            repository,
            *("update-index", "-z", "--index-info"),
            environment=index,
            stdin=b"".join(lines.values()),
        )
        tree = run_git(repository, "write-tree", environment=index).decode().strip()
    message = "Merge results of another computer"
    made = run_git(
        repository,
        *("commit-tree", "--no-gpg-sign", tree, "-p", here, "-p", there, "-m", message),
    )
    return made.decode().strip()
