"""The project of the current directory, on the machine for which a command is.

Three steps bring it up to date there, and each may be repeated, or be the last one before the
network breaks: a repository is made there, if need be; a parcel (`snapshot/parcel.py`) is pushed to
it, if it lacks it; and `receive.py` makes the working tree of it there, before the command begins.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from humanfriendly import format_size
from humanfriendly.text import concatenate

from snakemake_kochi.artifacts.published import published_name
from snakemake_kochi.confidential import is_secret_path
from snakemake_kochi.errors import GitError
from snakemake_kochi.files import random_word
from snakemake_kochi.location import Location
from snakemake_kochi.paths import SENT_VARIABLE, USE_VARIABLE, Root, SentPaths
from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS, own_outputs
from snakemake_kochi.phases.sources import SNAKEMAKE_STATE, local_repository
from snakemake_kochi.processes import this_node
from snakemake_kochi.project.configuration import FILE_NAME, configuration_file
from snakemake_kochi.project.machines import common_files
from snakemake_kochi.project.recipes import Project, Recipe
from snakemake_kochi.project.sent import source_key
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.left_behind import left_behind
from snakemake_kochi.remote.refusal import RemoteError, advice_for_room
from snakemake_kochi.remote.script import Script
from snakemake_kochi.snapshot import (
    Bare,
    Listing,
    Parcel,
    Tree,
    is_ignored,
    pack,
    resolve_source,
    send_parcel,
)

# In an experiment that takes other code than the checked-out one.
_BRANCHES = re.compile(r"\bcode[\"']?\s*:")
# If it is set, untracked files are sent, too, whose names suggest secrets.
SECRETS_VARIABLE = "KOCHI_WITH_SECRETS"
_TELLS_AFTER = 5.0  # seconds
_LARGE = 50_000_000  # bytes of an untracked file of which a person may not know that it travels
# The exit status where a project was not sent yet; no status of kochi.
NOT_SENT = 79
_log = logging.getLogger(__name__)
# Makes an empty repository in $name of the current directory, unless there is one. Its formats are
# those of `snapshot/arrival.py`, whatever is the default there.
_MAKE = """\
if ! [ -e "$name/.git/HEAD" ]; then
  new=".$name.$$.tmp"
  GIT_DEFAULT_HASH=sha1 GIT_DEFAULT_REF_FORMAT=files git init --quiet --template= "$new" || exit
  for setting in core.hooksPath=/dev/null receive.autogc=false gc.auto=0; do
    git -C "$new" config "${setting%%=*}" "${setting#*=}" || exit
  done
  mv -T -- "$new" "$name" 2> /dev/null || rm -rf "$new"
  [ -e "$name/.git/HEAD" ] || { echo "$PWD/$name is in the way" >&2; exit 1; }
fi
"""


@dataclass(frozen=True)
class Sent:
    """A project on the other computer. `directory`: that of the project there; `place`: the one
    with all that was sent; `parcel`: its commit; `has_configuration`: whether the kochi.yaml is not
    a file of the project; `below`: the working directory, relative to `directory`."""

    directory: str
    place: str
    parcel: str
    has_configuration: bool = False
    below: str = "."

    @property
    def working_directory(self) -> str:
        return os.path.normpath(os.path.join(self.directory, self.below))

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """The environment of a command there."""
        found = {SENT_VARIABLE: self.place, USE_VARIABLE: random_word(8)}
        if self.has_configuration:
            found["KOCHI_CONF"] = str(SentPaths(Path(self.place)).configuration)
        return found


def place_there(location: Location, root: str) -> SentPaths:
    """Where the project is below `root`, KOCHI_ROOT there. Each clone has a place of its own."""
    return SentPaths.of(Path(root), location.require_project().directory, owner())


def entering(location: Location) -> str:
    """Bash that goes to the project as it was sent last, for a command there; it exits with
    NOT_SENT if the project never was. $KOCHI_ROOT must be set, which is known there only."""
    place = place_there(location, "/")
    is_outside = _configuration_elsewhere(location.require_project()) is not None
    inside, project, note, text = (
        f'"$KOCHI_ROOT"/{shlex.quote(str(path.relative_to(place.root)))}'
        for path in (place.directory, place.project, place.note(place.project), place.configuration)
    )
    lines = [f"[ -f {note} ] || exit {NOT_SENT}"]
    if is_outside:
        lines += [f"[ -f {text} ] || exit {NOT_SENT}", f"export KOCHI_CONF={text}"]
    return "\n".join([*lines, f"export {SENT_VARIABLE}={inside}", f"cd {project} || exit"])


def with_configuration(location: Location) -> str:
    """Bash that exits with NOT_SENT, after `entering`, if kochi.yaml or the machines for all
    projects are not there as they are here now."""
    place = place_there(location, "/")
    file, state = configuration_file(location.require_project().directory), place.state
    texts = [file.read_bytes(), *map(_encoded, common_machines(location))]
    if _configuration_elsewhere(location.require_project()) is not None:
        texts[0] = _encoded(file.read_text(errors="surrogateescape"))
        there = '"$KOCHI_CONF"'
    else:
        there = FILE_NAME
    machines = f'"$KOCHI_ROOT"/{shlex.quote(str(state.relative_to(place.root)))}/machines-*.yaml'
    digest = hashlib.sha256(b"".join(texts)).hexdigest()
    found = f"$(cat {there} {machines} 2> /dev/null | sha256sum)"
    return f'[ "{found}" = "{digest}  -" ] || exit {NOT_SENT}'


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def common_machines(location: Location) -> list[str]:
    """The files with machines for all projects, but what a scheduler said."""
    found = Root.find().machine(location.machine.name).found
    return [each.text for each in common_files() if each.file != str(found)]


def below(project: Project) -> str:
    """The working directory, relative to the project's."""
    found = os.path.relpath(Path.cwd().resolve(), project.directory.resolve())
    return "." if Path(found).parts[:1] == ("..",) else found


