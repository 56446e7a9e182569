"""Files whose machines count in every project: a user's, a site's, and what a scheduler told."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.files import expand_user, is_name
from snakemake_kochi.ownership import OthersError, check_followed
from snakemake_kochi.paths import Root
from snakemake_kochi.project.chosen_machine import NAMING
from snakemake_kochi.project.document import read_text

SITE_VARIABLE = "KOCHI_SITE_CONF"
SITE_FILE = Path("/etc/kochi/conf.yaml")


@dataclass(frozen=True)
class CommonFile:
    """A file with a section `machines:` that is below a project's own, and its text. In one of a
    site there is nothing else; in a user's own there may be, for directories outside of any
    repository."""

    file: str
    text: str
    is_of_site: bool = False


def common_files(
    environment: Mapping[str, str] = os.environ, machines: Collection[str | None] = ()
) -> tuple[CommonFile, ...]:
    """Those there are, the nearest first: $KOCHI_ROOT/conf.yaml, then $KOCHI_SITE_CONF, else
    /etc/kochi/conf.yaml, then what a scheduler has told of one of the `machines`, or of one that
    the environment names.

    Raises ConfigError for one that cannot be read, and for a $KOCHI_SITE_CONF that is not there;
    KochiError when somebody else could have written one: what is there is executed.
    """
    root = Root.find(environment=environment)
    found = []
    if root.has_configuration():
        found.append(_read(root.configuration))
    if (site := site_file(environment)) is not None:
        found.append(_read(site, is_of_site=True))
    named = dict.fromkeys([*machines, *map(environment.get, NAMING)])
    for name in named:
        if name and is_name(name) and (file := root.machine(name).found).is_file():
            root.secure(file.parent)
            found.append(_read(file))
    return tuple(found)


def site_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """That of the site, if there is one; an empty $KOCHI_SITE_CONF says that there is none. Raises
    ConfigError."""
    named = environment.get(SITE_VARIABLE)
    if named is None:
        return SITE_FILE if SITE_FILE.exists() else None
    if not named:
        return None
    file = expand_user(named, SITE_VARIABLE).absolute()
    if not file.exists():
        raise ConfigError(
            f"there is no file {file}, named by {SITE_VARIABLE}",
            f"Correct it, or type: unset {SITE_VARIABLE}",
        )
    return file


def _read(file: Path, is_of_site: bool = False) -> CommonFile:
    try:
        if is_of_site:
            _check_site(file)
        return CommonFile(str(file), read_text(file, str(file)), is_of_site)
    except ConfigError as error:
        hint = f"To go on without it, type: export {SITE_VARIABLE}=" if is_of_site else ""
        raise ConfigError(error.message, error.hint or hint) from error


def _check_site(file: Path) -> None:
    try:
        check_followed(file)
    except OthersError as error:
        message = f"the machines in {file} are those of the site, and run commands as you, but "
        raise ConfigError(f"{message}{error.message}", error.hint) from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def without(files: Collection[CommonFile], other: Path | None) -> Iterator[CommonFile]:
    """All but the one that is read as a project's own."""
    return (each for each in files if other is None or each.file != str(other))
