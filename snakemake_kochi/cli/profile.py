"""`kochi profile`: Snakemake profiles that are installed once, for the user to change."""

from __future__ import annotations

from pathlib import Path

import click
from platformdirs import user_config_dir

from snakemake_kochi.cli.main import Group
from snakemake_kochi.cli.options import json_option
from snakemake_kochi.cli.output import coloured, print_json, print_table, say
from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import edit_atomically
from snakemake_kochi.resources import profiles_directory

_FILE = "config.yaml"


@click.group(cls=Group)
def command() -> None:
    """Install or list the Snakemake profiles that come with kochi."""


@command.command("install")
@click.argument("name")
@click.option("--force", is_flag=True, help="Replace an installed profile that was changed.")
def install_profile(name: str, force: bool) -> None:
    """Copy profile NAME to where Snakemake looks for profiles."""
    source = _profiles().get(name)
    if source is None:
        raise NameNotFoundError(f"there is no profile '{name}', {nearest(name, _profiles())}")
    target = installed_file(name)
    if _state(source, target) == "changed" and not force:
        raise KochiError(
            f"{target} exists already and differs from kochi's profile",
            f"To replace it, type: kochi profile install {name} --force",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    edit_atomically(target, source.read_bytes())
    say(f"Wrote {target}")
    say(f"Use it with: snakemake --profile {name}")


@command.command("list")
@json_option
def list_profiles(as_json: bool) -> None:
    """List the profiles, and whether they are installed."""
    rows = [
        {"profile": name, "state": _state(source, file), "file": str(file)}
        for name, source in sorted(_profiles().items())
        for file in (installed_file(name),)
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("Profile", "State", "File"),
        [(row["profile"], coloured(row["state"]), row["file"]) for row in rows],
        "There are no profiles.",
    )


def _profiles() -> dict[str, Path]:
    return {path.parent.name: path for path in profiles_directory().glob(f"*/{_FILE}")}


def installed_file(name: str) -> Path:
    """The path of a profile of that name when it is installed."""
    # The same directory as in `snakemake.common.get_appdirs`, without importing Snakemake.
    return Path(user_config_dir("snakemake", "snakemake")) / name / _FILE


def _state(source: Path, target: Path) -> str:
    if not target.exists():
        return "not installed"
    return "installed" if target.read_bytes() == source.read_bytes() else "changed"
