"""Comparison of the outputs of a rerun with those of the record that it repeats.

The state of an output:

identical   the same bytes; of standard output: of what the run itself printed, without the lines
            around it, which name the job
metrics     standard output that differs in the values of metrics only
differs     any other difference
missing     the rerun has no such output
unknown     the record's output is not in this clone, or cannot be compared

An artifact of type stats is the record itself, and is not compared.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from snakemake_kochi.artifacts.content import read_artifacts
from snakemake_kochi.artifacts.reading import published
from snakemake_kochi.errors import GitError, KochiError, NameNotFoundError
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.outputs import own_output_in
from snakemake_kochi.reproduction.subject import Subject

OutputState = Literal["identical", "metrics", "differs", "missing", "unknown"]


@dataclass(frozen=True)
class MetricChange:
    """A metric of the record and of its rerun, as texts; None: it does not match there.

    `relative`: the difference as a fraction of the record's value, None where they are no numbers.
    """

    name: str
    recorded: str | None
    now: str | None
    relative: float | None


@dataclass(frozen=True)
class ComparedOutput:
    """`dest` is that of the record; `why`, for people, only of the state unknown."""

    dest: str
    type: str
    state: OutputState
    metrics: tuple[MetricChange, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Originals:
    """The outputs of records, from their branch, or from `results/`."""

    repository: Path

    def content(self, subject: Subject, artifact: Mapping[str, Any]) -> bytes:
        """Raises KochiError if this clone does not have it."""
        path, digest = f"{subject.name}/{artifact['dest']}", artifact.get("sha256")
        why: KochiError = NameNotFoundError(f"{path} is in no commit of this clone")
        for commit in subject.commits:
            try:
                for _, stream in read_artifacts(self.repository, commit, [path]):
                    content: bytes = stream.read()
                    if digest in (None, _digest(content)):
                        return content
            except NameNotFoundError:
                pass  # a later result has another name, or was removed
            except (GitError, KochiError) as error:
                why = error
        results = WorkingPaths(self.repository, str(subject.record["machine"])).results
        with suppress(OSError):
            content = (results / artifact["dest"]).read_bytes()
            if _digest(content) == digest:
                return content
        if digest is not None:
            with suppress(GitError):
                for _, content in published(self.repository).read_history([path]):
                    if _digest(content) == digest:
                        return content
        raise why


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def compare(
    originals: Originals,
    subject: Subject,
    record: Mapping[str, Any],
    files: Mapping[str, Path],
    metrics: Mapping[str, str],
) -> list[ComparedOutput]:
    """Each output of a record compared with that of a rerun.

    `record`: that of the rerun; `files`: its outputs, by the destinations that they had without the
    directory of the rerun; `metrics`: the expressions of the batch.
    """
    compared = []
    for artifact in subject.record["artifacts"]:
        if artifact["type"] != "stats":
            dest = original_dest(subject.record, artifact["dest"])
            content = None
            with suppress(FileNotFoundError, KeyError):
                content = files[dest].read_bytes()
            compared.append(_compare(originals, subject, artifact, content, record, metrics))
    return compared


def original_dest(record: Mapping[str, Any], dest: str) -> str:
    """The destination without the directory of a rerun, if the record is of one."""
    parts = dest.split("/", 2)
    return parts[2] if record.get("rerun_of") and len(parts) == 3 else dest


def _compare(
    originals: Originals,
    subject: Subject,
    artifact: Mapping[str, Any],
    content: bytes | None,
    record: Mapping[str, Any],
    metrics: Mapping[str, str],
) -> ComparedOutput:
    dest, kind = str(artifact["dest"]), str(artifact["type"])
    if content is None:
        return ComparedOutput(dest, kind, "missing")
    if artifact.get("sha256") == _digest(content):
        return ComparedOutput(dest, kind, "identical", _unchanged(metrics, kind, content, record))
    if kind != "stdout" and artifact.get("sha256"):
        return ComparedOutput(dest, kind, "differs")
    try:
        before = originals.content(subject, artifact)
        if kind != "stdout":
            return ComparedOutput(dest, kind, "identical" if before == content else "differs")
        was, now = own_output_in(subject.record, before), own_output_in(record, content)
    except (KochiError, KeyError, TypeError, ValueError) as error:
        why = error.sentences if isinstance(error, KochiError) else f"its record lacks {error}"
        return ComparedOutput(dest, kind, "unknown", why=why)
    changes = tuple(_changes(metrics, was, now))
    if was == now:
        return ComparedOutput(dest, kind, "identical", changes)
    is_alike = bool(metrics) and _without(metrics, was) == _without(metrics, now)
    return ComparedOutput(dest, kind, "metrics" if is_alike else "differs", changes)


def _unchanged(
    metrics: Mapping[str, str], kind: str, content: bytes, record: Mapping[str, Any]
) -> tuple[MetricChange, ...]:
    if kind != "stdout":
        return ()
    text = own_output_in(record, content)
    return tuple(_changes(metrics, text, text))


def _changes(metrics: Mapping[str, str], was: str, now: str) -> Iterator[MetricChange]:
    for name, expression in metrics.items():
        before, after = _last(expression, was), _last(expression, now)
        if before is not None or after is not None:
            yield MetricChange(name, before, after, relative_difference(before, after))


def _last(expression: str, text: str) -> str | None:
    """The value of a metric, as the table of a batch has it."""
    found = re.findall(expression, text, re.MULTILINE)
    return found[-1] if found else None


def relative_difference(before: str | None, after: str | None) -> float | None:
    """(after - before) / before; 0 for equal numbers, None where that is no number."""
    try:
        was, now = float(before or ""), float(after or "")
        difference = 0.0 if was == now else (now - was) / abs(was)
    except (ValueError, ZeroDivisionError):
        return None
    return difference if math.isfinite(difference) else None


def _without(metrics: Mapping[str, str], text: str) -> str:
    """The text with each value of a metric blanked, wherever its expression matches."""
    spans = sorted(
        match.span(1)
        for expression in metrics.values()
        for match in re.finditer(expression, text, re.MULTILINE)
        if match.start(1) >= 0
    )
    parts, end = [], 0
    for start, stop in spans:
        parts.append(text[end:start])
        end = max(end, stop)
    return "\0".join([*parts, text[end:]])
