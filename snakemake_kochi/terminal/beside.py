"""A program beside a running job: `python -m snakemake_kochi.terminal.beside ...` on its node.

    ROOT MACHINE worker|job NUMBER [--] [COMMAND...]

It takes from a process of the job its environment, its directory, its CPUs, its cgroup and its
namespaces, as far as this user may enter them, and becomes the command, by default a shell. It does
not belong to the job: it is not ended with it, and the job does not wait for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from snakemake_kochi.cpu_lists import format_cpus
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import (
    ALL_VARIABLE,
    NONCE_VARIABLE,
    PROC,
    ProcessEntry,
    ProcessIdentity,
    all_entries,
    environment_of,
    find_job_processes,
    process_entry,
)
from snakemake_kochi.queue.views import JobView, WorkerView, find_job, find_worker
from snakemake_kochi.terminal.become import become
from snakemake_kochi.terminal.namespaces import Namespaces
from snakemake_kochi.tickets.history import JobId


def _main_process(
    machine: MachinePaths, view: JobView, worker: WorkerView
) -> tuple[ProcessIdentity, str] | None:
    """A child of the worker's supervisor: it writes to the job's log, unless its program has
    redirected that, and then the program has the job's environment."""
    own = {f"KOCHI_JOB_ID={view.job}".encode(), b"KOCHI_ATTEMPT=%d" % view.attempt}
    for entry in all_entries():
        if entry.parent == worker.process.pid:
            is_writing = False
            with contextlib.suppress(OSError):
                is_writing = os.path.samefile(PROC / str(entry.pid) / "fd/1", view.log)
            if is_writing or own.issubset(environment_of(entry.pid).split(b"\0")):
                return ProcessIdentity(entry.pid, entry.start), ""
    return None


# What belongs to the terminal and not to the job.
_OF_TERMINAL = ("TERM", "COLORTERM", "LINES", "COLUMNS", "SSH_TTY", "NO_COLOR")
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "fish", "csh", "tcsh")
# Programs of `isolate` and `container`, by the names that their processes have.
_ISOLATORS = ("bwrap", "unshare", "starter", "starter-suid", "appinit", "sinit")
_OURS = "snakemake"
_CGROUPS = Path("/sys/fs/cgroup")
# Looks for a process that does not end just then. After some of them, the shell stands for the
# programs that it runs, which end too soon; then what is above it.
_LOOKS, _LOOKS_AT_PROGRAM = 10, 5


@dataclass(frozen=True)
class Beside:
    """What a program takes over from a process, which may end then.

    `what`: whose process it is, for people. `cgroups`: path by hierarchy, as in /proc/PID/cgroup.
    """

    what: str
    environment: Mapping[str, str]
    directory: str
    cpus: frozenset[int]
    cgroups: Mapping[str, str]
    namespaces: Namespaces


def beside_words(
    machine: MachinePaths, root: Root, kind: str, number: JobId, command: Sequence[str]
) -> list[str]:
    """The command that does all this on the node."""
    module = [sys.executable, "-P", "-m", "snakemake_kochi.terminal.beside"]
    return [*module, str(root.directory), machine.name, kind, str(number), "--", *command]


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the command; returns an exit status only when that is not possible."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    directory, name, kind, number, _, *command = given
    machine = Root(Path(directory)).machine(name)
    try:
        found = _beside_job(machine, number) if kind == "job" else _beside(machine, number)
        _enter(found)
        return found.namespaces.run(lambda: _run(found, command))
    except KochiError as error:
        print(f"kochi: {error}", file=sys.stderr)
        return 1


def _beside(machine: MachinePaths, number: str) -> Beside:
    worker = find_worker(machine, int(number))
    _check_node(worker)
    found = _read(f"worker {worker.worker}", worker.process)
    if found is None:
        raise KochiError(f"worker {worker.worker} has just ended")
    own = {"KOCHI_MACHINE": machine.name, "KOCHI_WORKER_ID": number}
    return replace(found, environment={**found.environment, **own})


def _beside_job(machine: MachinePaths, number: str) -> Beside:
    job: Any = int(number) if number.isdecimal() else number
    for look in range(_LOOKS):
        view = find_job(machine, job)
        if view.state == "running" and view.worker is not None:
            worker = find_worker(machine, view.worker)
            _check_node(worker)
            if (known := _main_process(machine, view, worker)) is not None:
                leader, nonce = known
                if processes := find_job_processes(leader, nonce):
                    above = max(0, look + 1 - _LOOKS_AT_PROGRAM)
                    chosen = choose_process(leader, processes, above)
                    if (found := _read(f"job {job}", chosen)) is not None:
                        return found
    raise KochiError(
        f"job {job} has no process on this node: it has just begun, or just ended",
        f"To see its state, type: kochi show job {job}",
    )


def _check_node(worker: WorkerView) -> None:
    if not worker.is_on_this_node:
        raise KochiError(
            f"this is node {os.uname().nodename}, but worker {worker.worker} is on "
            f"{worker.node.host}"
        )


# ---- the process


