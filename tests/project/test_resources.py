"""Where the rule library is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from snakemake_kochi import resources
from snakemake_kochi.errors import KochiError
from snakemake_kochi.project.shape import AMOUNTS, CHECKS


@pytest.mark.parametrize("name", ["kochi.schema.yaml", "experiment.schema.yaml"])
def test_the_schemas_are_valid_json_schemas(name: str) -> None:
    text = (resources.workflow_directory() / "schemas" / name).read_text()
    jsonschema.Draft7Validator.check_schema(yaml.safe_load(text))


def own_words(schema: Any) -> Iterator[tuple[str, str]]:
    """The words of a schema that are not those of JSON Schema, and their values."""
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in ("x-read", "x-check", "x-keys"):
            yield key, value
    parts = schema.values() if isinstance(schema, dict) else schema
    for part in parts if isinstance(schema, dict | list) else ():
        yield from own_words(part)


@pytest.mark.parametrize("name", ["kochi.schema.yaml", "experiment.schema.yaml"])
def test_the_words_of_our_own_in_the_schemas_have_a_meaning(name: str) -> None:
    text = (resources.workflow_directory() / "schemas" / name).read_text()
    known = {"x-read": {"raw", "names", "script", *AMOUNTS}, "x-check": CHECKS, "x-keys": CHECKS}
    found = set(own_words(yaml.safe_load(text)))
    assert len(found) > 5
    assert [(word, value) for word, value in found if value not in known[word]] == []


def test_an_installed_directory_comes_before_the_checkouts(tmp_path: Path) -> None:
    package = tmp_path / "snakemake_kochi"
    (tmp_path / "profiles").mkdir()
    assert resources.profiles_directory(package) == tmp_path / "profiles"
    (package / "profiles").mkdir(parents=True)
    assert resources.profiles_directory(package) == package / "profiles"


def test_an_incomplete_installation_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KochiError, match="pip install"):
        resources.workflow_directory(tmp_path / "snakemake_kochi")
