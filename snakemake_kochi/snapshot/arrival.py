"""A parcel is unpacked on another computer: working trees and repositories as they were sent.

parcel.json   {"version",
               "trees": [{"at", "tree", "commit", "base", "dirty", "repositories":
                          [{"path", "head", "branch", "alone", "index", "left_out", "empty",
                            "refs", "settings"}]}],
               "bare": [{"at", "head", "branch", "refs"}], ...}

`at` is the place of a working tree or repository, `path` that of a repository in a working tree.
The first place is that of the repository that received the parcel; the others read its objects.
Killed at any point, the next call with any parcel makes everything right. One process at a time.

Files that git does not know and that were not sent stay, and are ignored: results, for example.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, GitError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.git import run_git
from snakemake_kochi.snapshot.parcel import (
    DESCRIPTION,
    RESULTS_OF_HOME,
    VERSION,
    make_commit,
    sent_ref,
    sent_tag,
)
from snakemake_kochi.snapshot.repository import create_store, reading_objects, run_in_store

# Of each repository: which refs were sent, so that those are deleted that are sent no more.
_REFS = Path("kochi") / "sent-refs.json"
_OWN_REFS = ("refs/kochi/", "refs/heads/kochi_artifacts", RESULTS_OF_HOME)
# Whatever is the default here.
_FORMATS = {"GIT_DEFAULT_HASH": "sha1", "GIT_DEFAULT_REF_FORMAT": "files"}
_CONFIGURATION = """\
[core]
\trepositoryformatversion = 0
\tbare = {bare}
\tfilemode = true
\tlogallrefupdates = false
\thooksPath = /dev/null
\tfsmonitor = false
\texcludesFile =
[gc]
\tauto = 0
[receive]
\tautogc = false
"""


def read_parcel(receiver: Path, commit: str) -> dict[str, Any]:
    """The description of a parcel that a repository has received. Raises GitError, and
    DamagedFileError for one of another release."""
    content = run_git(receiver, "cat-file", "blob", f"{commit}:{DESCRIPTION}")
    description: dict[str, Any] = json.loads(content)
    if description.get("version") != VERSION:
        raise DamagedFileError(
            f"what was sent to {receiver} is of another release of kochi",
            "Use the same version on both computers.",
        )
    return description


def unpack(directory: Path, description: Mapping[str, Any], indexes: Mapping[str, Path]) -> None:
    """Make the working trees and repositories of a parcel below a directory.

    `indexes`: a file for each place of a working tree, which knows the files there. Raises
    GitError and OSError.
    """
    receiver = directory / description["trees"][0]["at"]
    objects = receiver / ".git" / "objects"
    for tree in description["trees"]:
        _unpack_tree(directory / tree["at"], tree, indexes[tree["at"]], objects)
    for bare in description["bare"]:
        _prepare(directory / bare["at"], objects, _CONFIGURATION.format(bare="true"))
        _point(directory / bare["at"], bare)


def keep_parcel(receiver: Path, commit: str) -> None:
    """Let git keep a parcel if another command has let it forget it. Raises GitError."""
    if run_git(receiver, "for-each-ref", sent_ref(commit)):
        return
    description = read_parcel(receiver, commit)
    every = [each for tree in description["trees"] for each in tree["repositories"]]
    history = {
        identity
        for each in (*every, *description["bare"])
        for name, identity in each["refs"].items()
        if not each.get("alone")
    }
    asked = "".join(f"{each}^{{commit}}\n" for each in sorted(history)).encode()
    found = run_git(receiver, "cat-file", "--batch-check=%(objectname)", stdin=asked)
    parents = dict.fromkeys([commit, *found.decode().splitlines()])
    kept = make_commit(receiver / ".git", f"{commit}^{{tree}}", parents)
    _update(receiver, [f"update {sent_ref(commit)} {kept}\n"])


def forget_others(receiver: Path, commit: str) -> None:
    """Let git forget all parcels but one, and tags that it does not need."""
    kept = {sent_ref(commit)}
    description = read_parcel(receiver, commit)
    every = [each for tree in description["trees"] for each in tree["repositories"]]
    for repository in [*every, *description["bare"]]:
        kept |= {sent_tag(identity) for identity in repository["refs"].values()}
    listed = run_git(
        receiver, "for-each-ref", "--format=%(refname)", "refs/kochi/sent", "refs/kochi/sent-tags"
    )
    gone = [ref for ref in os.fsdecode(listed).splitlines() if ref not in kept]
    # The commit that keeps it alone; the one that has come names the earlier parcels, too.
    ref = sent_ref(commit)
    keeper = run_git(receiver, "rev-parse", "--verify", f"{ref}^1").decode().strip()
    alone = [f"update {ref} {keeper}\n"] if keeper != commit else []
    _update(receiver, [*alone, *(f"delete {ref}\n" for ref in gone)])


def tidy(receiver: Path) -> None:
    """Pack the objects of many parcels; those that nothing needs any more go after two weeks."""
    with suppress(GitError):  # no room: later then
        words = ("-c", "gc.auto=6700", "-c", "gc.autoDetach=false", "gc", "--auto", "--quiet")
        run_git(receiver, *words)


def _unpack_tree(top: Path, tree: Mapping[str, Any], index: Path, objects: Path) -> None:
    make_directory(top)
    repositories = tree["repositories"]
    here = {each["path"] for each in repositories}
    known = Path(f"{index}.json")
    for path in _inside(known) - here:
        # First: git writes no files over the directory of a repository.
        if path and not (top / path).is_symlink():
            shutil.rmtree(top / path / ".git", ignore_errors=True)
    _note_inside(known, here | _inside(known))
    _write_files(top, tree["tree"], index, objects)
    for repository in repositories:
        place = top / repository["path"]
        if place.is_symlink():
            continue
        make_directory(place)
        text = _CONFIGURATION.format(bare="false") + repository["settings"]
        _prepare(place / ".git", objects, text)
        _point(place / ".git", repository)
        for empty in repository["empty"]:
            with suppress(FileExistsError):
                make_directory(place / empty)
        _index(place, repository)
        _ignore_others(place, repository, tree["tree"], [p for p in here if p], objects)
    _note_inside(known, here)


def _inside(known: Path) -> set[str]:
    try:
        return set(read_json(known, VERSION)["repositories"])
    except FileNotFoundError:
        return set()


def _note_inside(known: Path, paths: Iterable[str]) -> None:
    write_atomically(known, to_json({"version": VERSION, "repositories": sorted(paths)}))


def _write_files(top: Path, tree: str, index: Path, objects: Path) -> None:
    """Have the files of a tree in a directory, changing only those that are not as in the tree.

    By a store: its configuration changes no byte of a file.
    """
    store = index.with_name("files.git")
    create_store(store)
    make_directory(index.parent)
    Path(f"{index}.lock").unlink(missing_ok=True)  # of a killed process
    words = ("read-tree", "--reset", "-u", "--no-recurse-submodules", tree)
    reading = reading_objects(objects)
    try:
        run_in_store(store, *words, directory=top, index=index, environment=reading)
    except GitError as error:
        if "index file" not in error.message:
            raise
        index.unlink(missing_ok=True)  # damaged, as by a power failure
        run_in_store(store, *words, directory=top, index=index, environment=reading)


def _prepare(own: Path, objects: Path, configuration: str) -> None:
    """Have a repository at `own`, which reads the given objects, too."""
    if not os.path.lexists(own / "HEAD"):
        beside = own.with_name(f".{own.name}.kochi.tmp")
        shutil.rmtree(beside, ignore_errors=True)
        make_directory(beside.parent)
        words = ("init", "--quiet", "--bare", "--template=", beside.name)
        run_git(beside.parent, *words, environment=_FORMATS)
        if own.is_dir():  # a killed process has begun to remove it
            shutil.rmtree(own)
        os.replace(beside, own)
    if own / "objects" != objects:
        alternates = os.path.relpath(objects.resolve(), (own / "objects").resolve())
        _write(own / "objects" / "info" / "alternates", f"{alternates}\n")
    _write(own / "config", configuration)


def _write(file: Path, text: str) -> None:
    content = text.encode("utf-8", "surrogateescape")
    with suppress(FileNotFoundError):
        if file.read_bytes() == content:
            return
    make_directory(file.parent)
    write_atomically(file, content)


def _point(own: Path, repository: Mapping[str, Any]) -> None:
    """Have HEAD, branches and tags as they were sent. Branches of results stay."""
    for lock in (*own.glob("*.lock"), *(own / "refs").rglob("*.lock")):
        if not str(lock.relative_to(own)).startswith(_OWN_REFS):
            lock.unlink(missing_ok=True)  # of a killed process: nobody else writes these
    if text := repository.get("alone"):
        content = text.encode("latin-1")
        run_git(own, "hash-object", "-t", "commit", "-w", "--stdin", stdin=content)
        _write(own / "shallow", f"{repository['head']}\n")
    else:
        (own / "shallow").unlink(missing_ok=True)
    note, wanted = own / _REFS, dict(repository["refs"])
    try:
        before = set(read_json(note)["refs"])
    except FileNotFoundError:
        before = set()
    listed = run_git(own, "for-each-ref", "--format=%(objectname) %(refname)")
    there = dict(line.split(" ", 1)[::-1] for line in os.fsdecode(listed).splitlines())
    make_directory(note.parent)
    write_atomically(note, to_json({"version": 1, "refs": sorted(before | wanted.keys())}))
    gone = [ref for ref in before - wanted.keys() if ref in there and not _is_own(ref)]
    # First: a branch may have the name of a directory of another one.
    _update(own, [f"delete {ref}\n" for ref in gone])
    changed = {ref: new for ref, new in wanted.items() if there.get(ref) != new}
    _update(own, [f"update {ref} {new}\n" for ref, new in changed.items()])
    write_atomically(note, to_json({"version": 1, "refs": sorted(wanted)}))
    head = f"ref: {repository['branch']}" if repository["branch"] else repository["head"]
    _write(own / "HEAD", f"{head}\n")


def _is_own(ref: str) -> bool:
    return ref.startswith(_OWN_REFS) and not ref.startswith("refs/kochi/source/")


def _update(own: Path, lines: Iterable[str]) -> None:
    if text := "".join(lines):
        run_git(own, "update-ref", "--no-deref", "--stdin", stdin=os.fsencode(text))


def _index(place: Path, repository: Mapping[str, Any]) -> None:
    """Have the index as it was sent: what was staged is staged."""
    tree = repository["index"] or (f"{repository['head']}^{{tree}}" if repository["head"] else "")
    run_git(place, "read-tree", *(["--reset", tree] if tree else ["--empty"]))
    if repository["left_out"]:
        paths = os.fsencode("".join(f"{path}\0" for path in repository["left_out"]))
        run_git(place, "update-index", "-z", "--skip-worktree", "--stdin", stdin=paths)
    # Otherwise each `git status` would read all files.
    run_git(place, "update-index", "-q", "--refresh", accept=(0, 1))


def _ignore_others(
    place: Path, repository: Mapping[str, Any], tree: str, inside: Sequence[str], objects: Path
) -> None:
    """Let git ignore all untracked files but those that were sent: a run makes others."""
    path = repository["path"]
    begin = f"{path}/" if path else ""
    words = ("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
    listed = run_git(place, *words, environment=reading_objects(objects))
    tracked = run_git(place, "ls-files", "-z").split(b"\0")
    known = set(map(os.fsdecode, tracked))
    others = [each for each in inside if each != path and each.startswith(begin)]
    deeper = tuple(f"{each}/" for each in others)
    sent = [os.fsdecode(each) for each in listed.split(b"\0") if each]
    untracked = [
        each.removeprefix(begin)
        for each in sent
        if each.startswith(begin) and not each.startswith(deeper)
    ]
    lines = ["*"]
    shown: dict[str, None] = {}
    for each in (*untracked, *(f"{other.removeprefix(begin)}/" for other in others)):
        if each.rstrip("/") not in known:
            parents = [f"{above}/" for above in list(Path(each).parents)[-2::-1]]
            shown |= dict.fromkeys([*parents, each])
    lines += [f"!/{_pattern(each)}" for each in shown]
    text = "".join(f"{line}\n" for line in lines)
    _write(place / ".git" / "info" / "exclude", text)


def _pattern(path: str) -> str:
    """A path as a pattern of .gitignore. A line's end cannot be written there."""
    escaped = "".join(f"\\{c}" if c in "*?[]\\!# " else c for c in path)
    return escaped.replace("\n", "?")
