"""Running a script of the user's: its environment, its output, its private directories.

The directories are below KOCHI_ROOT and are deleted afterwards, whatever happens.
"""

from __future__ import annotations

import json
import os
import platform
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from snakemake_kochi.errors import DamagedFileError, PhaseError
from snakemake_kochi.files import (
    copy_small_tree,
    copy_stream,
    list_names,
    make_directory,
    random_word,
    read_json,
    remove_tree,
    write_file,
)
from snakemake_kochi.paths import SUBMODULES
from snakemake_kochi.phases.ending import (
    STATUS_OF_TIMEOUT,
    Ended,
    Remains,
    TimeLimit,
    Usage,
    running_children,
)
from snakemake_kochi.phases.products import Build, Install
from snakemake_kochi.processes import ProcessIdentity, is_over, node_words
from snakemake_kochi.project.values import environment_name
from snakemake_kochi.thread_variables import THREAD_VARIABLES

# Seconds between two looks at the output of a script: soon after its start, and later rarely. Each
# look takes time from the CPUs that a run measures.
_FOLLOW_SECONDS = 0.05
_MOST_SECONDS = 1.0
_STOPPING = "set -e -o pipefail"  # of the preamble
SAVED_THREADS_VARIABLE = "KOCHI_SAVED_THREADS"
# The number of the main process of Snakemake, for its jobs.
MAIN_VARIABLE = "KOCHI_MAIN_PROCESS"
# For our own processes; a Snakemake that a script starts must not inherit them.
_OWN_VARIABLES = (
    "KOCHI_FREEZE",
    "KOCHI_FREEZE_OWNER",
    "KOCHI_PYTHON",
    SAVED_THREADS_VARIABLE,
    MAIN_VARIABLE,
)


# Set by a hook or an alias in which snakemake was started: git in a script would work on the user's
# repository instead of the script's own directory.
_FOREIGN_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
# of a private directory: the process that made it, a random number, and the builds that it uses
_SCRATCH_NAME = re.compile(
    r"(?P<host>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})-(?P<namespace>[0-9a-f]+)"
    r"-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}(?P<builds>(?:\.[^.]+)*)"
)


@dataclass(frozen=True)
class Environment:
    """What a script finds when it starts.

    `load_environment` is the machine's load_env_script, `installs` the recipes in use, dependencies
    first, `variables` what is added to the environment of this process, or replaces it if that
    `is_whole`.
    """

    load_environment: str
    installs: Sequence[Install]
    variables: Mapping[str, str]
    is_whole: bool = False

    def of_process(self) -> dict[str, str]:
        """The environment of the process that executes the preamble."""
        return ({} if self.is_whole else own_environment()) | dict(self.variables)

    def preamble(self) -> str:
        """Bash that loads the machine's modules, exports the prefixes and activates the recipes.

        Without `set -u`: module systems and the customary `$LD_LIBRARY_PATH` read unset variables.
        """
        lines = [self.load_environment, _STOPPING]
        for install in self.installs:
            suffix = environment_name(install.dependency)
            lines.append(f"export KOCHI_INSTALL_PREFIX_{suffix}={shlex.quote(install.prefix)}")
            lines.append(f"export KOCHI_RECIPE_{suffix}={shlex.quote(install.recipe)}")
        lines += [install.activate_script for install in self.installs]
        return "\n".join(line for line in lines if line) + "\n"


def source_variables(base: str | None, dirty: bool) -> dict[str, str]:
    """Variables about the source of a script.

    They have the checked-out commit, "" without one, and whether the snapshot differs from it.
    """
    return {"KOCHI_COMMIT": base or "", "KOCHI_DIRTY": "true" if dirty else "false"}


