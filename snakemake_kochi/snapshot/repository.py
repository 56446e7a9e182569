"""The state of a working tree's git repository at the moment of the freeze, for copies of the tree.

A copy gets a `.git` of its own, in which `git describe`, `git log` and `git status` answer as in
the working tree. It has the checked-out commit, the tags and the index; the objects stay where they
are and are read from there. Nothing is written to the user's repository, neither now nor by a
script that uses git in a copy, and no configuration that names a command is copied.

Checked-out submodules get theirs in the same way: without one, git in there would answer for the
repository around them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from snakemake_kochi.errors import GitError
from snakemake_kochi.files import is_there, make_directory, move, to_json
from snakemake_kochi.git import run_git
from snakemake_kochi.paths import SUBMODULES
from snakemake_kochi.snapshot.listing import FILES_ONLY, matcher, submodules

# How names and differences are shown, and what counts as a difference. None is a command or a path.
_SETTINGS = (
    r"^core\.(abbrev|autocrlf|eol|filemode|ignorecase|precomposeunicode|quotepath|symlinks)$"
    r"|^status\.|^diff\.(ignoresubmodules|renames)$|^submodule\..*\.ignore$"
)
_CONFIGURATION = """\
[core]
\trepositoryformatversion = {format}
\tbare = false
\tlogallrefupdates = false
\thooksPath = /dev/null
\tfsmonitor = false
[gc]
\tauto = 0
[extensions]
"""


def keep_repository(
    directory: Path, store: Path, place: Callable[[str], Path], exclude: Sequence[str] = ()
) -> Path | None:
    """Write the `.git` for copies of a working tree as it is now to `place(digest)`, unless it
    exists, and return that directory; None when the directory is not the top of a working tree.

    `exclude` is that of the snapshot: tracked files that are left out count as unchanged.
    """
    return _keep(directory, store, place, matcher(exclude))


def _keep(
    directory: Path, store: Path, place: Callable[[str], Path], is_excluded: Callable[[str], bool]
) -> Path | None:
    if not os.path.lexists(directory / ".git"):
        return None
    try:
        files = _files(directory, store)
        index = _index(directory, is_excluded)
    except GitError:
        # The snapshot has accepted its oddities, or will report them.
        return None
    files |= _submodules(directory, store, place, is_excluded)
    digest = hashlib.sha256()
    for name, content in (*sorted(files.items()), *zip(("index", "left out"), index, strict=True)):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    kept = place(digest.hexdigest()[:32])
    if not is_there(kept / "HEAD"):
        _write(kept, files, *index)
    return kept


def _submodules(
    directory: Path, store: Path, place: Callable[[str], Path], is_excluded: Callable[[str], bool]
) -> dict[str, bytes]:
    """The checked-out submodules: as JSON, where the `.git` of each is kept, by its path."""
    found = {}
    for path in submodules(directory):
        kept = _keep(directory / path, store, place, _below(path, is_excluded))
        if kept is not None:
            found[path] = str(kept)
    return {SUBMODULES: to_json(found)} if found else {}


def _below(path: str, is_excluded: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda inner: is_excluded(f"{path}/{inner}")


def _ask(directory: Path, *words: str, accept: Sequence[int] = (0,)) -> bytes:
    return run_git(directory, *FILES_ONLY, *words, accept=accept)


def _files(directory: Path, store: Path) -> dict[str, bytes]:
    """The files of the `.git` except the index, by their path in it."""
    paths = ("objects", "shallow", "info/exclude")
    words = [word for path in paths for word in ("--git-path", path)]
    answers = _ask(directory, "rev-parse", "--path-format=absolute", *words, "--show-object-format")
    objects, shallow, excluded, kind = map(os.fsdecode, answers.split(b"\n")[:4])
    branch = _ask(directory, "symbolic-ref", "--quiet", "HEAD", accept=(0, 1))
    head = _ask(directory, "rev-parse", "--verify", "--quiet", "HEAD", accept=(0, 1))
    form = "%(objectname) %(refname)"
    # In git's order, which is that of their names: heads, replace, tags.
    refs = _ask(directory, "for-each-ref", f"--format={form}", "refs/replace", "refs/tags")
    if branch and head:
        refs = head.rstrip(b"\n") + b" " + branch + refs
    return {
        "HEAD": b"ref: " + branch if branch else head,
        "packed-refs": refs,
        # Objects that were fetched for this run are in the store only.
        "objects/info/alternates": os.fsencode(f"{objects}\n{store.absolute() / 'objects'}\n"),
        "config": _configuration(directory, kind).encode("utf-8", "surrogateescape"),
        **{
            name: Path(path).read_bytes()
            for name, path in (("shallow", shallow), ("info/exclude", excluded))
            if os.path.isfile(path)
        },
    }


def _configuration(directory: Path, kind: str) -> str:
    is_old = kind == "sha1"
    text = _CONFIGURATION.format(format=0 if is_old else 1)
    text += "" if is_old else f"\tobjectFormat = {kind}\n"
    found = _ask(
        directory, "config", "--local", "-z", "--get-regexp", _SETTINGS, accept=(0, 1)
    ).decode("utf-8", "surrogateescape")
    for setting in filter(None, found.split("\0")):
        key, _, value = setting.partition("\n")
        section, _, name = key.rpartition(".")
        outer, _, inner = section.partition(".")
        header = f"{outer} {_quoted(inner)}" if inner else outer
        text += f"[{header}]\n\t{name} = {_quoted(value)}\n"
    return text


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _index(directory: Path, is_excluded: Callable[[str], bool]) -> tuple[bytes, bytes]:
    """The index as `git update-index -z --index-info` reads it, and the paths in it that are not in
    the working tree on purpose."""
    staged, left_out = [], []
    for entry in filter(None, _ask(directory, "ls-files", "-z", "-t", "--stage").split(b"\0")):
        tag, staging = entry[:1], entry[2:]
        path = staging.partition(b"\t")[2]
        staged.append(staging + b"\0")
        if tag == b"S" or is_excluded(os.fsdecode(path)):
            left_out.append(path + b"\0")
    return b"".join(staged), b"".join(left_out)


def _write(kept: Path, files: dict[str, bytes], staged: bytes, left_out: bytes) -> None:
    make_directory(kept.parent)
    new = make_directory(kept.with_name(f".{kept.name}.{secrets.token_hex(4)}.tmp"))
    try:
        for name, content in files.items():
            make_directory((new / name).parent)
            (new / name).write_bytes(content)
        make_directory(new / "refs")
        variables = {"GIT_DIR": str(new), "GIT_WORK_TREE": str(new)}
        for words, given in (
            (["--index-info"], staged),
            (["--skip-worktree", "--stdin"], left_out),
        ):
            if given:
                run_git(new, "update-index", "-z", *words, environment=variables, stdin=given)
        try:
            move(new, kept)
        except OSError:
            # another process was quicker
            if not is_there(kept / "HEAD"):
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
