"""Results of a machine behind a login host come home: its artifact branch, and the code of results.

There, everything is committed first. Then one `git fetch` brings what is missing here, and one
transfer the contents of large files. The branch here moves last, so that a call that was killed is
repeated by the next one.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from snakemake_kochi.artifacts.code import CODE
from snakemake_kochi.artifacts.incoming import join, pointers_between, there_ref
from snakemake_kochi.artifacts.large import Pointer, Store
from snakemake_kochi.artifacts.published import branch_called, choose_name, published_name
from snakemake_kochi.errors import GitError, KochiError
from snakemake_kochi.git import FETCHING_MISSING, run_git
from snakemake_kochi.location import Location
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.environment import Environment
from snakemake_kochi.remote.project import NOT_SENT, entering
from snakemake_kochi.remote.refusal import RemoteError
from snakemake_kochi.remote.script import Script
from snakemake_kochi.remote.version import find_kochi

_ATTEMPTS = 3
_PATIENCE = 30.0  # seconds for the end of a session after its last byte


@dataclass(frozen=True)
class Brought:
    """What was there. `results`: how many were committed just now, `missed`: how many of them from
    the working directory; `large`: how many contents of large files came here, `lost`: how many are
    not there any more."""

    name: str
    results: int = 0
    missed: int = 0
    large: int = 0
    lost: int = 0


def bring_results(connection: Connection, location: Location) -> Brought | None:
    """Bring the results of the project here; None if it was never sent there.

    Raises RemoteError; KochiError for what is wrong here, and GitError.
    """
    environment = Environment.of(location.machine)
    try:
        return _bring(connection, location, environment)
    finally:
        environment.forget(connection)


def _bring(connection: Connection, location: Location, environment: Environment) -> Brought | None:
    repository, machine = location.require_project().directory, location.machine.name
    told = _commit_there(connection, location, environment)
    if told is None:
        return None
    name = str(told["name"])
    if name != published_name(repository, machine):
        choose_name(repository, machine, name)
    if not told["commit"]:
        return Brought(name)
    serve = f"{environment.later()}\ngit upload-pack"  # several times, perhaps
    _fetch(connection, location, Path(told["repository"]), name, serve)
    branch, ref = f"refs/heads/{branch_called(name)}", there_ref(machine)
    store = Store.of(repository)
    wanted = (each for each in pointers_between(repository, branch, ref) if not store.has(each))
    missing = {each.sha256: each for each in wanted}
    lost = 0
    if missing:
        lost = _fetch_contents(connection, Path(told["large_files"]), store, missing)
    join(repository, branch, ref)
    return Brought(name, int(told["results"]), int(told["missed"]), len(missing) - lost, lost)


def _commit_there(
    connection: Connection, location: Location, environment: Environment
) -> dict[str, Any] | None:
    name = location.machine.name
    text = (
        f"{entering(location)}\n"
        f"export KOCHI_MACHINE={shlex.quote(name)} KOCHI_DEFAULT_MACHINE={shlex.quote(name)}\n"
        'exec "$kochi" artifact sync --no-merge --json'
    )
    done = connection.run(environment.first(text, keep=True, before=find_kochi(name)))
    if done.returncode == NOT_SENT:
        return None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        message = "\n".join(lines[-10:]).removeprefix("kochi: ")
        raise RemoteError(f"on {location.machine.login_host}: {message}")
    return dict(json.loads(done.stdout))


def _fetch(connection: Connection, location: Location, there: Path, name: str, serve: str) -> None:
    repository, machine = location.require_project().directory, location.machine
    address = connection.url(str(there))
    refspecs = (
        f"+refs/heads/{branch_called(name)}:{there_ref(machine.name)}",
        f"{CODE}/*:{CODE}/*",
    )
    # No setting of the user's may lead elsewhere, or remove refs that are not there.
    own = ("-c", f"url.{address}.insteadOf={address}")
    options = ("--quiet", "--no-tags", "--no-prune", "--no-write-fetch-head")
    for attempt in range(_ATTEMPTS):
        try:
            run_git(
                repository,
                *(*own, "fetch", *options, "--no-recurse-submodules", "--update-shallow"),
                *(f"--upload-pack={serve}", address, *refspecs),
                environment={**FETCHING_MISSING, **connection.git_environment()},
                transports=("ssh", "file"),
            )
            return
        except GitError as error:
            # Another command may have brought the same just now, from here or another machine.
            if "cannot lock ref" not in error.message or attempt == _ATTEMPTS - 1:
                raise


def _fetch_contents(
    connection: Connection, there: Path, store: Store, missing: Mapping[str, Pointer]
) -> int:
    """Put contents of large files into the store here, each as soon as it has arrived; returns how
    many are not there any more."""
    prefix = str(store.directory / "objects") + os.sep
    names = [str(store.path(each)).removeprefix(prefix) for each in missing.values()]
    # A content that somebody has deleted must not keep all other results there.
    script = Script(
        f"cd {shlex.quote(str(there / 'objects'))} || exit\n"
        'while read -r name; do [ -e "$name" ] && printf "%s\\n" "$name"; done | tar -cf - -T -'
    )
    with tempfile.TemporaryFile() as asked:
        asked.write("".join(f"{name}\n" for name in sorted(names)).encode())
        asked.seek(0)
        process = connection.start(script, stdin=asked, stdout=subprocess.PIPE)
        try:
            arrived = _unpack(process, store)
            is_complete = process.wait(_PATIENCE) == 0
        except subprocess.TimeoutExpired:
            is_complete = False
        finally:
            process.kill()
            process.wait()
    lacking = missing.keys() - arrived
    if lacking and not is_complete:
        raise RemoteError(
            f"the contents of {len(lacking)} large files did not arrive, for example "
            f"{min(lacking)[:12]}",
            "Type the same line again: it goes on.",
        )
    return len(lacking)


def _unpack(process: subprocess.Popen[bytes], store: Store) -> set[str]:
    arrived: set[str] = set()
    try:
        with tarfile.open(fileobj=cast(Any, process.stdout), mode="r|") as archive:
            for member in archive:
                if (content := archive.extractfile(member)) is not None:
                    arrived.add(store.put(cast(Any, content)).sha256)
    except tarfile.TarError:
        pass  # the connection was lost: what has arrived is here
    except OSError as error:
        raise KochiError(
            f"contents of large files cannot be kept in {store.directory}: {error.strerror}",
            "Free some space there, and type the same line again: it goes on.",
        ) from error
    return arrived
