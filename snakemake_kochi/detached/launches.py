"""The files of a launched run, each with one writer, and the progress that its log tells.

launch.json is written by the process that launches it. The run supervisor writes process.json at
its start, alive every few seconds, log.json when the run has opened Snakemake's log, time-up.json
when the time limit ends the run, and end.json when the run has ended. The first process that learns
that there will be no end.json writes gone.json: from the scheduler, because the run does not begin,
or because its heartbeat has stopped. Each `kochi launch --stop` on a host that cannot signal the
run writes a file, stop-1.json first, which the supervisor sees.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import (
    is_there,
    make_directory,
    random_word,
    read_json,
    safe_name,
    to_json,
    write_atomically,
    write_exclusively,
)
from snakemake_kochi.logger.handler import Progress
from snakemake_kochi.paths import LaunchPaths, MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node

VERSION = 1
State = Literal["launched", "running", "unattended", "elsewhere", "ended", "killed"]


@dataclass(frozen=True)
class Launch:
    """launch.json: `command` runs in `directory`; `time`: when it was launched.

    `job_name` is the name of the scheduler's job in which it runs, None for a process of the host.
    """

    identity: str
    name: str
    directory: str
    command: tuple[str, ...]
    time: str
    job_name: str | None = None


@dataclass(frozen=True)
class Processes:
    """process.json: the supervisor, the run's own process, and the node of both."""

    node: Node
    supervisor: ProcessIdentity
    run: ProcessIdentity


@dataclass(frozen=True)
class Found:
    """A launch and its state.

    A `launched` run has not begun. An `unattended` run goes on although its supervisor was killed,
    and its exit status will not be known. A run `elsewhere` is on another host, and nothing more is
    known. A `killed` run ended in a way that no process could record. `scheduler`: the scheduler's
    report on its job, if it was asked. `is_time_up`: the time limit has ended the run or is ending
    it; its jobs in other allocations go on.
    """

    launch: Launch
    paths: LaunchPaths
    state: State
    processes: Processes | None = None
    status: int | None = None
    scheduler: str = ""
    is_time_up: bool = False

    @property
    def is_over(self) -> bool:
        return self.state in ("ended", "killed")

    def describe(self) -> dict[str, Any]:
        """The launch as a dictionary, for people and programs."""
        return {
            "launch": self.launch.identity,
            "name": self.launch.name,
            "state": self.state,
            "exit_status": self.status,
            "time_limit_reached": self.is_time_up,
            "command": list(self.launch.command),
            "directory": self.launch.directory,
            "launched": self.launch.time,
            "host": None if self.processes is None else self.processes.node.host,
            "process": None if self.processes is None else self.processes.run.pid,
            "job_name": self.launch.job_name,
            "scheduler": self.scheduler,
            "output": str(self.paths.output),
        }


def make_launch(
    machine: MachinePaths, name: str, command: Sequence[str], is_job: bool
) -> tuple[Launch, LaunchPaths]:
    """Record a run of the current directory that is about to be launched."""
    moment = datetime.now(UTC)
    # Identities sort in the order of time, by which the last launch is found: two launches may be
    # in one second.
    identity = f"{moment:%Y%m%d-%H%M%S%f}-{random_word(3)}"
    launch = Launch(
        identity=identity,
        name=name,
        directory=str(Path.cwd()),
        command=tuple(command),
        time=_time(moment),
        job_name=f"kochi-{safe_name(Path.cwd().name)}-launch-{identity}" if is_job else None,
    )
    paths = machine.launch(identity)
    make_directory(paths.directory)
    write_atomically(paths.launch, to_json({"version": VERSION, **asdict(launch)}))
    return launch, paths


def read_launch(paths: LaunchPaths) -> Launch:
    """Read launch.json. Raises FileNotFoundError, or DamagedFileError."""
    data = read_json(paths.launch, VERSION)
    try:
        return Launch(
            identity=str(data["identity"]),
            name=str(data["name"]),
            directory=str(data["directory"]),
            command=tuple(map(str, data["command"])),
            time=str(data["time"]),
            job_name=None if data["job_name"] is None else str(data["job_name"]),
        )
    except (KeyError, TypeError) as error:
        raise DamagedFileError(f"{paths.launch}: not a launch ({error!r})") from error


