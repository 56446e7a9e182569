"""Any scheduler, through a machine's alloc_script."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from humanfriendly.text import concatenate, pluralize

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.files import last_lines, make_directory, write_atomically
from snakemake_kochi.schedulers.interface import (
    NO_REQUEST,
    UNKNOWN,
    Allocation,
    AllocationRequest,
    AllocationSettings,
    Lack,
    Limits,
    RefusedError,
    SettingsAt,
    Wanted,
    WorkerScript,
    time_limit,
)
from snakemake_kochi.tickets.capacity import Capacity

LAUNCH_VARIABLE = "KOCHI_WORKER_LAUNCH_CMD"

# Seconds in which a faulty script has mostly failed.
_EARLY = 1.0
_PAUSE = 0.02
_LAST_LINES = 10
# A variable that is read without a default: `$NAME`, `${NAME}`, `${NAME:?...}`.
_READ = r"\$(?:{0}\b|\{{{0}(?:\}}|:?\?))"
# A script with one of these forms handles a missing variable: `${NAME:-...}`, with `=` and `+`,
# too; `[ -n "$NAME" ]`, `[[ ... ]]`, `test ...`; `case $NAME in`.
_HEEDED = (
    r"\$\{{{0}:?[-=+]",
    r"(?:\[\[?|\btest)\s[^];&|\n]*\$\{{?{0}\b",
    r"\bcase\s+\"?\$\{{?{0}\b",
)
_ASSIGNED = r"(?<!\w){0}="
# A variable to which another one is copied: `spec=$NAME`.
_COPIED = r"(?<!\w)(\w+)=\"?\$(?:{0}|\{{{0}\}})\"?(?=[\s;&|]|\Z)"
# Not the directives of schedulers, as `#SBATCH -N 1`: the text of a here-document is expanded.
_COMMENT = re.compile(r"(?:^|(?<=\s))#(?!(?:\$|[A-Z]+)\s+-).*$", re.MULTILINE)
_KEYS = {"NODE_SPEC": "node_spec", "TIME_LIMIT": "time"}
_OPTIONS = {"NODE_SPEC": "-n SPEC", "TIME_LIMIT": "-t LIMIT"}


@dataclass
class _Script:
    """A started script, the file of its output, and whether it was told to end."""

    process: subprocess.Popen[bytes]
    output: Path
    is_cancelled: bool = False


class AllocScript:
    """Allocations by a script; see `interface.Scheduler`.

    The script may submit a job to a scheduler and end, or stay as long as its worker does. The
    state of allocations of the first kind cannot be queried. The run waits for those that have not
    failed, and their workers leave by themselves when their controller has ended.
    """

    def __init__(
        self,
        name: str,
        script: str,
        settings: AllocationSettings,
        script_at: str,
        settings_at: SettingsAt,
        limit: str | None = None,
    ) -> None:
        """`script_at`: where the script is set, for people.

        `limit`: the time limit as a person wrote it, for the script to read. By default the script
        reads hours:minutes:seconds.
        """
        self._name = name
        self._script_at = script_at
        self._settings_at = settings_at
        self._script = script
        self._settings = settings
        self._limit = limit
        self._numbers = count(1)
        self._scripts: dict[str, _Script] = {}

    can_exclude = False

    @property
    def lacks(self) -> Lack | None:
        """The variables that the script reads without a default, and that are not set."""
        settings = self._settings
        said = {
            "NODE_SPEC": settings.node_spec is not None,
            "TIME_LIMIT": settings.time is not None or self._limit is not None,
        }
        missing = [
            name for name in said if not said[name] and _needs(self._script, f"KOCHI_ALLOC_{name}")
        ]
        if not missing:
            return None
        names = " and ".join(f"$KOCHI_ALLOC_{name}" for name in missing)
        verb = "is" if len(missing) == 1 else "are"
        keys = self._settings_at(_KEYS[name] for name in missing)
        return Lack(
            f"{self._script_at} reads {names}, but {keys} {verb} not set",
            " ".join(_OPTIONS[name] for name in missing),
        )

    def limits(self, request: AllocationRequest = NO_REQUEST) -> Limits:
        """The limits in the machine's settings alone.

        The resources that a worker finds on its node count. Without `gpus` in the settings there
        are none: a job that needs one would wait for ever. A script that reads the number of cores,
        where the settings do not say how many a node has, gets that of the jobs.
        """
        settings = self._settings
        cores, memory = settings.cores or UNKNOWN, settings.memory_mb or UNKNOWN
        node = Capacity(cores, memory, settings.gpus or 0, request.nodes or settings.nodes)
        takes_nodes = settings.cores is not None or not mentions(self._script, "KOCHI_ALLOC_CORES")
        return Limits(settings.max_workers, node, settings.time, takes_nodes)

    def check(self, request: AllocationRequest, gpus: int) -> None:
        """See `Scheduler.check`: the script must pass on what the settings do not give."""
        needed = {name: f"{name} {text}" for name, text in _texts(request).items()}
        if (nodes := request.nodes or 1) > self._settings.nodes:
            needed["nodes"] = pluralize(nodes, "node")
        tasks = request.tasks or nodes * (request.tasks_per_node or 1)
        if tasks > nodes and not mentions(self._script, "KOCHI_ALLOC_CORES"):
            needed["tasks"] = pluralize(tasks, "task")
        if gpus and "gpu" not in self._script.lower():
            needed["gpus"] = pluralize(gpus, "GPU")
        unread = {
            variable: what
            for name, what in needed.items()
            if not mentions(self._script, variable := f"KOCHI_ALLOC_{name.upper()}")
        }
        if unread:
            variables = [f"${each}" for each in unread]
            raise RefusedError(
                f"it needs {concatenate(unread.values())}, but {self._script_at} never reads "
                f"{concatenate(variables)}",
                "Have the script pass it on to the scheduler, or do not request it. If the script "
                f"requests it in any case, add this line to it: : {' '.join(variables)}",
            )

    def submit(self, wanted: Wanted, worker: WorkerScript, known: Collection[str]) -> list[str]:
        """Run the script for each allocation.

        Raises RefusedError, with its exit status and the end of its output, for a script that fails
        within a second.
        """
        names = [self._start(wanted, worker) for _ in range(wanted.count)]
        wait_until(lambda: not any(map(self._is_running, names)), _EARLY, _PAUSE)
        for name in names:
            if failure := self.failure(name):
                self.cancel(names)
                raise RefusedError(failure, f"Correct {self._script_at}.")
        return names

    def _start(self, wanted: Wanted, worker: WorkerScript) -> str:
        number = next(self._numbers)
        name = f"{self._name}-{number}"
        log = worker.log(name)
        make_directory(log.parent)
        # A file, so that the script can put any text around the command without quoting.
        own = log.with_suffix(".sh")
        write_atomically(own, self._command(name, number, log, worker, wanted).encode())
        # Not in the same file as the node's output: two nodes that append to one file lose lines on
        # NFS.
        output = log.with_suffix(".out")
        with output.open("wb") as stream:
            try:
                process = subprocess.Popen(
                    # Not -u: without -n and -t the variables for node spec and time limit are not
                    # set.
                    ["bash", "-eo", "pipefail", "-c", self._script],
                    env={**os.environ, **self.variables(wanted, name, own)},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    # Ctrl-C is for Snakemake, which then ends the workers in order.
                    start_new_session=True,
                )
            except OSError as error:
                raise RefusedError(f"alloc_script cannot be run: {error}") from error
        self._scripts[name] = _Script(process, output)
        return name

    def text(self, wanted: Wanted, worker: WorkerScript) -> str:
        """See `Scheduler.text`."""
        name = f"{self._name}-1"
        log = worker.log(name)
        own = log.with_suffix(".sh")
        variables = self.variables(wanted, name, own)
        exports = (f"export {name}={shlex.quote(value)}" for name, value in variables.items())
        lines = ["set -eo pipefail", *exports, self._script]
        command = self._command(name, 1, log, worker, wanted)
        return f"cat > {shlex.quote(str(own))} << 'END'\n{command}END\n" + "\n".join(lines) + "\n"

    def _command(
        self, name: str, number: int, log: Path, worker: WorkerScript, wanted: Wanted
    ) -> str:
        """The script that starts a worker."""
        cores = str(wanted.cores) if wanted.cores < UNKNOWN else None
        return worker.script(name, cores, log, str(number - 1))

    def variables(self, wanted: Wanted, name: str, own: Path | None) -> dict[str, str]:
        """The variables that the script reads, for an allocation of a name.

        `own`: the script that starts the worker, if there is to be one.
        """
        request = wanted.request
        nodes = request.nodes or self._settings.nodes
        tasks = request.tasks or nodes * (request.tasks_per_node or 0)
        cores, memory, gpus = wanted.cores, wanted.memory_mb, request.gpus or wanted.gpus
        if request.has_shape:
            cores = (request.cpus_per_task or 1) * max(1, math.ceil(tasks / nodes))
            memory = request.memory_mb or (request.memory_mb_of_core or 0) * cores
        amounts = {"nodes": nodes, "tasks": tasks, "cores": cores, "memory_mb": memory}
        known = {key: str(n) for key, n in (amounts | {"gpus": gpus}).items() if 0 < n < UNKNOWN}
        values = {"name": name} | known | _texts(request)
        variables = {f"KOCHI_ALLOC_{key.upper()}": value for key, value in values.items()}
        # The total time of the jobs is known only if the number that run at a time is known.
        seconds = wanted.seconds if wanted.cores < UNKNOWN else self._settings.time
        if own is not None:
            variables[LAUNCH_VARIABLE] = f"bash {shlex.quote(str(own))}"
        if self._settings.node_spec is not None:
            variables["KOCHI_ALLOC_NODE_SPEC"] = self._settings.node_spec
        if self._limit is not None:
            variables["KOCHI_ALLOC_TIME_LIMIT"] = self._limit
        elif seconds is not None:
            variables["KOCHI_ALLOC_TIME_LIMIT"] = time_limit(seconds)
        return variables

    def _is_running(self, name: str) -> bool:
        return self._scripts[name].process.poll() is None

    def process(self, name: str) -> int | None:
        """The number of the process, leader of a group of its own, if the script stays."""
        return self._scripts[name].process.pid if self._is_running(name) else None

    def failure(self, name: str) -> str:
        """How the script of an allocation failed, for people; "" if it did not."""
        script = self._scripts[name]
        if script.is_cancelled or not (status := script.process.poll()):
            return ""
        lines = last_lines(script.output, _LAST_LINES)
        how = f"exit status {status}" if status > 0 else f"ended by signal {-status}"
        said = ", and printed:\n" + "\n".join(lines) if lines else " and no output"
        return f"alloc_script failed, with {how}{said}"

    def find(self) -> dict[str, Allocation]:
        found = {}
        for name, script in self._scripts.items():
            status = script.process.poll()
            if status is None:
                found[name] = Allocation(name, "running")
            elif script.is_cancelled:
                continue
            elif failure := self.failure(name):
                found[name] = Allocation(name, "ended", failure)
            else:
                said = f"alloc_script has ended, its output is {script.output}"
                found[name] = Allocation(name, "pending", said, is_certain=False)
        return found

    def ends(self, ids: Collection[str]) -> dict[str, Allocation]:
        """Nothing: `find` reports all that is known."""
        return {}

    def cancel(self, ids: Iterable[str] = ()) -> None:
        """End the scripts that stay, which end their workers."""
        for name in list(ids) or list(self._scripts):
            if (script := self._scripts.get(name)) is None:
                continue  # an allocation of another process: it ends with its worker
            script.is_cancelled = True
            if script.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(script.process.pid, signal.SIGTERM)

    def tell_to_leave(self, ids: Collection[str]) -> None:
        """End the scripts that stay: no scheduler can be asked for less."""
        self.cancel(ids)

    def give_up(self) -> None:
        """Nothing to do: a script that fails is not tried again."""

    @property
    def how_to_cancel(self) -> str:
        return "the command of your scheduler for it"


def mentions(script: str, variable: str) -> bool:
    """Whether a script reads or exports a variable at all, as far as its text shows."""
    return re.search(rf"\b{variable}\b", _COMMENT.sub("", script)) is not None


def _texts(request: AllocationRequest) -> dict[str, str]:
    """What a request selects by name, for variables: `partition`, `account`, `gpu_model`, ..."""
    others = {"gpu_model": request.gpu_model, "arguments": shlex.join(request.arguments)}
    return {name: text for name, text in {**request.constraints, **others}.items() if text}


def _needs(script: str, variable: str) -> bool:
    """Whether a script reads a variable as if it were always set, as far as its text shows.

    In doubt it does not. A script that runs and fails reports the reason, but a script that is not
    run would wait for the user for ever.
    """
    text = _COMMENT.sub("", script)
    if re.search(_READ.format(variable), text) is None:
        return False
    names = [variable, *re.findall(_COPIED.format(variable), text)]
    signs = [_ASSIGNED.format(variable), *(each.format(name) for name in names for each in _HEEDED)]
    return not any(re.search(sign, text) for sign in signs)
