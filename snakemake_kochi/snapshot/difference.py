"""How a snapshot differs from the checked-out commit, as a text for people."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from snakemake_kochi.git import run_git
from snakemake_kochi.snapshot.confidential import is_secret_line, is_secret_path
from snakemake_kochi.snapshot.listing import not_checked_out
from snakemake_kochi.snapshot.snapshot import Snapshot
from snakemake_kochi.snapshot.store import run_in_store

MOST = 32 * 1024  # bytes
# Of examined files: no text of gigabytes is made just to be cut.
_MOST_FILES = 200
_MOST_CONTENT = 1 << 20  # bytes
_MOST_NAMED = 20
_SUBMODULE = "160000"


@dataclass(frozen=True)
class _Change:
    path: str
    was: str
    is_deletion: bool
    objects: tuple[str, ...]


def difference(
    directory: Path, store: Path, snapshot: Snapshot, is_output: Callable[[str], bool]
) -> str:
    """The diff from the base to the tree of a snapshot of `directory`; "" where there is none, or
    no base.

    It contains untracked files. It does not contain files for which `is_output` is true, files that
    git has not checked out, and submodules. Binary files are only named, and so are files with
    names like SECRETS, and files whose committed content is missing in a partial clone. At most
    MOST bytes, in complete lines; the last lines say what was left out. Raises GitError.
    """
    if snapshot.base is None or not snapshot.dirty:
        return ""
    objects = os.fsdecode(run_git(directory, "rev-parse", "--git-path", "objects")).strip()
    variables = {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(str((directory / objects).resolve())),
        "GIT_LITERAL_PATHSPECS": "1",
    }
    between = (snapshot.base, snapshot.tree)
    changes = [
        change for change in _changes(store, between, variables) if not is_output(change.path)
    ]
    if any(change.is_deletion for change in changes):
        absent = set(not_checked_out(directory))
        changes = [each for each in changes if not each.is_deletion or each.path not in absent]
    secret = [change.path for change in changes if is_secret_path(change.path)]
    others = [change for change in changes if not is_secret_path(change.path)]
    shown, missing = _of_bearable_size(store, others, variables)
    known = {*shown, *missing}
    left = [change.path for change in others if change.path not in known]
    text = b""
    if shown:
        options = ("-r", "-p", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        words = ("diff-tree", *options, *between, "--", *shown)
        text = run_in_store(store, *words, environment=variables)
    remarks = {"too much": left, "not in this partial clone": missing}
    return _told(text, {**remarks, "their names suggest secrets": secret})


def _quoted(path: str) -> str:
    """As git reads a list of directories, in which ":" separates them."""
    if ":" not in path and not path.startswith('"'):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _changes(
    store: Path, between: Sequence[str], variables: Mapping[str, str]
) -> Iterable[_Change]:
    options = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames")
    parts = run_in_store(store, *options, *between, environment=variables).split(b"\0")
    found = []
    for description, path in zip(parts[::2], parts[1::2], strict=False):
        was, _, *objects, kind = description.decode().lstrip(":").split(" ")
        given = tuple(each for each in objects if each.strip("0"))
        found.append(_Change(os.fsdecode(path), was, kind == "D", given))
    submodules = {change.path for change in found if change.was == _SUBMODULE}
    for change in found:
        above = {change.path, *map(str, PurePosixPath(change.path).parents)}
        if not above & submodules:
            yield change


def _of_bearable_size(
    store: Path, changes: Sequence[_Change], variables: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """The paths to show, and those whose content is missing."""
    some = changes[:_MOST_FILES]
    asked = "".join(f"{name}\n" for change in some for name in change.objects).encode()
    words = ("cat-file", "--batch-check=%(objectname) %(objectsize)")
    answers = run_in_store(store, *words, environment=variables, stdin=asked).decode().splitlines()
    sizes = {name: size for name, _, size in (answer.partition(" ") for answer in answers)}
    shown, missing, room = [], [], _MOST_CONTENT
    for change in some:
        if not all(sizes[each].isdecimal() for each in change.objects):
            missing.append(change.path)
            continue
        size = sum(int(sizes[each]) for each in change.objects)
        if size <= room:
            shown.append(change.path)
            room -= size
    return shown, missing


def _without_secrets(text: str) -> tuple[str, int]:
    """The diff without the lines that look like secrets, which are replaced, and their number."""
    lines, hidden, in_hunk = [], 0, False
    for line in text.split("\n"):
        # A removed line "-- x" looks like the name of a file, but not before the next "diff".
        in_hunk = line.startswith("@@") or (in_hunk and not line.startswith("diff --git "))
        if in_hunk and is_secret_line(line[1:]):
            hidden += 1
            # In the head of a hunk, the text that git quotes behind it.
            kept = f"{line[: line.index('@@', 2) + 2]} " if line.startswith("@@") else line[0]
            line = f"{kept}[left out]"
        lines.append(line)
    return "\n".join(lines), hidden


def _told(text: bytes, left_out: Mapping[str, Sequence[str]]) -> str:
    """`left_out`: paths by the reason why they were left out."""
    remarks = []
    if len(text) > MOST:
        remarks.append(f"[cut: {len(text)} bytes are too many]")
        text = text[:MOST].rpartition(b"\n")[0] + b"\n"
    for reason, names in left_out.items():
        if names:
            remarks.append(f"[left out, as {reason}: {_some(names)}]")
    # Bytes that are not UTF-8 are shown as such, and do not disturb readers of JSON.
    whole, hidden = _without_secrets(text.decode("utf-8", "backslashreplace"))
    if hidden:
        remarks.append(f"[lines left out, as they suggest secrets: {hidden}]")
    return whole + "".join(f"{remark}\n" for remark in remarks)


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMED
    some = ", ".join(name.encode("utf-8", "replace").decode() for name in names[:_MOST_NAMED])
    return f"{some} and {rest} more" if rest > 0 else some
