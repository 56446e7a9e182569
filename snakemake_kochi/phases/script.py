"""Running a script of the user's: its environment, its output, its limit of time, its end.

A phase ends its script itself, at the exact time and under any executor. The scheduler and the
worker, which have the `runtime` of the job, would end the phase, too. What the script has left
running becomes a child of this process.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import copy_stream, last_lines, write_file
from snakemake_kochi.parent_death import adopt_orphans, children
from snakemake_kochi.phases.products import LAST_LINES, Install
from snakemake_kochi.processes import ProcessIdentity, all_entries, send_signal
from snakemake_kochi.project.values import environment_name
from snakemake_kochi.thread_variables import THREAD_VARIABLES

# Seconds between two looks at the output of a script: soon after its start, and later rarely. Each
# look takes time from the CPUs that a run measures.
_FOLLOW_SECONDS = 0.05
_MOST_SECONDS = 1.0
# Seconds between SIGTERM, upon which a script may write what it has, and SIGKILL.
GRACE = 5.0
_GRACE_OF_REST = 1.0  # for what is left when the script has ended
_PAUSE = 0.02
STATUS_OF_TIMEOUT = 124  # as of timeout(1): the signal was not sent by a person
_STOPPING = "set -e -o pipefail"  # of the preamble
# A line for bash that notes when the script itself begins. Bash 4 has no such variable. The
# environment may define functions and set options; its trace would show this line.
_NOTE = """\
{{ builtin printf %s "${{EPOCHREALTIME:-$(command date +%s.%N)}}" >| {file} || :; }} 2> /dev/null
"""
SAVED_THREADS_VARIABLE = "KOCHI_SAVED_THREADS"
# The number of the main process of Snakemake, for its jobs.
MAIN_VARIABLE = "KOCHI_MAIN_PROCESS"
_NOT_FOR_SCRIPTS = (
    # For our own processes; a Snakemake that a script starts must not inherit them.
    *("KOCHI_FREEZE", "KOCHI_FREEZE_OWNER", "KOCHI_PYTHON", SAVED_THREADS_VARIABLE, MAIN_VARIABLE),
    # Set by a hook or an alias in which snakemake was started: git in a script would work on the
    # user's repository instead of the script's own directory.
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE"),
    *("GIT_NAMESPACE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_WORK_TREE"),
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

    @property
    def is_loaded(self) -> bool:
        """Whether a script finds other variables than its process was given."""
        return bool(self.load_environment or self.installs)

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


def saved_threads() -> str:
    """The numbers of threads given to this process, as JSON, to pass them around Snakemake to a
    phase in $KOCHI_SAVED_THREADS."""
    return json.dumps({n: os.environ[n] for n in THREAD_VARIABLES if n in os.environ})


def own_environment() -> dict[str, str]:
    """The environment of this process without the variables of Snakemake and ours."""
    variables = dict(os.environ)
    saved = variables.get(SAVED_THREADS_VARIABLE)
    for name in _NOT_FOR_SCRIPTS:
        variables.pop(name, None)
    # Otherwise a benchmark with OpenMP would run with as many threads as its rule has, one.
    if saved is not None:
        for name in THREAD_VARIABLES:
            variables.pop(name, None)
        variables |= json.loads(saved)
    return variables


@dataclass(frozen=True)
class Ended:
    """How a script ended. `status`: its exit status, 128 + n after signal n. `timeout`: the seconds
    after which it was ended, if it was. `unfinished`: which processes of its pipeline did not end,
    if so. `started` (seconds since 1970) and `seconds` are those of its process without the rest of
    its pipeline; for `environment_seconds` of them the environment was loaded.

    `usage`: what its processes took, without those for which no process waited; None if they were
    those of another program. Seconds of CPU time, "peak_memory_mb" of the largest single process in
    MiB, "major_faults" (page faults that read from a disk), and switches of context.
    """

    status: int
    usage: Mapping[str, float] | None
    timeout: float | None = None
    unfinished: str = ""
    started: float = 0.0
    seconds: float = 0.0
    environment_seconds: float = 0.0

    @property
    def times(self) -> dict[str, str | float]:
        """When the script itself ran."""
        # The clock may have been set meanwhile.
        loading = min(self.environment_seconds, self.seconds)
        began = datetime.fromtimestamp(self.started + loading, UTC)
        return {
            "started": began.isoformat(),
            "ended": (began + timedelta(seconds=self.seconds - loading)).isoformat(),
            "seconds": round(self.seconds - loading, 6),
            "environment_seconds": round(loading, 6),
        }

    @property
    def made(self) -> dict[str, str | float]:
        """Where and when, as the records of installations and builds have it."""
        started = datetime.fromtimestamp(self.started, UTC).isoformat()
        return {"node": platform.node(), "started": started, "seconds": round(self.seconds, 6)}

    @property
    def has_failed(self) -> bool:
        return self.status != 0 or self.timeout is not None or bool(self.unfinished)

    @property
    def how(self) -> str:
        """As the rest of a sentence about a script that has failed."""
        if self.timeout is not None:
            return f"ran for longer than its timeout of {self.timeout:g} s"
        if self.unfinished:
            return f"left processes that do not end: {self.unfinished}"
        said = f"ended with exit status {self.status}"
        with suppress(ValueError):
            said += f", as after {signal.Signals(self.status - 128).name}"
        return said

    def reason(self, script: str) -> str:
        """Why a phase failed whose script (`the run script`) ended so, for a list of failures."""
        is_timeout = self.timeout is not None or self.unfinished
        return f"{'timeout: ' if is_timeout else ''}{script} {self.how}"

    def require_success(self, of: str, script: str, log: Path) -> None:
        """Raise PhaseError if the script (`the install script`) of something has failed; `log` has
        its output."""
        if self.has_failed:
            raise PhaseError(
                f"{of}: {script} {self.how}\nIts output is in {log}",
                reason=self.reason(script),
                output=last_lines(log, LAST_LINES),
            )


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
    preamble = scratch / "environment.sh"
    body, first, loaded = scratch / f"{name}.sh", _STOPPING, Path(f"{preamble}.end")
    if environment.is_loaded:
        write_file(preamble, environment.preamble().encode("utf-8", "surrogateescape"))
        # Sourced, not appended: bash then reports the user's script with its own line numbers.
        first = f". {shlex.quote(str(preamble))}"
        before += _NOTE.format(file=shlex.quote(str(loaded)))
        loaded.unlink(missing_ok=True)  # of an earlier script in this directory
    write_file(body, f"{script}\n".encode("utf-8", "surrogateescape"))
    lines = f"{first}\n{before}{mode_of(strict)}\n. {shlex.quote(str(body))}\n"
    # $0 is the user's script. Without --norc, a bash with -c may read ~/.bashrc where SSH_CLIENT is
    # set and SHLVL is not.
    command = [*wrapper, "bash", "--norc", "-c", lines, str(body)]
    variables = environment.of_process()
    with ExitStack() as opened:
        # To a file and not through a pipe: a background child that keeps the pipe open would delay
        # the job as long as it lives.
        writer = None if output is None else opened.enter_context(output.open("wb"))
        reader = None if output is None else opened.enter_context(output.open("rb"))

        def follow() -> None:
            if reader is not None:
                copy_stream(reader, sys.stdout.buffer)
                sys.stdout.buffer.flush()

        adopt_orphans()
        processes = _Processes(_children(), follow)
        error = None if output is None else subprocess.STDOUT
        processes.started = time.time(), time.monotonic()
        process = subprocess.Popen(
            command, cwd=directory, env=variables, stdout=writer, stderr=error
        )
        try:
            ended = _wait(process, processes, timeout, files, [output] if output else [])
        except BaseException:  # Ctrl-C
            process.kill()
            process.wait()
            raise
    if not environment.is_loaded:
        return ended
    # To the end if the script itself has not begun; 0 if that is not known, as on a full disk.
    now = end = time.time()
    try:
        # The locale of the script says what its decimal point is.
        end = min(now, float(loaded.read_text().replace(",", ".")))
    except (OSError, ValueError):
        end = ended.started if ended.status == 0 else now
    return replace(ended, environment_seconds=max(0.0, end - ended.started))


def mode_of(strict: bool) -> str:
    """What bash does in a user's script when a command fails."""
    return "set -euo pipefail" if strict else "set +e +o pipefail"


