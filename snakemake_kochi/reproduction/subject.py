"""What a rerun needs of a record, checked: anyone may have written the record.

Nothing of it becomes a path, an option of git or a part of a script before it is checked here, or
compared with the code that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.artifacts.record import checked_form
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_name
from snakemake_kochi.git import FULL_IDENTITY
from snakemake_kochi.project.grid import MAXIMUM_DUPLICATES
from snakemake_kochi.project.values import dest_problem, name_problem, value_problem

_FORMS_OF_SOURCES = ({"git", "commit"}, {"mirror", "tree", "base"}, set[str]())


@dataclass(frozen=True)
class RecordedCode:
    """A snapshot as a record names it."""

    tree: str
    base: str | None
    dirty: bool


@dataclass(frozen=True)
class Subject:
    """A recorded result to run again.

    `name`: under which it is published, in `commits` that may have its files. `sources`: that of
    each recipe, by `dependency:recipe`, as in `Install`. `code` is that of the run, and
    `configuration` that with its experiment: the same, unless the batch has the key `code`.
    """

    name: str
    commits: tuple[str, ...]
    record: Mapping[str, Any]
    identity: str
    experiment: str
    batch: str
    parameters: Mapping[str, str]
    duplicate: int
    code: RecordedCode
    configuration: RecordedCode
    sources: Mapping[str, Mapping[str, str]]

    @property
    def point(self) -> tuple[object, ...]:
        """What two records of the same point of the same batch have in common."""
        return self.experiment, self.batch, tuple(self.parameters.items()), self.duplicate


def subject_of(record: Mapping[str, Any], name: str, commits: tuple[str, ...]) -> Subject:
    """Raises DamagedFileError for a record of a newer release, and for one that no release wrote;
    KochiError for one that cannot be run again."""
    identity = record.get("identity")
    if not isinstance(identity, str) or not is_name(identity):
        raise DamagedFileError(
            f"a record published as '{name}' was edited: key 'identity' is missing, or no name"
        )
    record = checked_form(record, identity)
    if record.get("batch") == "" or record.get("rule"):
        what = "a rule of a Snakefile" if record.get("rule") else "a job by hand"
        raise KochiError(
            f"{identity} is of {what}, and not of a batch of an experiment",
            "To run it again, get its code in a directory, as 'kochi why FILE' says.",
        )
    try:
        subject = _subject(record, name, commits)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFileError(
            f"{identity}: this record was edited, or damaged: {_said(error)}",
            "Choose another record; to see this one, type: kochi why --json FILE",
        ) from error
    return subject


def _said(error: Exception) -> str:
    return f"there is no key {error}" if isinstance(error, KeyError) else str(error)


def _subject(record: Mapping[str, Any], name: str, commits: tuple[str, ...]) -> Subject:
    subject = Subject(
        name=name,
        commits=commits,
        record=record,
        identity=record["identity"],
        experiment=_text("experiment", record["experiment"]),
        batch=_text("batch", record["batch"]),
        parameters={key: _text(key, value) for key, value in record["parameters"].items()},
        duplicate=record["duplicate"],
        code=_code("snapshot", record["snapshot"]),
        configuration=_code("configuration", record.get("configuration") or record["snapshot"]),
        sources={
            f"{_name(each['dependency'])}:{_name(each['recipe'])}": _source(each["source"])
            for each in record["recipes"]
        },
    )
    for parameter, value in subject.parameters.items():
        if wrong := name_problem(parameter) or value_problem(value):
            raise ValueError(f"parameter '{parameter}': {wrong}")
    number = subject.duplicate
    if not isinstance(number, int) or not 0 <= number < MAXIMUM_DUPLICATES:
        raise ValueError(f"duplicate: {number!r} is no number of a duplicate")
    for artifact in record["artifacts"]:
        _text("artifacts.type", artifact["type"])
        if wrong := dest_problem(_text("artifacts.dest", artifact["dest"])):
            raise ValueError(f"artifacts.dest: {artifact['dest']!r}: {wrong}")
    for key in ("machine", "node", "started"):
        _text(key, record[key])
    if not is_name(record["machine"]):
        raise ValueError(f"machine: {record['machine']!r} is no name")
    return subject


def _code(key: str, snapshot: Mapping[str, Any]) -> RecordedCode:
    return RecordedCode(
        tree=_id(f"{key}.tree", snapshot["tree"]),
        base=None if snapshot["base"] is None else _id(f"{key}.base", snapshot["base"]),
        dirty=snapshot["dirty"] is not False,
    )


def _source(source: Mapping[str, Any]) -> dict[str, str]:
    checked = {key: _text(f"recipes.source.{key}", value) for key, value in source.items()}
    if set(checked) not in _FORMS_OF_SOURCES:
        raise ValueError(f"recipes.source: unexpected keys {', '.join(checked)}")
    for key in ("commit", "tree", "base"):
        if checked.get(key):
            _id(f"recipes.source.{key}", checked[key])
    return checked


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{key}: a text was expected, not {value!r}")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise ValueError(f"recipes: {value!r} is no name of a recipe")
    return value


def _id(key: str, value: Any) -> str:
    if not isinstance(value, str) or not FULL_IDENTITY.fullmatch(value):
        raise ValueError(f"{key}: {value!r} is no id of git")
    return value
