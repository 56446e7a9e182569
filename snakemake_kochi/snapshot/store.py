"""The store: a bare git repository of ours that keeps snapshots for good.

Files are read from the user's directory and written to the store directly; the user's repository
only lists the files. So nothing is written there, and no gc there can do harm.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from snakemake_kochi.errors import GitError
from snakemake_kochi.files import is_there, make_directory, move, write_atomically
from snakemake_kochi.git import run_git

# A snapshot has the bytes of the working tree, whatever .gitattributes and the user's configuration
# say: otherwise line endings, keywords, encodings and filters would be applied twice or not undone.
_ATTRIBUTES = "* -text -filter -ident !working-tree-encoding !eol\n"
# The user's settings are for the user's repositories (split index, ignored modes, compression).
_OWN_CONFIGURATION = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_CONFIG_COUNT": "0",
}
_CONFIGURATION = """\
[core]
\trepositoryformatversion = 0
\tbare = true
\tfileMode = true
\tsymlinks = true
\tignoreCase = false
\tprecomposeUnicode = false
\tprotectNTFS = false
\tprotectHFS = false
\tautocrlf = false
\tfsync = committed,loose-object
\tfsyncMethod = batch
[checkout]
\tworkers = 4
[gc]
\tautoDetach = false
"""
# Git trusts an entry of its stat cache when the file is older than the cache. Clocks of file
# servers differ, and stat times may be whole seconds. A cache with an older date makes git read
# every recently changed file.
_CLOCK_DIFFERENCE = 10_000_000_000  # nanoseconds


def run_in_store(
    store: Path,
    *arguments: str,
    directory: Path | None = None,
    index: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    accept: Iterable[int] = (0,),
    transports: Collection[str] = (),
) -> bytes:
    """Run git on the store; with `directory` as working tree and `index` where a command needs
    them. Raises GitError."""
    variables = {**store_environment(store), **(environment or {})}
    if directory is not None:
        variables["GIT_WORK_TREE"] = os.path.abspath(directory)
    if index is not None:
        variables["GIT_INDEX_FILE"] = os.path.abspath(index)
    return run_git(
        directory or store,
        *arguments,
        environment=variables,
        stdin=stdin,
        accept=tuple(accept),
        transports=transports,
    )


def store_environment(store: Path) -> dict[str, str]:
    """The environment in which any git command works on the store, in any directory."""
    return {"GIT_DIR": os.path.abspath(store), **_OWN_CONFIGURATION}


def create_store(store: Path) -> None:
    """Create the store unless it exists.

    Safe from several processes at once, on any nodes, without a lock: a rename never replaces a
    directory with files in it.
    """
    if is_there(store / "HEAD"):
        return
    make_directory(store.parent)
    new = make_directory(store.with_name(f".{store.name}.{secrets.token_hex(4)}.tmp"))
    try:
        run_in_store(new, "init", "--quiet", "--bare", "--template=")
        (new / "config").write_text(_CONFIGURATION)
        make_directory(new / "info")
        (new / "info" / "attributes").write_text(_ATTRIBUTES)
        make_directory(new / "indexes")
        try:
            move(new, store)
        except OSError:
            # another process was quicker
            if not is_there(store / "HEAD"):
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def write_tree(store: Path, directory: Path, paths: Iterable[str]) -> str:
    """Write these files of the directory to the store as a tree; return its id.

    A stat cache per directory stays in the store, so that unchanged files are not read again.
    """
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
    cache = store / "indexes" / digest
    index = cache.with_name(f"{digest}.{secrets.token_hex(4)}.tmp")
    wanted = tuple(paths)
    try:
        try:
            tree = _write_with_cache(store, directory, index, cache, wanted)
        except GitError:
            # The cache may be damaged, or a file changed while it was read.
            index.unlink(missing_ok=True)
            tree = _write_with_cache(store, directory, index, None, wanted)
        if index.exists():  # without any file git writes none
            os.replace(index, cache)
    finally:
        index.unlink(missing_ok=True)
        index.with_name(f"{index.name}.lock").unlink(missing_ok=True)
    return tree


def _write_with_cache(
    store: Path, directory: Path, index: Path, cache: Path | None, paths: tuple[str, ...]
) -> str:
    known: set[str] = set()
    if cache is not None and cache.exists():
        shutil.copy2(cache, index)  # with its time, which is part of its meaning
        listed = run_in_store(store, "ls-files", "-z", directory=directory, index=index)
        known = {os.fsdecode(path) for path in listed.split(b"\0") if path}
    started = time.time_ns()

    def update(option: str, changed: Iterable[str]) -> None:
        names = b"".join(os.fsencode(path) + b"\0" for path in changed)
        options = ("update-index", "--add", "--replace", option, "-z", "--stdin")
        run_in_store(store, *options, directory=directory, index=index, stdin=names)

    gone = known.difference(paths)
    if gone:
        update("--force-remove", gone)
    update("--remove", paths)
    tree = run_in_store(store, "write-tree", index=index).decode().strip()
    if index.exists():
        os.utime(index, ns=(started - _CLOCK_DIFFERENCE,) * 2)
    return tree


def keep_tree(store: Path, tree: str) -> str:
    """Keep a tree for good by a commit and a ref; return the commit's id, always the same one."""
    ref = f"refs/snapshots/{tree}"
    kept = run_in_store(store, "rev-parse", "--verify", "--quiet", ref, accept=(0, 1))
    if kept:
        return kept.decode().strip()
    date = {"GIT_AUTHOR_DATE": "946684800 +0000", "GIT_COMMITTER_DATE": "946684800 +0000"}
    made = run_in_store(store, "commit-tree", tree, "-m", f"snapshot {tree}", environment=date)
    commit = made.decode().strip()
    # Not by git, whose lock outlives a killed process: whoever writes the ref, and however often,
    # it is the same.
    file = store / ref
    make_directory(file.parent)
    write_atomically(file, f"{commit}\n".encode(), durable=True)
    return commit
