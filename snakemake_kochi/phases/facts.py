"""Facts for a record: the output of commands, executed where the run ran, after its script; and
environment variables of a list of names, as the script sees them. An environment has what its user
does not want to show to others, so nothing else of it leaves the private directory of the run.

The commands are executed once for each build on each node, and again after an hour:
<machine>/facts/<host>/<digest>.json   {"version", "time" (seconds since 1970), "facts"}
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.confidential import is_secret_variable, without_secrets
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically, write_file
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.phases.script import Environment, watched
from snakemake_kochi.processes import this_node
from snakemake_kochi.schedulers.environment import RECORDED_VARIABLES

if TYPE_CHECKING:
    from snakemake_kochi.phases.isolation import Container

VERSION = 1
TIME_LIMIT = 30.0  # seconds for all commands together
# Seconds. A compiler or a module on a shared filesystem may be replaced at any time.
_FRESH = 3600.0
_MOST_OUTPUT = 4096  # bytes
_MOST_WRITTEN = 1024  # KiB that a command may write to a file
# In subshells, each with the functions that load_env_script has defined, such as `module`. The
# environment may have changed the directory.
_COMMAND = """\
( ( cd -- {directory} || exit; ulimit -f {most} 2> /dev/null; . {place}/{number}.sh
  ) >| {place}/{number}.out 2>&1 < /dev/null; builtin echo $? >| {place}/{number}.status ) &
