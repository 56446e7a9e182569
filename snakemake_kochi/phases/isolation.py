"""Isolated scripts: the environment that they see, how they begin in a container, and how it ends.

A container is bubblewrap's for `isolate: files` and `network`, else that of an image;
`isolation_words.py` has the words. A run that is not isolated does not load this module. A private
directory gets `enter.sh`, which bash executes first inside, `entered`, which that makes, and
`seen/`, what a script sees as its home and /tmp.
"""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import last_lines
from snakemake_kochi.own_pipeline import patience
from snakemake_kochi.phases.ending import STATUS_OF_TIMEOUT, Ended
from snakemake_kochi.phases.isolation_words import (
    OTHER_PROGRAMS,
    PROGRAMS,
    Place,
    bubblewrap,
    container,
    digest,
    first_line,
)
from snakemake_kochi.phases.products import LAST_LINES, Install
from snakemake_kochi.phases.script import Environment
from snakemake_kochi.project.grid import Isolation
from snakemake_kochi.schedulers.environment import ALLOCATION_VARIABLES

# What `isolate: environment` keeps; a * ends the beginning of a name. The middle ones say which
# GPUs a job has.
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
# They say where something is on the host, so they are wrong in an image.
_OF_HOST = re.compile(
    r"PATH|LD_.*|LIBRARY_PATH|CPATH|PYTHONPATH|PYTHONHOME|MANPATH|HOME|TMPDIR|SHELL|PWD|OLDPWD|SHLVL"
    r"|_|BASH_ENV|ENV|XDG_.*|HOSTNAME|CONDA_.*|VIRTUAL_ENV|MODULE.*|LOADEDMODULES|_LMFILES_|LMOD_.*"
)
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The name of its namespace shows whether a process is inside. An image may lack the program.
_ENTERED = '{{ echo "$(readlink /proc/self/ns/mnt) $HOSTNAME" > {file}; }} 2> /dev/null'
_TASK = """\
#!/bin/bash
if [ "$(readlink /proc/self/ns/mnt) $HOSTNAME" = "$(< {entered})" ]; then exec "$@"; fi
{enter}
"""
# Where signals reach the first process of a container only, it forwards them to all others; and
# they end with it, so it waits. An image may lack every program: `read` from a pipe sleeps.
_EXECUTE_AS_FIRST = """\
trap 'kill -s TERM -- -1' TERM INT
"$@" &
_kochi=$!
while kill -0 "$_kochi" 2> /dev/null; do wait "$_kochi"; done
wait "$_kochi" || exit
exec {{_kochi}}<> <(:)
SECONDS=0
while set -- /proc/[0-9]*; [ $# -gt 1 ]; do
    if (( SECONDS >= {seconds} )); then
        echo "kochi: the script left processes in its container that do not end" >&2
        exit {status}
    fi
    read -r -t 0.05 -u "$_kochi"
done
exit 0
"""


