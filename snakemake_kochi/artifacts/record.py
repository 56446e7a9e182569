"""Records of attempts. `workflow/schemas/record.schema.yaml` describes the keys."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import read_json, to_json
from snakemake_kochi.resources import workflow_directory

RECORD_VERSION = 1
_LONGEST_LABEL = 80  # characters
Outcome = Literal["success", "failed", "lost"]


def read_record(file: Path) -> dict[str, Any]:
    """Read a record from a file. Raises FileNotFoundError, and DamagedFileError if it is no record
    or one of a newer release."""
    return with_known_version(read_json(file), str(file))


def with_known_version(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The record. Raises DamagedFileError if it is none or one of a newer release. `where`: names
    it for people."""
    version = record.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedFileError(f"{where}: not a record: key 'version' is missing or no number")
    if version > RECORD_VERSION:
        raise DamagedFileError(
            f"{where}: written by a newer snakemake_kochi (records of version {version}; this one "
            f"reads up to {RECORD_VERSION})",
            "Install a newer snakemake_kochi.",
        )
    return dict(record)


def digest_written(record: Mapping[str, Any], dest: str) -> str | None:
    """The SHA-256 of the artifact that a run wrote there, of its record as it was written; None if
    the record does not tell. Raises KeyError and TypeError for a damaged record."""
    own: Mapping[str, Any] = next((a for a in record["artifacts"] if a["dest"] == dest), {})
    if own.get("type") == "stats":
        # Such an artifact is the record itself, which cannot contain its own digest.
        return hashlib.sha256(to_json(record)).hexdigest()
    return own.get("sha256")


def why_edited(record: Path, files: Mapping[str, Path]) -> str:
    """Why a result is not what its run wrote: one of its files, by destination, was edited; "" if
    none was. Raises OSError and DamagedFileError.

    A run writes its record last, so only younger files are read. A time can be set back, but not
    that of the last change.
    """
    written = os.stat(record)
    for dest, file in files.items():
        found = os.stat(file)
        is_younger = found.st_mtime_ns > written.st_mtime_ns
        if not is_younger and found.st_ctime_ns <= written.st_ctime_ns:
            continue
        try:
            expected = digest_written(read_json(record), dest)
        except (KeyError, TypeError) as error:
            raise DamagedFileError(f"{record}: {error!r}") from error
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if expected and digest != expected:
            return (
                f"{file} was edited after its run; for a new run, delete it; to get it back, type: "
                "kochi artifact restore --force"
            )
    return ""


def new_identity(label: str, moment: datetime, ending: str) -> str:
    """The identity of a record: what ran, cut after 80 characters, when, and what makes it unique.

    `label`: of a run, the experiment and the batch, with a dot between them. No dot in `ending`.
    """
    return f"{label[:_LONGEST_LABEL]}.{moment:%Y%m%dT%H%M%S}.{ending}"


def label_of(identity: str) -> str:
    """What ran, cut after 80 characters: the beginning of an identity."""
    return identity.rsplit(".", 2)[0]


def may_be_of(label: str, experiment: str | None, batch: str | None) -> bool:
    """Whether a label may be that of a run of an experiment and a batch (None: of any)."""
    if experiment is not None and not label.startswith(f"{experiment}."[:_LONGEST_LABEL]):
        return False
    return batch is None or label.endswith(f".{batch}") or len(label) >= _LONGEST_LABEL


def is_success(record: Mapping[str, Any]) -> bool:
    """Whether the attempt of a record has a result, also of one that lacks keys."""
    return bool(record.get("outcome", "success") == "success")


@cache
def record_schema() -> Mapping[str, Any]:
    """The JSON schema of records."""
    import yaml  # runs do not need it

    from snakemake_kochi.project.document import FASTEST

    text = (workflow_directory() / "schemas" / "record.schema.yaml").read_text("utf-8")
    schema: dict[str, Any] = _completed(yaml.load(text, Loader=FASTEST))
    return schema


def _completed(part: Any) -> Any:
    """A part of the schema, in which each object says which keys it has."""
    if not isinstance(part, dict):
        return part
    found = {key: _completed(each) for key, each in part.items() if key != "x-optional"}
    if keys := part.get("properties"):
        required = [key for key in keys if key not in part.get("x-optional", ())]
        found |= {"required": required, "additionalProperties": False}
        found.setdefault("type", "object")
    return found


def contradictions(record: Mapping[str, Any], is_whole: bool = True) -> list[str]:
    """What in a record contradicts the schema: a sentence each, with its key.

    With `is_whole` also keys that the record lacks, or that the schema does not have.
    """
    # Imported here: only commands for people check a record.
    import fastjsonschema

    # jsonschema would take 20 times as long, and a branch may have 10,000 records. It tells more.
    try:
        _validate(is_whole)(record)
    except fastjsonschema.JsonSchemaValueException:
        pass
    else:
        return []
    import jsonschema

    validator: Any = jsonschema.Draft7Validator(record_schema())
    errors = sorted(validator.iter_errors(record), key=lambda error: list(map(str, error.path)))
    if not is_whole:
        keys = ("required", "additionalProperties")
        errors = [error for error in errors if error.path or error.validator not in keys]
    return [": ".join(filter(None, [error.json_path[2:], error.message])) for error in errors]


@cache
def _validate(is_whole: bool) -> Callable[[Mapping[str, Any]], object]:
    import fastjsonschema

    schema = dict(record_schema())
    if not is_whole:
        schema |= {"required": [], "additionalProperties": True}
    found: Callable[[Mapping[str, Any]], object] = fastjsonschema.compile(schema)
    return found


def checked_form(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A record that anyone may have written: each key that it has is as the schema says. It may
    lack keys.

    `where`: names it for people. Raises DamagedFileError.
    """
    found = with_known_version(record, where)
    if wrong := contradictions(found, is_whole=False):
        identity = shlex.quote(str(record.get("identity")))
        raise DamagedFileError(
            f"{where} was edited: {wrong[0]}",
            f"To see all of it, type: kochi show record {identity}",
        )
    return found


def parse_record(content: bytes) -> dict[str, Any]:
    """A record from its text. Raises ValueError if it is no JSON object."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        # Not all names of files are UTF-8.
        text = content.decode("utf-8", "surrogateescape")
        record = json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record
