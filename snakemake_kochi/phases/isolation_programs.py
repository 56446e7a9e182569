"""The command lines of the programs that isolate a script: bubblewrap, Apptainer, Podman, Shifter.

Each program has one function, from a `View` to the words before `bash`. Environment variables are
in none of them, because every user of a node can read the arguments of a process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A signal to all processes of a job would end bubblewrap itself, and with it the script that may
# still clean up. So it ignores these, and the script does not.
_SIGNALS = ("INT", "TERM", "USR1", "USR2")
# The kinds of image names of other programs than the one that is used.
_DOCKER = re.compile(r"^docker:(?://)?")
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:(?://|(?=/))")
# podman-hpc has an option for each module; of Apptainer's, these are the corresponding ones.
_APPTAINER_MODULES = {"gpu": "--nv", "nv": "--nv", "cuda": "--nv", "rocm": "--rocm"}


class UnsuitableError(Exception):
    """A program cannot do what is asked for; the text says why."""


@dataclass(frozen=True)
class Mount:
    """A path that a script sees, and what of the host it sees there."""

    source: str
    target: str
    writable: bool = False
    has_devices: bool = False


@dataclass(frozen=True)
class View:
    """What an isolated script sees.

    `directory`: in which it starts. `mounts`, those further up first, and `links`, symbolic links
    as (path, target), are all that it sees; None: the files of the host. `image`: of a container
    with a `name` of its own on the node, which sees the files of the image, the mounts, and the
    `volumes` of the experiment.
    `root`: an empty directory on the host that has a place for each mount, for programs that need
    one.
    """

    directory: str
    with_network: bool
    mounts: tuple[Mount, ...] | None = None
    links: tuple[tuple[str, str], ...] = ()
    root: str = ""
    image: str = ""
    modules: tuple[str, ...] = ()
    volumes: tuple[Mount, ...] = ()
    name: str = ""

    @property
    def ordered(self) -> list[Mount]:
        """Mounts and volumes, those further up first, because a mount hides what is below it."""
        both = [*(self.mounts or ()), *self.volumes]
        return sorted(both, key=lambda each: each.target.split("/"))


@dataclass(frozen=True)
class Program:
    """A program that isolates. `words`: from the path of the program and a view to the words before
    `bash`, may raise UnsuitableError. `inherits`: the script gets the environment of the process
    that starts the program. `is_parent`: the processes of the script are its descendants; else
    `remove` ends the container of a name."""

    words: Callable[[str, View], list[str]]
    inherits: bool = False
    is_parent: bool = True
    digest: Callable[[str, str], Sequence[str]] | None = None
    remove: Callable[[str, str], Sequence[str]] | None = None


def bubblewrap(
    program: str, view: View, keeps_signals: bool = True, is_task: bool = False
) -> list[str]:
    """`keeps_signals`: whether `env` has the options for it, as since coreutils 8.31. `is_task`:
    for one of several tasks on a node that share memory, and so need each other's process ids."""
    before = ["env", *(f"--ignore-signal={each}" for each in _SIGNALS)] if keeps_signals else []
    after = ["env", *(f"--default-signal={each}" for each in _SIGNALS)] if keeps_signals else []
    # A process namespace of its own: when its first process ends, the kernel kills the others. The
    # first process is ours; bubblewrap's own would hide what the script's processes took.
    words = [*before, program, "--die-with-parent"]
    words += [] if is_task else ["--unshare-pid", "--as-pid-1"]
    if not view.with_network:
        words.append("--unshare-net")
    if view.mounts is None:
        words += ["--dev-bind", "/", "/"]
    for path, target in view.links:
        words += ["--symlink", target, path]
    for mount in view.mounts or ():
        kind = "--dev-bind" if mount.has_devices else "--bind" if mount.writable else "--ro-bind"
        # Another node may lack files of this one's system.
        words += [f"{kind}-try" if is_task else kind, mount.source, mount.target]
    words += ["--dev-bind", "/proc", "/proc"] if is_task else ["--proc", "/proc"]
    if view.mounts is not None:
        words += ["--remount-ro", "/"]
    return [*words, "--chdir", view.directory, "--", *after]