def _wait(
    process: subprocess.Popen[bytes],
    processes: _Processes,
    timeout: float | None,
    files: Iterable[Path],
    logs: Iterable[Path],
) -> Ended:
    """Wait for a script, and follow its output."""
    ends_at = math.inf if timeout is None else time.monotonic() + timeout
    pause, has_ended, is_over = _FOLLOW_SECONDS, watched(process.pid), False
    while not has_ended.wait(max(0.0, min(pause, ends_at - time.monotonic()))):
        processes.follow()
        if is_over := time.monotonic() >= ends_at:
            processes.end(process.pid)
            break
        pause = min(2 * pause, _MOST_SECONDS)
    # Not Popen.wait: it does not tell the usage.
    _, status, used = os.wait4(process.pid, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    started, clock = processes.started
    seconds, unfinished = time.monotonic() - clock, ""
    if code == 0 and not is_over:
        unfinished = processes.wait_for_pipeline(files, logs, ends_at)
    processes.follow()
    usage = {
        "user_seconds": round(used.ru_utime, 6),
        "system_seconds": round(used.ru_stime, 6),
        # The kernel counts at least the memory of the process that started the script.
        "peak_memory_mb": -(-used.ru_maxrss // 1024),
        "major_faults": used.ru_majflt,
        "voluntary_switches": used.ru_nvcsw,
        "involuntary_switches": used.ru_nivcsw,
    }
    status = STATUS_OF_TIMEOUT if unfinished else code if code >= 0 else 128 - code
    return Ended(status, usage, timeout if is_over else None, unfinished, started, seconds)


def watched(pid: int) -> threading.Event:
    """An event that is set when a child has ended.

    By a thread that sleeps, and no polls: they would take time from the CPUs of the child. A kernel
    before 5.3 has no descriptors of processes.
    """
    ended = threading.Event()

    def wait() -> None:
        with suppress(ChildProcessError):  # reaped: it was killed
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


@dataclass
class _Processes:
    """The processes that a script starts. `before`: the children that this process had before;
    `follow` is called again and again while they are waited for. `started`: when the script did, in
    seconds since 1970 and of the monotonic clock."""

    before: set[int]
    follow: Callable[[], None]
    started: tuple[float, float] = (0.0, 0.0)

    def of(self, *roots: int) -> list[ProcessIdentity]:
        """The living ones of these children, of those that were left to this process, and of all
        that descend from them. The `roots` come first, then the oldest: else a script might wait
        for a child that was told to end before it, and go on as if the child had ended by itself.
        """
        entries = [entry for entry in all_entries() if entry.state not in "ZX"]
        known = {*roots, *(_children() - self.before)}
        while more := {e.pid for e in entries if e.parent in known} - known:
            known |= more
        found = [ProcessIdentity(e.pid, e.start) for e in entries if e.pid in known]
        return sorted(found, key=lambda each: (each.pid not in roots, each.start))

    def reap(self) -> list[ProcessIdentity]:
        """The living processes that the script left; reaps the dead ones. Without the script."""
        if not (orphans := _children() - self.before):
            return []
        for pid in orphans:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return self.of()

    def end(self, script: int) -> None:
        """End a script with all that it started, again and again: it may start others while it
        ends. SIGKILL comes after the grace. A process that hangs in the kernel is left."""
        began = time.monotonic()
        send_signal(self.of(script), signal.SIGTERM)
        while (alive := self.of(script)) and time.monotonic() < began + 2 * GRACE:
            if time.monotonic() >= began + GRACE:
                send_signal(alive, signal.SIGKILL)
            time.sleep(_PAUSE)
            self.follow()

    def wait_for_pipeline(self, files: Iterable[Path], logs: Iterable[Path], ends_at: float) -> str:
        """Wait for what the script's pipeline still writes; returns why not all of it was written,
        or "". All other processes stay, but for those that only hold what the script prints."""
        if not (left := self.reap()):
            return ""
        # Imported here: few scripts leave a process.
        from snakemake_kochi.own_pipeline import OwnPipeline

        def say(text: str) -> None:
            print(f"kochi: {text}", file=sys.stderr, flush=True)

        limit = None if ends_at == math.inf else ends_at
        paths = list(map(str, files)), list(map(str, logs))
        pipeline = OwnPipeline(*paths, min(each.start for each in left), limit, say)
        failure, ended = "", dict[ProcessIdentity, float]()
        while left:
            everything, now = pipeline.look(left), time.monotonic()
            failure = failure or pipeline.failure
            ending = everything if failure else pipeline.held
            # What reads from one that held the log may be one of the pipeline afterwards. One that
            # hangs in the kernel is left.
            ending = [each for each in ending if now < ended.setdefault(each, now) + 2 * GRACE]
            if not ending and (failure or not pipeline.is_waiting):
                break
            for each in ending:
                if ended[each] == now:
                    send_signal([each], signal.SIGTERM)
                elif now >= ended[each] + _GRACE_OF_REST:
                    send_signal([each], signal.SIGKILL)
            time.sleep(max(_PAUSE if ending else 0.0, pipeline.due - time.monotonic()))
            self.follow()
            left = self.reap()
        return failure


def _children() -> set[int]:
    # One call where there is none, as after most scripts.
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    return set(children(os.getpid()))


def clean_up_on_sigterm(*others: signal.Signals) -> None:
    """Let a cancelled phase end through the blocks that delete its workspace; `others`: also at
    these signals.

    The whole process group gets the signal, so a running script ends by itself, and needs the time
    to do so. What a script has left running holds this process up until it is killed.
    """

    def leave(number: int, _: object) -> None:
        if not _children():
            sys.exit(128 + number)

    for each in (signal.SIGTERM, *others):
        signal.signal(each, leave)
