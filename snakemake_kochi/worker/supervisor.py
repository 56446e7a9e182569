"""The supervisor of a worker: it forks the jobs' processes, reaps them, and leaves none behind.

    python -I -S supervisor.py SETTINGS [OPTION...]

It starts the worker as a child, which sends requests on a socket: messages in JSON, with the job's
log as a descriptor. A large one is in a file in memory, the last descriptor.

    {"fork": 7, "server": "", "job": {...}, "shell": {...}, ...}    fork a job, or start its command
    {"serve": "phase-1", "command": [...], ...}                     start a server that forks jobs
    {"end": "phase-1", "by": 15}  {"beat": 1}                       signal a server; the loop lives

The answers, in order:

    {"forked": 7, "pid": 4711, "start": 812345}  or  {"forked": 7, "error": 12, "why": "..."}
    {"ended": 7, "status": 0, "signal": null, "cpu": 0.1, "memory": 12}
    {"served": "phase-1", "pid": 4712}  {"said": "phase-1", ...}  {"gone": "phase-1"}
    {"signal": 15}                                                  a request to stop

A server gets the same requests, and forks processes that are children of the supervisor, too. What
these leave behind becomes the supervisor's: it ends all of it when the worker has ended, however.
The process does so little that it is unlikely to be killed; if it is, the kernel ends the worker
and the jobs' main processes.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from types import SimpleNamespace

if __name__ == "__main__":
    sys.path.append(os.path.dirname(__file__).rpartition("/snakemake_kochi/")[0])

from snakemake_kochi.parent_death import (
    adopt_orphans,
    children,
    end_with_parent,
    stat_fields,
)
from snakemake_kochi.worker.job_process import (
    CANNOT_EXECUTE,
    become_victim,
    enter,
    execute,
    execute_shell_job,
    lead_session,
    say,
)

TYPE_CHECKING = False  # not from typing, for its size
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

Message = dict[str, "Any"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
MOST_BYTES = 1 << 16  # of a message; Linux limits those of sockets to some 200 KiB
_DESCRIPTORS = 3
_INTERVAL = float(os.environ.get("KOCHI_HEARTBEAT") or 5.0)  # as tickets.watching.INTERVAL
# Intervals without a beat of the worker's loop: it hangs. Others take its jobs not before 20.
_HUNG = 12
_LEFTOVER_PATIENCE = 30.0  # seconds


def send(link: socket.socket, message: Message, *descriptors: int) -> None:
    """Raises OSError; BlockingIOError if the socket is full, and does not wait."""
    data = json.dumps(message).encode()
    if len(data) > MOST_BYTES:
        memory = os.memfd_create("request")
        try:
            os.write(memory, data)
            return send(link, {"size": len(data)}, *descriptors, memory)
        finally:
            os.close(memory)
    socket.send_fds(link, [data], descriptors, socket.MSG_NOSIGNAL)


def receive(link: socket.socket) -> tuple[Message | None, list[int]]:
    """A message with its descriptors; None at the end. Raises OSError."""
    data, descriptors, _, _ = socket.recv_fds(link, MOST_BYTES, _DESCRIPTORS)
    for number in descriptors:
        os.set_inheritable(number, False)  # socket.recv_fds ignores its argument for flags
    if not data:
        return None, descriptors
    message = json.loads(data)
    if size := message.get("size"):
        memory = descriptors.pop()
        data = os.pread(memory, size, 0)
        os.close(memory)
        message = json.loads(data)
    return message, descriptors


def become_job(
    request: Message,
    log: int,
    parent: int,
    live: Callable[[Any, Message], int],
    link: socket.socket | None = None,
) -> NoReturn:
    """Live as the main process of a job; `parent` is the supervisor. `link`: that of a server."""
    job = SimpleNamespace(**request["job"])
    status = CANNOT_EXECUTE
    try:
        lead_session(log, request["cpus"])
        if os.getppid() == parent and (link is None or _is_known(request, link)):
            os.close(log)
            status = live(job, request)
    except BaseException as error:
        say(job, repr(error))
    finally:
        os._exit(status)


def _is_known(request: Message, link: socket.socket) -> bool:
    """Tell the supervisor about this process; False if it has given the server up."""
    with link, contextlib.suppress(OSError):
        send(link, {"forked": request["fork"], "pid": os.getpid()})
        return True
    return False


def _execute(job: Any, request: Message) -> int:
    if request["shell"] is not None:
        shell: Any = SimpleNamespace(**request["shell"])
        return execute_shell_job(job, shell, request["environment"])
    command = request["command"]
    return enter(job) or execute(job, command[0], command, request["environment"])


class Supervisor:
    """Serves one worker, until it has ended."""

    def __init__(self, worker: list[str]) -> None:
        """`worker`: its command, to which the number of its end of the socket is added."""
        self._worker = worker
        self._pid = 0
        self._jobs: dict[int, int] = {}  # process -> number of the request
        self._servers: dict[str, tuple[socket.socket, int]] = {}
        self._asked: dict[str, set[int]] = {}  # requests that a server has not answered
        self._unsent: deque[Message] = deque()
        self._status = 0

    def run(self) -> int:
        """The worker's exit status, when nothing of it is left. Raises OSError if none starts."""
        self._wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._stops = [n for n in STOP_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
        for each in self._stops:
            signal.signal(each, lambda *_: None)
        for each in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and no job is to
            signal.signal(each, signal.SIG_DFL)
        self._link, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        with its:
            self._pid = self._spawn([*self._worker, str(its.fileno())], its, dict(os.environ))
        gc.disable()  # there is no garbage, and looking for it copies memory at each fork
        gc.freeze()
        beaten = time.monotonic()
        while self._pid:
            self._wait()
            self._flush()
            for number in os.read(self._wake, 4096) if self._is_woken else b"":
                if number in self._stops:
                    self._answer({"signal": number})
            if self._take_requests():
                beaten = time.monotonic()
            # If this process itself slept, it waits for the next beat.
            elif time.monotonic() - beaten > _HUNG * _INTERVAL:
                self._say("no sign of life of the worker's loop: killing it and its jobs")
                os.kill(self._pid, signal.SIGKILL)
                beaten = time.monotonic()
            self._hear_servers()
            self._reap()
        return self._status

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        poll.register(self._link, events)
        for link, _ in self._servers.values():
            poll.register(link, select.POLLIN)
        ready = poll.poll(1000 * _INTERVAL)
        self._is_woken = any(number == self._wake for number, _ in ready)

    # ---- the worker

    def _answer(self, message: Message) -> None:
        self._unsent.append(message)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                send(self._link, self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            pass  # later, in order
        except OSError:
            self._unsent.clear()  # the worker is gone

    def _take_requests(self) -> bool:
        """Whether the loop gave a sign of life."""
        has_beaten = False
        while True:
            try:
                message, descriptors = receive(self._link)
            except OSError:
                break
            if message is None:
                break
            try:
                has_beaten |= "beat" in message
                if "fork" in message:
                    self._fork(message, descriptors)
                elif "serve" in message:
                    self._serve(message, descriptors)
                elif "end" in message:
                    self._signal(message["end"], message["by"])
            finally:
                for number in descriptors:
                    os.close(number)
        return has_beaten

    # ---- jobs

    def _fork(self, request: Message, descriptors: list[int]) -> None:
        number, server = request["fork"], request["server"]
        if server:
            try:
                send(self._servers[server][0], request, *descriptors)
                self._asked[server].add(number)
            except (KeyError, OSError) as error:
                code = getattr(error, "errno", None) or errno.ESRCH
                self._answer({"forked": number, "error": code})
            return
        own = os.getpid()
        if pid := self._launch(request, descriptors[0]):
            return self._note(number, pid)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._stops)
        try:
            pid = os.fork()
        except OSError as error:
            self._answer({"forked": number, "error": error.errno})
            return
        finally:
            if os.getpid() == own:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pid == 0:
            self._restore_signals()
            become_job(request, descriptors[0], own, _execute)
        self._note(number, pid)

    def _launch(self, request: Message, log: int) -> int:
        """Start a command without a copy of this process, which takes most of the time of a short
        one; 0 if that is not possible. What `lead_session` does, is done here and by `launcher`."""
        if not (launcher := request.get("launcher")):
            return 0
        own = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):
            if request["cpus"] is not None:
                os.sched_setaffinity(0, request["cpus"])
        try:
            pid = os.posix_spawn(
                launcher[0],
                [*launcher, *request["command"]],
                request["environment"],
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
                setsigmask=(),
            )
        except (OSError, NotImplementedError):
            return 0  # the other way tells why
        finally:
            os.sched_setaffinity(0, own)
        become_victim(pid)
        return pid

    def _restore_signals(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *self._stops):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _note(self, number: int, pid: int) -> None:
        self._jobs[pid] = number
        self._answer({"forked": number, "pid": pid, "start": int(stat_fields(f"/proc/{pid}")[19])})

    def _reap(self) -> None:
        """Report the ends of jobs; reap all others that have ended."""
        while True:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            try:
                if (found := os.waitid(os.P_ALL, 0, options)) is None:
                    return
            except ChildProcessError:
                return
            pid = found.si_pid
            if pid not in self._jobs:
                self._hear_servers(pid)  # it was told before it could end
            _, status, used = os.wait4(pid, 0)
            if pid == self._pid:
                self._pid, self._status = 0, status
                return
            if (number := self._jobs.pop(pid, None)) is not None:
                is_killed = os.WIFSIGNALED(status)
                self._answer(
                    {
                        "ended": number,
                        "status": None if is_killed else os.WEXITSTATUS(status),
                        "signal": os.WTERMSIG(status) if is_killed else None,
                        "cpu": round(used.ru_utime + used.ru_stime, 3),
                        "memory": used.ru_maxrss // 1024,  # Linux counts KiB: see getrusage(2)
                    }
                )

    # ---- servers

    def _serve(self, message: Message, descriptors: list[int]) -> None:
        name = message["serve"]
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with its:
            command = [*message["command"], str(its.fileno()), str(os.getpid())]
            try:
                pid = self._spawn(
                    command, its, message["environment"], message["directory"], *descriptors
                )
            except OSError as error:
                ours.close()
                self._answer({"gone": name, "error": error.errno})
                return
        self._servers[name] = ours, pid
        self._asked[name] = set()
        self._answer({"served": name, "pid": pid})

    def _signal(self, name: str, number: int) -> None:
        if name in self._servers:
            os.kill(self._servers[name][1], number)  # our child: it is there until it is reaped

    def _hear_servers(self, ended: int = 0) -> None:
        """`ended`: a process that is about to be reaped."""
        for name, (link, pid) in list(self._servers.items()):
            if pid == ended:  # its socket may live on in a process that it has left behind
                link.shutdown(socket.SHUT_RD)
            while name in self._servers:
                try:
                    message, descriptors = receive(link)
                except BlockingIOError:
                    break
                except ConnectionResetError:
                    continue  # told once, if requests were left unread; what it sent comes now
                except OSError:
                    message, descriptors = None, []
                for number in descriptors:
                    os.close(number)
                if message is None:
                    self._drop(name)
                elif "forked" not in message:
                    self._answer({"said": name, **message})
                else:
                    self._asked[name].discard(message["forked"])
                    if "pid" in message:
                        self._note(message["forked"], message["pid"])
                    else:
                        self._answer(message)

    def _drop(self, name: str) -> None:
        if name not in self._servers:
            return
        self._signal(name, signal.SIGKILL)
        self._servers.pop(name)[0].close()
        for number in self._asked.pop(name):
            self._answer({"forked": number, "error": errno.ESRCH, "why": "its process ended"})
        self._answer({"gone": name, "error": 0})

    # ---- processes

    def _spawn(
        self,
        command: list[str],
        link: socket.socket,
        environment: dict[str, str],
        directory: str = "",
        *log: int,
    ) -> int:
        """Start a program with its end of a socket. Raises OSError if no process can be made."""
        own = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            self._restore_signals()
            end_with_parent()
            if os.getppid() != own:
                os._exit(1)
            if not directory:  # the worker, which gets requests to stop from this process alone
                for stop in STOP_SIGNALS:
                    signal.signal(stop, signal.SIG_IGN)
            else:
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDWR)
                for number in range(3):
                    os.dup2(log[0] if log and number else nothing, number)
                os.chdir(directory)
            os.set_inheritable(link.fileno(), True)
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(2, f"kochi: {command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _say(self, text: str) -> None:
        os.write(2, f"kochi: {text}\n".encode())

    def end_leftovers(self) -> None:
        """Kill all descendants: orphaned ones become children of this process."""
        until = time.monotonic() + _LEFTOVER_PATIENCE
        pause = 0.001
        while time.monotonic() < until:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            for pid in children(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        self._say(
            f"processes {' '.join(map(str, children(os.getpid())))} of its jobs cannot be ended"
        )


def _keep_files() -> None:
    """What a scheduler's launcher left open is not for jobs: it waits until all have closed it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2:
                os.set_inheritable(int(name), False)


def main(arguments: list[str]) -> int:
    _keep_files()
    adopt_orphans()
    # -P: a queue.py in the user's directory must not be imported in place of the library.
    worker = [sys.executable, "-P", "-m", "snakemake_kochi.worker", *arguments]
    supervisor = Supervisor(worker)
    status = supervisor.run()
    supervisor.end_leftovers()
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number  # the first process of a pid namespace survives its signal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
