"""Records: what the schema says, what the documentation says, and records of newer releases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support import REPOSITORY, write

from snakemake_kochi.artifacts.record import (
    contradictions,
    read_record,
    record_schema,
)
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import to_json

PAGE = (REPOSITORY / "docs" / "records.md").read_text()
RECORD = {
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
            "install": None,
        }
    ],
    "build": "0123456789abcdef",
    "run": "0123456789abcdef",
    "started": "2026-11-21T10:11:12+00:00",
    "ended": "2026-11-21T10:11:13+00:00",
    "seconds": 1.0,
    "exit_status": 0,
    "artifacts": [{"type": "stats", "dest": "1.json", "src": None}],
    "outcome": "success",
    "earlier_attempts": [],
    "facts": {},
    "environment": {},
    **dict.fromkeys(("reason", "cpus", "allocation", "hardware", "system", "usage", "built")),
    **dict.fromkeys(("isolation", "launcher", "binding", "noise", "environment_seconds")),
}


def keys_of(schema: Any, inside: str = "") -> Iterator[tuple[str, str]]:
    """Each key that the schema describes, and the key that it is in."""
    for key, described in schema.get("properties", {}).items():
        yield key, inside
        yield from keys_of(described, key)
    for values in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(values, dict):
            yield from keys_of(values, inside)


def test_the_page_lists_the_keys_of_the_schema() -> None:
    jsonschema.Draft7Validator.check_schema(record_schema())
    _, _, after = PAGE.partition("<!-- keys of a record -->\n")
    listed = re.findall(r"`([^`]+)`", after.partition("\n\n")[0])
    # Those of a fact are described with the key `facts`.
    assert set(listed) == {key for key, inside in keys_of(record_schema()) if inside != "facts"}


def test_what_contradicts_the_schema_is_told_with_its_key() -> None:
    assert contradictions(RECORD) == []
    wrong: dict[str, Any] = deepcopy({**RECORD, "duplicate": "many", "worker": 3})
    wrong["recipes"][0].pop("digest")
    assert contradictions(wrong) == [
        "duplicate: 'many' is not of type 'integer'",
        "recipes[0]: 'digest' is a required property",
        "worker: 3 is not of type 'string'",
    ]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (2, "newer snakemake_kochi (records of version 2; this one reads up to 1)"),
        (None, "key 'version' is missing or no number"),
        ("2", "key 'version' is missing or no number"),
        (True, "key 'version' is missing or no number"),
        (0, "key 'version' is missing or no number"),
    ],
)
def test_a_record_of_another_release_is_refused_with_a_message(
    tmp_path: Path, version: object, said: str
) -> None:
    file = write(tmp_path / "record.json", to_json({**RECORD, "version": version}).decode())
    with pytest.raises(DamagedFileError) as refused:
        read_record(file)
    assert said in refused.value.message
    assert refused.value.message.startswith(f"{file}: ")
