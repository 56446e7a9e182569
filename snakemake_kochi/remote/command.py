"""A command for a machine behind a login host: the same words, executed there.

Its standard streams, its terminal and its exit status are those of the command there.
"""

from __future__ import annotations

import enum
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from snakemake_kochi.files import random_word
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.location import Location
from snakemake_kochi.paths import SENT_VARIABLE, SentPaths
from snakemake_kochi.project.configuration import configuration_file, repository
from snakemake_kochi.remote.arrival import VARIABLE
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.environment import Environment
from snakemake_kochi.remote.project import (
    NOT_SENT,
    Sent,
    below,
    common_machines,
    entering,
    owner,
    send_project,
    with_configuration,
)
from snakemake_kochi.remote.script import Script
from snakemake_kochi.remote.session import write_all
from snakemake_kochi.remote.there import to_work_directory, unfit
from snakemake_kochi.remote.version import NOT_SET_UP, find_kochi

FAILED = 1


class Needs(enum.Enum):
    """What a command needs of the project there: its files as they are here now, also with the
    results that are here; or any of them with kochi.yaml as it is here now; or any of them, because
    it must work when nothing can be sent."""

    FILES = enum.auto()
    RESULTS = enum.auto()
    CONFIGURATION = enum.auto()
    PLACE = enum.auto()


def run_there(
    location: Location,
    words: Sequence[str],
    needs: Needs,
    takes_input: bool = False,
    variables: Mapping[str, str] = FrozenDict(),
    write: Callable[[int, bytes], None] | None = None,
) -> int:
    """Run `kochi WORDS` on the login host of a machine; return its exit status.

    `takes_input`: whether it reads standard input, which otherwise stays for what comes after it
    here. `variables` are set for it. `write`, if given, gets what it prints with the number of its
    stream, and it has no terminal. Raises KochiError.
    """
    command = _Command(location, words, takes_input, variables, write)
    with Connection(command.host) as connection:
        try:
            # Outside of any repository, a file for all projects makes a project of any directory.
            if location.project is None or repository(location.project.directory) is None:
                return command.run_without_project(connection)
            if needs in (Needs.PLACE, Needs.CONFIGURATION):
                status = command.run_in_place(connection, needs is Needs.CONFIGURATION)
                if status != NOT_SENT:
                    return FAILED if status == NOT_SET_UP else status
            return command.run_with_files(connection, needs is Needs.RESULTS)
        finally:
            command.environment.forget(connection)


class _Command:
    def __init__(
        self,
        location: Location,
        words: Sequence[str],
        takes_input: bool,
        variables: Mapping[str, str],
        write: Callable[[int, bytes], None] | None,
    ) -> None:
        machine = location.machine
        assert machine.login_host is not None
        self.host = machine.login_host
        self._location, self._words, self._takes_input = location, words, takes_input
        self._variables = variables
        self._write = write
        self.environment = Environment.of(machine)
        self._find_kochi = find_kochi(machine.name)

    def run_with_files(self, connection: Connection, with_results: bool) -> int:
        """Send the project first."""
        root = self._root_there(connection)
        sent = send_project(
            connection,
            self._location,
            root,
            self.environment.later(),
            with_results=with_results,
        )
        return self._run(connection, sent.variables, sent.working_directory, sent)

    def run_in_place(self, connection: Connection, is_configured: bool) -> int:
        """In the project as it was sent last; NOT_SENT if it never was, or, if it has to be
        configured as here, was with another kochi.yaml."""
        inside = below(self._location.require_project())
        check = with_configuration(self._location) if is_configured else ""
        text = f"{entering(self._location)}\n{check}\ncd ./{shlex.quote(inside)} 2> /dev/null"
        if self.environment.is_loaded and (self._has_terminal or self._has_input):
            self._root_there(connection)
        return self._run(connection, {}, None, before=text)

    def run_without_project(self, connection: Connection) -> int:
        """In the machine's `work_dir`, else in a directory of its own, with the machines for all
        projects from here."""
        place = SentPaths.without_project(Path(self._root_there(connection)), owner())
        machines = common_machines(self._location)
        variables = {SENT_VARIABLE: str(place.directory)}
        if self._location.project is not None:
            file = configuration_file(self._location.project.directory)
            machines.insert(0, file.read_text(errors="surrogateescape"))
            variables["KOCHI_CONF"] = str(place.machine_file(0))
        # Not in the words of the command, which others can see: the files may have secrets.
        arriving = place.arriving(random_word())
        parent, name = shlex.quote(str(arriving.parent)), shlex.quote(str(arriving))
        connection.run(
            Script(f"umask 077 && mkdir -p {parent} && cat > {name}"),
            json.dumps(machines).encode(),
            "sending the descriptions of machines",
        )
        is_named = self._location.machine.work_dir is not None
        status = self._run(
            connection,
            variables,
            None if is_named else str(place.project),
            machines=str(arriving),
            before=to_work_directory(self._location.machine) if is_named else "",
        )
        return FAILED if status == NOT_SET_UP else status

    def _root_there(self, connection: Connection) -> str:
        """Load the environment, for this session and the next ones; return KOCHI_ROOT."""
        script = f"{self._find_kochi}\nprintf '%s' \"$KOCHI_ROOT\""
        answer = connection.run(self.environment.first(script, keep=True))
        if answer.returncode != 0:
            name = self._location.machine.name
            raise unfit(answer, f"load_env_script of machine '{name}' on {self.host}")
        if self.environment.is_loaded:  # what it has said
            (self._write or write_all)(2, answer.stderr)
        return os.fsdecode(answer.stdout)

    @property
    def _has_terminal(self) -> bool:
        return self._write is None and all(os.isatty(stream) for stream in (0, 1, 2))

    @property
    def _has_input(self) -> bool:
        return self._write is None and self._takes_input

    def _run(
        self,
        connection: Connection,
        variables: Mapping[str, str],
        directory: str | None,
        sent: Sent | None = None,
        machines: str | None = None,
        before: str = "",
    ) -> int:
        name = self._location.machine.name
        arrival = {
            "attended": not self._has_terminal,
            "directory": directory,
            "machines": machines,
            "receives": sent.parcel if sent else None,
        }
        exported = {
            **variables,
            **self._variables,
            # This host belongs to the machine, whatever its name.
            "KOCHI_MACHINE": name,
            "KOCHI_DEFAULT_MACHINE": name,
            VARIABLE: json.dumps(arrival),
        }
        lines = [f"export {key}={shlex.quote(value)}" for key, value in exported.items()]
        start = f'exec "$kochi" {shlex.join(self._words)}'
        text = "\n".join([self._find_kochi, before, *lines, start])
        if self.environment.is_kept:
            script = Script(f"{self.environment.later(last=True)}\n{text}")
        else:
            script = self.environment.first(text, keep=False)
        if self._write is not None:
            return connection.relay(script, self._write)
        return connection.terminal(script, stdin=sys.stdin.fileno() if self._has_input else None)
