"""What an isolated script sees of the files of the host.

A private directory gets, in `seen/`, what a script sees instead of the host's: `home`, `tmp`,
`passwd`, `group`, and for programs that need one, `root`.
"""

from __future__ import annotations

import grp
import os
import platform
import pwd
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from snakemake_kochi.errors import KochiError, PhaseError
from snakemake_kochi.files import expand_path
from snakemake_kochi.phases.isolation_programs import Mount, View
from snakemake_kochi.phases.products import Install
from snakemake_kochi.project.isolation import (
    FILES,
    NETWORK,
    Isolation,
    MachineIsolation,
    Shared,
)

# What `isolate: files` leaves of the host: /usr without this, what Linux has beside /usr, and the
# files of /etc without which programs find neither libraries nor names.
NOT_OF_USR = "local"
SYSTEM_DIRECTORIES = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys")
SYSTEM_FILES = tuple(
    f"/etc/{name}"
    for name in (
        *("alternatives", "ca-certificates", "crypto-policies", "host.conf", "hostname", "hosts"),
        *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf", "os-release"),
        *("pki", "protocols", "resolv.conf", "services", "ssl"),
    )
)
# Files and directories of which variables tell a script.
_NAMED_BY_VARIABLES = {  # whether it may write
    "KOCHI_PREPARED": False,
    "KOCHI_HOSTFILE": False,
}


# From a key of a script's isolation to where it is written, for people.
At = Callable[[str], str]


@dataclass(frozen=True)
class Place:
    """Where a script works: its `directory`, a private directory, what it `uses` (read-only)."""

    directory: Path
    scratch: Path
    uses: tuple[Path, ...]

    @classmethod
    def of(cls, directory: Path, scratch: Path, installs: Iterable[Install], *more: Path) -> Place:
        """With the prefixes of recipes, and the objects that a repository there borrows."""
        prefixes = [Path(install.prefix) for install in installs]
        borrowed: list[Path] = []
        with suppress(OSError):
            text = (directory / ".git/objects/info/alternates").read_bytes()
            borrowed = [Path(os.fsdecode(line)) for line in text.splitlines() if line]
        return cls(directory, scratch, (*prefixes, *more, *borrowed))


def view_of(
    isolation: Isolation,
    machine: MachineIsolation,
    place: Place,
    variables: Mapping[str, str],
    at: At,
) -> View:
    """What a script sees with an isolation that needs a program. Nothing is made or executed.

    Raises PhaseError if a path is missing.
    """
    directory = str(place.directory)
    with_network = NETWORK not in isolation.words
    own = [Mount(str(place.scratch), str(place.scratch), True), Mount(directory, directory, True)]
    own += [Mount(str(path), str(path)) for path in place.uses if path.exists()]
    for name, writable in _NAMED_BY_VARIABLES.items():
        if (path := variables.get(name, "")) and os.path.exists(path):
            own.append(Mount(path, path, writable))
    if (container := isolation.container) is not None:
        image = container.image
        if container.is_file:
            image = _existing(Shared(image), at("container.image"))
        volumes = [_mount(each, at("container.volumes")) for each in container.volumes]
        return View(
            directory,
            with_network,
            image=image,
            modules=container.modules,
            mounts=_ordered([*own, _of_tmp(place)]),
            volumes=_ordered(volumes),
            name=f"kochi-{place.scratch.name}",
        )
    if FILES not in isolation.words:
        return View(directory, with_network, root=str(_seen(place.scratch) / "root"))
    system, links = _system()
    shown = [_mount(each, at("visible")) for each in isolation.visible]
    for each in machine.visible:
        # A site lists what some of its nodes have.
        with suppress(KochiError):
            shown.append(_mount(each, at("visible")))
    # Programs and build systems resolve links, and note the path that they find.
    shown += [*own, *_private(_seen(place.scratch))]
    real = [replace(each, target=os.path.realpath(each.target)) for each in shown]
    return View(
        directory,
        with_network,
        _ordered([*system, *real, *shown]),
        links,
        root=str(_seen(place.scratch) / "root"),
    )


