"""Where the rule library is found."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from snakemake_kochi import resources
from snakemake_kochi.errors import KochiError


@pytest.mark.parametrize("name", ["kochi.schema.yaml", "experiment.schema.yaml"])
def test_the_schemas_are_valid_json_schemas(name: str) -> None:
    text = (resources.workflow_directory() / "schemas" / name).read_text()
    jsonschema.Draft7Validator.check_schema(yaml.safe_load(text))


def test_an_installed_directory_comes_before_the_checkouts(tmp_path: Path) -> None:
    package = tmp_path / "snakemake_kochi"
    (tmp_path / "profiles").mkdir()
    assert resources.profiles_directory(package) == tmp_path / "profiles"
    (package / "profiles").mkdir(parents=True)
    assert resources.profiles_directory(package) == package / "profiles"


def test_an_incomplete_installation_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KochiError, match="pip install"):
        resources.workflow_directory(tmp_path / "snakemake_kochi")
