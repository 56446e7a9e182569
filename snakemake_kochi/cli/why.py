"""`kochi why`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from humanfriendly.text import pluralize

from snakemake_kochi.artifacts.origin import Origin, find_origin
from snakemake_kochi.cli.options import json_option
from snakemake_kochi.cli.output import clock_duration, local_time, print_json, say, shown
from snakemake_kochi.snapshot import toplevel

_ABOUT_FILE = {
    "identical": "byte for byte as the run wrote it",
    "changed": "CHANGED since the run wrote it",
    "unknown": "not comparable: its record has no digest",
}
_SHORT = 12  # digits of an id
_MOST_INPUTS = 10


@click.command()
@click.argument("file")
@click.option(
    "--at",
    "commit",
    metavar="COMMIT",
    help="FILE is a path in this commit of an artifact branch, such as local/fib/30.log.",
)
@json_option
def command(file: str, commit: str | None, as_json: bool) -> int:
    """Tell which run wrote FILE: its experiment and point, its code, where and when it ran.

    FILE is a file in results/ or in a worktree of the artifact branch, an output of a rule of your
    own that is marked with artifact(), or a path in that branch.
    The exit status is 1 if the file has changed since its run.
    """
    repository = toplevel(Path.cwd())
    origin = find_origin(repository, file, commit)
    if as_json:
        print_json(asdict(origin))
    else:
        for heading, text in _story(origin):
            say(f"{heading:<11} {shown(text)}")
    return int(origin.file == "changed")


def _story(origin: Origin) -> Iterator[tuple[str, str]]:
    record = origin.record
    point = " ".join(f"{name}={value}" for name, value in record["parameters"].items())
    yield "File", f"{origin.path}: {_ABOUT_FILE[origin.file]}"
    if rule := record.get("rule"):
        yield from _rule(rule, point)
    else:
        batch = f"batch {record['batch']}" if record["batch"] else "a job of its own"
        yield "Experiment", f"{record['experiment']}, {batch}, named {record['name']}"
        yield "Point", f"{point or 'no parameters'}, duplicate {record['duplicate']}"
    yield "Run", _run(record)
    if node := _node(record):
        yield "Node", node
    if made := (record.get("preparation") or {}).get("prepare"):
        yield "Prepared", _prepared(made)
    if record.get("rerun_of"):
        yield "Rerun of", str(record["rerun_of"])
    yield from _code(origin)
    for recipe in record.get("recipes", ()):
        yield "Recipe", _recipe(recipe)
    where = f"commit {origin.commit[:_SHORT]}" if origin.commit else "not in a branch yet"
    yield "Record", f"{record['identity']}, {where}"


def _rule(rule: Mapping[str, Any], wildcards: str) -> Iterator[tuple[str, str]]:
    yield "Rule", f"{rule['name']}, {wildcards or 'no wildcards'}"
    yield "Command", rule["command"]
    if rule["params"]:
        yield "Params", " ".join(f"{name}={value}" for name, value in rule["params"].items())
    inputs = [
        f"{each['path']} ({each['sha256'][:_SHORT]})" if "sha256" in each else each["path"]
        for each in rule["inputs"]
    ]
    more = [f"and {len(inputs) - _MOST_INPUTS} more"] if len(inputs) > _MOST_INPUTS else []
    yield "Inputs", ", ".join(inputs[:_MOST_INPUTS] + more) or "none"


def _run(record: Mapping[str, Any]) -> str:
    node = record["node"] or "an unknown node"
    text = f"{local_time(record['started'])} on {node} (machine {record['machine']}), "
    text += f"{clock_duration(record['seconds'], 3)}, exit status {record['exit_status']}"
    if record["queue"]:
        text += f"; job {record['job']}, attempt {record['attempt']}, worker {record['worker']}"
    return text


def _prepared(made: Mapping[str, Any]) -> str:
    text = f"by prepare, {made['digest']}"
    if made["started"] is None:
        return text
    took = clock_duration(made["seconds"], 3)
    return f"{text}, {local_time(made['started'])} on {made['node']}, {took}"


def _node(record: Mapping[str, Any]) -> str:
    """The node in a few words; what the record lacks, or says in another way, is left out."""

    def value(key: str, inside: str) -> Any:
        return record[key].get(inside) if isinstance(record.get(key), dict) else None

    parts = [value("hardware", "cpu_model")]
    for what in ("sockets", "cores", "threads"):
        if isinstance(count := value("hardware", what), int):
            parts.append(pluralize(count, what[:-1]))
    if isinstance(memory := value("hardware", "memory_mb"), int):
        parts.append(f"{memory / 1024:.0f} GiB")
    parts.append(value("system", "os"))
    if kernel := value("system", "kernel"):
        parts.append(f"kernel {kernel}")
    if number := value("allocation", "id"):
        parts.append(f"{value('allocation', 'scheduler')} allocation {number}")
    return ", ".join(str(part) for part in parts if part)


def _code(origin: Origin) -> Iterator[tuple[str, str]]:
    snapshot = origin.record["snapshot"]
    base = f"commit {snapshot['base'][:_SHORT]}" if snapshot["base"] else "no commit"
    changes = f" with changes ({origin.changes})" if origin.changes else " with changes"
    named = origin.record["parameters"].get("code", "") if "configuration" in origin.record else ""
    called = f" ({named})" if named else ""
    yield "Code", base + called + (changes if snapshot["dirty"] else "")
    if configuration := origin.record.get("configuration"):
        of = configuration["base"]
        dirty = " with changes" if configuration["dirty"] else ""
        yield "Scripts", (f"of commit {of[:_SHORT]}" if of else "of no commit") + dirty
    if origin.code:
        yield "To get it", f"git worktree add --detach DIR {origin.code}"
    else:
        where = "it is not in this clone. To bring it here, type where the result was made: "
        yield "To get it", f"{where}kochi artifact push; then here: kochi artifact fetch"


def _recipe(recipe: Mapping[str, Any]) -> str:
    source = recipe.get("source") or {}
    text = f"{recipe['dependency']}:{recipe['recipe']}"
    if "commit" in source:
        return f"{text}, commit {source['commit'][:_SHORT]} of {source['git']}"
    if "tree" in source:
        return f"{text}, snapshot {source['tree'][:_SHORT]} of {source['mirror']}"
    return text
