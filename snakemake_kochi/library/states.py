"""The state of each point of a batch, as its files say: done, stale, failed, skipped, or not run;
why a result is stale; and why jobs of our rules failed, noted beside the places of their outputs.

Nothing is locked, and no Snakemake is started: a record counts as Snakemake's rules would count it.
That is one comparison: the digest of what determines a run (`BatchRules.identity`) contains the
names of its build and of what was prepared, and these contain all that determines them. Jobs that
wait or run are known by the queues and not here; see `cli/show/batch.py`.

A phase notes why it failed (`phases/products.py`). What only the executor knows, such as a timeout,
and that a run waited for a phase that failed, is noted here, from Snakemake's log events; and the
table of a batch is made that `kochi batch` did not finish.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from snakemake_kochi.artifacts.record import read_record, why_edited
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there, last_lines
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.files import Place
from snakemake_kochi.library.products import Products
from snakemake_kochi.phases.batch_freeze import shown_variables
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.make import sources_of
from snakemake_kochi.phases.products import (
    LAST_LINES,
    NEEDLESS,
    Failure,
    is_of_our_rules,
    read_failure,
    write_failure,
)
from snakemake_kochi.project.grid import Phase, Point
from snakemake_kochi.project.recipes import Recipe
from snakemake_kochi.snapshot import list_entries

State = Literal["skipped", "waiting", "running", "done", "failed", "stale"]
STATES: tuple[State, ...] = get_args(State)
EDITED = "its record was edited"
OTHER_PRODUCTS = "made with another installation or build than the one that is in use here"
_OTHER_CODE = "source files or recipes changed (KOCHI_ROOT does not have the code of that run)"
_UNNAMED = (
    "load_env_script, strict, the text of a launcher or the details of isolation changed, or "
    "something else that records do not have"
)
# `kochi batch` names the target of the batch whose table it wants in any case.
BATCH = "kochi_batch"
# Without it, a message that a hundred runs share is printed once.
_OF_ONE_JOB = re.compile(r"kochi job (\d+(?:\.\d+)?) on node \S+: ")
_OBJECT = re.compile(r"[0-9a-f]{40,64}")
_MOST_FILES = 3
_Found = Mapping[str, object]  # what a result was made of, by names for people


@dataclass(frozen=True)
class PointState:
    """The state of a point, and why, in a few words.

    `record` is the file of its record relative to the working directory, "" for a skipped point.
    `seconds` and `ended` are those of its result, if there is one. `output`: the last lines that a
    failed run printed. `told`: its failure is one of an earlier run. `job`: its job in a queue.
    `seed`: that of the rounds in which its result was made.
    """

    parameters: Mapping[str, str]
    duplicate: int
    state: State
    why: str = ""
    record: str = ""
    seconds: float | None = None
    started: str = ""
    ended: str = ""
    output: tuple[str, ...] = ()
    told: bool = False
    job: int | str | None = None
    seed: int | None = None

    @property
    def point(self) -> str:
        """The point as `--again` takes it."""
        values = [f"{name}={value}" for name, value in self.parameters.items()]
        return ",".join([*values, f"duplicate={self.duplicate}"])


class BatchStates:
    """Looks at the points of one batch, again and again; a record is read again if it changed.

    `files`: those at the last look. The working directory is that of the batch's files.
    """

    def __init__(self, batch: BatchRules) -> None:
        self.batch = batch
        self.files = batch.files
        self._changes = Changes(batch)
        self._known: dict[str, tuple[tuple[int, int, int], PointState]] = {}

    @classmethod
    def of(cls, freeze: Freeze, file: str, batch: str) -> BatchStates:
        """Raises NameNotFoundError and ConfigError, as a run of the batch would."""
        return cls(BatchRules.of(Products(freeze), freeze.experiment(file), batch))

    @cached_property
    def _order(self) -> dict[int, int]:
        return {id(point): index for index, point in enumerate(self.batch.grid.points)}

    def look(self) -> list[PointState]:
        """The states now, in the order of the grid."""
        files = self.batch.files_now()
        if files.looks != self.files.looks:  # else it knows its places already
            self.files = files
        ordered = sorted(self.files.places, key=lambda place: self._order[id(place.point)])
        return [*map(self._of, ordered), *self.skipped]

    @property
    def skipped(self) -> Iterator[PointState]:
        for each in self.batch.grid.skipped:
            for duplicate in range(self.batch.grid.least):
                yield PointState(each.parameters, duplicate, "skipped", each.reason)

    def _of(self, place: Place) -> PointState:
        file, point = str(place.record), place.point
        base = PointState(point.parameters, point.duplicate, "waiting", "not run yet", file)
        try:
            status = os.stat(file)
        except OSError:
            self._known.pop(file, None)
            if (failure := read_failure(place.record)) is None:
                return base
            if failure.stopped:
                return replace(base, why="interrupted")
            output, told, job = failure.output, failure.told, failure.job
            base = replace(base, output=output, told=told, job=job)
            return replace(base, state="failed", why=failure.reason)
        sign = (status.st_mtime_ns, status.st_size, status.st_ino)
        if (found := self._known.get(file)) is None or found[0] != sign:
            self._known[file] = found = (sign, self._of_record(place, base))
        state = found[1]
        if state.state != "done":
            return state
        why = next((f"{each} is gone" for each in place.files if not is_there(each)), None)
        with suppress(OSError, DamagedFileError, KeyError, TypeError):
            why = why or why_edited(place.record, place.by_destination)
        return replace(state, state="stale", why=why) if why else state

    def _of_record(self, place: Place, base: PointState) -> PointState:
        try:
            record = read_record(place.record)
        except (OSError, DamagedFileError) as error:
            return replace(base, state="stale", why=f"its record cannot be read: {error}")
        seconds = record.get("seconds")
        is_same = record.get("run") == self.batch.identity(place.point)
        why = "" if is_same else self._changes.since(record, place.point)
        return replace(
            base,
            state="stale" if why else "done",
            why=why,
            seconds=float(seconds) if isinstance(seconds, int | float) else None,
            started=str(record.get("started", "")),
            ended=str(record.get("ended", "")),
            seed=record.get("seed"),
        )


class Changes:
    """Compares records of a batch with what would run now. They may be of anybody, and edited."""

    def __init__(self, batch: BatchRules) -> None:
        self._batch = batch
        self._sources: dict[str, _Found | None] = {}

    def since(self, record: Mapping[str, Any], point: Point) -> str:
        """What differs, the most telling first, as far as records tell; never empty."""
        try:
            found = list(dict.fromkeys(self._since(record, point)))
            if not found and self._sources_in(str(record["snapshot"]["tree"])) is None:
                found = [_OTHER_CODE]
        except (KeyError, TypeError, AttributeError):
            found = [EDITED]
        return "; ".join(found) or _UNNAMED

    def _since(self, record: Mapping[str, Any], point: Point) -> Iterator[str]:
        grid, variant = self._batch.grid, self._batch.variants.at(point)
        scripts = {"run script": record["run_script"], "build script": record["build_script"]}
        yield from _differences(
            scripts, {"run script": grid.run.script, "build script": grid.build.script}
        )
        present = self._sources_in(variant.freeze.snapshot.tree)
        before = self._sources_in(str(record["snapshot"]["tree"]))
        if before is not None and present is not None:
            yield from _few(list(_differences(before, present)))
        for phase, seen in ((grid.run, "run_parameters"), (grid.build, "build_parameters")):
            yield from _differences(record[seen], _seen(phase, point), "parameter ")
        yield from self._in_recipes(record["recipes"], variant.recipes)
        made = {(each["type"], each["dest"], each["src"]) for each in record["artifacts"]}
        prepared = (record.get("preparation") or {}).get("prepare") or {}
        others = {
            "artifacts": made,
            "isolation of the run": record.get("isolation") is not None,
            "launcher": (record.get("launcher") or {}).get("name", ""),
            "prepare script": prepared.get("script"),
        }
        now = {
            "artifacts": {(each.type, each.dest, each.src) for each in point.artifacts},
            "isolation of the run": grid.run.isolation is not None,
            "launcher": self._batch.placement(point).launcher.name,
            "prepare script": grid.prepare.script if grid.prepare else None,
        }
        yield from _differences(others, now)

    def _sources_in(self, tree: str) -> _Found | None:
        """The source files of the experiment in a snapshot; None if it is not there any more."""
        if tree not in self._sources:
            self._sources[tree] = None
            if _OBJECT.fullmatch(tree):  # a record of somebody else: else it is an option of git
                freeze = self._batch.freeze
                with suppress(KochiError):
                    entries = list_entries(freeze.paths.store, tree)
                    own = sources_of(entries, freeze, self._batch.experiment)
                    self._sources[tree] = {each.path: (each.object, each.mode) for each in own}
        return self._sources[tree]

    def _in_recipes(
        self, recorded: Iterable[Mapping[str, Any]], recipes: Iterable[Recipe]
    ) -> Iterator[str]:
        used = {str(each["dependency"]): each for each in recorded}
        needed = {each.dependency: each for each in recipes}
        before = {dependency: each["recipe"] for dependency, each in used.items()}
        names = {dependency: each.name for dependency, each in needed.items()}
        yield from _differences(before, names, "recipe ")
        for dependency, recipe in needed.items():
            if before.get(dependency) == recipe.name:
                old = used[dependency]
                now = {
                    "its script": recipe.install_script,
                    "its envs": shown_variables(recipe.envs),
                    "its activate_script": recipe.activate_script,
                }
                was = {key: old.get(key.removeprefix("its "), value) for key, value in now.items()}
                found = list(_differences(was, now))
                source = self._batch.freeze.sources.get(str(recipe), {})
                origin = old.get("source") or {}
                if "commit" in source and source["commit"] != origin.get("commit"):
                    found.append(f"new commit {source['commit'][:12]}")
                elif "tree" in source and source["tree"] != origin.get("tree"):
                    found.append(f"directory {recipe.mirror_dir} changed")
                yield from (f"recipe {recipe}: {what}" for what in found)


def _seen(phase: Phase, point: Point) -> dict[str, str]:
    return {n: point.parameters[n] for n in phase.depend_params if n in point.parameters}


def _differences(before: _Found, now: _Found, kind: str = "") -> Iterator[str]:
    """What is new, gone or changed; of a `kind` with values for people, also these."""
    for name in dict.fromkeys((*before, *now)):
        if name not in before or name not in now:
            yield f"{kind}{name} is {'new' if name in now else 'gone'}"
        elif before[name] != now[name]:
            values = f"is {now[name]}, was {before[name]}"
            yield f"{kind}{name} {values if kind else 'changed'}"


def _few(files: list[str]) -> list[str]:
    more = len(files) - _MOST_FILES
    said = f"{more} more source file{'s' if more > 1 else ''} changed"
    return sorted(files)[:_MOST_FILES] + ([said] if more > 0 else [])


# ---- failures


class _Failures(logging.Handler):
    """Notes each failure when it is logged: others look at the batch meanwhile. `rules`: those of
    the failed phases, by output."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.rules: dict[Path, str] = {}
        self.has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(getattr(record, "event", None), "name", "") != "JOB_ERROR":
            return
        self.has_failed = True
        # A job of a group is reported once more, without a message.
        message = str(getattr(record, "rule_msg", None) or "").strip()
        logs = [Path(str(log)) for log in getattr(record, "log", None) or ()]
        for output in map(Path, map(str, getattr(record, "output", None) or ())):
            if is_of_our_rules(str(output)) and (message or output not in self.rules):
                self.rules[output] = str(getattr(record, "rule_name", ""))
                write_failure(output, _failure(read_failure(output), message, logs))