def cleared(variables: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """An environment as `isolate: environment` leaves it. `more`: what a machine keeps, too."""
    kept = (*KEPT_VARIABLES, *more)
    return _FIXED_VARIABLES | {
        name: value
        for name, value in variables.items()
        if any(fnmatchcase(name, pattern) for pattern in kept)
    }


class Container:
    """What the scripts of one phase run in, one after the other."""

    def __init__(
        self,
        isolation: Isolation,
        machine: Mapping[str, Sequence[str]],
        directory: Path,
        scratch: Path,
        installs: Iterable[Install],
        trees: Iterable[Path],
        key: str,
    ) -> None:
        """`machine`: the key `isolation` of the machine. A script works in `directory`, has the
        private directory `scratch`, and sees the prefixes of recipes and the `trees`. `key`: where
        the isolation is written. Raises KochiError if there is no program for it, or no path."""
        self.isolation, self._machine, self._key = isolation, machine, key
        uses = [*(Path(install.prefix) for install in installs), *trees]
        with suppress(OSError):  # the objects that a repository there borrows
            text = (directory / ".git/objects/info/alternates").read_bytes()
            uses += [Path(os.fsdecode(line)) for line in text.splitlines() if line]
        seen = [str(path) for path in uses if path.exists()]
        self._place = Place(str(directory), scratch, seen, key)
        self._entered, self._enter = scratch / "entered", scratch / "enter.sh"
        self._name, self._path, self._words = "", "", tuple[str, ...]()
        if isolation.image:
            self._find("container", machine.get("programs") or list(PROGRAMS), OTHER_PROGRAMS)
            self._words = container(self._name, self._path, isolation, self._place)
        elif isolation.words != ("environment",):
            advice = "Install bubblewrap there, or ask the site; or remove 'files' and 'network'."
            self._find("isolate", ["bwrap"], advice)
            visible = machine.get("visible", ())
            self._words = bubblewrap(self._path, isolation, visible, self._place)

    def _find(self, name: str, programs: Sequence[str], advice: str) -> None:
        for program in programs:
            if (path := shutil.which(program)) is not None:
                self._name, self._path = program, path
                return
        said = f"{self._key}.{name}: there is no {' and no '.join(programs)} on {platform.node()}"
        raise PhaseError(said, advice)

    def around(self, environment: Environment) -> tuple[Environment, tuple[str, ...]]:
        """The environment of the process to start, and the words before `bash`."""
        isolation, variables = self.isolation, dict(environment.variables)
        if "environment" in isolation.words:
            kept = cleared(environment.of_process(), self._machine.get("environment", ()))
            environment, variables = replace(environment, is_whole=True), kept | variables
        if "files" in isolation.words:
            variables["TMPDIR"] = "/tmp"
        if self._name and (line := variables.get("KOCHI_LAUNCH")):
            # What a daemon starts, here or on another node, begins outside.
            variables["KOCHI_LAUNCH"] = f"{line} {self._task()}"
        environment = replace(environment, variables=variables)
        if not self._name:
            return environment, ()
        lines = [_ENTERED.format(file=shlex.quote(str(self._entered)))]
        if isolation.image:
            lines += [
                f"export {name}={shlex.quote(value)}"
                for name, value in environment.of_process().items()
                if _SHELL_NAME.fullmatch(name) and not _OF_HOST.fullmatch(name)
            ]
            # The program itself needs the user's variables; what is loaded is for the host.
            environment = replace(environment, is_whole=False, load_environment="")
        first = _EXECUTE_AS_FIRST.format(seconds=math.ceil(patience()), status=STATUS_OF_TIMEOUT)
        lines.append('exec "$@"' if self.is_parent else first)
        self._enter.write_text("\n".join(lines), "utf-8", "surrogateescape")
        self._enter.chmod(0o600)
        return environment, (*self._words, "bash", str(self._enter))

    def _task(self) -> Path:
        """The program that a task begins with: it enters the container, unless it is inside."""
        said = f"kochi: {self._name} does not isolate what is started outside of its container"
        enter = f"echo {shlex.quote(said)} >&2; exit 1"
        if self._name == "bwrap":
            enter = f'exec {shlex.join(self._words)} "$@"'
        file, entered = self._entered.with_name("isolated"), shlex.quote(str(self._entered))
        file.write_text(_TASK.format(entered=entered, enter=enter), "utf-8", "surrogateescape")
        file.chmod(0o700)
        return file

    @property
    def is_parent(self) -> bool:
        """Whether the script's processes are children of the program, which tells their usage."""
        return self._name not in PROGRAMS or PROGRAMS[self._name].is_parent

    @property
    def has_begun(self) -> bool:
        """Whether a script has begun inside."""
        return not self._name or self._entered.exists()

    def finish(self, ended: Ended, captured: Path) -> None:
        """End what a program has left. Raise PhaseError if it ended without having started the
        script; `captured` has its output."""
        if ended.status == 0:
            return
        if not self.is_parent:
            first_line([self._path, "rm", "--force", "--ignore", "--time", "0", self._place.id])
        if self.has_begun:
            return
        said = last_lines(captured, LAST_LINES) if captured.exists() else ()
        reason = f"{self._name} could not isolate the script on {platform.node()}"
        raise PhaseError(
            f"{self._key}: {reason}: {' '.join(said[-3:]) or f'exit status {ended.status}'}",
            OTHER_PROGRAMS
            if self.isolation.image
            else "To see whether users may have the namespaces that it needs there, type: "
            "unshare --user true",
            reason=reason,
            output=said,
        )

    def record(self) -> dict[str, Any]:
        """What a record tells of it; see `record.schema.json`."""
        isolation, image = self.isolation, None
        if isolation.image:
            image = {
                "image": isolation.image,
                "digest": digest(self._name, isolation.image),
                "volumes": list(isolation.volumes),
                "modules": list(isolation.modules),
            }
        return {
            "isolate": list(isolation.words),
            "program": self._name or None,
            "version": first_line([self._path, "--version"]) if self._name else None,
            "visible": list(isolation.visible),
            "container": image,
        }
