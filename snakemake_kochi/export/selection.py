"""Which results are exported: records of artifact branches, chosen by experiment and batch."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from snakemake_kochi.artifacts.reading import Published, RecordFile, published
from snakemake_kochi.artifacts.record import checked_form, is_success, parse_record
from snakemake_kochi.errors import DamagedFileError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.git import FULL_IDENTITY, how_to_complete

# The keys without which a run cannot be described.
_NEEDED = (
    *("identity", "experiment", "batch", "name", "parameters", "duplicate", "machine", "node"),
    *("snapshot", "recipes", "started", "ended", "seconds", "artifacts"),
)


@dataclass(frozen=True, eq=False)
class Run:
    """A run with its record, which a commit of an artifact branch has under a `name`.

    `record` is in today's form, `text` as it is in the branch.
    """

    name: str
    commit: str
    record: Mapping[str, Any]
    text: bytes

    @property
    def identity(self) -> str:
        return str(self.record["identity"])

    @property
    def experiment(self) -> str:
        """The path of the experiment's file in the project; empty for a job of an own rule."""
        return str(self.record["experiment"])

    @property
    def workflow(self) -> str:
        """What determined its parameters and artifacts, for people: an experiment, or a rule."""
        return self.experiment or f"rule {self.record['name']}"

    @property
    def batch(self) -> str:
        """Empty for a job outside of any batch."""
        return str(self.record["batch"])

    @property
    def tree(self) -> str:
        """The id of its snapshot's tree."""
        return str(self.record["snapshot"]["tree"])

    @property
    def configuration(self) -> Mapping[str, Any]:
        """The snapshot with its experiment, which need not be that of its code."""
        found: Mapping[str, Any] = self.record.get("configuration") or self.record["snapshot"]
        return found

    @property
    def point(self) -> str:
        """Its parameters, for people."""
        values = [f"{name}={value}" for name, value in self.record["parameters"].items()]
        return " ".join([*values, f"duplicate {self.record['duplicate']}"])

    @property
    def has_succeeded(self) -> bool:
        return is_success(self.record)

    @property
    def is_rerun(self) -> bool:
        return "rerun_of" in self.record

    def path(self, dest: str) -> str:
        """The path of an artifact in its branch."""
        return f"{self.name}/{dest}"


@dataclass(frozen=True)
class Selection:
    """The runs, in the order in which they began, and the records that could not be used."""

    runs: tuple[Run, ...]
    unusable: tuple[str, ...] = ()

    @property
    def batches(self) -> list[tuple[str, str]]:
        """The workflows and batches of the runs."""
        return sorted({(run.workflow, run.batch) for run in self.runs})

    @cached_property
    def replaced(self) -> frozenset[Run]:
        """The successful runs of which a newer one has the name, workflow, batch, parameters and
        duplicate, so its files took the place of theirs. Reruns are not compared."""
        newest: dict[tuple[object, ...], Run] = {}
        replaced = set()
        for run in self.runs:
            if run.has_succeeded and not run.is_rerun:
                values = tuple(sorted(run.record["parameters"].items()))
                point = (run.name, run.workflow, run.batch, values, run.record["duplicate"])
                if point in newest:
                    replaced.add(newest[point])
                newest[point] = run
        return frozenset(replaced)


def select(
    repository: Path,
    experiment: str | None = None,
    batches: Collection[str] = (),
    names: Collection[str] = (),
    commit: str | None = None,
) -> Selection:
    """The runs of an experiment, of some of its batches, or all.

    `names`: only results that are published under one of them. `commit`: of an artifact branch, by
    default the newest results. Raises GitError without artifact branches, and NameNotFoundError for
    what has no results.
    """
    branches = published(repository, commit)
    if unknown := [name for name in names if name not in branches.tips]:
        raise NameNotFoundError(
            f"no artifact branch has results under the name '{unknown[0]}'",
            nearest(unknown[0], branches.tips),
        )
    tips = {name: tips for name, tips in branches.tips.items() if not names or name in names}
    runs, unusable = [], []
    for found in _runs(Published(repository, tips)):
        if isinstance(found, Run):
            runs.append(found)
        else:
            unusable.append(found)
    if not runs and unusable:
        more = f" (and {len(unusable) - 1} more)" if len(unusable) > 1 else ""
        raise KochiError(f"no record can be used: {unusable[0]}{more}", how_to_complete())
    if not runs:
        where = f"commit {commit} has" if commit else "the artifact branches have"
        raise KochiError(
            f"{where} no results",
            "To list commits with results, type: kochi artifact log",
        )
    chosen = _chosen(runs, experiment, batches)
    return Selection(tuple(sorted(chosen, key=_began)), tuple(unusable))