def _failure(noted: Failure | None, message: str, logs: Sequence[Path]) -> Failure:
    """`noted`: by the phase, if it began."""
    # Messages of executors for clusters end with a log.
    first = _OF_ONE_JOB.sub("", message.partition("\n")[0])
    if noted is None or noted.told:
        lines = next(filter(None, (last_lines(log, LAST_LINES) for log in logs)), [])
        match = _OF_ONE_JOB.match(message)
        job = None if match is None else match[1] if "." in match[1] else int(match[1])
        return Failure(first or "failed", tuple(lines), job=job)
    if first and "exit status" not in first and not noted.reason.startswith(first):
        # A timeout, for example, of which the phase knew only that it had to end.
        return Failure(f"{first} ({noted.reason})", noted.output, job=noted.job)
    return replace(noted, stopped=False)


def note_failures(
    workflow: Any, batches: Callable[[], Sequence[BatchRules]], wanted: str | None, is_part: bool
) -> None:
    """Note failures of jobs while this process runs, and at its end those of the runs that waited
    for them; then make the table of the batch whose target is `wanted`, if a run of it failed or
    only a part was asked for. Call while the workflow is parsed."""
    from snakemake.logging import logger

    failures, directory = _Failures(), Path.cwd()
    logger.addHandler(failures)

    def finish() -> None:
        # A second interrupt must end the run. Of Snakemake's parts, the DAG is looked at here only.
        with suppress(AttributeError, OSError, KeyboardInterrupt), chdir(directory):
            if workflow.dryrun or workflow.dag is None:
                return
            _note(failures.rules, batches())
            is_over = not any(True for _ in workflow.dag.needrun_jobs())
            has_run = any(True for _ in workflow.dag.needrun_jobs(exclude_finished=False))
            if not failures.has_failed and not (has_run and is_over):
                return  # it was interrupted
            for batch in batches():
                if batch.name == wanted and (failures.has_failed or is_part):
                    _make_table(workflow, batch)

    atexit.register(finish)


