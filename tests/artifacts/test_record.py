"""Records: what the schema says, what the documentation says, and records of other releases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support import REPOSITORY, write

from snakemake_kochi.artifacts.record import (
    RECORD_VERSION,
    contradictions,
    read_record,
    record_schema,
    todays_form,
)
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import to_json

PAGE = (REPOSITORY / "docs" / "records.md").read_text()
# As the first release wrote it.
FIRST = {
    "version": 1,
    "identity": "sum.first.20261121T101112.0123456789ab",
    "experiment": "sum.yaml",
    "batch": "first",
    "name": "sum",
    "parameters": {"n": "1"},
    "duplicate": 0,
    "build_parameters": {},
    "run_parameters": {"n": "1"},
    "build_script": "",
    "run_script": "echo 1",
    "machine": "local",
    "node": "node1",
    "worker": "0",
    "queue": "q",
    "job": "3",
    "attempt": "1",
    "nonce": "0123456789abcdef",
    "runner": "shell",
    "snapshot": {"tree": "a" * 40, "commit": "b" * 40, "base": None, "dirty": False, "diff": ""},
    "recipes": [
        {
            "dependency": "tool",
            "recipe": "fast",
            "digest": "0123456789abcdef",
            "prefix": "/root/prefix",
            "source": {},
            "activate_script": "",
            "script": "make",
            "envs": {},
        }
    ],
    "build": "0123456789abcdef",
    "run": "0123456789abcdef",
    "started": "2026-11-21T10:11:12+00:00",
    "ended": "2026-11-21T10:11:13+00:00",
    "seconds": 1.0,
    "exit_status": 0,
    "artifacts": [{"type": "stats", "dest": "1.json", "src": None}],
}


def keys_of(schema: Any, inside: str = "") -> Iterator[tuple[str, str, int | None]]:
    """Each key that the schema describes, the key that it is in, and the version that added it."""
    for key, described in schema.get("properties", {}).items():
        yield key, inside, described.get("x-since")
        yield from keys_of(described, key)
    for values in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(values, dict):
            yield from keys_of(values, inside)


def test_the_page_lists_the_keys_of_the_schema() -> None:
    jsonschema.Draft7Validator.check_schema(record_schema())
    _, _, after = PAGE.partition("<!-- keys of a record -->\n")
    listed = re.findall(r"`([^`]+)`", after.partition("\n\n")[0])
    # Those of a fact are described with the key `facts`.
    assert set(listed) == {key for key, inside, _ in keys_of(record_schema()) if inside != "facts"}


def test_the_page_says_which_version_added_which_key() -> None:
    rows = re.findall(r"^\| (\d+) \| added: (.*) \|$", PAGE, re.M)
    told = {key: int(version) for version, text in rows for key in re.findall(r"`(\w+)`", text)}
    told.pop("recipes")
    added = {key: since for key, _, since in keys_of(record_schema()) if since not in (None, 1)}
    assert told == added
    assert max(added.values()) == RECORD_VERSION
    assert record_schema()["properties"]["version"]["maximum"] == RECORD_VERSION


def test_a_record_of_the_first_version_is_brought_to_todays_form() -> None:
    found = todays_form(FIRST, "a record")
    assert contradictions(found) == []
    assert found["version"] == 1
    assert (found["outcome"], found["hardware"], found["facts"]) == ("success", None, {})
    assert found["recipes"][0]["install"] is None
    assert todays_form(found, "a record") == found
    # One record must not change another.
    found["facts"]["x"] = 1
    assert todays_form(FIRST, "a record")["facts"] == {}


def test_what_contradicts_the_schema_is_told_with_its_key() -> None:
    wrong = todays_form({**FIRST, "duplicate": "many", "worker": 3}, "a record")
    wrong["recipes"][0].pop("digest")
    assert contradictions(wrong) == [
        "duplicate: 'many' is not of type 'integer'",
        "recipes[0]: 'digest' is a required property",
        "worker: 3 is not of type 'string'",
    ]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (4, "newer snakemake_kochi (records of version 4; this one reads up to 3)"),
        (None, "key 'version' is missing or no number"),
        ("2", "key 'version' is missing or no number"),
        (True, "key 'version' is missing or no number"),
        (0, "key 'version' is missing or no number"),
    ],
)
def test_a_record_of_another_release_is_refused_with_a_message(
    tmp_path: Path, version: object, said: str
) -> None:
    file = write(tmp_path / "record.json", to_json({**FIRST, "version": version}).decode())
    with pytest.raises(DamagedFileError) as refused:
        read_record(file)
    assert said in refused.value.message
    assert refused.value.message.startswith(f"{file}: ")
