"""`kochi show record`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from snakemake_kochi.artifacts.agreement import record_files
from snakemake_kochi.artifacts.origin import origin_in_commit, origin_of_file
from snakemake_kochi.artifacts.reading import published
from snakemake_kochi.artifacts.record import (
    contradictions,
    parse_record,
    record_schema,
    with_known_version,
)
from snakemake_kochi.cli.options import json_option
from snakemake_kochi.cli.output import print_json, print_pairs, remark
from snakemake_kochi.errors import DamagedFileError, GitError, NameNotFoundError
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.snapshot import toplevel

# The keys whose null says that there is none; others are null if a node does not tell.
_NONE = ("reason", "src", "allocation", "rerun_of", "base", "diff", "activate_script", "output")


@click.command("record")
@click.argument("name", required=False, metavar="[FILE|IDENTITY]")
@click.option("--schema", "is_schema", is_flag=True, help="Print the JSON schema of records.")
@json_option
def record_command(name: str | None, is_schema: bool, as_json: bool) -> int:
    """Show the record of a run or of a failed attempt.

    FILE is a result, in results/ or as a path in an artifact branch, or a file with a record;
    IDENTITY is that of a record. The exit
    status is 1 if it contradicts the schema.
    """
    if is_schema:
        if name is not None:
            raise click.UsageError(f"--schema is the same for all records: leave out {name!r}.")
        print_json(record_schema())
        return 0
    if name is None:
        raise click.UsageError(
            "Type the result or the identity of a record, for example: kochi show record "
            "results/local/fib/30.log; or: kochi show record --schema"
        )
    record = _find(name)
    if as_json:
        print_json(record)
    else:
        print_pairs(dict(_flat(record)))
    wrong = contradictions(record)
    for each in wrong:
        remark(f"It contradicts the schema: {each}")
    return int(bool(wrong))


def _find(name: str) -> dict[str, Any]:
    """Raises NameNotFoundError, and DamagedFileError for a record of a newer release."""
    file = Path(name)
    if file.is_file():
        if (found := _record_in(file)) is not None:
            return with_known_version(found, name)
        return dict(origin_of_file(toplevel(Path.cwd()), file).record)
    repository = toplevel(Path.cwd())
    if "/" in name:
        return dict(origin_in_commit(repository, "", name).record)
    content = None
    with suppress(GitError):  # no branch yet
        content = published(repository).record(name)
    if content is not None:
        try:
            found = parse_record(content)
        except ValueError as error:
            raise DamagedFileError(f"record {name}: not valid JSON ({error})") from error
        return with_known_version(found, f"record {name}")
    for each in _files_here():
        if (found := _record_in(each)) is not None and found["identity"] == name:
            return with_known_version(found, str(each))
    raise NameNotFoundError(
        f"'{name}' is neither a file nor the identity of a record in an artifact branch or in "
        "results/",
        "If the result is of another clone, type: kochi artifact fetch",
    )


def _record_in(file: Path) -> dict[str, Any] | None:
    """The record that a file is, None if it is something else."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(file.read_bytes())
        if isinstance(found, dict) and {"identity", "version", "parameters"} <= found.keys():
            return found
    return None


def _files_here() -> Iterator[Path]:
    """The records of results that may be in no branch yet."""
    state = Path.cwd() / ".snakemake" / "kochi"
    for machine in sorted(state.glob("*/")):
        yield from record_files(WorkingPaths(Path.cwd(), machine.name).records)


def _flat(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Keys as paths, such as hardware.cpu_model, and their values; of long texts the size."""
    for key, value in record.items():
        path = f"{before}{key}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{path}.")
        elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
            for index, each in enumerate(value):
                yield from _flat({f"{path}[{index}]": each})
        elif isinstance(value, str) and value.count("\n") > 1:
            yield path, f"({len(value.splitlines())} lines; --json shows them)"
        elif isinstance(value, dict | list):
            yield path, ", ".join(map(str, value)) or "none"
        else:
            nothing = "none" if key in _NONE else "unknown"
            yield path, nothing if value is None else value