def _note(rules: Mapping[Path, str], batches: Collection[BatchRules]) -> None:
    """Note that failures were told, and the failures of runs that waited for a failed phase."""
    known = {file: failure for file in rules if (failure := read_failure(file)) is not None}
    for file, failure in known.items():
        write_failure(file, replace(failure, told=True))
    for batch in batches if known else ():
        for place in batch.files_now().places:
            needed = [batch.build_file(place.point), batch.prepared_for(place.point)]
            needed += batch.variants.at(place.point).installs
            failed = next((Path(f) for f in needed if f is not None and Path(f) in known), None)
            if failed is None or place.record in known or known[failed].reason.endswith(NEEDLESS):
                continue
            reason = f"not run because {rules[failed]} failed: {known[failed].reason}"
            write_failure(place.record, Failure(reason, known[failed].output, told=True))


def _make_table(workflow: Any, batch: BatchRules) -> None:
    """The table of all results that the batch has by now.

    A stale result is none of them: in one table it would be taken for a result of this code.
    """
    from snakemake.io import IOFile  # most runs are complete

    left_out = {
        each.record: each.state == "stale"
        for each in BatchStates(batch).look()
        if each.state not in ("done", "skipped")
    }
    files = batch.files
    for path in (files.table, files.markdown, *(each for two in files.figures for each in two)):
        with suppress(AttributeError, AssertionError, TypeError, OSError):
            # If Snakemake's metadata knew the older files, it would ignore their dates.
            workflow.persistence.cleanup_metadata(IOFile(path))
    # A process of its own: this one is ending, and starts no more threads.
    words = (batch.experiment.file, batch.grid.batch, files.table, "--left-out")
    subprocess.run(
        [sys.executable, "-P", "-m", "snakemake_kochi.tables", *words],
        input=json.dumps(left_out).encode(),
        check=False,
    )
