"""A machine behind a login host, for somebody who is on it and in no project."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.files import is_name
from snakemake_kochi.paths import Root, SentPaths
from snakemake_kochi.project.configuration import FILE_NAME, load_project
from snakemake_kochi.project.document import read_text
from snakemake_kochi.project.machines import SENT_VARIABLE, Machine, common_files


def sent_machine(name: str, environment: Mapping[str, str]) -> Machine | None:
    """The machine as another computer describes it that has sent a project to it; None if none has.

    KOCHI_ROOT is there, so this host belongs to the machine: a compute node on which somebody
    starts a worker, for example. Raises KochiError.
    """
    root = Root.find(environment=environment)
    if not is_name(name) or not root.machine(name).directory.is_dir():
        return None
    for place in SentPaths.all_below(root.directory):
        root.secure(place.state)
        own = (place.configuration, place.project / FILE_NAME)
        file = next((each for each in own if each.is_file()), None)
        common = common_files({**environment, SENT_VARIABLE: str(place.directory)}, [name])
        # What is wrong in its files is told to who sends them.
        with suppress(ConfigError, OSError):
            text = read_text(file, str(file)) if file is not None else ""
            if found := load_project(place.project, text, file, common).machines.get(name):
                return replace(found, hosts=(*found.hosts, socket.gethostname()))
    return None
