"""Isolated scripts: the environment that they see, the words before `bash`, and how they end.

A container is bubblewrap's for `isolate: files` and `network`, else that of an image, by one of
PROGRAMS. No environment variable is among the words: every user of a node can read the arguments of
a process. A run that is not isolated does not load this module. A private directory gets
`enter.sh`, which bash executes first inside, `entered`, which that makes, `isolated`, which enters
again, and `seen/`, what a script sees as its home and /tmp.
"""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import KochiError, PhaseError
from snakemake_kochi.files import expand_path, last_lines
from snakemake_kochi.own_pipeline import patience
from snakemake_kochi.phases.products import LAST_LINES, Install
from snakemake_kochi.phases.script import STATUS_OF_TIMEOUT, Ended, Environment
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
# What `isolate: files` leaves of the host beside /usr without /usr/local. The last ones answer for
# names of users where these are not in /etc/passwd.
_SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys", "/etc/alternatives"),
    *("/etc/ca-certificates", "/etc/crypto-policies", "/etc/group", "/etc/host.conf"),
    *("/etc/hostname", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/localtime", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/pki"),
    *("/etc/protocols", "/etc/resolv.conf", "/etc/services", "/etc/ssl"),
    *("/run/nscd", "/run/nslcd", "/var/lib/sss"),
)
# A signal to all processes of a job would end bubblewrap itself, and with it the script.
_SIGNALS = "signal=INT,TERM,USR1,USR2"
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


