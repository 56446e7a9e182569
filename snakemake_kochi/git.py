"""Runs git without touching the user's files or settings, and turns its failures into our errors.

A repository may come from anyone, so none of its configuration may cause a command to be executed.
Therefore hooks and file watchers are off, and no missing object is fetched. Only the transports in
`TRANSPORTS` are used, and only by commands that must reach another repository. These commands
connect as the configuration says (core.sshCommand, credential.helper, remote.NAME.uploadpack),
because users configure there how a remote of theirs is reached.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

# Without git on PATH, the import itself would end in a traceback instead of our message. The
# variable is removed afterwards, because jobs would inherit it.
_HAD = "GIT_PYTHON_REFRESH" in os.environ
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
import git as gitpython

if not _HAD:
    del os.environ["GIT_PYTHON_REFRESH"]

from snakemake_kochi.errors import GitError

# A user's hook, an editor, a pager, a password prompt, a file watcher or a background gc would
# either change the user's files or hang unseen.
_QUIET_OPTIONS = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "gc.auto=0",
    "-c",
    "advice.detachedHead=false",
    "-c",
    "core.filesRefLockTimeout=5000",
    # The repository's gpg.program would be executed for each signed commit.
    "-c",
    "log.showSignature=false",
    # A header in an output that we read.
    "-c",
    "status.showStash=false",
)
_QUIET_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    # Otherwise any command would fetch the missing objects of a partial clone as its configuration
    # says.
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C.UTF-8",
}
# For a command in which git may fetch the missing objects of the user's partial clone.
FETCHING_MISSING = {"GIT_NO_LAZY_FETCH": "0"}
# "Writing objects:  50% (1/2), 1.00 MiB", and what `remote/session.py` says.
_PROGRESS = re.compile(rb"(remote: )?[A-Z][a-z]+( [a-z]+)*: +\d|Total \d|Delta compression|kochi: ")
# The id of an object, in full.
FULL_IDENTITY = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
# What the programs of a repository are replaced with: of a filter and of a merge driver.
_HARMLESS = {
    "filter": (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false")),
    "merge": (("driver", "git merge-file --marker-size=%L %A %O %B"),),  # as without any
}
# Set while git runs a hook or an alias (`git rebase --exec snakemake`): they would redirect our
# commands.
_FOREIGN_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_ATTR_SOURCE",
    "GIT_AUTHOR_DATE",
    "GIT_COMMITTER_DATE",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_DEFAULT_HASH",
    "GIT_DIR",
    "GIT_GLOB_PATHSPECS",
    "GIT_GRAFT_FILE",
    "GIT_ICASE_PATHSPECS",
    "GIT_INDEX_FILE",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NAMESPACE",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_REFLOG_ACTION",
    "GIT_SHALLOW_FILE",
    "GIT_TEMPLATE_DIR",
    "GIT_WORK_TREE",
)
# Scopes of configuration that a repository cannot influence.
USERS_OWN = ("system", "global", "command")
# The transports for sources. The submodules of a source on another computer are never on this one.
REMOTE_TRANSPORTS = ("git", "http", "https", "ssh")
TRANSPORTS = ("file", *REMOTE_TRANSPORTS)
# The serving side of a transport on this computer, for repositories with foreign configuration: git
# before 2.39.4 would fetch missing objects there.
SERVE = (
    "env GIT_ALLOW_PROTOCOL=none GIT_NO_LAZY_FETCH=1 "
    "git -c uploadpack.allowAnySHA1InWant=true upload-pack"
)
COMMITTER = {
    "GIT_AUTHOR_NAME": "kochi",
    "GIT_AUTHOR_EMAIL": "kochi@localhost",
    "GIT_COMMITTER_NAME": "kochi",
    "GIT_COMMITTER_EMAIL": "kochi@localhost",
}


def run_git(
    directory: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    stdin: IO[bytes] | bytes | None = None,
    accept: Collection[int] = (0,),
    transports: Collection[str] = (),
    hear: Callable[[str], None] = lambda said: None,
) -> bytes:
    """Run one git command in a directory and return its standard output, unstripped.

    Commits made this way have our own identity, so no identity needs to be configured. `accept`
    lists the exit statuses that are answers and not failures; `hear` is then called with what git
    wrote to standard error. Without `transports`, the command reaches no other repository. Raises
    GitError with the message of git.
    """
    environment = {**(environment or {}), "GIT_ALLOW_PROTOCOL": _allowed(transports)}
    if isinstance(stdin, bytes):
        with tempfile.TemporaryFile() as stream:
            stream.write(stdin)
            stream.seek(0)
            return run_git(
                directory,
                *arguments,
                environment=environment,
                stdin=stream,
                accept=accept,
                transports=transports,
                hear=hear,
            )
    command, variables = _command(directory, arguments, environment)
    status, output, said = gitpython.Git(str(directory)).execute(
        command,
        env=variables,
        istream=cast("BinaryIO | None", stdin),
        stdout_as_string=False,
        strip_newline_in_stdout=False,
        with_extended_output=True,
        with_exceptions=False,
    )
    if status not in accept:
        raise _refusal(directory, arguments, status, said)
    hear(said)
    return output


def _allowed(transports: Collection[str]) -> str:
    """The value of $GIT_ALLOW_PROTOCOL, which overrides all configuration.

    It never allows more than the user's own value.
    """
    own = os.environ.get("GIT_ALLOW_PROTOCOL")
    return ":".join(t for t in transports if own is None or t in own.split(":")) or "none"


def without_programs(directory: Path) -> dict[str, str]:
    """An environment that disables the filters and merge drivers of a repository's own
    configuration. Every command that reads or writes a working tree needs it.

    Each of them is a command. The user's own ones (git-lfs, for example) stay enabled; without
    them, the files that they have changed would look modified.
    """
    # Extensions of git-lfs are commands that its filter runs.
    keys = r"^(filter|merge|lfs\.extension)\."
    words = ("config", "-z", "--show-scope", "--name-only", "--get-regexp", keys)
    found = os.fsdecode(run_git(directory, *words, accept=(0, 1))).split("\0")
    names = {
        "filter.lfs" if key.startswith("lfs.") else key.rpartition(".")[0]
        for scope, key in zip(found[::2], found[1::2], strict=False)
        if scope not in USERS_OWN and key.count(".") > 1  # merge.log names no driver
    }
    settings = [
        (f"{name}.{key}", value)
        for name in sorted(names)
        for key, value in _HARMLESS[name.partition(".")[0]]
    ]
    first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    variables = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    # -c is not used, because a name in it may not contain a "=".
    for number, (key, value) in enumerate(settings, start=first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def stream_git(
    directory: Path,
    chunks: Iterable[bytes],
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    transports: Collection[str] = (),
    hear: Callable[[str], None] | None = None,
) -> bytes:
    """Run one git command that reads `chunks`, with no more than one chunk in memory.

    Use this only for commands with little output, because nothing is read before everything is
    written. `hear` is called with each line about progress, and of ours, as it comes. When `chunks`
    raises an exception, git is killed and the exception propagates. Raises GitError as `run_git`
    does.
    """
    environment = {**(environment or {}), "GIT_ALLOW_PROTOCOL": _allowed(transports)}
    command, variables = _command(directory, arguments, environment)
    # GitPython ends the process as soon as no reference to its return value is left.
    held = gitpython.Git(str(directory)).execute(
        command, env=variables, istream=subprocess.PIPE, as_process=True
    )
    process = cast("subprocess.Popen[bytes]", held.proc)
    stdin = cast("IO[bytes]", process.stdin)
    try:
        try:
            for chunk in chunks:
                stdin.write(chunk)
        except BrokenPipeError:
            pass  # git has ended early; its message, read below, says why
        heard = b""
        if hear is not None:
            stdin.close()
            process.stdin = None
            heard = _hear(cast("IO[bytes]", process.stderr), hear)
        output, said = process.communicate()
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode != 0:
        said = heard + said
        raise _refusal(directory, arguments, process.returncode, said.decode(errors="replace"))
    return output


def _hear(stream: IO[bytes], hear: Callable[[str], None]) -> bytes:
    """Read a stream to its end, and return what is not heard."""
    line, rest = bytearray(), bytearray()
    while byte := stream.read(1):
        line += byte
        if byte in b"\r\n":
            if _PROGRESS.match(line):
                hear(line.decode(errors="replace").strip())
            else:
                rest += line
            line.clear()
    return bytes(rest + line)


@contextmanager
def reading_git(
    directory: Path, stdin: bytes, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[IO[bytes]]:
    """The output of one git command, read while the command runs, and only as far as wanted.

    The output of a command that fails is incomplete; no error is raised for that. Raises GitError
    for a missing directory.
    """
    environment = {**(environment or {}), "GIT_ALLOW_PROTOCOL": _allowed(())}
    command, variables = _command(directory, arguments, environment)
    with tempfile.TemporaryFile() as stream:
        stream.write(stdin)
        stream.seek(0)
        held = gitpython.Git(str(directory)).execute(
            command, env=variables, istream=cast("BinaryIO", stream), as_process=True
        )
        process = cast("subprocess.Popen[bytes]", held.proc)
        try:
            yield cast("IO[bytes]", process.stdout)
        finally:
            process.kill()
            process.communicate()


def read_objects(repository: Path, names: Sequence[str]) -> Iterator[bytes | None]:
    """The contents of objects, in their order; None for one that is not in this clone.

    A name is an id, or COMMIT:PATH without a line end in it. An object is read when it is asked
    for. After one that is damaged, git ends, and gives None for all others.
    """
    questions = os.fsencode("".join(f"{name}\n" for name in names))
    # With --buffer git does not write each object at once, which takes a system call for each.
    with reading_git(repository, questions, "cat-file", "--batch", "--buffer") as answers:
        for _ in names:
            # "ID TYPE SIZE", or the name, which may contain spaces, and "missing".
            size = answers.readline().rpartition(b" ")[2].strip()
            content = answers.read(int(size) + 1) if size.isdigit() else b""
            yield content[:-1] if content and len(content) == int(size) + 1 else None


def how_to_complete(directory: Path | None = None) -> str:
    """What to type where a clone lacks objects: for that of the current directory, or another."""
    where = "" if directory is None else f"-C {shlex.quote(str(directory))} "
    return f"If this is a partial clone, type: git {where}fetch --refetch --no-filter"


def update_ref(
    repository: Path, ref: str, new: str, old: str, environment: Mapping[str, str] | None = None
) -> None:
    """Point a ref at a commit if it still points at `old` ("": does not exist), else GitError.

    Use this only for refs that no other program writes. A git process that is killed while it holds
    the ref's lock file leaves that file behind, and git never removes it. After five seconds the
    file counts as left behind.
    """
    arguments = ("-c", "core.logAllRefUpdates=false", "update-ref", ref, new, old)
    try:
        run_git(repository, *arguments, environment=environment)
    except GitError as error:
        place = ("rev-parse", "--git-path", f"{ref}.lock")
        lock = run_git(repository, *place, environment=environment)
        lock_file = repository / os.fsdecode(lock.removesuffix(b"\n"))
        if "File exists" not in error.message or not lock_file.exists():
            raise
        lock_file.unlink(missing_ok=True)
        run_git(repository, *arguments, environment=environment)


def _command(
    directory: Path, arguments: Iterable[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    if not directory.is_dir():
        # GitPython would run the command in the current directory instead.
        raise GitError(f"{directory}: no such directory")
    variables = _QUIET_ENVIRONMENT | COMMITTER | dict(environment)
    # GitPython can add to the environment but not remove from it; env(1) can.
    removed = [f"--unset={name}" for name in _FOREIGN_VARIABLES if name not in variables]
    return ["env", *removed, "git", *_QUIET_OPTIONS, *arguments], variables


def _refusal(directory: Path, arguments: Iterable[str], status: int, said: str) -> GitError:
    if status == 127:
        return GitError("git was not found on PATH", "Install git, and type your command again.")
    if "safe.bareRepository" in said:
        return GitError(
            f"{directory} is inside a bare repository or a .git directory: it has no source files"
        )
    words = list(arguments)
    while words[:1] == ["-c"]:
        del words[:2]
    message = f"git {words[0]} failed in {directory}: {said.strip() or f'status {status}'}"
    if "lazy fetching disabled" in said:
        return GitError(
            f"{message} (a partial clone: kochi does not fetch its missing objects)",
            how_to_complete(directory),
        )
    return GitError(message)
