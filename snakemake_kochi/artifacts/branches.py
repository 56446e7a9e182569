"""The artifact branches: one per published name, and kochi_artifacts, with a worktree for users."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.artifacts.agreement import agree, begin_to_agree, discard_results
from snakemake_kochi.artifacts.begun import keep_unfinished
from snakemake_kochi.artifacts.branch_content import read_branch, records_directory, tip_of
from snakemake_kochi.artifacts.committer import commit_missing, commit_pending, committer_lock
from snakemake_kochi.artifacts.git_lfs import check_out_contents, checkout_environment
from snakemake_kochi.artifacts.journal import pending, remove_entry
from snakemake_kochi.artifacts.published import (
    LOCAL,
    MERGED,
    branch_called,
    choose_name,
    names_of,
    published_name,
    refs_elsewhere,
)
from snakemake_kochi.errors import GitError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.git import FETCHING_MISSING, TRANSPORTS, run_git, update_ref
from snakemake_kochi.paths import ProjectPaths

_REF = f"refs/heads/{MERGED}"
_LOCK_TIMEOUT = 60.0  # seconds; a commit takes far less


@dataclass(frozen=True)
class SyncReport:
    """The outcome of a synchronisation.

    `name`: under which the machine's results are published. `results`: how many were committed from
    the journal just now; `missed`: from working directories, because no commit had them; `commits`:
    how many were merged (0: nothing new); `commit`: where kochi_artifacts is now; `directory`: its
    worktree. `stranger`: a remote-tracking branch of that name without a commit in common with the
    local one, "" for none. `ahead`: other remote-tracking branches, of that name or of
    kochi_artifacts, with the number of their commits that the local branch lacks.
    """

    machine: str
    name: str
    results: int
    missed: int
    commits: int
    commit: str
    directory: Path
    stranger: str = ""
    ahead: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Commit:
    """`time` is ISO 8601."""

    commit: str
    time: str
    subject: str


def initialise(
    repository: Path,
    directory: Path,
    root: Path | None = None,
    machine: str = LOCAL,
    name: str | None = None,
) -> str:
    """Create the branch kochi_artifacts with a worktree in a directory, and fix the name under
    which the machine's results are published: `name`, if given. Returns the name.

    The branch starts with an empty commit, or from the branch of a remote or of the machine, if
    there is one; an existing branch is used. `root` is KOCHI_ROOT. Raises KochiError when the
    branch has a worktree (and says where), and when the directory is not empty or below a
    repository's own directory or `root`; GitError.
    """
    existing = _worktrees(repository).get(MERGED)
    if existing is not None and existing.exists():
        if name is not None and existing.resolve() == directory.resolve():
            choose_name(repository, machine, name)
            return name
        raise KochiError(
            f"branch {MERGED} is checked out in {existing} already",
            _how_to_go_on(existing, directory),
        )
    place = directory.absolute()
    _refuse_private(repository, directory, root)
    if os.path.lexists(place) and (not place.is_dir() or any(place.iterdir())):
        raise KochiError(f"{directory}: an empty or a new directory was expected")
    if name is not None:
        choose_name(repository, machine, name)
    name = read_branch(repository, machine).name
    if not tip_of(repository, _REF):
        start = _remote_start(repository, name)
        if not start:
            empty = run_git(repository, "mktree", stdin=b"").decode().strip()
            message = "artifacts of kochi, a directory for each machine"
            made = run_git(repository, "commit-tree", "--no-gpg-sign", empty, "-m", message)
            start = made.decode().strip()
        update_ref(repository, _REF, start, "")
    # --force twice: git still lists a worktree that was removed by hand, locked or not.
    words = ("worktree", "add", "--quiet", "-f", "-f", os.fspath(place), MERGED)
    environment = {**FETCHING_MISSING, **checkout_environment(repository)}
    run_git(repository, *words, environment=environment, transports=TRANSPORTS)
    check_out_contents(place)
    return name


def _how_to_go_on(existing: Path, directory: Path) -> str:
    """What to type if the branch is checked out already, but not in this directory."""
    sync = "To collect results there, type: kochi artifact sync"
    # git moves no main working tree, which has its repository in it.
    if existing.resolve() == directory.resolve() or (existing / ".git").is_dir():
        return sync
    move = shlex.join(["git", "worktree", "move", str(existing), str(directory)])
    return f"{sync}\nTo move that checkout: {move}"


def is_collected(repository: Path) -> bool:
    """Whether the branch kochi_artifacts has a worktree, into which results are merged."""
    directory = _worktrees(repository).get(MERGED)
    return directory is not None and directory.is_dir()


def synchronise(
    repository: Path,
    paths: ProjectPaths,
    machine: str,
    is_here: bool = True,
    large: int | None = None,
) -> SyncReport:
    """Commit the journal, and results in results/ that no commit has if the machine `is_here`; then
    merge the machine's branch into kochi_artifacts. The repository may be any of its worktrees.

    `large`: see `journal`. Raises KochiError when not initialised, or when the worktree has
    uncommitted changes; GitError when the merge fails: then it is undone.
    """
    directory = _worktrees(repository).get(MERGED)
    if directory is None or not directory.is_dir():
        raise KochiError(
            f"{repository} has no worktree of the branch {MERGED}",
            "Type: kochi artifact init DIR",
        )
    results, missed = commit_all(repository, paths, machine, large) if is_here else (0, 0)
    name = published_name(repository, machine)
    branch, commits = branch_called(name), 0
    if tip_of(repository, f"refs/heads/{branch}"):
        words = ("rev-list", "--count", f"refs/heads/{MERGED}..refs/heads/{branch}")
        commits = int(run_git(repository, *words))
    if commits:
        _merge(directory, branch)
    now, stranger = tip_of(repository, _REF), _stranger(repository, branch)
    ahead = tuple(
        (ref, count)
        for each in (branch, MERGED)
        for ref, count in _ahead(repository, each)
        if ref != stranger
    )
    return SyncReport(machine, name, results, missed, commits, now, directory, stranger, ahead)


def commit_all(
    repository: Path, paths: ProjectPaths, machine: str, large: int | None = None
) -> tuple[int, int]:
    """Commit the journal, and results in results/ that no commit has; return how many each."""
    keep_unfinished(paths, machine)
    results = commit_pending(repository, paths, machine, _LOCK_TIMEOUT)
    missed = commit_missing(repository, paths, machine, _LOCK_TIMEOUT, thorough=True, large=large)
    return results, missed


def discard(repository: Path, paths: ProjectPaths, machine: str) -> int:
    """Delete a machine's branch and its journal; return how many results were in them.

    Merged results stay in kochi_artifacts. Results in results/ stay there, too, and are not
    committed again. Raises NameNotFoundError, with the nearest machine, when there is neither;
    GitError when the branch is checked out.
    """
    published = published_name(repository, machine)
    name = branch_called(published)
    with committer_lock(paths, machine, _LOCK_TIMEOUT):
        tip, waiting = tip_of(repository, f"refs/heads/{name}"), pending(paths, machine)
        if not tip and not waiting:
            raise NameNotFoundError(
                f"machine '{machine}' has no artifacts to discard",
                nearest(machine, names_of(repository)),
            )
        worktree = _worktrees(repository).get(name)
        if worktree is not None and worktree.exists():
            raise GitError(
                f"branch {name} is checked out in {worktree}",
                f"Type: git worktree remove {worktree}",
            )
        discard_results(paths, machine, repository)
        results = set(waiting)
        if tip:
            results |= _recorded(repository, tip, published)
            run_git(repository, "update-ref", "-d", f"refs/heads/{name}", tip)
        for identity in waiting:
            remove_entry(paths.journal(machine) / identity)
        begin_to_agree(paths, machine)
        agree(paths, machine, "")
    return len(results)


def log(repository: Path, machine: str, limit: int = 10) -> tuple[Commit, ...]:
    """The newest commits of a machine's branch, newest first; of a branch that is not here,
    those that were fetched. Raises NameNotFoundError."""
    name = branch_called(published_name(repository, machine))
    ref = f"refs/heads/{name}"
    if not tip_of(repository, ref):
        ref = next((ref for ref, _ in refs_elsewhere(repository, name)), "")
    if not ref:
        hint = nearest(machine, names_of(repository))
        if fetched := next(refs_elsewhere(repository, f"{MERGED}*"), None):
            branch = fetched[0].removeprefix("refs/remotes/")
            hint = f"Results of others were fetched. To list them, type: git log {branch}"
        raise NameNotFoundError(f"machine '{machine}' has no artifacts yet", hint)
    form = "--format=%H%x00%cI%x00%s"
    lines = run_git(repository, "log", f"--max-count={limit}", form, ref, "--")
    return tuple(Commit(*line.split("\0")) for line in lines.decode().splitlines())


def _refuse_private(repository: Path, directory: Path, root: Path | None) -> None:
    """Raise KochiError for a directory among the files of git, or among ours.

    Git would take the files of a worktree for hooks or refs.
    """
    place = directory.resolve()
    beside = shlex.quote(f"{repository}-artifacts")
    hint = f"Choose a directory outside of it; type, for example: kochi artifact init {beside}"
    if root is not None and place.is_relative_to(root.resolve()):
        raise KochiError(f"{directory} is in KOCHI_ROOT, {root}: these are files of kochi", hint)
    existing = next(path for path in (place, *place.parents) if path.is_dir())
    # It also answers for a bare repository, and for a .git directory elsewhere.
    told = run_git(existing, "rev-parse", "--is-inside-git-dir", accept=(0, 128))
    if told.strip() == b"true" or ".git" in map(str.lower, place.parts):
        raise KochiError(
            f"{directory} is where git keeps a repository: these are files of git", hint
        )


def _merge(directory: Path, name: str) -> None:
    quiet = checkout_environment(directory)
    changed = run_git(
        *(directory, "status", "--porcelain", "-z", "--untracked-files=no"), environment=quiet
    )
    if changed:
        first = os.fsdecode(changed.split(b"\0")[0][3:])
        raise KochiError(
            f"{directory} has uncommitted changes, for example in {first}",
            "Commit or undo them there, then type the same command again.",
        )
    try:
        run_git(
            directory,
            *("merge", "--quiet", "--no-edit", "--ff", "--commit", "--no-squash", "--no-stat"),
            *("--no-gpg-sign", "--no-verify-signatures", "--allow-unrelated-histories"),
            *("--no-autostash", "--strategy-option=no-renames", f"refs/heads/{name}"),
            *("-m", f"Merge branch {name}"),
            environment={**FETCHING_MISSING, **quiet},
            transports=TRANSPORTS,
        )
        check_out_contents(directory)
    except GitError as error:
        words = ("diff", "--name-only", "--diff-filter=U", "-z")
        conflicts = run_git(directory, *words, environment=quiet)
        if run_git(directory, "rev-parse", "--verify", "-q", "MERGE_HEAD", accept=(0, 1)):
            run_git(directory, "merge", "--abort", environment=quiet)
        place = shlex.quote(os.fspath(directory))
        listed = ", ".join(os.fsdecode(path) for path in conflicts.split(b"\0")[:10] if path)
        raise GitError(
            f"{name} cannot be merged into {MERGED}; {directory} is unchanged: "
            + (f"both changed {listed}" if listed else error.message),
            f"Merge by hand: git -C {place} merge --allow-unrelated-histories {name}\n"
            f"To prefer the files of {name}, add: -X theirs",
        ) from error


def _worktrees(repository: Path) -> dict[str, Path]:
    """Where each checked-out branch is."""
    listed = run_git(repository, "worktree", "list", "--porcelain", "-z")
    found, place = {}, Path()
    for line in listed.split(b"\0"):
        key, _, value = line.partition(b" ")
        if key == b"worktree":
            place = Path(os.fsdecode(value))
        elif key == b"branch":
            found[os.fsdecode(value).removeprefix("refs/heads/")] = place
    return found


def _remote_start(repository: Path, name: str) -> str:
    """The commit of a branch that a colleague pushed, or the user from another clone; "" for none.

    A second root would make every later merge one of unrelated histories.
    """
    refs = dict(refs_elsewhere(repository, MERGED))
    own = (commit for _, commit in refs_elsewhere(repository, branch_called(name)))
    return refs.get(f"refs/remotes/origin/{MERGED}") or next(iter(refs.values()), next(own, ""))


def _stranger(repository: Path, branch: str) -> str:
    """A remote branch of the same name without a common commit; "" for none.

    Clones of an earlier release made such branches.
    """
    if not (tip := tip_of(repository, f"refs/heads/{branch}")):
        return ""
    for ref, commit in refs_elsewhere(repository, branch):
        if not run_git(repository, "merge-base", tip, commit, accept=(0, 1)):
            return ref.removeprefix("refs/remotes/")
    return ""


def _ahead(repository: Path, branch: str) -> Iterator[tuple[str, int]]:
    """Remote branches of the same name with commits that the local branch lacks."""
    if not tip_of(repository, f"refs/heads/{branch}"):
        return
    for ref, commit in refs_elsewhere(repository, branch):
        words = ("rev-list", "--count", f"refs/heads/{branch}..{commit}")
        if count := int(run_git(repository, *words)):
            yield ref.removeprefix("refs/remotes/"), count


def _recorded(repository: Path, tip: str, name: str) -> set[str]:
    options = ("-r", "-z", "--name-only", "--full-tree")
    listed = run_git(repository, "ls-tree", *options, tip, records_directory(name))
    return {Path(os.fsdecode(path)).stem for path in listed.split(b"\0") if path}