# How a program isolates; without a key, it cannot do that. `start`, `offline` or `online`,
# `module`, what is seen (`rw` and `ro`: {0} is the host's path, {1} the one inside), and `end` or
# the image in its form (`file` or `name`) come in this order. `sees`: it shows the host's files
# itself, but for volumes. `rm`: ends what it has started, which are no children of it. `digest`:
# prints the digest of an image of a registry.
_APPTAINER = {
    "start": "--silent exec --contain --cleanenv --no-home --no-mount bind-paths,tmp "
    "--pwd {directory}",
    "offline": "--net --network none",
    "online": "",
    "module": "--{}",
    "rw": "--bind={0}:{1}",
    "ro": "--bind={0}:{1}:ro",
    "file": "{}",
    "name": "docker://{}",
}
_PODMAN = {
    "start": "run --rm --name {id} --log-driver none --security-opt label=disable "
    "--workdir {directory}",
    "offline": "--network none",
    "online": "--network host",
    "rw": "--volume={0}:{1}",
    "ro": "--volume={0}:{1}:ro",
    # In a layer above it: places for the volumes would be made in the directory itself.
    "file": "--rootfs {}:O",
    "name": "{}",
    "rm": "rm --force --ignore --time 0 {id}",
    "digest": "{program} image inspect --format {{{{.Digest}}}} {image}",
}
_BWRAP = {
    "start": "--die-with-parent",
    "offline": "--unshare-net",
    "online": "",
    # Another node, where tasks enter, may lack a file of this one.
    "rw": "--bind-try {0} {1}",
    "ro": "--ro-bind-try {0} {1}",
    "dev": "--dev-bind {0} {1}",
    "link": "--symlink {0} {1}",
    "end": "--chdir {directory} --",
}
# Those that run images, in the order in which they are looked for.
PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "apptainer": _APPTAINER,
    "singularity": _APPTAINER,
    "podman-hpc": {**_PODMAN, "module": "--{}"},
    "podman": _PODMAN,
    "shifter": {
        "start": "--clearenv --workdir={directory}",
        "online": "",
        "module": "--module={}",
        "rw": "--volume={0}:{1}",
        "ro": "--volume={0}:{1}:ro",
        "name": "--image=docker:{} --",
        "sees": "all",
        "digest": "shifterimg lookup docker:{image}",
    },
}
_MODULES_OF_APPTAINER = {"gpu": "nv", "cuda": "nv"}
_OTHERS = "Name other programs in kochi.yaml: machines: MACHINE: isolation: programs: [...]"
_NO_BWRAP = "Install bubblewrap there, or ask the site; or remove 'files' and 'network'."
_NO_NAMESPACE = (
    "To see whether users may have the namespaces that it needs there, type: unshare --user true"
)
PATHS = ("/", "~", "$")  # how the path of an image begins
_DOCKER = re.compile(r"^docker:(?://)?")
_OTHER_KIND = re.compile(r"(?!docker:)[a-z][a-z0-9+.-]*:/")  # of a registry, as oras://
_Mounts = dict[str, tuple[str, str]]  # where it is seen -> what is seen, and how


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
        self._directory, self._scratch = str(directory), scratch
        self._id, self._entered = f"kochi-{scratch.name}", scratch / "entered"
        uses = [*(Path(install.prefix) for install in installs), *trees]
        with suppress(OSError):  # the objects that a repository there borrows
            text = (directory / ".git/objects/info/alternates").read_bytes()
            uses += [Path(os.fsdecode(line)) for line in text.splitlines() if line]
        self._mounts: _Mounts = {str(path): (str(path), "ro") for path in uses if path.exists()}
        self._mounts |= {path: (path, "rw") for path in (str(scratch), self._directory)}
        self._name, self._path, self._words = "", "", list[str]()
        self._program: Mapping[str, str] = {}
        if isolation.image:
            self._find("container", machine.get("programs") or list(PROGRAMS), _OTHERS)
            own = self._mounts | {"/tmp": self._private("tmp")}
            shown = {} if "sees" in self._program else own
            shown |= self._shared(isolation.volumes, "container.volumes", "rw")
            self._words = self._command(shown)
        elif isolation.words != ("environment",):
            self._find("isolate", ["bwrap"], _NO_BWRAP)
            has_all = "files" not in isolation.words
            self._words = self._command({"/": ("/", "dev")} if has_all else self._files())
        # Whether the script's processes are children of the program, which tells their usage.
        self.is_parent = "rm" not in self._program

    def _find(self, name: str, programs: Sequence[str], advice: str) -> None:
        found = next(filter(None, ((shutil.which(each) and each) for each in programs)), None)
        if found is None:
            said = f"{self._key}.{name}: there is no {' and no '.join(programs)}"
            raise PhaseError(f"{said} on {platform.node()}", advice)
        self._name, self._path = found, str(shutil.which(found))
        self._program = PROGRAMS.get(found, _BWRAP)

    def around(self, environment: Environment) -> tuple[Environment, tuple[str, ...]]:
        """The environment of the process to start, and the words before `bash`."""
        isolation, variables = self.isolation, dict(environment.variables)
        if "environment" in isolation.words:
            kept = (*KEPT_VARIABLES, *self._machine.get("environment", ()))
            all_of_them = environment.of_process().items()
            cleared = {n: v for n, v in all_of_them if any(fnmatchcase(n, each) for each in kept)}
            environment = replace(environment, is_whole=True)
            variables = _FIXED_VARIABLES | cleared | variables
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
        enter = self._written("enter.sh", "\n".join(lines), 0o600)
        return environment, (*self._words, "bash", enter)

    def _task(self) -> str:
        """The program that a task begins with: it enters the container, unless it is inside."""
        said = f"kochi: {self._name} does not isolate what is started outside of its container"
        enter = f"echo {shlex.quote(said)} >&2; exit 1"
        if self._name == "bwrap":
            enter = f'exec {shlex.join(self._words)} "$@"'
        text = _TASK.format(entered=shlex.quote(str(self._entered)), enter=enter)
        return self._written("isolated", text, 0o700)

    def _written(self, name: str, text: str, mode: int) -> str:
        file = self._scratch / name
        file.write_text(text, "utf-8", "surrogateescape")
        file.chmod(mode)
        return str(file)

    @property
    def has_begun(self) -> bool:
        """Whether a script has begun inside."""
        return not self._name or self._entered.exists()

    def end(self) -> None:
        """End what the program has started and left."""
        if rm := self._program.get("rm"):
            _first_line([self._path, *rm.format(id=self._id).split()])

    def finish(self, ended: Ended, captured: Path) -> None:
        """End what a program has left. Raise PhaseError if it ended without having started the
        script; `captured` has its output."""
        if ended.status == 0:
            return
        self.end()
        if self.has_begun:
            return
        said = last_lines(captured, LAST_LINES) if captured.exists() else ()
        reason = f"{self._name} could not isolate the script on {platform.node()}"
        raise PhaseError(
            f"{self._key}: {reason}: {' '.join(said[-3:]) or f'exit status {ended.status}'}",
            _OTHERS if self.isolation.image else _NO_NAMESPACE,
            reason=reason,
            output=said,
        )

    def record(self) -> dict[str, Any]:
        """What a record tells of it; see `record.schema.yaml`."""
        isolation, image = self.isolation, None
        if isolation.image:
            name, words = _DOCKER.sub("", isolation.image), self._program.get("digest", "").split()
            words = [] if name.startswith(PATHS) else words
            words = [word.format(program=self._name, image=name) for word in words]
            image = {
                "image": isolation.image,
                "digest": _first_line(words) if words else None,
                "volumes": list(isolation.volumes),
                "modules": list(isolation.modules),
            }
        return {
            "isolate": list(isolation.words),
            "program": self._name or None,
            "version": _first_line([self._path, "--version"]) if self._name else None,
            "visible": list(isolation.visible),
            "container": image,
        }

    def _private(self, name: str) -> tuple[str, str]:
        """A directory that a script sees instead of the host's."""
        made = self._scratch / "seen" / name
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(0o1777 if name == "tmp" else 0o700)
        return str(made), "rw"

    def _existing(self, text: str, name: str) -> str:
        """The path that is written at `name`. Raises KochiError without one."""
        path = expand_path(text, f"{self._key}.{name}")
        if not path.exists():
            said = f"{self._key}.{name}: {path} does not exist on {platform.node()}"
            raise PhaseError(said, "Correct the path, or remove it.")
        return os.path.normpath(path)

    def _shared(self, texts: Iterable[str], name: str, ending: str) -> _Mounts:
        """What each `SOURCE[:TARGET][:ro|:rw]` shows; `ending`: the one of those without any."""
        found: _Mounts = {}
        for text in texts:
            parts = text.split(":")
            mode = parts.pop() if parts[-1] in ("ro", "rw") else ending
            source = self._existing(parts[0], name)
            found[parts[1] if len(parts) > 1 else source] = (source, mode)
        return found

    def _files(self) -> _Mounts:
        """What `isolate: files` shows of the host."""
        shown: _Mounts = {path: (path, "dev") for path in ("/dev", "/proc")}
        of_usr = (f"/usr/{name}" for name in os.listdir("/usr") if name != "local")
        for path in (*of_usr, *_SYSTEM):
            is_link = os.path.islink(path) and not path.startswith("/etc/")
            shown[path] = (os.readlink(path), "link") if is_link else (path, "ro")
        mounts: _Mounts = {}
        for text in self._machine.get("visible", ()):
            with suppress(KochiError):  # a site lists what some of its nodes have
                mounts |= self._shared([text], "visible", "ro")
        mounts |= {path: self._private("tmp") for path in ("/tmp", "/var/tmp")}
        if (home := os.path.normpath(os.environ.get("HOME", "/"))) != "/":
            mounts[home] = self._private("home")
        mounts |= self._mounts | self._shared(self.isolation.visible, "visible", "ro")
        for target, seen in mounts.items():
            # Programs and build systems resolve links, and note the path that they find.
            shown |= {os.path.realpath(target): seen, target: seen}
        return shown

    def _command(self, mounts: _Mounts) -> list[str]:
        """The words before the shell that the script begins with."""
        program, isolation, image = self._program, self.isolation, self.isolation.image
        of_container = {"id": self._id, "directory": self._directory}

        def form(key: str, to: str = "", able: bool = True) -> str:
            if key not in program or not able:
                said = f"{self._key}.container: {self._name} on {platform.node()} cannot {to}"
                raise PhaseError(said, _OTHERS)
            return program[key]

        words = [self._path, *(word.format(**of_container) for word in program["start"].split())]
        is_offline = "network" in isolation.words
        words += form("offline" if is_offline else "online", "turn off the network").split()
        if isolation.modules:
            form("module", "load modules of images")
            words += module_words(program, isolation.modules)
        # Those further up first, because a mount hides what is below it.
        for target in sorted(mounts, key=lambda path: path.split("/")):
            source, how = mounts[target]
            is_plain = not image or not set(":;,\"'\\") & set(source + target)
            mount = form(how, f"show the path {source}", is_plain)
            words += (word.format(source, target) for word in mount.split())
        if not image:
            words += ["--remount-ro", "/"] if "files" in isolation.words else []
            words += (word.format(**of_container) for word in program["end"].split())
            # Since coreutils 8.31. Without it, a signal ends a script before it can clean up.
            if _first_line(["env", f"--default-{_SIGNALS}", "echo", "yes"]) is None:
                return words
            return ["env", f"--ignore-{_SIGNALS}", *words, "env", f"--default-{_SIGNALS}"]
        if image.startswith(PATHS):
            form("file", "take an image from a file")
            image = self._existing(image, "container.image")
        return [*words, *image_words(program, image)]


