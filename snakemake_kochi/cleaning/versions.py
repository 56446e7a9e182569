"""Versions of this package that `kochi machine setup` has put into this KOCHI_ROOT.

A version goes if it was not used for long. Each command that comes from another computer notes its
use, and so do the workers, controllers and launched runs that live in it (`own_environment.py`).
The version that runs this stays, and so do those that a waiting job names. While a requested worker
has not started, all stay: the script of its allocation names one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path, PurePosixPath

from snakemake_kochi.cleaning.jobs import all_tickets
from snakemake_kochi.cleaning.projects import LEAST_AGE
from snakemake_kochi.cleaning.removal import Removal
from snakemake_kochi.files import is_there, list_names
from snakemake_kochi.locks import read_lock_settings
from snakemake_kochi.paths import EnvironmentPaths, InstalledPaths, Root
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.queue.workers import requested_workers


def clean_versions(root: Root, rules: Rules, removal: Removal) -> None:
    """Delete the versions that nothing has used for long, and what killed setups have left."""
    paths = InstalledPaths(PurePosixPath(root.directory))
    environments = Path(paths.environments)
    if not is_there(environments):
        return
    for directory in (paths.directory, environments, paths.wheels):
        removal.sweep(Path(directory))
    names = [name for name in sorted(list_names(environments)) if not name.startswith(".")]
    candidates = [name for name in names if _is_old(environments / name, rules, removal)]
    if not candidates:
        return
    named = _texts_of_waiting(root)
    for name in candidates:
        if named is None or f"/{environments.name}/{name}/" in named:
            continue
        with removal.tolerating(f"version {name}"):
            _remove_links(Path(paths.directory), environments.name, name, removal)
            removal.remove("versions", environments / name)


def _is_old(environment: Path, rules: Rules, removal: Removal) -> bool:
    if Path(sys.prefix).resolve() == environment.resolve():
        return False
    if rules.keeps("versions", (environment.name,)):
        return False
    with contextlib.suppress(FileNotFoundError):
        used = EnvironmentPaths(environment).used
        return removal.is_older(used, max(rules.installs, LEAST_AGE))
    return False


def _texts_of_waiting(root: Root) -> str | None:
    """All tickets that wait or run, as one text; None where a requested worker has not started."""
    texts = []
    for machine in root.machines():
        if requested_workers(machine):
            return None
        if read_lock_settings(machine) is not None:
            texts += [json.dumps(ticket.to_dict()) for ticket in all_tickets(machine)]
    return "\n".join(texts)


def _remove_links(directory: Path, environments: str, name: str, removal: Removal) -> None:
    for link in sorted(directory.glob(InstalledPaths.LINKS)):
        with contextlib.suppress(OSError):
            if os.readlink(link) == f"{environments}/{name}" and not removal.is_dry:
                link.unlink()
