"""Isolated scripts: the environment and the files that they see, and the program that sees to it.

`isolation_programs.py` has the command lines, `isolation_view.py` the files. A run that is not
isolated loads none of them.

A private directory gets two more files: `enter.sh`, which bash executes first inside, and
`entered`, which that makes.
"""

from __future__ import annotations

import math
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import last_lines
from snakemake_kochi.own_pipeline import FORKED_ONLY, patience
from snakemake_kochi.phases.ending import STATUS_OF_TIMEOUT, Ended
from snakemake_kochi.phases.isolation_programs import (
    PROGRAMS,
    UnsuitableError,
    View,
    bubblewrap,
)
from snakemake_kochi.phases.isolation_view import At, Place, check_paths, make_places, view_of
from snakemake_kochi.phases.products import LAST_LINES
from snakemake_kochi.phases.script import Environment
from snakemake_kochi.project.isolation import (
    ENVIRONMENT,
    FILES,
    NETWORK,
    Isolation,
    MachineIsolation,
    Shared,
)
from snakemake_kochi.schedulers.environment import ALLOCATION_VARIABLES

_PATIENCE = 60.0  # seconds for a probe, a version or a digest
# The name of its namespace shows whether a process is inside. An image may lack the program.
_ENTERED = '{{ echo "$(readlink /proc/self/ns/mnt) $HOSTNAME" > {file}; }} 2> /dev/null'
_TASK = """\
#!/bin/bash
if [ "$(readlink /proc/self/ns/mnt) $HOSTNAME" = "$(< {entered})" ]; then exec "$@"; fi
{enter}
"""
# Before the script ends its namespace, and with it all processes: wait for those that read a pipe.
# An image may lack every program, so this is bash alone; `read` from a pipe of its own sleeps.
_WAIT_FOR_PIPELINE = """\
_kochi_before=" $(echo /proc/[0-9]*) "
_kochi_reads_pipe() {{
    [[ -p $1/fd/0 ]] && ! [[ $1/fd/0 -ef /proc/$$/fd/0 ]] && return
    local file flags  # a shell that was just forked for `>(...)` has its pipe elsewhere
    read -r _ _ _ _ _ _ _ _ flags _ < "$1/stat" && [[ $flags == +([0-9]) ]] || return
    (( flags & {forked_only} )) || return
    for file in "$1"/fd/*; do [[ $file != */[012] && -p $file ]] && return; done
    return 1
}}
_kochi_look() {{
    _kochi_left=
    local process name
    for process in /proc/[0-9]*; do
        [[ $_kochi_before != *" $process "* ]] && _kochi_reads_pipe "$process" || continue
        read -r name < "$process/comm" && _kochi_left+=" $name (${{process#/proc/}})"
    done 2> /dev/null
    [[ $_kochi_left ]]
}}
_kochi_wait() {{
    local pause
    _kochi_look || return 0
    exec {{pause}}<> <(:)
    SECONDS=0
    while _kochi_look; do
        if (( SECONDS >= {seconds} )); then
            echo "kochi: the script left processes that do not end:$_kochi_left" >&2
            exit {status}
        fi
        read -r -t 0.05 -u "$pause"
    done
}}
"""
# Not the last command, so that bash stays: the first process of a namespace gets no signal that it
# does not handle, and waits for orphans.
_EXECUTE = """\
"$@" || exit
_kochi_wait
exit 0
"""
# Where signals reach that first process only, it forwards them to all others.
_EXECUTE_FORWARDING = """\
trap 'kill -s TERM -- -1' TERM INT
"$@" &
_kochi_script=$!
while kill -0 "$_kochi_script" 2> /dev/null; do wait "$_kochi_script"; done
wait "$_kochi_script" || exit
_kochi_wait
exit 0
"""
# What `isolate: environment` keeps of the environment of a worker; a * ends the beginning of a
# name. The middle ones say which GPUs a job has.
KEPT_VARIABLES = (
    *("HOME", "USER", "LOGNAME", "TMPDIR", "KOCHI_*"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    *ALLOCATION_VARIABLES,
)
_FIXED_VARIABLES = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "SHELL": "/bin/bash",
}
_PROGRAMS_KEY = "machines: MACHINE: isolation: programs: [...]"
# They say where something is on the host, so they are wrong in a container.
_OF_HOST = re.compile(
    r"PATH|LD_.*|LIBRARY_PATH|CPATH|PYTHONPATH|PYTHONHOME|MANPATH|HOME|TMPDIR|SHELL|PWD|OLDPWD|SHLVL"
    r"|_|BASH_ENV|ENV|XDG_.*|HOSTNAME|CONDA_.*|VIRTUAL_ENV|MODULE.*|LOADEDMODULES|_LMFILES_|LMOD_.*"
)
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def cleared(variables: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """An environment as `isolate: environment` leaves it. `more`: what a machine keeps, too."""
    kept = (*KEPT_VARIABLES, *more)
    return _FIXED_VARIABLES | {
        name: value
        for name, value in variables.items()
        if any(fnmatchcase(name, pattern) for pattern in kept)
    }


class Enclosure:
    """The isolation of the scripts of one phase in one place.

    Raises PhaseError if no program here can make it, or if a path is missing.
    """

    def __init__(
        self,
        isolation: Isolation,
        machine: MachineIsolation | None,
        place: Place,
        variables: Mapping[str, str],
        key: str,
    ) -> None:
        """`variables`: those that Kochi adds. `key`: where the isolation is written, for people."""
        machine = machine or MachineIsolation()
        self._isolation = isolation
        self._machine = machine
        self._place = place
        self._key = key
        self._name = self._path = self._container = ""
        self._words: list[str] = []
        if isolation.needs_program:

            def at(name: str) -> str:
                return f"{key}.{name}"

            view = view_of(isolation, machine, place, variables, at)
            make_places(view, place.scratch)
            self._view = view
            self._name, self._path, self._words = _choose(isolation, machine, view, view, at)
            self._container = view.name

    def around(self, environment: Environment) -> tuple[Environment, tuple[str, ...]]:
        """The environment of the process to start, and the words before `bash`."""
        isolation = self._isolation
        if ENVIRONMENT in isolation.words:
            variables = environment.of_process()
            variables = {**cleared(variables, self._machine.environment), **environment.variables}
            environment = replace(environment, variables=variables, is_whole=True)
        if not self._name:
            return environment, ()
        if FILES in isolation.words:
            variables = {**environment.variables, "TMPDIR": "/tmp"}
            environment = replace(environment, variables=variables)
        if line := environment.variables.get("KOCHI_LAUNCH"):
            # What a daemon starts, here or on another node, begins outside.
            variables = {**environment.variables, "KOCHI_LAUNCH": f"{line} {self._task()}"}
            environment = replace(environment, variables=variables)
        lines = [_ENTERED.format(file=shlex.quote(str(self._entered)))]
        if not PROGRAMS[self._name].inherits:
            lines += _exports(environment.of_process(), isolation.container is not None)
            # The program itself needs the user's.
            environment = replace(environment, is_whole=False)
        if isolation.container is not None:
            environment = replace(environment, load_environment="")
        file = self._place.scratch / "enter.sh"
        lines.append(
            _WAIT_FOR_PIPELINE.format(
                seconds=math.ceil(patience()),
                status=STATUS_OF_TIMEOUT,
                forked_only=FORKED_ONLY,
            )
        )
        lines.append(_EXECUTE if self.counts_usage else _EXECUTE_FORWARDING)
        file.write_text("\n".join(lines), "utf-8", "surrogateescape")
        file.chmod(0o600)
        return environment, (*self._words, "bash", str(file))

    def _task(self) -> Path:
        """The program that a task begins with: it enters the isolation, unless it is inside.

        Where a program cannot be entered so, a task outside fails.
        """
        file = self._place.scratch / "isolated"
        words = ["echo", f"kochi: only bubblewrap isolates what is started outside of {self._name}"]
        enter = f"{shlex.join(words)} >&2; exit 1"
        if self._name == "bwrap":
            keeps_signals = self._words[0] != self._path
            words = bubblewrap(self._path, self._view, keeps_signals, is_task=True)
            enter = f'exec {shlex.join(words)} "$@"'
        entered = shlex.quote(str(self._entered))
        file.write_text(_TASK.format(entered=entered, enter=enter), "utf-8", "surrogateescape")
        file.chmod(0o700)
        return file

    @property
    def determined_by(self) -> dict[str, Any]:
        """What the experiment says of it, as JSON."""
        return asdict(self._isolation)

    @property
    def counts_usage(self) -> bool:
        """Whether what the script's processes take is known when the program ends."""
        return not self._name or PROGRAMS[self._name].is_parent

    @property
    def is_open(self) -> bool:
        """Whether a script has run inside."""
        return not self._name or self._entered.exists()

    @property
    def _entered(self) -> Path:
        return self._place.scratch / "entered"

    def finish(self, ended: Ended, captured: Path) -> None:
        """End what a program has left. Raise PhaseError if it ended without having started the
        script; `captured` has its output."""
        if ended.status == 0 or not self._name:
            return
        if (remove := PROGRAMS[self._name].remove) is not None:
            _ask(remove(self._path, self._container))
        if self.is_open:
            return
        said = last_lines(captured, LAST_LINES) if captured.exists() else ()
        reason = f"{self._name} could not isolate the script on {platform.node()}"
        raise PhaseError(
            f"{self._key}: {reason}: {' '.join(said[-3:]) or f'exit status {ended.status}'}",
            f"Correct it, or name other programs to try, in kochi.yaml: {_PROGRAMS_KEY}",
            reason=reason,
            output=said,
        )

    def record(self) -> dict[str, Any]:
        """What a record tells of it; see `record.schema.json`."""
        container = self._isolation.container
        return {
            "isolate": list(self._isolation.words),
            "program": self._name or None,
            "version": _first_line([self._path, "--version"]) if self._name else None,
            "visible": [_written(each) for each in self._isolation.visible],
            "container": None
            if container is None
            else {
                "image": container.image,
                "digest": self._digest(container.image),
                "volumes": [_written(each) for each in container.volumes],
                "modules": list(container.modules),
            },
        }

    def _digest(self, image: str) -> str | None:
        ask = PROGRAMS[self._name].digest
        return (
            None
            if ask is None or image.startswith(("/", "~", "$"))
            else _first_line(ask(self._path, image))
        )


def _written(shared: Shared) -> str:
    target = f":{shared.target}" if shared.target else ""
    return f"{shared.source}{target}:{'rw' if shared.writable else 'ro'}"


def check(isolation: Isolation, machine: MachineIsolation | None, at: At) -> None:
    """Raise KochiError if scripts cannot be isolated on this computer, before any of them runs.

    `at`: from a key of the isolation to where it is written.
    """
    if not isolation.needs_program:
        return
    check_paths(isolation, at)
    image = isolation.container.image if isolation.container else ""
    modules = isolation.container.modules if isolation.container else ()
    mounts = () if FILES in isolation.words else None
    view = View("/", NETWORK not in isolation.words, mounts, image=image, modules=modules, name="x")
    _choose(isolation, machine or MachineIsolation(), view, replace(view, mounts=None), at)


def _choose(
    isolation: Isolation, machine: MachineIsolation, view: View, probed: View, at: At
) -> tuple[str, str, list[str]]:
    """The first program that is here and can do it: its name, its path, and the words.

    `probed` is the view with which bubblewrap is tried.
    """
    tried = []
    possible = isolation.programs
    for name in [each for each in machine.programs if each in possible] or possible:
        path = shutil.which(name)
        if path is None:
            tried.append(f"{name}: not found")
            continue
        try:
            words = PROGRAMS[name].words(path, view)
            if name == "bwrap":
                words = _probed(path, probed)
        except UnsuitableError as error:
            tried.append(f"{name}: {error}")
            continue
        return name, path, words
    what = "container" if isolation.container is not None else "isolate"
    wanted = isolation.container.image if isolation.container else ", ".join(isolation.words)
    raise PhaseError(
        f"{at(what)}: nothing on {platform.node()} can isolate a script with '{wanted}':\n  "
        + "\n  ".join(tried),
        _ADVICE[what],
    )


_ADVICE = {
    "isolate": "Install bubblewrap there (the package bubblewrap), ask the site for it or for "
    "Apptainer,\nor remove 'files' and 'network' from the key 'isolate'. Both need user namespaces "
    "where they are not\ninstalled with privileges; to see whether users may have them, type: "
    "unshare --user true",
    "container": "Install Apptainer or Podman there, or ask the site, or load the module that has "
    "it\nin the environment of the worker.",
}


def _probed(path: str, view: View) -> list[str]:
    """The words for bubblewrap, which may be installed and not be permitted to work."""
    error = ""
    for keeps_signals in (True, False):
        words = bubblewrap(path, view, keeps_signals)
        done = _ask([*words, "bash", "-c", ":"])
        if isinstance(done, str):
            error = done
        elif done.returncode == 0:
            return words
        else:
            error = done.stderr.strip().partition("\n")[0] or f"exit status {done.returncode}"
    raise UnsuitableError(error)


def _ask(command: Sequence[str]) -> subprocess.CompletedProcess[str] | str:
    """A finished command, or why there is none."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def _first_line(command: Sequence[str]) -> str | None:
    done = _ask(command)
    if isinstance(done, str) or done.returncode != 0:
        return None
    return done.stdout.strip().partition("\n")[0] or None


def _exports(variables: Mapping[str, str], is_container: bool) -> list[str]:
    """Lines for bash that make an environment, beside what an image or the program sets."""
    lines = []
    if not is_container:
        lines.append("unset LD_LIBRARY_PATH PROMPT_COMMAND ${!APPTAINER_@} ${!SINGULARITY_@}")
    for name, value in variables.items():
        if _SHELL_NAME.fullmatch(name) and not (is_container and _OF_HOST.fullmatch(name)):
            lines.append(f"export {name}={shlex.quote(value)}")
    return lines