def owner() -> str:
    """This computer and user, for names of places on other computers."""
    return f"{this_node().machine or socket.gethostname()} {os.getuid()}"


def send_project(
    connection: Connection,
    location: Location,
    root: str,
    before: str = "",
    with_results: bool = False,
) -> Sent:
    """Send what is missing of the project. The working tree there is as before until `receive`.

    `root`: the absolute path of KOCHI_ROOT there. `before`: lines of sh after which `git` is found
    there. `with_results`: the branches of results travel, too. Raises RemoteError; GitError and
    KochiError for what is wrong here.
    """
    place, packed = place_there(location, root), _Packed(location, with_results)
    name, parcel = place.project.name, packed.parcel
    script = Script(
        f"{before}\numask 077\nname={shlex.quote(name)}\n"
        f"mkdir -p -- {shlex.quote(str(place.state))} && cd -- {shlex.quote(str(place.directory))}"
        f" || exit\n{_MAKE}"
        "git -C \"$name\" for-each-ref --format='%(refname)' refs/kochi/sent"
    )

    def parcels_there() -> list[str]:
        refs = connection.run(script, what="making a place for the project").stdout.decode()
        return [ref.rpartition("/")[2] for ref in refs.split()]

    if parcel.commit not in (earlier := parcels_there()):
        try:
            _push(connection, packed, earlier, str(place.project), before)
        except RemoteError:
            # Another command may have sent the same at the same time.
            if parcel.commit not in parcels_there():
                raise
    for sentence in left_behind(packed.project.directory, packed.texts):
        _log.warning("%s", sentence)
    return Sent(
        str(place.project),
        str(place.directory),
        parcel.commit,
        packed.configuration is not None,
        below(packed.project),
    )


def _configuration_elsewhere(project: Project) -> Path | None:
    file = configuration_file(project.directory)
    return None if file == project.directory / FILE_NAME else file


def _push(
    connection: Connection, packed: _Packed, earlier: Sequence[str], directory: str, before: str
) -> None:
    serve = f"{before}\ngit receive-pack" if before else "git receive-pack"
    address, environment = connection.url(directory), connection.git_environment()
    told = time.monotonic()

    def hear(line: str) -> None:
        nonlocal told
        if line.startswith("kochi: "):
            print(line, file=sys.stderr)
        elif "%" in line and time.monotonic() - told > _TELLS_AFTER:
            told = time.monotonic()
            print(f"kochi: sending the project: {line}", file=sys.stderr, flush=True)

    try:
        send_parcel(packed.store, packed.parcel, earlier, address, environment, serve, hear)
    except GitError as error:
        raise RemoteError(
            f"the project was not sent: {error.message}",
            advice_for_room(error.message) or "Type the same line again: it goes on.",
        ) from error


