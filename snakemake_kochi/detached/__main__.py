"""`python -m snakemake_kochi.detached DIRECTORY`: the supervisor of a launched run.

It outlives the login, forwards signals that tell the run to end, and records how the run ended.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import psutil

from snakemake_kochi.base import clock, files
from snakemake_kochi.detached.launches import (
    read_launch,
    write_end,
    write_log,
    write_processes,
    write_time_up,
)
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_there, read_json, to_json, write_atomically
from snakemake_kochi.own_environment import OwnEnvironment
from snakemake_kochi.paths import LaunchPaths, SentPaths
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.tickets.watching import FIRST, INTERVAL

# The signals by which a person ends a run, or a scheduler before the time is over.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_TIME_UP = signal.SIGUSR1
_LOG = ".snakemake/log/*.snakemake.log"
# Seconds between two looks for the log, at first and at most, and the growth of this pause:
# Snakemake may wait before it opens the log. The growth is slow: the log of a run of seconds must
# be found, too.
_PAUSE, _MOST_PAUSE, _GROWTH = 0.1, 5.0, 1.05
_STOP_LOOK = 2.0  # seconds between two looks for an order to stop
_CANNOT_EXECUTE = 127
_GIVEN_UP = 1


def main(directory: Path) -> int:
    """Run the launched command; return its exit status."""
    paths = LaunchPaths(directory)
    launch = read_launch(paths)
    if paths.gone.exists():
        print("kochi: the run took too long to start and was given up", file=sys.stderr)
        return _GIVEN_UP
    # As nohup does; the run inherits this. A shell's background process ignores SIGINT, and the run
    # would inherit that, although SIGINT must stop it. The handler below prevents this, because
    # processes do not inherit handlers.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    told: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if number == _TIME_UP:
            # Write this first: the run looks for it once it is told to end. On a full disk the run
            # ends as by Ctrl-C.
            with contextlib.suppress(OSError):
                write_time_up(paths)
        if process is not None:
            _interrupt(process)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    try:
        process = subprocess.Popen(
            launch.command, cwd=launch.directory, stdin=subprocess.DEVNULL, process_group=0
        )
    except OSError as error:
        print(f"kochi: {launch.command[0]} cannot be executed: {error}", file=sys.stderr)
        write_end(paths, _CANNOT_EXECUTE)
        return _CANNOT_EXECUTE
    hand_over(process.pid)  # first: the command that launched it waits for the file
    try:
        files.overwrite(str(paths.alive), FIRST)
        write_processes(paths, process.pid)
    except OSError as error:
        # Nobody would see this run, and another one could begin beside it.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"kochi: the run was ended: it cannot be recorded: {error}", file=sys.stderr)
        with contextlib.suppress(OSError):
            write_end(paths, _GIVEN_UP)
        return _GIVEN_UP
    threading.Thread(target=_give_signs_of_life, args=(paths,), daemon=True).start()
    if told:
        pass_on(told[0], None)
    threading.Thread(target=_look_for_stops, args=(paths, process), daemon=True).start()
    status = _wait(process, paths)
    status = 128 - status if status < 0 else status
    write_end(paths, status)
    return status


def hand_over(run: int) -> None:
    """Files that another computer sent stay as they are until the run has read them.

    So far the command that launched it is noted as their reader, and it ends.
    """
    identity = ProcessIdentity.of(run)
    if identity is not None and (use := SentPaths.own_use()):
        reader = {"node": vars(this_node()), "process": vars(identity), "is_launched": True}
        with contextlib.suppress(OSError, DamagedFileError):
            write_atomically(use, to_json({**read_json(use), **reader}))


def _give_signs_of_life(paths: LaunchPaths) -> None:
    environment = OwnEnvironment()
    for count in itertools.count(1):
        clock.sleep(INTERVAL)
        environment.note_use()
        with contextlib.suppress(OSError):
            files.overwrite(str(paths.alive), b"%012d" % count)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        # The run may end just now.
        with contextlib.suppress(ProcessLookupError):
            # Ctrl-C also signals all processes of the terminal's foreground.
            os.killpg(process.pid, signal.SIGINT)


def _look_for_stops(paths: LaunchPaths, process: subprocess.Popen[bytes]) -> None:
    """Interrupt the run each time that somebody on another host says so."""
    number = 1
    while True:
        with contextlib.suppress(OSError):  # unknown now
            os.listdir(paths.directory)  # makes NFS look again for files that were missing
            # One at a time: two signals at once may count as one.
            if is_there(paths.stop(number)):
                _interrupt(process)
                number += 1
        time.sleep(_STOP_LOOK)


def _wait(process: subprocess.Popen[bytes], paths: LaunchPaths) -> int:
    """Wait for the end of the run, and record its log soon after the run has opened it.

    Other runs of Snakemake may have logs in the same directory.
    """
    pause = _PAUSE
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(pause)
        if (log := _open_log(process.pid)) is not None:
            with contextlib.suppress(OSError):  # on a full disk
                write_log(paths, log)
            return process.wait()
        pause = min(pause * _GROWTH, _MOST_PAUSE)


def _open_log(process: int) -> str | None:
    with contextlib.suppress(psutil.Error, OSError):
        for file in psutil.Process(process).open_files():
            if Path(file.path).match(_LOG):
                return file.path
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