def _began(run: Run) -> tuple[str, str, str]:
    return run.record["started"], run.name, run.identity


def _chosen(runs: Sequence[Run], experiment: str | None, batches: Collection[str]) -> list[Run]:
    if experiment is None:
        return list(runs)
    of_experiment = [run for run in runs if run.experiment == experiment]
    if not of_experiment:
        raise NameNotFoundError(
            f"no result is of the experiment {experiment}",
            nearest(experiment, {run.experiment for run in runs} - {""}),
        )
    known = {run.batch for run in of_experiment}
    for batch in batches:
        if batch not in known:
            raise NameNotFoundError(
                f"{experiment}: no result is of a batch '{batch}'", nearest(batch, known - {""})
            )
    return [run for run in of_experiment if not batches or run.batch in batches]


def _runs(branches: Published) -> Iterator[Run | str]:
    """The runs, each once, and a sentence for each record that cannot be used."""
    seen: set[tuple[str, str]] = set()
    for name, tips in branches.tips.items():
        for tip in tips:
            here = Published(branches.repository, {name: (tip,)})
            files = [*here.records(), *here.records(failed=True)]
            edited = here.edited(files)
            for file, content in here.read_records(files):
                if (name, file.identity) in seen:
                    continue
                seen.add((name, file.identity))
                if file in edited:
                    yield f"record {file.identity} of {name} was edited after its run"
                else:
                    yield _run(file, tip, content)


def _run(file: RecordFile, commit: str, content: bytes | None) -> Run | str:
    place = f"record {file.identity} of {file.name}"
    if content is None:
        return f"{place} is not in this clone"
    try:
        record = checked_form(parse_record(content), place)
    except DamagedFileError as error:
        return error.sentences
    except ValueError as error:
        return f"{place} was edited, or damaged: {error}"
    wrong = [key for key in _NEEDED if key not in record]
    if wrong or not _is_sound(file, record) or record["identity"] != file.identity:
        told = ", ".join(wrong) if wrong else "values that a run does not write"
        return f"{place} was edited, or written by another program: see {told}"
    return Run(file.name, commit, record, content)


def _is_sound(file: RecordFile, record: Mapping[str, Any]) -> bool:
    """Whether what becomes a path, an argument of git or a time in a crate is one."""
    with suppress(KeyError, TypeError, ValueError):
        os.fsencode(json.dumps(record, ensure_ascii=False))  # no impossible characters
        snapshots = [record["snapshot"], record.get("configuration") or record["snapshot"]]
        trees = [each["tree"] for each in snapshots]
        bases = [each["base"] or trees[0] for each in snapshots]
        times = [datetime.fromisoformat(record[key]) for key in ("started", "ended")]
        paths = [file.name, record["identity"], *_destinations(record)]
        paths += [record["experiment"]] if record["experiment"] else []
        names = [each[key] for each in record["recipes"] for key in ("dependency", "recipe")]
        return (
            all(FULL_IDENTITY.fullmatch(each) for each in (*trees, *bases))
            and all(map(is_inside, paths))
            and not any("/" in name for name in (file.name, record["identity"]))
            and all(time.tzinfo is not None for time in times)
            and all(isinstance(each, str) for each in (*names, *record["parameters"].values()))
        )
    return False


def _destinations(record: Mapping[str, Any]) -> list[str]:
    return [each["dest"] for each in record["artifacts"]]


def is_inside(path: str) -> bool:
    """Whether a path from a record stays in the directory below which it is written.

    A `.git` would be executed by whoever types git there.
    """
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and not path.startswith("/")
        and "\0" not in path
        and not any(part == ".." or part.lower() == ".git" for part in parts)
        and os.path.normpath(path) == path
    )
