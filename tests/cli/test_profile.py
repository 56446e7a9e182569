"""`kochi profile`: files that the user then owns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from snakemake_kochi.resources import profiles_directory

from .conftest import Outcome

Kochi = Callable[..., Outcome]


@pytest.fixture
def installed_file(own_surroundings: Path) -> Path:
    return own_surroundings / ".config" / "snakemake" / "local" / "config.yaml"


def test_a_profile_goes_where_snakemake_looks_for_it(installed_file: Path, kochi: Kochi) -> None:
    from snakemake.cli import get_profile_dir

    outcome = kochi("profile", "install", "local")
    assert outcome.status == 0
    assert "snakemake --profile local" in outcome.out
    assert installed_file.read_bytes() == (profiles_directory() / "local/config.yaml").read_bytes()
    found = get_profile_dir("local")
    assert found is not None
    assert found[1] == installed_file


def test_a_changed_profile_is_kept_unless_forced(installed_file: Path, kochi: Kochi) -> None:
    kochi("profile", "install", "local")
    # Once more is no harm.
    assert kochi("profile", "install", "local").status == 0
    installed_file.write_text("jobs: 3\n")
    outcome = kochi("profile", "install", "local")
    assert outcome.status == 1
    assert "kochi profile install local --force" in outcome.err
    assert installed_file.read_text() == "jobs: 3\n"
    assert kochi("profile", "install", "local", "--force").status == 0
    assert installed_file.read_text() != "jobs: 3\n"


def test_an_unknown_profile_gets_the_nearest_name(kochi: Kochi) -> None:
    outcome = kochi("profile", "install", "locla")
    assert outcome.status == 1
    assert "did you mean 'local'?" in outcome.err


def test_the_list_tells_what_is_installed(installed_file: Path, kochi: Kochi) -> None:
    def state() -> str:
        rows = {row["profile"]: row for row in kochi("profile", "list", "--json").data}
        assert rows["local"]["file"] == str(installed_file)
        return str(rows["local"]["state"])

    assert state() == "not installed"
    kochi("profile", "install", "local")
    assert state() == "installed"
    installed_file.write_text("jobs: 3\n")
    assert state() == "changed"
    assert "changed" in kochi("profile", "list").out
