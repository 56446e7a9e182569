"""The paths of the rule library and the profiles, in an installed package or in a checkout."""

from __future__ import annotations

from pathlib import Path

from snakemake_kochi.errors import KochiError

_PACKAGE = Path(__file__).resolve().parent  # what is installed, or in a checkout


def _find(name: str, package: Path) -> Path:
    # An installed package comes first: site-packages may hold a foreign directory of that name.
    for candidate in (package / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise KochiError(
        f"{package}: the directory '{name}' of snakemake_kochi is missing",
        "Install it again: in a clone of snakemake_kochi, type: pip install --force-reinstall .",
    )


def workflow_directory(package: Path = _PACKAGE) -> Path:
    """The directory with the rule library's Snakefile, rules/ and schemas/."""
    return _find("workflow", package)


def profiles_directory(package: Path = _PACKAGE) -> Path:
    """The directory with one directory per Snakemake profile."""
    return _find("profiles", package)