def apptainer(program: str, view: View) -> list[str]:
    words = [program, "--silent", "exec", "--contain", "--cleanenv", "--no-home", "--pid"]
    words += ["--no-mount", "bind-paths,tmp", "--pwd", view.directory]
    if not view.with_network:
        words += ["--net", "--network", "none"]
    for module in view.modules:
        if module not in _APPTAINER_MODULES:
            known = ", ".join(_APPTAINER_MODULES)
            raise UnsuitableError(f"it has no module '{module}' (known: {known})")
        words.append(_APPTAINER_MODULES[module])
    if not view.image and view.mounts is None:
        raise UnsuitableError("it cannot turn off the network alone; isolate the files, too")
    for mount in view.ordered:
        # It mounts these two by itself.
        if mount.target not in ("/proc", "/sys"):
            _require_plain(mount, ":,\\\"'")
            how = "rw" if mount.writable or mount.has_devices else "ro"
            words += ["--bind", f"{mount.source}:{mount.target}:{how}"]
    return [*words, _apptainer_image(view.image) or view.root]


def _apptainer_image(image: str) -> str:
    if not image or image.startswith("/") or (_SCHEME.match(image) and not _DOCKER.match(image)):
        return image
    return f"docker://{_DOCKER.sub('', image)}"


def podman(program: str, view: View, options: Sequence[str] = ()) -> list[str]:
    words = [program, "run", "--rm", "--name", view.name, "--log-driver", "none"]
    words += ["--security-opt", "label=disable"]
    words += ["--network", "host" if view.with_network else "none", "--workdir", view.directory]
    words += options
    for mount in view.ordered:
        _require_plain(mount, ":")
        words += ["--volume", f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"]
    if not view.image.startswith("/"):
        return [*words, _DOCKER.sub("", view.image)]
    if not Path(view.image).is_dir():
        raise UnsuitableError("it takes a directory with a root filesystem, or a registry's name")
    # In a layer above it: places for the volumes would be made in the directory itself.
    return [*words, "--rootfs", f"{view.image}:O"]


def _only_podman(program: str, view: View) -> list[str]:
    if view.modules:
        raise UnsuitableError("it has no modules of images")
    return podman(program, view)


def _podman_hpc(program: str, view: View) -> list[str]:
    return podman(program, view, [f"--{module}" for module in view.modules])


def shifter(program: str, view: View) -> list[str]:
    if view.image.startswith("/"):
        raise UnsuitableError("it takes images of a registry only")
    if not view.with_network:
        raise UnsuitableError("it cannot turn the network off")
    image = view.image if _SCHEME.match(view.image) else f"docker:{_DOCKER.sub('', view.image)}"
    words = [program, f"--image={_DOCKER.sub('docker:', image)}", "--clearenv"]
    words.append(f"--workdir={view.directory}")
    if view.modules:
        words.append(f"--module={','.join(view.modules)}")
    for mount in view.volumes:
        _require_plain(mount, ":;")
        words.append(f"--volume={mount.source}:{mount.target}{'' if mount.writable else ':ro'}")
    return [*words, "--"]


def _require_plain(mount: Mount, characters: str) -> None:
    for character in characters:
        if character in mount.source + mount.target:
            raise UnsuitableError(f"it takes no path with {character}, as in {mount.source}")


def _podman_digest(program: str, image: str) -> Sequence[str]:
    return [program, "image", "inspect", "--format", "{{.Digest}}", _DOCKER.sub("", image)]


def _podman_remove(program: str, name: str) -> Sequence[str]:
    return [program, "rm", "--force", "--ignore", "--time", "0", name]


def _shifter_digest(program: str, image: str) -> Sequence[str]:
    return ["shifterimg", "lookup", f"docker:{_DOCKER.sub('', image)}"]


PROGRAMS: Mapping[str, Program] = {
    "bwrap": Program(bubblewrap, inherits=True),
    "apptainer": Program(apptainer),
    "singularity": Program(apptainer),
    "podman-hpc": Program(_podman_hpc, False, False, _podman_digest, _podman_remove),
    "podman": Program(_only_podman, False, False, _podman_digest, _podman_remove),
    "shifter": Program(shifter, digest=_shifter_digest),
}
