"""The words before `bash` that isolate a script: of bubblewrap, and of programs that run images.

No environment variable is among them: every user of a node can read the arguments of a process.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from snakemake_kochi.errors import KochiError, PhaseError
from snakemake_kochi.files import expand_path
from snakemake_kochi.project.grid import Isolation

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
_SIGNALS = ("INT", "TERM", "USR1", "USR2")
_PATHS = ("/", "~", "$")  # how the path of an image begins
_DOCKER = re.compile(r"^docker:(?://)?")
_OTHER_KIND = re.compile(r"(?!docker:)[a-z][a-z0-9+.-]*:/")  # of a registry, as oras://


@dataclass(frozen=True)
class Program:
    """The arguments with which a program runs an image, in this order; None: it cannot do that.

    `mounts_all`: it has to be told of everything that the script sees, not only of volumes.
    `is_parent`: the processes of the script are its children. `digest`: the
    command that prints the digest of an image of a registry.
    """

    start: str
    offline: str | None
    module: str | None
    file: str | None
    name: str = "{}"
    online: str = ""
    end: str = ""
    mounts_all: bool = True
    is_parent: bool = True
    digest: str = ""


_APPTAINER = Program(
    "--silent exec --contain --cleanenv --no-home --no-mount bind-paths,tmp --pwd {directory}",
    offline="--net --network none",
    module="--{}",
    file="{}",
    name="docker://{}",
)
_PODMAN = Program(
    "run --rm --name {id} --log-driver none --security-opt label=disable --workdir {directory}",
    offline="--network none",
    online="--network host",
    module=None,
    # In a layer above it: places for the volumes would be made in the directory itself.
    file="--rootfs {}:O",
    is_parent=False,
    digest="{program} image inspect --format {{{{.Digest}}}} {image}",
)
# In the order in which they are looked for.
PROGRAMS = {
    "apptainer": _APPTAINER,
    "singularity": _APPTAINER,
    "podman-hpc": replace(_PODMAN, module="--{}"),
    "podman": _PODMAN,
    "shifter": Program(
        "--clearenv --workdir={directory}",
        offline=None,
        module="--module={}",
        file=None,
        name="--image=docker:{}",
        end="--",
        mounts_all=False,
        digest="shifterimg lookup docker:{image}",
    ),
}
OTHER_PROGRAMS = "Name other programs in kochi.yaml: machines: MACHINE: isolation: programs: [...]"


@dataclass(frozen=True)
class Place:
    """Where a script works: its `directory`, a private directory, the paths that it `uses`, and the
    `key` of its isolation, for people."""

    directory: str
    scratch: Path
    uses: Sequence[str]
    key: str

    @property
    def id(self) -> str:
        """The name of its container."""
        return f"kochi-{self.scratch.name}"

    def private(self, name: str) -> str:
        """A directory that a script sees instead of the host's."""
        made = self.scratch / "seen" / name
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(0o1777 if name == "tmp" else 0o700)
        return str(made)

    def existing(self, text: str, name: str) -> str:
        """The path that is written at `name`. Raises KochiError without one."""
        path = expand_path(text, f"{self.key}.{name}")
        if not path.exists():
            said = f"{self.key}.{name}: {path} does not exist on {platform.node()}"
            raise PhaseError(said, "Correct the path, or remove it.")
        return os.path.normpath(path)

    def shared(self, text: str, name: str, writable: bool) -> tuple[str, tuple[str, bool]]:
        """Of `SOURCE[:TARGET][:ro|:rw]`: where it is seen, what is seen there, and whether it may
        be written, as `writable` says without an ending."""
        parts = text.split(":")
        if parts[-1] in ("ro", "rw"):
            writable = parts.pop() == "rw"
        source = self.existing(parts[0], name)
        return parts[1] if len(parts) > 1 else source, (source, writable)

    @property
    def mounts(self) -> dict[str, tuple[str, bool]]:
        """What it sees in any case."""
        read = {path: (path, False) for path in self.uses}
        return read | {path: (path, True) for path in (str(self.scratch), self.directory)}