def run_script(
    script: str,
    name: str,
    directory: Path,
    environment: Environment,
    strict: bool,
    scratch: Path,
    output: Path | None = None,
    before: str = "",
    timeout: float | None = None,
    wrapper: Sequence[str] = (),
    files: Sequence[Path] = (),
) -> Ended:
    """Run a bash script in a directory.

    With `strict` it stops at the first failing command (`set -euo pipefail`). With `output`,
    standard output and error go to that file and from there to our own standard output; without,
    they are ours. `before` are lines for bash that see the environment of the script, `wrapper`
    words that come before `bash`. Files are left in `scratch`, a private directory. After `timeout`
    seconds the script is ended. What the pipeline of a successful script still writes is waited
    for, and so is every process that writes to one of the `files`.
    """
    is_loaded = environment.load_environment or environment.installs
    preamble = scratch / "environment.sh" if is_loaded else None
    body = scratch / f"{name}.sh"
    if preamble is not None:
        before += _noting_start(preamble)
        Path(f"{preamble}.end").unlink(missing_ok=True)  # of an earlier script in this directory
        write_file(preamble, environment.preamble().encode("utf-8", "surrogateescape"))
    write_file(body, f"{script}\n".encode("utf-8", "surrogateescape"))
    # Sourced, not appended: bash then reports the user's script with its own line numbers.
    first = _STOPPING if preamble is None else f". {shlex.quote(str(preamble))}"
    lines = f"{first}\n{before}{mode_of(strict)}\n. {shlex.quote(str(body))}\n"
    # $0 is the user's script. Without --norc, a bash with -c may read ~/.bashrc where SSH_CLIENT is
    # set and SHLVL is not.
    command = [*wrapper, "bash", "--norc", "-c", lines, str(body)]
    variables = environment.of_process()
    began = time.time()
    ended = _run(command, directory, variables, output, timeout, files)
    if preamble is None:
        return ended
    seconds = _seconds_until_start(preamble, began, ended.status == 0)
    return replace(ended, environment_seconds=seconds)


def _noting_start(preamble: Path) -> str:
    """A line for bash that notes when the script itself begins."""
    file = shlex.quote(f"{preamble}.end")
    # Bash 4 has no such variable. The environment may define functions and set options; its trace
    # would show this line.
    note = f'builtin printf %s "${{EPOCHREALTIME:-$(command date +%s.%N)}}" >| {file} || :'
    return f"{{ {note}; }} 2> /dev/null\n"


def _seconds_until_start(preamble: Path, began: float, has_ended_well: bool) -> float:
    """How long the environment was loaded: to the end if the script itself has not begun; 0 if
    that is not known, as on a full disk."""
    now = time.time()
    try:
        # The locale of the script says what its decimal point is.
        now = min(now, float(Path(f"{preamble}.end").read_text().replace(",", ".")))
    except FileNotFoundError:
        if has_ended_well:
            return 0.0
    except (OSError, ValueError):
        return 0.0
    return max(0.0, now - began)


def mode_of(strict: bool) -> str:
    """What bash does in a user's script when a command fails."""
    return "set -euo pipefail" if strict else "set +e +o pipefail"


def saved_threads() -> str:
    """The numbers of threads given to this process, as JSON, to pass them around Snakemake to a
    phase in $KOCHI_SAVED_THREADS."""
    return json.dumps({n: os.environ[n] for n in THREAD_VARIABLES if n in os.environ})


def own_environment() -> dict[str, str]:
    """The environment of this process without the variables of Snakemake and ours."""
    variables = dict(os.environ)
    saved = variables.get(SAVED_THREADS_VARIABLE)
    for name in (*_OWN_VARIABLES, *_FOREIGN_VARIABLES):
        variables.pop(name, None)
    # Otherwise a benchmark with OpenMP would run with as many threads as its rule has, one.
    if saved is not None:
        for name in THREAD_VARIABLES:
            variables.pop(name, None)
        variables |= json.loads(saved)
    return variables


