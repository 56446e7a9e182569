"""The process of a job before it becomes the job's command, and the spawner that forks it.

The process makes its session and waits for its release. For a shell job it then prepares what
Snakemake would prepare.

The spawner is a small process that forks the main processes of shell jobs for a worker. The cost of
a fork grows with the memory of the forking process, and both processes bear it; a worker has
several times the memory of the spawner. So this module uses only the standard library, and little
of that.

The spawner is started by its path, as `python -I -S job_process.py <socket> <pid of the worker>
<directories of packages>...`. A request is one message, a JSON object, with two file descriptors
beside it: the log, and the gate from which the job's process reads its release. The answer is the
request's number, and the number of the job's process, which is then a child of the worker. Instead
of the process number the answer contains the negative number of an error, or 0 if the process may
exist but its number is unknown. A spawner of another program (`phase_process.py`) greets the worker
by an answer with the number 0 and its memory in MiB, when it can take requests.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace

TYPE_CHECKING = False  # not from typing, for its size
if TYPE_CHECKING:
    from typing import Any, NoReturn, Protocol, TypeVar

    from snakemake_kochi.queue.ticket import ShellJob

    Answer = TypeVar("Answer")

    class Job(Protocol):
        """The fields of a ticket that are needed here."""

        @property
        def job(self) -> int: ...
        @property
        def name(self) -> str: ...
        @property
        def directory(self) -> str: ...
        @property
        def outputs(self) -> tuple[str, ...]: ...


_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)

# proc_pid_oom_score_adj(5): -1000 to 1000. If the kernel killed the worker instead, all its jobs
# would die with it.
_OOM_SCORE = "/proc/self/oom_score_adj"
_OOM_VICTIM = 800

UNPREPARED = 1  # the status of a Snakemake that refuses a job
CANNOT_EXECUTE = 126  # as in the shell
NOT_FOUND = 127

_MOST_BYTES = 1 << 20
_DESCRIPTORS = 2
# The errors of a fork where processes or memory are scarce: a second fork would fail, too.
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)
_ADOPTION_PAUSE = 0.0002  # seconds between two looks whether the worker is the parent

# Seconds between two looks for missing files.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

# Snakemake's shell() sets these variables.
_THREADS = (
    "OMP_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_TEMPORARY = ("TMPDIR", "TMP", "TEMPDIR", "TEMP")
# The variables in which Python looks for the temporary directory.
TEMPORARY_SOURCES = ("TMPDIR", "TEMP", "TMP")


def end_with_parent() -> None:
    """Have the kernel kill the calling process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def lead_session(log: int, cpus: Collection[int] | None) -> None:
    """Make the calling process a job's main process.

    The process leads a session of its own, writes its output to the log, runs on its CPUs, and is
    the first to be killed when memory runs out.
    """
    os.setsid()
    # The process ends however the worker dies; the process that recovers the ticket ends the rest
    # of the session.
    end_with_parent()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # A CPU may have been taken from us since: then the job runs on any CPU of its worker.
    with contextlib.suppress(OSError):
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
    with contextlib.suppress(OSError, ValueError):
        score = os.open(_OOM_SCORE, os.O_RDWR)
        # The worker may have been started with a higher score; a lower one would need a privilege.
        if int(os.read(score, 16)) < _OOM_VICTIM:
            os.write(score, b"%d" % _OOM_VICTIM)
        os.close(score)


def await_release(held: int, worker: int) -> None:
    """Return when the worker releases the calling process, its child; otherwise end it."""
    # The worker may have died before prctl was called, or later: in both cases it gives no release.
    if os.getppid() != worker or os.read(held, 1) != b"!":
        os._exit(CANNOT_EXECUTE)


def enter(job: Job, environment: dict[str, str]) -> int:
    """Enter the job's directory, and set PWD in the environment; return an exit status."""
    try:
        _repeated_if_stale(lambda: os.chdir(job.directory))
    except OSError as error:
        say(job, f"cannot enter the directory {job.directory!r}: {error.strerror}")
        return CANNOT_EXECUTE
    environment["PWD"] = job.directory
    return 0