def check_paths(isolation: Isolation, at: At) -> None:
    """Raise KochiError if a path that the experiment names is not on this computer."""
    for each in isolation.visible:
        _mount(each, at("visible"))
    if (container := isolation.container) is not None:
        if container.is_file:
            _existing(Shared(container.image), at("container.image"))
        for each in container.volumes:
            _mount(each, at("container.volumes"))


def _seen(scratch: Path) -> Path:
    return scratch / "seen"


def _of_tmp(place: Place) -> Mount:
    return Mount(str(_seen(place.scratch) / "tmp"), "/tmp", True)


def _system() -> tuple[list[Mount], tuple[tuple[str, str], ...]]:
    """What of the host every script sees: mounts and links."""
    mounts, links = [Mount("/dev", "/dev", has_devices=True)], []
    of_usr = [f"/usr/{name}" for name in sorted(os.listdir("/usr")) if name != NOT_OF_USR]
    for path in (*of_usr, *SYSTEM_DIRECTORIES, *SYSTEM_FILES):
        if os.path.islink(path) and not path.startswith("/etc/"):
            links.append((path, os.readlink(path)))
        elif os.path.exists(path):
            mounts.append(Mount(path, path))
    return mounts, tuple(links)


def _private(seen: Path) -> list[Mount]:
    """What a script sees instead of the host's."""
    mounts = [Mount(str(seen / name), f"/etc/{name}") for name in ("passwd", "group")]
    mounts += [Mount(str(seen / "tmp"), path, True) for path in ("/tmp", "/var/tmp")]
    home = os.path.normpath(os.environ.get("HOME") or "/")
    if home.startswith("/") and home != "/":
        mounts.append(Mount(str(seen / "home"), home, True))
    return mounts


def _ordered(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Those further up first, because a mount hides what is below it. Of one place, the last."""
    by_target: dict[str, Mount] = {}
    for mount in mounts:
        known = by_target.get(mount.target)
        if known is None or not known.writable or mount.writable:
            by_target[mount.target] = mount
    return tuple(sorted(by_target.values(), key=lambda each: each.target.split("/")))


def _mount(shared: Shared, key: str) -> Mount:
    source = _existing(shared, key)
    return Mount(source, shared.target or source, shared.writable)


def _existing(shared: Shared, key: str) -> str:
    path = expand_path(shared.source, key)
    if not path.exists():
        raise PhaseError(
            f"{key}: {path} does not exist on {platform.node()}", "Correct the path, or remove it."
        )
    return os.path.normpath(path)


def make_places(view: View, scratch: Path) -> None:
    """Make the files and directories that a script sees instead of the host's."""
    seen = _seen(scratch)
    for name in ("home", "tmp", "root"):
        (seen / name).mkdir(parents=True, exist_ok=True)
    (seen / "tmp").chmod(0o1777)
    users = [pwd.getpwuid(0)]
    groups = [grp.getgrgid(0)]
    # Where they come from a network's directory, the script could not ask for them.
    with suppress(KeyError):
        users.append(pwd.getpwuid(os.getuid()))
    for number in os.getgroups():
        with suppress(KeyError):
            groups.append(grp.getgrgid(number))
    lines = [
        f"{u.pw_name}:x:{u.pw_uid}:{u.pw_gid}:{u.pw_gecos}:{u.pw_dir}:{u.pw_shell}" for u in users
    ]
    (seen / "passwd").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    lines = [f"{group.gr_name}:x:{group.gr_gid}:" for group in groups]
    (seen / "group").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    _make_root(view)


def _make_root(view: View) -> None:
    """A place for each mount: Apptainer makes none in a directory."""
    if not view.root:
        return
    root = Path(view.root)
    for name in ("proc", "sys", "dev", "etc", "tmp", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for path, target in view.links:
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(target)
    mounts = view.mounts or ()
    for mount in mounts:
        around = [m for m in mounts if m is not mount and mount.target.startswith(f"{m.target}/")]
        outer = max(around, key=lambda each: len(each.target), default=None)
        if outer is not None and outer.source == outer.target:
            continue  # the host has a place there
        place = (
            root / mount.target.lstrip("/")
            if outer is None
            else Path(outer.source) / os.path.relpath(mount.target, outer.target)
        )
        if os.path.isdir(mount.source):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