def write_processes(paths: LaunchPaths, run: int) -> None:
    """Write process.json of the calling supervisor and of the process that it has started."""
    supervisor, own = ProcessIdentity.of(os.getpid()), ProcessIdentity.of(run)
    assert supervisor is not None
    assert own is not None
    data = {"node": vars(this_node()), "supervisor": vars(supervisor), "run": vars(own)}
    write_atomically(paths.process, to_json({"version": VERSION, **data}))


def _time(moment: datetime | None = None) -> str:
    """A moment, by default now, as in the files of a launch: ISO 8601 in UTC with seconds."""
    return (moment or datetime.now(UTC)).isoformat(timespec="seconds")


def write_end(paths: LaunchPaths, status: int) -> None:
    """Write end.json, as the supervisor.

    `status`: as in the shell, 128 + N for an end by signal N.
    """
    data = {"version": VERSION, "status": status, "time": _time()}
    write_atomically(paths.end, to_json(data), durable=True)


def write_log(paths: LaunchPaths, log: str) -> None:
    """Write log.json, as the supervisor, when the run has opened Snakemake's log."""
    write_atomically(paths.log, to_json({"version": VERSION, "log": log}))


def read_log(paths: LaunchPaths) -> Path | None:
    """The path of the run's log; None where it is not known. Raises DamagedFileError."""
    try:
        return Path(str(read_json(paths.log, VERSION)["log"]))
    except FileNotFoundError:
        return None
    except KeyError as error:
        raise DamagedFileError(f"{paths.log}: not a log of a launch ({error!r})") from error


def look_at(paths: LaunchPaths) -> Found:
    """Read the state of a launch. Raises FileNotFoundError, or DamagedFileError."""
    launch = read_launch(paths)
    processes = _read_processes(paths)
    # Read the end after the processes: a run that ends in between has written it before.
    state = "launched" if processes is None else _state_of(processes)
    try:
        status = int(read_json(paths.end, VERSION)["status"])
    except FileNotFoundError:
        # If a run is seen to run here, no other process knows better.
        is_gone = state in ("launched", "elsewhere") and paths.gone.exists()
        state = "killed" if is_gone else state
        return Found(launch, paths, state, processes, is_time_up=is_time_up(paths))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{paths.end}: not an end of a launch ({error!r})") from error
    return Found(launch, paths, "ended", processes, status, is_time_up=is_time_up(paths))


def write_time_up(paths: LaunchPaths) -> None:
    """Write time-up.json, as the supervisor, before it tells the run to end. Raises OSError."""
    write_exclusively(paths.time_up, to_json({"version": VERSION, "time": _time()}))


def write_stop(paths: LaunchPaths) -> None:
    """Tell the supervisor, which is on another host, once more to stop the run. Raises OSError."""
    content = to_json({"version": VERSION, "time": _time()})
    number = 1
    while not write_exclusively(paths.stop(number), content):
        number += 1


def is_time_up(paths: LaunchPaths) -> bool:
    """Whether the time limit ends the run, as far as known."""
    with contextlib.suppress(OSError):
        return is_there(paths.time_up)
    return False


def write_gone(paths: LaunchPaths) -> None:
    """Write gone.json, as the process that learns that there will be no end.json.

    This is when the run's job or heartbeat is gone, or when the run has not begun and must not
    begin.
    """
    write_exclusively(paths.gone, to_json({"version": VERSION, "time": _time()}))


def _read_processes(paths: LaunchPaths) -> Processes | None:
    try:
        data = read_json(paths.process, VERSION)
        return Processes(
            Node.from_dict(data["node"]),
            ProcessIdentity.from_dict(data["supervisor"]),
            ProcessIdentity.from_dict(data["run"]),
        )
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{paths.process}: not those of a launch ({error!r})") from error


def _state_of(processes: Processes) -> State:
    here = this_node()
    if not here.can_see(processes.node):
        return "killed" if here.has_rebooted_since(processes.node) else "elsewhere"
    if processes.supervisor.is_alive():
        return "running"
    return "unattended" if processes.run.is_alive() else "killed"


