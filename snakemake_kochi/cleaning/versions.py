"""Versions of this package that `kochi machine setup` has put into this KOCHI_ROOT.

A version goes if it was not used for long. Each command that comes from another computer notes its
use, and so do the workers, controllers and launched runs that live in it (`own_environment.py`).
The version that runs this stays, and so do those that a waiting job names. While a requested worker
has not started, all stay: the script of its allocation names one of them. A Python that came with
them goes when no version is left that it executes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from snakemake_kochi.cleaning.jobs import all_tickets, has_unstarted_workers
from snakemake_kochi.cleaning.projects import LEAST_AGE
from snakemake_kochi.cleaning.removal import LEFTOVER_AGE, Removal
from snakemake_kochi.files import is_there, list_names
from snakemake_kochi.paths import EnvironmentPaths, InstalledPaths, Root
from snakemake_kochi.project.clean_rules import Rules


def clean_versions(root: Root, rules: Rules, removal: Removal) -> None:
    """Delete the versions that nothing has used for long, and what killed setups have left."""
    paths = InstalledPaths(PurePosixPath(root.directory))
    if not is_there(Path(paths.directory)):
        return
    for directory in (paths.directory, paths.environments, paths.wheels, paths.interpreters):
        removal.sweep(Path(directory))
    _clean_environments(root, paths, rules, removal)
    with removal.tolerating(f"Pythons in {paths.interpreters}"):
        _clean_interpreters(paths, rules, removal)


def _clean_environments(root: Root, paths: InstalledPaths, rules: Rules, removal: Removal) -> None:
    environments = Path(paths.environments)
    names = _names_in(environments)
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


def _clean_interpreters(paths: InstalledPaths, rules: Rules, removal: Removal) -> None:
    """Delete the Pythons that no version executes. Raises OSError when that is unknown now."""
    names = _names_in(Path(paths.interpreters))
    executed = list(_executed(Path(paths.environments), removal)) if names else []
    for name in names:
        interpreter = Path(paths.interpreters) / name
        real = interpreter.resolve(strict=True)
        # A setup sends what is missing for as long as its line takes, and only then uses it.
        if not any(path.is_relative_to(real) for path in executed) and _is_old(
            interpreter, rules, removal, least=LEFTOVER_AGE
        ):
            removal.remove("versions", interpreter)


def _executed(environments: Path, removal: Removal) -> Iterator[Path]:
    """The programs that the environments execute, also those that are just being made."""
    for name in list_names(environments):
        if environments / name not in removal.gone:
            with contextlib.suppress(FileNotFoundError):
                yield (environments / name / "bin" / "python").resolve(strict=True)


def _names_in(directory: Path) -> list[str]:
    return [name for name in sorted(list_names(directory)) if not name.startswith(".")]


def _is_old(path: Path, rules: Rules, removal: Removal, least: float = LEAST_AGE) -> bool:
    if Path(sys.prefix).resolve() == path.resolve():
        return False
    if rules.keeps("versions", (path.name,)):
        return False
    with contextlib.suppress(FileNotFoundError):
        return removal.is_older(EnvironmentPaths(path).used, max(rules.installs, least))
    return False


def _texts_of_waiting(root: Root) -> str | None:
    """All tickets that wait or run, as one text; None where a requested worker has not started."""
    texts = []
    for machine in root.machines():
        if has_unstarted_workers(machine):
            return None
        texts += [json.dumps(ticket.to_dict()) for ticket in all_tickets(machine)]
    return "\n".join(texts)


def _remove_links(directory: Path, environments: str, name: str, removal: Removal) -> None:
    for link in sorted(directory.glob(InstalledPaths.LINKS)):
        with contextlib.suppress(OSError):
            if os.readlink(link) == f"{environments}/{name}" and not removal.is_dry:
                link.unlink()
