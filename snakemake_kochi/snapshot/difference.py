"""How a snapshot differs from the checked-out commit, as a text to keep with results.

Results are shown to others, so the text leaves out what looks like a secret (`confidential.py`).
The snapshot itself, which contains everything, is private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from snakemake_kochi.confidential import LEFT_OUT, is_secret_path, secret_lines
from snakemake_kochi.snapshot.listing import not_checked_out
from snakemake_kochi.snapshot.repository import run_in_store, with_objects_of
from snakemake_kochi.snapshot.snapshot import Change, Snapshot, changes

MOST = 32 * 1024  # bytes
# Limits for the examined files: no text of gigabytes is made just to be cut.
_MOST_FILES = 200
_MOST_CONTENT = 1 << 20  # bytes
_MOST_NAMED = 20
_SUBMODULE = "160000"


def difference(
    directory: Path, store: Path, snapshot: Snapshot, is_output: Callable[[str], bool]
) -> str:
    """The diff from the base to the tree of a snapshot of `directory`; "" without a base.

    It contains untracked files. It does not contain submodules, files for which `is_output` is
    true, and files that git has not checked out. It only names binary files, files with names like
    SECRETS, and files whose committed content is missing in a partial clone. At most MOST bytes, in
    complete lines; the last lines say what was left out. Raises GitError.
    """
    if snapshot.base is None or not snapshot.dirty:
        return ""
    variables = {**with_objects_of(directory), "GIT_LITERAL_PATHSPECS": "1"}
    between = (snapshot.base, snapshot.tree)
    found = changes(store, *between, variables)
    wanted = [each for each in _outside_submodules(found) if not is_output(each.path)]
    if any(change.is_deletion for change in wanted):
        absent = set(not_checked_out(directory))
        wanted = [each for each in wanted if not each.is_deletion or each.path not in absent]
    secret = [change.path for change in wanted if is_secret_path(change.path)]
    others = [change for change in wanted if not is_secret_path(change.path)]
    shown, missing = _of_limited_size(store, others, variables)
    known = {*shown, *missing}
    left = [change.path for change in others if change.path not in known]
    text = b""
    if shown:
        options = ("-r", "-p", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        words = ("diff-tree", *options, *between, "--", *shown)
        text = run_in_store(store, *words, environment=variables)
    remarks = {"too much": left, "not in this partial clone": missing}
    return _told(text, {**remarks, "their names suggest secrets": secret})


def _outside_submodules(found: Sequence[Change]) -> Iterator[Change]:
    """The changes except submodules, which are directories of files in a snapshot."""
    submodules = {change.path for change in found if change.mode == _SUBMODULE}
    for change in found:
        above = {change.path, *map(str, PurePosixPath(change.path).parents)}
        if not above & submodules:
            yield change


def _of_limited_size(
    store: Path, found: Sequence[Change], variables: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """The paths to show, and those whose content is missing."""
    some = found[:_MOST_FILES]
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
    """The diff with lines that look like secrets replaced, and the number of these lines."""
    kept, shown, in_hunk = [], [], False
    for line in text.split("\n"):
        # A removed line "-- x" looks like the name of a file, but not before the next "diff".
        in_hunk = line.startswith("@@") or (in_hunk and not line.startswith("diff --git "))
        # Of the head of a hunk, only the line that git quotes there is of a file.
        length = line.index("@@", 2) + 3 if line.startswith("@@") else 1
        kept.append(line[:length] if in_hunk else line)
        shown.append(line[length:] if in_hunk else "")
    hidden = list(secret_lines(shown))
    told = (LEFT_OUT if is_secret else line for line, is_secret in zip(shown, hidden, strict=True))
    return "\n".join(map("".join, zip(kept, told, strict=True))), sum(hidden)


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