_kochi+=($!)
"""


@dataclass(frozen=True)
class Facts:
    """`commands` for bash by name, in an `environment`; `build` is the digest of the build,
    `container` what an isolated run is in."""

    commands: Mapping[str, str]
    environment: Environment
    build: str
    container: Container | None = None

    def known(self, machine: MachinePaths) -> dict[str, Any]:
        """The facts as they were found on this node, in this build, not long ago; else none."""
        with suppress(OSError, DamagedFileError, KeyError, TypeError):
            found = read_json(self._file(machine), VERSION)
            if 0 <= time.time() - found["time"] < _FRESH:
                return dict(found["facts"])
        return {}

    def find(
        self, machine: MachinePaths, directory: Path, scratch: Path, limit: float = TIME_LIMIT
    ) -> dict[str, Any]:
        """Execute the commands, unless their output is known; return the facts of a record.

        They see the `directory` as theirs, may write to it, and start with the environment of the
        run script without its parameters. `scratch` is private. Nothing in a command ends the run:
        one that is not ready after `limit` seconds is ended, and has no exit status.
        """
        if not self.commands or (self.container and not self.container.has_begun):
            return {}
        if known := self.known(machine):
            return known
        found = self._execute(directory, scratch / "facts", limit)
        if missing := [name for name, each in found.items() if each["exit_status"] is None]:
            print(
                f"kochi: not found within {limit:g} seconds, and not tried again here for an hour: "
                f"{', '.join(missing)} (below the key 'facts')",
                file=sys.stderr,
            )
        with suppress(OSError):
            file = self._file(machine)
            make_directory(file.parent)
            content = {"version": VERSION, "time": time.time(), "facts": found}
            write_atomically(file, to_json(content))
        return found

    def _file(self, machine: MachinePaths) -> Path:
        installs = [install.identity for install in self.environment.installs]
        loaded = self.environment.load_environment
        isolated = [asdict(self.container.isolation)] if self.container else []
        digest = digest_of([dict(self.commands), loaded, installs, self.build, *isolated])
        return machine.facts(this_node().host, digest)

    def _execute(self, directory: Path, place: Path, limit: float) -> dict[str, Any]:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        status_of_all: int | None = None
        with suppress(OSError):  # a full disk, for example
            status_of_all = self._run(directory, make_directory(place), limit)
        found: dict[str, Any] = {}
        for number, (name, command) in enumerate(self.commands.items()):
            file = place / f"{number}.sh"
            output = file.with_suffix(".out")
            status = _status(file.with_suffix(".status"))
            found[name] = {
                "command": command,
                # Without its own: the environment could not be loaded. Bash begins its own messages
                # with the file, whose name is another one each time.
                "output": _shown(output if output.exists() else place / "all.out").replace(
                    str(file), name
                ),
                "exit_status": status_of_all if status is None else status,
                "at": at,
            }
        return found

    def _run(self, directory: Path, place: Path, limit: float) -> int | None:
        """Execute all commands at once, in one process and one container; their files are in the
        private `place`. Returns the exit status of the process, if it ended by itself."""
        environment, wrapper = self.environment, tuple[str, ...]()
        if self.container:
            environment, wrapper = self.container.around(environment)
        words = {"directory": shlex.quote(str(directory)), "place": shlex.quote(str(place))}
        lines = [environment.preamble(), "set +e +m +o pipefail\n_kochi=()\n"]
        for number, command in enumerate(self.commands.values()):
            _write(place / f"{number}.sh", command + "\n")
            lines.append(_COMMAND.format(most=_MOST_WRITTEN, number=number, **words))
        # Not as an argument: every user of a node can read those, and they have a greatest length.
        _write(starter := place / "all.sh", "".join(lines) + 'wait "${_kochi[@]}"\n')
        with (place / "all.out").open("wb") as output:
            process = subprocess.Popen(
                [*wrapper, "bash", "--norc", str(starter)],
                cwd=directory,
                env=environment.of_process(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        try:
            has_ended = watched(process.pid).wait(limit)
        finally:
            # Before it is waited for: until then its number is that of no other process.
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            if self.container:
                self.container.end()
        return (status if status >= 0 else 128 - status) if has_ended else None


def _write(file: Path, text: str) -> None:
    write_file(file, text.encode("utf-8", "surrogateescape"))


def _shown(file: Path) -> str:
    text = ""
    with suppress(OSError), file.open("rb") as stream:
        text = stream.read(_MOST_OUTPUT).decode("utf-8", "replace").rstrip()
    return "\n".join(without_secrets(text.splitlines()))


def _status(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None


# Names, and beginnings of names, of variables that change the results of benchmarks.
_OWN = (
    *("OMP_*", "KMP_*", "GOMP_*", "LIBOMP*"),
    *("MKL_*", "OPENBLAS_*", "BLIS_*", "GOTO_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_*"),
    *("CUDA_*", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "NCCL_*"),
    *("OMPI_MCA_*", "PRTE_MCA_*", "I_MPI_*", "MPICH_*", "MV2_*", "UCX_*", "FI_*", "PSM2_*"),
    *("MALLOC_*", "GLIBC_TUNABLES", "TCMALLOC_*", "LD_PRELOAD", "JULIA_NUM_THREADS"),
)
# A * ends the beginning of a name.
VARIABLES = (*_OWN, *RECORDED_VARIABLES)
_MOST = 200
_LONGEST = 1000  # characters of a value
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def noting(file: Path) -> str:
    """A line for bash that writes the exported variables to a file, for `noted`. Nothing in it ends
    the script."""
    return f"{{ command -p env -0; }} 2> /dev/null >| {shlex.quote(str(file))} || :\n"


def noted(more: Iterable[str], file: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of the list that `noting` wrote, by name; without a file those of the `given`.

    Names and values that look like secrets are left out, and the rest of a long value.
    """
    found = given
    with suppress(OSError):
        lines = os.fsdecode(file.read_bytes()).split("\0")
        found = dict(line.partition("=")[::2] for line in lines if line)
    # Bash has others in its environment, and not as variables.
    seen = {name: value for name, value in found.items() if _NAME.fullmatch(name)}
    patterns = (*VARIABLES, *more)
    whole = {pattern for pattern in patterns if not pattern.endswith("*")}
    beginnings = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    wanted = {
        name: value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for name, value in sorted(seen.items())
        if (name in whole or name.startswith(beginnings)) and not is_secret_variable(name, value)
    }
    return {name: value[:_LONGEST] for name, value in list(wanted.items())[:_MOST]}