def launch_of(machine: MachinePaths, node: Node, run: ProcessIdentity) -> LaunchPaths | None:
    """The launch that started a process, if any. Reads a file for each launch."""
    for identity in machine.launch_names():
        paths = machine.launch(identity)
        with contextlib.suppress(OSError, DamagedFileError):
            processes = _read_processes(paths)
            if processes is not None and (processes.node, processes.run) == (node, run):
                return paths
    return None


def has_time_up(machine: MachinePaths) -> bool:
    """Whether this process was launched, and ends because its own allocation is over."""
    process = ProcessIdentity.of(os.getpid())
    launch = None if process is None else launch_of(machine, this_node(), process)
    return launch is not None and is_time_up(launch)


def last_launch(machine: MachinePaths, directory: str) -> Found | None:
    """The newest launch of a directory; a launch with damaged files is skipped."""
    return next(all_launches(machine, [directory]), None)


def all_launches(
    machine: MachinePaths, directories: Collection[str] | None = None
) -> Iterator[Found]:
    """The launches of directories or of all, the newest first, without those with damaged files."""
    for identity in sorted(machine.launch_names(), reverse=True):
        try:
            found = look_at(machine.launch(identity))
        except (FileNotFoundError, DamagedFileError):
            continue
        if directories is None or found.launch.directory in directories:
            yield found


# Snakemake's own lines. In the lines of our logger, failures are beside the steps.
_TIME = re.compile(r"\[(\w{3} \w{3} [ \d]\d [\d:]{8} \d{4})\]$")
_TOTAL = re.compile(r"total +(\d+)$")
_BEGUN = re.compile(r"(?:local)?(?:rule|checkpoint) \S+:$|group job ")
_DONE = re.compile(r"(\d+) of (\d+) steps \(\S+%\) done(?:, (\d+) failed)?")
_ERROR = re.compile(r"Error in (?:rule|group) ")
_JOB = re.compile(r" +jobid: (\S+)$")
_RESTARTED = re.compile(r"Trying to restart job (\S+)\.")


@dataclass(frozen=True)
class Steps:
    """How many of a run's steps are done and have failed.

    `left`: how many seconds the other steps are likely to take, None where that is unknown.
    """

    done: int
    total: int
    failed: int
    left: float | None = None


def steps_of(found: Found) -> Steps | None:
    """The steps of a run; None while they are unknown."""
    with contextlib.suppress(DamagedFileError):
        for file in filter(None, (read_log(found.paths), found.paths.output)):
            with (
                contextlib.suppress(OSError),
                file.open(encoding="utf-8", errors="replace") as lines,
            ):
                steps = read_steps(lines, time.time(), not found.is_over)
                if steps is not None:
                    return steps
    return None


def read_steps(lines: Iterable[str], present: float, goes_on: bool) -> Steps | None:
    """Count the steps in the lines of a log; `present` is the time in seconds."""
    moment = 0.0
    progress = Progress(lambda: moment)
    done, total, counted = 0, None, 0
    failed: set[str] = set()
    has_begun, is_error = False, False
    for raw in lines:
        line = raw.rstrip("\n")
        if match := _TIME.match(line):
            with contextlib.suppress(ValueError):  # a program of a job wrote it in its language
                moment = datetime.strptime(match[1], "%a %b %d %H:%M:%S %Y").timestamp()
        elif match := _DONE.match(line):
            done, total, counted = int(match[1]), int(match[2]), int(match[3] or 0)
            progress.note(done, total)
        elif match := _RESTARTED.match(line):
            failed.discard(match[1])
        elif total is None and (match := _TOTAL.match(line)):
            total = int(match[1])
        elif not has_begun and _BEGUN.match(line):
            has_begun = True
            progress.begin()
        elif is_error and (match := _JOB.match(line)):
            failed.add(match[1])
        if not line.startswith(" "):
            is_error = bool(_ERROR.match(line))
    if total is None:
        return None
    many = max(len(failed), counted)
    is_timed = moment > 0
    moment = present
    return Steps(done, total, many, progress.left(many) if goes_on and is_timed else None)