def bubblewrap(
    path: str, isolation: Isolation, visible: Sequence[str], place: Place
) -> tuple[str, ...]:
    """`visible`: of the machine. Raises KochiError if a path is missing."""
    words = [path, "--die-with-parent"]
    words += ["--unshare-net"] if "network" in isolation.words else []
    has_all = "files" not in isolation.words
    words += ["--dev-bind", "/", "/"] if has_all else _files(isolation, visible, place)
    words += ["--chdir", place.directory, "--"]
    # Since coreutils 8.31. Without it, a signal ends a script before it can clean up.
    if first_line(["env", "--default-signal=TERM", "echo", "yes"]) is None:
        return tuple(words)
    ignore = (f"--ignore-signal={name}" for name in _SIGNALS)
    return ("env", *ignore, *words, "env", *(f"--default-signal={name}" for name in _SIGNALS))


def _files(isolation: Isolation, visible: Sequence[str], place: Place) -> list[str]:
    shown = {path: ["--dev-bind", path, path] for path in ("/dev", "/proc")}
    of_usr = (f"/usr/{name}" for name in os.listdir("/usr") if name != "local")
    for path in (*of_usr, *_SYSTEM):
        is_link = os.path.islink(path) and not path.startswith("/etc/")
        # Another node, where tasks enter, may lack a file of this one.
        words = ["--symlink", os.readlink(path)] if is_link else ["--ro-bind-try", path]
        shown[path] = [*words, path]
    mounts: dict[str, tuple[str, bool]] = {}
    for text in visible:
        with suppress(KochiError):  # a site lists what some of its nodes have
            mounts |= [place.shared(text, "visible", False)]
    mounts |= {path: (place.private("tmp"), True) for path in ("/tmp", "/var/tmp")}
    if (home := os.path.normpath(os.environ.get("HOME", "/"))) != "/":
        mounts[home] = (place.private("home"), True)
    own = place.mounts
    mounts |= own | dict(place.shared(text, "visible", False) for text in isolation.visible)
    for target, (source, writable) in mounts.items():
        # Programs and build systems resolve links, and note the path that they find.
        for seen in (os.path.realpath(target), target):
            shown[seen] = ["--bind-try" if writable else "--ro-bind-try", source, seen]
    # Those further up first, because a mount hides what is below it.
    ordered = sorted(shown, key=lambda path: path.split("/"))
    return [*(word for path in ordered for word in shown[path]), "--remount-ro", "/"]


def container(name: str, path: str, isolation: Isolation, place: Place) -> tuple[str, ...]:
    """The words of one of PROGRAMS. Raises KochiError if it cannot do it, or a path is missing."""
    program, image = PROGRAMS[name], isolation.image

    def able(words: str | None, to: str) -> str:
        if words is None:
            said = f"{place.key}.container: {name} on {platform.node()} cannot {to}"
            raise PhaseError(said, OTHER_PROGRAMS)
        return words

    words = [w.format(id=place.id, directory=place.directory) for w in program.start.split()]
    is_offline = "network" in isolation.words
    words += able(program.offline if is_offline else program.online, "turn off the network").split()
    if modules := list(isolation.modules):
        form = able(program.module, "load modules of images")
        if program is _APPTAINER:
            modules = [{"gpu": "nv", "cuda": "nv"}.get(each, each) for each in modules]
        words += [form.format(m) for m in ([",".join(modules)] if "=" in form else modules)]
    mounts = {**place.mounts, "/tmp": (place.private("tmp"), True)} if program.mounts_all else {}
    mounts |= dict(place.shared(text, "container.volumes", True) for text in isolation.volumes)
    option = "--bind" if program is _APPTAINER else "--volume"
    for target in sorted(mounts, key=lambda each: each.split("/")):
        source, writable = mounts[target]
        able(None if set(":;,\"'\\") & set(source + target) else "", f"show the path {source}")
        words.append(f"{option}={source}:{target}{'' if writable else ':ro'}")
    if image.startswith(_PATHS):
        form = able(program.file, "take an image from a file")
        image = place.existing(image, "container.image")
    else:
        form = "{}" if _OTHER_KIND.match(image) else program.name
        image = _DOCKER.sub("", image)
    return (path, *words, *(word.format(image) for word in form.split()), *program.end.split())


def digest(name: str, image: str) -> str | None:
    """The digest of an image of a registry, if the program tells it."""
    words, image = PROGRAMS[name].digest.split(), _DOCKER.sub("", image)
    if image.startswith(_PATHS) or not words:
        return None
    return first_line([word.format(program=name, image=image) for word in words])


def first_line(command: Sequence[str]) -> str | None:
    """The first line that a command prints; None if it fails, or prints nothing."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60.0, check=False
        )
        line = done.stdout.decode("utf-8", "replace").strip().partition("\n")[0]
        return line if done.returncode == 0 and line else None
    return None