class _Packed:
    """What is to be sent of a project."""

    def __init__(self, location: Location, with_results: bool) -> None:
        self.location = location
        self._with_results = with_results
        self.project: Project = location.require_project()
        self.store = Root.find().project(self.project.directory).store
        Root.find().secure(self.store.parent)

    @cached_property
    def texts(self) -> Mapping[Path, str]:
        """The experiments and the like."""
        top = self.project.directory
        found = sorted({path for glob in EXPERIMENT_GLOBS for path in top.glob(glob)})
        return {path: path.read_text(errors="replace") for path in found if path.is_file()}

    @cached_property
    def configuration(self) -> str | None:
        """The text of kochi.yaml, if it is not in the project."""
        file = _configuration_elsewhere(self.project)
        return None if file is None else file.read_text(errors="surrogateescape")

    @cached_property
    def parcel(self) -> Parcel:
        project, machine = self.project, self.location.machine
        has_branches = any(map(_BRANCHES.search, self.texts.values()))
        outputs = own_outputs(Path.cwd(), project.directory, Root.find())
        name = place_there(self.location, "/").project.name
        own = Tree(
            project.directory,
            name,
            outputs,
            with_branches=has_branches,
            with_results=self._with_results,
        )
        mirrors = {tree.at: tree for _, tree in self._mirrors()}
        sources = {key: tree.at for key, tree in self._mirrors()}
        repositories: dict[str, Bare] = {}
        for key, bare in self._repositories(has_branches):
            sources[key] = bare.at
            known = repositories.get(bare.at, bare)
            commits = tuple(dict.fromkeys([*known.commits, *bare.commits]))
            repositories[bare.at] = replace(bare, commits=commits)
        about = {
            "machine": {
                "name": machine.name,
                "lock_dir": machine.lock_dir,
                "lock_kind": machine.lock_kind,
                "root_said_at": machine.root_said_at,
            },
            "machines": common_machines(self.location),
            "configuration": self.configuration,
            "sources": dict(sorted(sources.items())),
            "published": {machine.name: published_name(project.directory, machine.name)},
            "from": {"host": this_node().host, "directory": str(project.directory)},
        }
        trees = [own, *mirrors.values()]
        return pack(self.store, trees, repositories.values(), about, self._admitted)

    def _admitted(self, directory: Path, listing: Listing) -> Listing:
        """What of a directory travels. A person is told what does not, and what is large."""
        if os.environ.get(SECRETS_VARIABLE):
            secret = []
        else:
            secret = [path for path in listing.untracked if is_secret_path(path)]
        if secret:
            names = concatenate([*secret[:3], f"{len(secret) - 3} more"][: len(secret)])
            _log.warning(
                "not sent, because the names of these untracked files suggest secrets: %s. To send "
                "them, too, add: --with-secrets",
                names,
            )
        for path in listing.untracked:
            if path not in secret and (size := (directory / path).lstat().st_size) > _LARGE:
                _log.warning(
                    "%s (%s) is untracked, and is sent. To keep it here, type: echo %s >> %s",
                    *(path, format_size(size), shlex.quote(f"/{path}")),
                    shlex.quote(os.path.relpath(directory / ".gitignore")),
                )
        return replace(listing, paths=tuple(each for each in listing.paths if each not in secret))

    @property
    def _recipes(self) -> Iterator[Recipe]:
        yield from (each for known in self.project.dependencies.values() for each in known.values())

    def _mirrors(self) -> Iterator[tuple[str, Tree]]:
        for recipe in self._recipes:
            directory = self.project.mirror_directory(recipe)
            if directory is None or not directory.is_dir() or self._travels(directory):
                continue
            key = source_key("mirror_dir", str(recipe.mirror_dir))
            at = SentPaths.name_of_source(key)
            yield key, Tree(directory.resolve(), at, SNAKEMAKE_STATE, with_history=False)

    def _repositories(self, has_branches: bool) -> Iterator[tuple[str, Bare]]:
        for recipe in self._recipes:
            if recipe.git is None or recipe.mirror or recipe.is_remote:
                continue
            found = local_repository(recipe.git, self.project.directory)
            if found is None or self._travels(Path(found)):
                continue
            key = source_key("git", recipe.git)
            commit = resolve_source(found, recipe.branch, recipe.commit_hash)
            yield key, Bare(Path(found), SentPaths.name_of_source(key), (commit,), has_branches)

    def _travels(self, directory: Path) -> bool:
        """Whether a directory is in the project, and not ignored by git."""
        top, real = self.project.directory.resolve(), directory.resolve()
        if not real.is_relative_to(top):
            return False
        return real == top or not is_ignored(top, real.relative_to(top).as_posix())