def _run(
    command: Sequence[str],
    directory: Path,
    variables: Mapping[str, str],
    output: Path | None,
    timeout: float | None,
    files: Sequence[Path],
) -> Ended:
    remains = Remains(files, () if output is None else (output,))
    with ExitStack() as opened:
        # To a file and not through a pipe: a background child that keeps the pipe open would delay
        # the job as long as it lives.
        writer = None if output is None else opened.enter_context(output.open("wb"))
        reader = None if output is None else opened.enter_context(output.open("rb"))
        error = None if output is None else subprocess.STDOUT
        process = subprocess.Popen(
            command, cwd=directory, env=variables, stdout=writer, stderr=error
        )
        try:
            return _wait(process, lambda: _copy(reader), timeout, remains)
        except BaseException:  # Ctrl-C
            process.kill()
            process.wait()
            raise


def _wait(
    process: subprocess.Popen[bytes],
    follow: Callable[[], None],
    timeout: float | None,
    remains: Remains,
) -> Ended:
    """Wait for a process; call `follow` from time to time and at its end."""
    limit = TimeLimit(process.pid, timeout)
    pause = _FOLLOW_SECONDS
    # Not Popen.wait: it does not tell the usage, and would notice the end up to 50 ms late.
    with watch_end(process.pid) as has_ended:
        while not has_ended(min(pause, limit.seconds_left)):
            follow()
            limit.look()
            pause = _FOLLOW_SECONDS if limit.is_over else min(2 * pause, _MOST_SECONDS)
    limit.finish()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    is_success = process.returncode == 0 and not limit.is_over
    ended = time.monotonic()
    unfinished = remains.wait(is_success, limit.ends_at, follow)
    waited = time.monotonic() - ended
    follow()
    usage = Usage(
        user_seconds=round(used.ru_utime, 6),
        system_seconds=round(used.ru_stime, 6),
        peak_memory_mb=-(-used.ru_maxrss // 1024),
        major_faults=used.ru_majflt,
        voluntary_switches=used.ru_nvcsw,
        involuntary_switches=used.ru_nivcsw,
    )
    code = process.returncode
    status = code if code >= 0 else 128 - code
    if unfinished:
        return Ended(STATUS_OF_TIMEOUT, usage, unfinished=unfinished, pipeline_seconds=waited)
    limit_over = timeout if limit.is_over else None
    return Ended(status, usage, limit_over, pipeline_seconds=waited)


@contextmanager
def watch_end(pid: int) -> Iterator[Callable[[float], bool]]:
    """A function that waits so many seconds for the end of a child, and returns whether it has
    ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # a kernel before 5.3, or a container that forbids it
        # A thread that sleeps, and no polls: they would take time from the CPUs of the child.
        ended = threading.Event()

        def wait() -> None:
            with suppress(ChildProcessError):  # reaped: it was killed
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        yield ended.wait
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        yield lambda seconds: bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def _copy(reader: IO[bytes] | None) -> None:
    if reader is not None:
        copy_stream(reader, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def clean_up_on_sigterm(*others: signal.Signals) -> None:
    """Let a cancelled phase end through the blocks that delete its workspace; `others`: also at
    these signals.

    The whole process group gets the signal, so a running script ends by itself, and needs the time
    to do so.
    """

    def leave(number: int, _: object) -> None:
        if not running_children():
            sys.exit(128 + number)

    for each in (signal.SIGTERM, *others):
        signal.signal(each, leave)


@dataclass
class Stopwatch:
    """Start and duration of a phase: wall clock for people, monotonic clock for the difference."""

    started: float = 0.0
    _monotonic: float = 0.0
    seconds: float = 0.0

    def __enter__(self) -> Stopwatch:
        self.started, self._monotonic = time.time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._monotonic

    @property
    def record(self) -> dict[str, str | float]:
        """Where and when, as the records of installations and builds have it."""
        return {
            "node": platform.node(),
            "started": datetime.fromtimestamp(self.started, UTC).isoformat(),
            "seconds": round(self.seconds, 6),
        }


@contextmanager
def scratch_directory(workspaces: Path, uses: Sequence[Build] = ()) -> Iterator[Path]:
    """A new empty directory for the calling process, in a directory that is made if necessary.

    Its name identifies its process for good. So the next phase removes what a killed process left,
    where it can see that process, or after the next boot of that host. It also says which builds
    the process `uses`, and what `prepare` scripts have made: programs may load libraries from there
    as long as the directory exists.
    """
    parent = make_directory(workspaces)
    _sweep(parent)
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    words = (*node_words(), str(own.pid), str(own.start), random_word())
    name = ".".join(["-".join(words), *(build.digest for build in uses)])
    directory = make_directory(parent / name)
    try:
        yield directory
    finally:
        remove_tree(directory)


def builds_in_use(workspaces: Path) -> set[str]:
    """The digests of the builds that living processes use, and of what `prepare` scripts have made
    for them. Raises OSError if they are not known now."""
    entries = filter(None, map(_SCRATCH_NAME.fullmatch, list_names(workspaces)))
    living = (entry for entry in entries if not is_forsaken(entry[0]))
    return {digest for entry in living for digest in entry["builds"].split(".") if digest}


def give_repository(git_directory: str | None, copy: Path) -> None:
    """Give a copy of the project a `.git` of its own, in which git answers as in the working tree
    (see `snapshot.keep_repository`), and one to each submodule in it. None: no `.git` at all.

    Raises PhaseError if it cannot be copied, on a full disk for example."""
    _remove_repository(copy)
    if git_directory is None:
        return
    if not copy_small_tree(Path(git_directory), copy / ".git"):
        _copy_repository(git_directory, copy / ".git")
    for path, inner in _submodules(Path(git_directory)).items():
        if (copy / path).is_dir() and (copy / path).resolve().is_relative_to(copy.resolve()):
            give_repository(inner, copy / path)


def _copy_repository(git_directory: str, target: Path) -> None:
    # Imported here: the `.git` of most copies is small.
    import shutil

    try:
        shutil.copytree(git_directory, target)
    except shutil.Error as error:  # it lists all files; the first one says what is wrong
        _, place, why = error.args[0][0]
        raise PhaseError(f"{place}: {_without_number(why)}") from error


def _without_number(said: str) -> str:
    """The reason in the text of an OSError."""
    return re.sub(r"^\[Errno \d+\] ([^:]*).*", r"\1", said, flags=re.DOTALL)


def _remove_repository(copy: Path) -> None:
    own = copy / ".git"
    if not os.path.lexists(own):
        return  # as in most builds
    if own.is_symlink() or own.is_file():
        own.unlink()
        return
    for path in _submodules(own):
        if (copy / path).resolve().is_relative_to(copy.resolve()):
            _remove_repository(copy / path)
    remove_tree(own)


def _submodules(repository: Path) -> dict[str, str]:
    """The kept `.git` of each submodule, by its path."""
    # A script may have done anything to its copy.
    with suppress(FileNotFoundError, NotADirectoryError, DamagedFileError):
        return read_json(repository / SUBMODULES)
    return {}


def _sweep(parent: Path) -> None:
    # The next phase handles what cannot be read or removed now.
    with suppress(OSError):
        for entry in list_names(parent):
            if is_forsaken(entry):
                remove_tree(parent / entry)


def host_of_scratch(entry: str) -> str | None:
    """The host of the process to which a directory of that name belongs, as `host_key` has it."""
    found = _SCRATCH_NAME.fullmatch(entry)
    return None if found is None else found["host"]


def is_forsaken(entry: str) -> bool:
    """Whether no process can be left to which a directory of that name belongs.

    False also where that cannot be known from here.
    """
    found = _SCRATCH_NAME.fullmatch(entry)
    if found is None:
        return False
    process = ProcessIdentity(int(found["pid"]), int(found["start"]))
    return is_over(found.group("host", "boot", "namespace"), process)