def module_words(program: Mapping[str, str], modules: Sequence[str]) -> list[str]:
    """The arguments of a program of PROGRAMS for modules of images."""
    if program is _APPTAINER:
        modules = [_MODULES_OF_APPTAINER.get(each, each) for each in modules]
    form = program["module"]
    return [form.format(each) for each in ([",".join(modules)] if "=" in form else modules)]


def image_words(program: Mapping[str, str], image: str) -> list[str]:
    """The last arguments before a command, for the path of an image, or its name."""
    if image.startswith("/"):
        form = program["file"]
    else:
        form = "{}" if _OTHER_KIND.match(image) else program["name"]
    return [word.format(_DOCKER.sub("", image)) for word in form.split()]


def first_words(program: Mapping[str, str]) -> tuple[str, ...]:
    """The words between an image and a command, which has to end by signals."""
    if "rm" not in program:
        return ()
    text = _EXECUTE_AS_FIRST.format(seconds=math.ceil(patience()), status=STATUS_OF_TIMEOUT)
    return "/bin/bash", "-c", text, "bash"


def _first_line(command: Sequence[str]) -> str | None:
    """The first line that a command prints; None if it fails, or prints nothing."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60.0, check=False
        )
        line = done.stdout.decode("utf-8", "replace").strip().partition("\n")[0]
        return line if done.returncode == 0 and line else None
    return None