def execute(job: Job, program: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Become the program; returns an exit status, and only when that is not possible."""
    try:
        _repeated_if_stale(lambda: os.execvpe(program, arguments, environment))
    except FileNotFoundError as error:
        say(job, f"the command {program!r} was not found: {error.strerror}")
        return NOT_FOUND
    except OSError as error:
        say(job, f"the command {program!r} cannot be executed: {error.strerror}")
        return CANNOT_EXECUTE


def execute_shell_job(
    job: Job,
    shell: ShellJob,
    environment: dict[str, str],
    temporary: str | None = None,
    run: Callable[[list[str]], int] | None = None,
) -> int:
    """Prepare a shell job as Snakemake does, and become its command or let `run` execute it.

    `temporary`: the answer of find_temporary_directory, if already known. Returns an exit status
    when the process has not become the command. May raise the exceptions of `run`.
    """
    if status := enter(job, environment):
        return status
    try:
        script = _repeated_if_stale(lambda: _prepare(job, shell, environment, temporary))
    except (_UnpreparedError, OSError) as error:
        say(job, str(error))
        return UNPREPARED
    arguments = [shell.executable, "-c", script]
    if run is not None:
        return run(arguments)
    return execute(job, shell.executable, arguments, environment)


def say(job: Job, message: str) -> None:
    """Write a message into the job's log, from the job's process."""
    _note(f"job {job.job} ({job.name}): {message}")


def _note(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"kochi: {text}\n".encode("utf-8", "surrogateescape"))


def _repeated_if_stale(call: Callable[[], Answer]) -> Answer:
    """Make a call that may be repeated, and repeat it while it fails with ESTALE.

    See files.answered.
    """
    try:
        return call()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    # Imported only here, because it imports much.
    from snakemake_kochi.files import answered

    return answered(call)


# ---- the steps of Snakemake before it executes a job's command


class _UnpreparedError(Exception):
    """The job cannot begin; the text gives the reason, for people."""


def _prepare(job: Job, shell: ShellJob, environment: dict[str, str], temporary: str | None) -> str:
    """Prepare the current directory for the command, and return the command.

    Adds to the command's environment. Raises _UnpreparedError or OSError.
    """
    if protected := [path for path in job.outputs if _is_protected(path)]:
        raise _UnpreparedError(
            f"write-protected output files: {', '.join(protected)}. Remove them, or make them "
            "writable, to have them made again."
        )
    for path in job.outputs:
        _remove(path, path in shell.directories)
    for path in shell.logs:
        _remove(path, False)
    for name in _THREADS:
        environment[name] = str(shell.threads)
    script = shell.script
    if shell.temporary_directory:
        script = script.replace(
            shell.temporary_directory, _use_temporary_directory(environment, temporary)
        )
    benchmark = () if shell.benchmark is None else (shell.benchmark.file,)
    for directory in {os.path.dirname(path) for path in (*job.outputs, *shell.logs, *benchmark)}:
        if directory:
            # If the directory is a file, the command gives a better message.
            with contextlib.suppress(FileExistsError):
                os.makedirs(directory, exist_ok=True)
    _wait_for(shell.inputs, shell.latency_wait)
    return script


def _is_protected(path: str) -> bool:
    if os.access(path, os.W_OK):
        return False
    # Symbolic links never count as protected.
    return os.path.exists(path) and not os.path.islink(path)


def _remove(path: str, with_content: bool) -> None:
    if path == os.devnull:
        return
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        # For a directory Linux reports EISDIR, other systems EPERM.
        if os.path.islink(path) or not os.path.isdir(path):
            raise
        if with_content:
            import shutil

            shutil.rmtree(path)
            return
        try:
            os.removedirs(path)
        except OSError as error:
            left = "not empty" if error.errno == errno.ENOTEMPTY else error.strerror
            _note(f"the directory {path} was not removed: {left}")


def find_temporary_directory(environment: Mapping[str, str]) -> str:
    """The directory where Python puts temporary files in a process with this environment."""
    import tempfile

    before = {name: os.environ.get(name) for name in TEMPORARY_SOURCES}
    known, tempfile.tempdir = tempfile.tempdir, None
    try:
        _set_variables({name: environment.get(name) for name in TEMPORARY_SOURCES})
        return tempfile.gettempdir()
    finally:
        tempfile.tempdir = known
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _use_temporary_directory(environment: dict[str, str], known: str | None) -> str:
    """The temporary directory of the node in the job's environment; creates it if necessary."""
    is_usable = known is not None and os.access(known, os.W_OK | os.X_OK)
    found = known if known and is_usable else find_temporary_directory(environment)
    os.makedirs(found, exist_ok=True)
    for name in _TEMPORARY:
        environment[name] = found
    return found


def missing_files(paths: Iterable[str]) -> list[str]:
    """The files that are missing, after a second look through their directories if necessary."""
    missing = [path for path in paths if not os.path.exists(path)]
    if not missing:
        return []
    # Imported only here, because it imports much.
    from snakemake_kochi.files import show_new_files

    for directory in {os.path.dirname(path) for path in missing}:
        show_new_files(directory)
    return [path for path in missing if not os.path.exists(path)]


def _wait_for(paths: Sequence[str], seconds: float) -> None:
    """Wait for files that another node has written: this node may see them only after a while."""
    missing = missing_files(paths)
    if not missing:
        return
    _note(f"waiting at most {seconds:g} seconds for missing files: {', '.join(missing)}")
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while missing:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _UnpreparedError(
                f"missing files after {seconds:g} seconds: {', '.join(missing)}. If the "
                "filesystem is slow, wait longer with --latency-wait."
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
        missing = missing_files(missing)


# ---- the spawner


class SpawnerProcess:
    """The process that forks those of the jobs, until the worker closes its end of the socket."""

    def __init__(
        self,
        link: socket.socket,
        worker: int,
        run: Callable[[Job, ShellJob, dict[str, str], str | None], int] = execute_shell_job,
        refuse: Callable[[Mapping[str, str]], int] = lambda environment: 0,
        look: Callable[[Mapping[str, Any], Mapping[str, str]], None] = lambda *_: None,
    ) -> None:
        """Serve nobody yet.

        `run` lives as the process of a job, like `execute_shell_job`, with the environment and the
        temporary directory of the job. `refuse` returns the number of an error if no copy of this
        process can have that environment, or 0. `look` reads before a fork what the process of a
        shell job in an environment need not read.
        """
        link.set_inheritable(False)
        self._link = link
        self._worker = worker
        self._run = run
        self._refuse = refuse
        self._look = look
        self._fork_sibling: Callable[[], int] | None = None

    def serve(self, idle: float | None = None) -> None:
        """Fork a process for each request; return when the worker closes its end, is dead, or
        requests nothing for `idle` seconds."""
        # Imported only here, because the directories of packages are known only now.
        from snakemake_kochi.worker.runners.sibling import sibling_fork

        self._fork_sibling = sibling_fork()
        gc.disable()  # there is no garbage, and looking for it copies memory
        gc.freeze()
        while os.getppid() == self._worker:
            if idle is not None and not select.select([self._link], [], [], idle)[0]:
                return
            request, descriptors, _, _ = socket.recv_fds(self._link, _MOST_BYTES, _DESCRIPTORS)
            if not request:
                return
            for descriptor in descriptors:
                # socket.recv_fds ignores its argument for flags.
                os.set_inheritable(descriptor, False)
            self._spawn(json.loads(request), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    def answer(self, number: int, answer: int) -> None:
        self._link.send(b"%d %d" % (number, answer))

    def _spawn(self, request: dict[str, Any], log: int, held: int) -> None:
        """Make the job's process, a child of the worker, which tells the worker its number."""
        number = request["number"]
        try:
            if error := self._refuse(request["environment"]):
                raise OSError(error, os.strerror(error))
            self._look(request["shell"], request["environment"])
            if not self._fork_once(request, log, held):
                self._fork_twice(request, log, held)
        except OSError as error:
            self.answer(number, -(error.errno or 1))

    def _fork_once(self, request: dict[str, Any], log: int, held: int) -> bool:
        """Make the job's process; False where that is not possible in this way."""
        if self._fork_sibling is None:
            return False
        try:
            if self._fork_sibling() == 0:
                self._be_job(request, log, held)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            self._fork_sibling = None  # a container may forbid it
            return False
        return True

    def _fork_twice(self, request: dict[str, Any], log: int, held: int) -> None:
        """Make the job's process a child of the worker, where it cannot be made so.

        The process in between ends at once, and the worker adopts all orphans among its
        descendants.
        """
        between = os.fork()
        if between == 0:
            self._be_between(request, log, held)
        _, status = os.waitpid(between, 0)
        if status != 0:
            # If a signal ended the process in between, that process may already have forked the
            # job's process.
            answer = -os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
            self.answer(request["number"], answer)

    def _be_between(self, request: dict[str, Any], log: int, held: int) -> NoReturn:
        status = 1
        try:
            between = os.getpid()
            if os.fork() == 0:
                self._be_job(request, log, held, between)
            status = 0
        except OSError as error:
            status = error.errno or 1
        finally:
            os._exit(status)

    def _be_job(
        self, request: dict[str, Any], log: int, held: int, between: int | None = None
    ) -> NoReturn:
        job = SimpleNamespace(**request["job"])
        status = CANNOT_EXECUTE
        try:
            while os.getppid() == between:
                time.sleep(_ADOPTION_PAUSE)
            lead_session(log, request["cpus"])
            self.answer(request["number"], os.getpid())
            # While a copy has it open, the worker does not see that this process has ended.
            self._link.close()
            await_release(held, self._worker)
            shell: Any = SimpleNamespace(**request["shell"])
            status = self._run(job, shell, request["environment"], request["temporary"])
        except BaseException as error:
            say(job, repr(error))
        finally:
            os._exit(status)


def main(link: socket.socket, worker: int) -> None:
    """Serve the worker until it closes its end of the socket, or dies."""
    end_with_parent()
    # A job ignores the signals that the worker was started to ignore, but not those that Python
    # ignores.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    SpawnerProcess(link, worker).serve()


if __name__ == "__main__":
    sys.path += sys.argv[3:]  # some modules are imported late
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