def choose_process(
    leader: ProcessIdentity, processes: Sequence[ProcessIdentity], above: int = 0
) -> ProcessIdentity:
    """The process that a person means by a job: the program that runs, or the script around it.

    Above it are processes of Snakemake and of Kochi, whose environment is another one. A shell has
    set variables that only its children have, so the first of these stands for it; and so it is
    with a program that isolates another one. `above`: take the process so many levels
    above that one, at most the first of them.
    """
    entries = {each.pid: entry for each in processes if (entry := process_entry(each.pid))}
    children: dict[int, list[ProcessEntry]] = {}
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.pid)):
        children.setdefault(entry.parent, []).append(entry)
    top = leader.pid
    ours = [pid for pid in _below(leader.pid, children) if _is_ours(pid)]
    if ours:
        top = ours[-1]
        if below := [each for each in children.get(top, ()) if not _is_ours(each.pid)]:
            top = below[0].pid
    path = [top]
    while (below := children.get(top, [])) and _stands_for_child(top):
        top = below[0].pid
        path.append(top)
    top = path[max(0, len(path) - 1 - above)]
    found = entries.get(top)
    return processes[0] if found is None else ProcessIdentity(top, found.start)


def _below(top: int, children: Mapping[int, Sequence[ProcessEntry]]) -> Iterator[int]:
    """A process and its descendants, each after its parent."""
    waiting = [top]
    while waiting:
        pid = waiting.pop(0)
        yield pid
        waiting += [each.pid for each in children.get(pid, ())]


def _is_ours(pid: int) -> bool:
    """Whether a process is Snakemake, or Kochi's, and not a program of the user."""
    with contextlib.suppress(OSError):
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        modules = [after for before, after in pairwise(words) if before == "-m"]
        names = [*modules[:1], *(os.path.basename(word) for word in words[:2])]
        return any(name.startswith(_OURS) for name in names)
    return False


def _stands_for_child(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "comm").read_text().strip() in (*_SHELLS, *_ISOLATORS)
    return False


def _read(what: str, process: ProcessIdentity) -> Beside | None:
    """What a process has, or None if it ends. Raises KochiError if it cannot be looked at."""
    entry = PROC / str(process.pid)
    try:
        variables = environment_of(process.pid).split(b"\0")
        directory = os.readlink(entry / "cwd")
        cpus = os.sched_getaffinity(process.pid)
    except OSError as error:
        if _ends(process):
            return None
        raise KochiError(f"{what} cannot be looked at: {error}") from error
    cgroups, namespaces = _cgroups(str(process.pid)), Namespaces(process.pid)
    # After the rest: then all of it is of this process.
    if _ends(process):
        namespaces.close()
        return None
    pairs = (each.partition(b"=") for each in variables if b"=" in each)
    environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return Beside(what, environment, directory, frozenset(cpus), cgroups, namespaces)


def _ends(process: ProcessIdentity) -> bool:
    """Whether a process has ended, or begins to: it gives up its memory first."""
    entry = process_entry(process.pid)
    return entry is None or entry.start != process.start or not entry.has_memory


# ---- taking over


def _enter(found: Beside) -> None:
    lacks = []
    if not _enter_cgroups(found.cgroups):
        lacks.append("its cgroup")
    try:
        os.sched_setaffinity(0, found.cpus)
    except OSError:
        lacks.append(f"its CPUs {format_cpus(found.cpus)}")
    if not found.namespaces.enter():
        lacks.append("its isolation")
    try:
        os.chdir(found.directory)
    except OSError:
        # In a container, or deleted.
        lacks.append(f"its directory {found.directory}")
        os.chdir("/")
    if sys.stdin.isatty():
        where = f"{os.uname().nodename}, CPUs {format_cpus(os.sched_getaffinity(0))}"
        print(f"kochi: beside {found.what} on {where}, in {os.getcwd()}", file=sys.stderr)
        if lacks:
            print(f"kochi: this user may not enter {', '.join(lacks)}", file=sys.stderr)


def _enter_cgroups(cgroups: Mapping[str, str]) -> bool:
    """Enter the cgroups of a process as far as that is permitted; whether all are entered.

    The limits and counts of the job then include this process.
    """
    own = _cgroups("self")
    entered = True
    for controllers, path in cgroups.items():
        if own.get(controllers) == path:
            continue
        procs = _hierarchy(controllers) / path.lstrip("/") / "cgroup.procs"
        try:
            procs.write_text(str(os.getpid()))
        except OSError:
            entered = False
    return entered


def _hierarchy(controllers: str) -> Path:
    """Where a hierarchy of cgroups is mounted, as systemd does it; see cgroups(7)."""
    if controllers:  # version 1
        return _CGROUPS / controllers.removeprefix("name=")
    unified = _CGROUPS / "unified"
    return unified if unified.is_dir() else _CGROUPS


def _cgroups(process: str) -> dict[str, str]:
    found = {}
    with contextlib.suppress(OSError):
        for line in (PROC / process / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found[controllers] = path
    return found


def _run(found: Beside, command: Sequence[str]) -> int:
    environment = dict(found.environment)
    # With these, the program would be taken for a process of the job, and be ended with it.
    for name in (NONCE_VARIABLE, ALL_VARIABLE):
        environment.pop(name, None)
    for name in _OF_TERMINAL:
        environment.pop(name, None)
        if (value := os.environ.get(name)) is not None:
            environment[name] = value
    environment["PWD"] = os.getcwd()
    return become(list(command) or [_shell(environment)], environment, "there")


def _shell(environment: Mapping[str, str]) -> str:
    path = environment.get("PATH", os.defpath)
    for each in (environment.get("SHELL"), os.environ.get("SHELL"), "bash"):
        if each and shutil.which(each, path=path):
            return each
    return "/bin/sh"


if __name__ == "__main__":
    sys.exit(main())
