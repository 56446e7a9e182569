"""Our git repositories: the store, which keeps snapshots for good, and the `.git` of copies.

Snapshots: Files are read from the user's directory and written to the store directly. The user's
repository only lists the files, so nothing is written there, and no gc there can do harm.

Copies: A copy of a snapshot gets a `.git` of its own, in which `git describe`, `git log` and
`git status` answer as in the working tree at the moment of the freeze. It has the checked-out
commit, the tags and the index. The objects stay in the user's repository and in the store, and are
read from there. Nothing is written to the user's repository, neither at the freeze nor by a script
that uses git in a copy, and no configuration that names a command is copied. Checked-out submodules
get a `.git` in the same way: without one, git in a submodule would answer for the repository around
it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from snakemake_kochi.errors import GitError, KochiError
from snakemake_kochi.files import (
    is_there,
    make_directory,
    move,
    note_use,
    random_word,
    to_json,
    write_atomically,
)
from snakemake_kochi.git import run_git
from snakemake_kochi.paths import SUBMODULES
from snakemake_kochi.snapshot.listing import FILES_ONLY, matcher, submodules

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
_STORE_CONFIGURATION = """\
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
# How names and differences are shown, and what counts as a difference. None is a command or a path.
_SETTINGS = (
    r"^core\.(abbrev|autocrlf|eol|filemode|ignorecase|precomposeunicode|quotepath|symlinks)$"
    r"|^status\.|^diff\.(ignoresubmodules|renames)$|^submodule\..*\.ignore$"
)
_COPY_CONFIGURATION = """\
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


SNAPSHOTS = "refs/snapshots"


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
    """Run git on the store, with `directory` as its working tree and `index` as its index.

    Raises GitError.
    """
    variables = {**in_store(store), **(environment or {})}
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


def in_store(store: Path) -> dict[str, str]:
    """The environment of git commands that work on a store."""
    return {"GIT_DIR": os.path.abspath(store), **_OWN_CONFIGURATION}


def with_objects_of(repository: Path) -> dict[str, str]:
    """An environment in which a command on another repository also reads the objects of this one.

    Raises GitError.
    """
    return reading_objects(object_directory(repository))


def object_directory(repository: Path) -> Path:
    """The directory with the objects of a repository. Raises GitError."""
    found = run_git(repository, "rev-parse", "--git-path", "objects")
    return (repository / os.fsdecode(found.removesuffix(b"\n"))).resolve()


def reading_objects(*directories: Path) -> dict[str, str]:
    """An environment in which a command also reads the objects of directories of objects."""
    names = map(str, directories)
    # As git reads a list of directories, in which ":" separates them.
    quoted = (_quoted(each) if ":" in each or each.startswith('"') else each for each in names)
    return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(quoted)}


def create_store(store: Path) -> None:
    """Create the store unless it exists."""
    if is_there(store / "HEAD"):
        return
    with _new_repository(store) as new:
        run_in_store(new, "init", "--quiet", "--bare", "--template=")
        (new / "config").write_text(_STORE_CONFIGURATION)
        make_directory(new / "info")
        (new / "info" / "attributes").write_text(_ATTRIBUTES)
        make_directory(new / "indexes")


@contextmanager
def _new_repository(path: Path) -> Iterator[Path]:
    """A new directory, which becomes `path` when the block has filled it.

    Safe from several processes at once, on any nodes, without a lock: a rename never replaces a
    directory with files in it. The repository of the fastest process stays.
    """
    make_directory(path.parent)
    new = make_directory(path.with_name(f".{path.name}.{random_word()}.tmp"))
    try:
        yield new
        try:
            move(new, path)
        except OSError:
            if not is_there(path / "HEAD"):
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def write_tree(store: Path, directory: Path, paths: Iterable[str], uses_cache: bool = True) -> str:
    """Write these files of the directory to the store as a tree; return its id.

    A stat cache per directory stays in the store, so that unchanged files are not read again.
    """
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
    cache = store / "indexes" / digest
    index = cache.with_name(f"{digest}.{random_word()}.tmp")
    wanted = tuple(paths)
    try:
        try:
            known = cache if uses_cache else None
            tree = _write_with_cache(store, directory, index, known, wanted)
        except GitError:
            # The cache may be damaged, or a file changed while it was read.
            index.unlink(missing_ok=True)
            tree = _write_with_cache(store, directory, index, None, wanted)
        if index.exists():  # git writes no index without files
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


def keep_tree(store: Path, tree: str, anew: bool = False) -> str:
    """Keep a tree by a commit and a ref; return the commit's id, always the same one.

    The time of the ref is that of its last use. With `anew`, the commit is written again.
    """
    ref = f"{SNAPSHOTS}/{tree}"
    kept = run_in_store(store, "rev-parse", "--verify", "--quiet", ref, accept=(0, 1))
    if kept and not anew and note_use(store / ref):
        return kept.decode().strip()
    date = {"GIT_AUTHOR_DATE": "946684800 +0000", "GIT_COMMITTER_DATE": "946684800 +0000"}
    made = run_in_store(store, "commit-tree", tree, "-m", f"snapshot {tree}", environment=date)
    commit = made.decode().strip()
    # Not by git, whose lock outlives a killed process. All writers write the same content.
    file = store / ref
    make_directory(file.parent)
    write_atomically(file, f"{commit}\n".encode(), durable=True)
    return commit


def keep_repository(
    directory: Path, store: Path, path_of: Callable[[str], Path], exclude: Sequence[str] = ()
) -> Path | None:
    """Keep the `.git` for copies of a working tree as it is now.

    It is written to `path_of(digest)` unless it exists there; returns that directory. Returns None
    when `directory` is not the top of a working tree. `exclude` is that of the snapshot: tracked
    files that are left out count as unchanged. Raises KochiError if the path of a repository has a
    line break.
    """
    return _keep(directory, store, path_of, matcher(exclude))


def keep_repository_at(
    directory: Path, store: Path, path_of: Callable[[str], Path], commit: str
) -> Path | None:
    """As `keep_repository`, but as if this commit were checked out; None if it is not here.

    Its tags are those of now.
    """
    try:
        files = _files(directory, store, commit)
        staged = _ask(directory, "ls-tree", "-r", "-z", "--full-tree", commit)
    except GitError:
        return None
    return _kept(files, (staged, b""), path_of)


def _keep(
    directory: Path, store: Path, path_of: Callable[[str], Path], is_excluded: Callable[[str], bool]
) -> Path | None:
    if not os.path.lexists(directory / ".git"):
        return None
    try:
        files = _files(directory, store)
        index = _index(directory, is_excluded)
    except GitError:
        # The snapshot reports the error, unless a snapshot can be made all the same.
        return None
    files |= _submodules(directory, store, path_of, is_excluded)
    return _kept(files, index, path_of)


def _kept(
    files: Mapping[str, bytes], index: tuple[bytes, bytes], path_of: Callable[[str], Path]
) -> Path:
    digest = hashlib.sha256()
    for name, content in (*sorted(files.items()), *zip(("index", "left out"), index, strict=True)):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    kept = path_of(digest.hexdigest()[:32])
    if not note_use(kept / "HEAD"):
        _write(kept, files, *index)
    return kept


def _submodules(
    directory: Path, store: Path, path_of: Callable[[str], Path], is_excluded: Callable[[str], bool]
) -> dict[str, bytes]:
    """A file that maps the path of each checked-out submodule to its kept `.git`."""
    found = {}
    for path in submodules(directory):
        kept = _keep(directory / path, store, path_of, _below(path, is_excluded))
        if kept is not None:
            found[path] = str(kept)
    return {SUBMODULES: to_json(found)} if found else {}


def _below(path: str, is_excluded: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda inner: is_excluded(f"{path}/{inner}")


def _ask(directory: Path, *words: str, accept: Sequence[int] = (0,)) -> bytes:
    return run_git(directory, *FILES_ONLY, *words, accept=accept)


def _files(directory: Path, store: Path, commit: str = "") -> dict[str, bytes]:
    """The files of the `.git` except the index, by their path in it; `commit`: instead of HEAD."""
    paths = ("objects", "shallow", "info/exclude")
    words = [word for path in paths for word in ("--git-path", path)]
    answers = _ask(directory, "rev-parse", "--path-format=absolute", *words, "--show-object-format")
    lines = answers.removesuffix(b"\n").split(b"\n")
    if len(lines) != len(paths) + 1:
        raise KochiError(
            f"the path of the repository has a line break: {str(directory)!r}",
            "Git's files cannot name such a directory. Rename it, or clone it to another place.",
        )
    objects, shallow, excluded, kind = map(os.fsdecode, lines)
    branch = _ask(directory, "symbolic-ref", "--quiet", "HEAD", accept=(0, 1))
    head = _ask(directory, "rev-parse", "--verify", "--quiet", "HEAD", accept=(0, 1))
    branch, head = (b"", f"{commit}\n".encode()) if commit else (branch, head)
    form = "%(objectname) %(refname)"
    # In git's order, which is that of their names: heads, replace, tags.
    refs = _ask(directory, "for-each-ref", f"--format={form}", "refs/replace", "refs/tags")
    if branch and head:
        refs = head.rstrip(b"\n") + b" " + branch + refs
    return {
        "HEAD": b"ref: " + branch if branch else head,
        # Each run gets a copy of every file, also of one that says nothing.
        **({"packed-refs": refs} if refs else {}),
        # Objects that were fetched for this run are in the store only.
        "objects/info/alternates": os.fsencode(f"{objects}\n{store.absolute() / 'objects'}\n"),
        "config": _configuration(directory, kind).encode("utf-8", "surrogateescape"),
        **{
            name: Path(path).read_bytes()
            for name, path in (("shallow", shallow), ("info/exclude", excluded))
            if os.path.isfile(path) and (name == "shallow" or _excludes(path))
        },
    }


def _excludes(file: str) -> bool:
    """Whether a file of patterns has any, and not only the comments with which git makes it."""
    lines = Path(file).read_bytes().splitlines()
    return any(line.strip() and not line.startswith(b"#") for line in lines)


def _configuration(directory: Path, kind: str) -> str:
    is_old = kind == "sha1"
    text = _COPY_CONFIGURATION.format(format=0 if is_old else 1)
    text += "" if is_old else f"\tobjectFormat = {kind}\n"
    return text + settings_of(directory, "--local")


def settings_of(directory: Path, *scope: str) -> str:
    """The settings of a repository that another one with the same files needs, as a part of a
    configuration file; of the user's own configuration, too, if there is no `scope`."""
    found = _ask(
        directory, "config", *scope, "-z", "--get-regexp", _SETTINGS, accept=(0, 1)
    ).decode("utf-8", "surrogateescape")
    text = ""
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
    """The index, in the format of `git update-index -z --index-info`.

    Also the paths of the index that are not in the working tree on purpose.
    """
    staged, left_out = [], []
    for entry in filter(None, _ask(directory, "ls-files", "-z", "-t", "--stage").split(b"\0")):
        tag, staging = entry[:1], entry[2:]
        path = staging.partition(b"\t")[2]
        staged.append(staging + b"\0")
        if tag == b"S" or is_excluded(os.fsdecode(path)):
            left_out.append(path + b"\0")
    return b"".join(staged), b"".join(left_out)


def _write(kept: Path, files: Mapping[str, bytes], staged: bytes, left_out: bytes) -> None:
    with _new_repository(kept) as new:
        for name, content in files.items():
            make_directory((new / name).parent)
            (new / name).write_bytes(content)
        # Git needs the first one, and programs that exclude files expect the other.
        make_directory(new / "refs")
        make_directory(new / "info")
        variables = {"GIT_DIR": str(new), "GIT_WORK_TREE": str(new)}
        for words, given in (
            (["--index-info"], staged),
            (["--skip-worktree", "--stdin"], left_out),
        ):
            if given:
                run_git(new, "update-index", "-z", *words, environment=variables, stdin=given)
