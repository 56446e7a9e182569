"""`kochi artifact restore`: results of an artifact branch in `results/`, finished for Snakemake."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from humanfriendly.text import pluralize

from snakemake_kochi.artifacts.code import CODE
from snakemake_kochi.artifacts.published import published_name
from snakemake_kochi.artifacts.restore import Outcome, Publication, Wanted, restore_files
from snakemake_kochi.artifacts.restored import note_restored
from snakemake_kochi.cli.output import print_json, remark, say
from snakemake_kochi.enqueue.experiment_files import (
    globs_with,
    is_experiment_file,
    path_in_project,
)
from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.library import Library
from snakemake_kochi.library.restoring import (
    Asked,
    Recorded,
    Restorable,
    Restoration,
    absent_sources,
    told_machines,
)
from snakemake_kochi.location import Location
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS, Freeze, take_freeze
from snakemake_kochi.phases.sources import note_restored_sources, restored_sources
from snakemake_kochi.queue.runs import MakingWatch
from snakemake_kochi.resources import workflow_directory

_MOST_NAMED = 10


@dataclass
class Batch:
    """A batch, and what became of its results."""

    rules: BatchRules
    publication: Publication
    restorable: Restorable
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def label(self) -> str:
        return f"{self.rules.experiment.name} {self.rules.grid.batch}"

    @property
    def points(self) -> int:
        """How many results there ought to be; with `repeat`, at least those of the first look."""
        grid = self.rules.grid
        least = sum(point.duplicate < grid.least for point in grid.points)
        return max(least, len(self.restorable.found))

    @property
    def there(self) -> int:
        outcome = self.outcome
        return len(outcome.restored) + len(outcome.present) + len(outcome.own)


def restore(location: Location, asked: Asked, as_json: bool) -> int:
    """Restore results, and tell. Exit status 1 if no result is there, or if one was refused."""
    read, batches = _restore(location, asked)
    _tell(batches, read, location.machine.name, as_json)
    failed = any(batch.outcome.differing or batch.outcome.lacking for batch in batches)
    return int(failed or not any(batch.there for batch in batches))


def restore_batches(location: Location, asked: Asked) -> list[Batch]:
    """Restore results; those of no batch, and what cannot be restored, are nobody's concern."""
    return _restore(location, asked)[1]


def tell_briefly(batches: Sequence[Batch], machine: str) -> None:
    """Tell how many results are in results/, and which are not."""
    found = [batch for batch in batches if batch.restorable.found]
    for batch in found:
        _tell_batch(batch)
    if any(batch.outcome.differing for batch in found):
        again = f"kochi artifact restore -m {shlex.quote(machine)} --force"
        remark(f"To replace what is there with another content, type: {again}")


def _restore(location: Location, asked: Asked) -> tuple[Recorded, list[Batch]]:
    directory, machine = location.require_project().directory, location.machine.name
    location.prepare_machine()
    os.chdir(directory)
    _refuse_while_running(location, directory)
    working = WorkingPaths(Path(), machine)
    read = Recorded.read(directory, machine, asked)
    freeze = _freeze(location, working, read, asked)
    library = Library(freeze)
    rules = _batches(library.batches, asked)
    chosen = read.choose(rules, published_name(directory, machine), asked)
    restoration = Restoration(freeze)
    batches = [
        Batch(each, publication, restoration.choose(each, records))
        for each, publication, records in chosen
    ]
    batches = _with_each_once(batches)
    with _explaining_failed_writes():
        for batch in batches:
            _write(directory, working, batch, asked.force)
        done = [batch for batch in batches if batch.outcome.restored or batch.outcome.present]
        if done:
            restoration.remember()
    if done:
        _note_finished(location, str(freeze.file), asked, done)
    return read, batches


def _refuse_while_running(location: Location, directory: Path) -> None:
    """Two processes would write the same files. Raises KochiError."""
    runs = MakingWatch(location.machine_paths, str(directory)).runs()
    open_ = [run for run in runs if run.state != "ended"]
    for run in sorted(open_, key=lambda run: run.state == "killed"):
        who = f"{run.who}, since {run.started}"
        if run.state == "killed":
            raise KochiError(
                f"a run in this directory was killed ({who}), and its jobs may still run",
                "Start it again, and let it end: it adopts them.",
            )
        raise KochiError(
            f"a run in this directory goes on ({who}) and may write the same files",
            "Wait for its end, or interrupt it. Then type your command again.",
        )
    if any(Path(".snakemake", "locks").glob("*.lock")):
        raise KochiError(
            "Snakemake has locked this directory: a run goes on, or was killed",
            "Wait for its end. If it was killed, type: snakemake --unlock",
        )


def _freeze(location: Location, working: WorkingPaths, read: Recorded, asked: Asked) -> Freeze:
    """The freeze of the present code.

    For a source that is a directory of another computer, it has the code that results used: the
    noted one while results of the present code used it, unless --force, else that of the newest.
    """
    globs = _globs(location, asked) or EXPERIMENT_GLOBS
    freeze = take_freeze(Path.cwd(), working.machine, globs)
    noted = restored_sources(working)
    sources = absent_sources(freeze, read.of_batches(), {} if asked.force else noted)
    sources = {name: source for name, source in sources.items() if noted.get(name) != source}
    if not sources:
        return freeze
    with _explaining_failed_writes():
        note_restored_sources(working, sources)
    for name in sources:
        remark(f"The directory of recipe {name} is not here: it has the code that the results used")
    return take_freeze(Path.cwd(), working.machine, globs)


def _globs(location: Location, asked: Asked) -> list[str] | None:
    if not is_experiment_file(asked.experiment):
        return None
    project = location.require_project()
    return globs_with(project, path_in_project(project, asked.experiment))


def _batches(rules: Sequence[BatchRules], asked: Asked) -> list[BatchRules]:
    """The batches that were asked for. Raises NameNotFoundError."""
    if not asked.experiment:
        return list(rules)
    names = {each.experiment.name: each.experiment for each in rules}
    names |= {each.experiment.file: each.experiment for each in rules}
    if asked.experiment not in names:
        known = {each.experiment.name for each in rules}
        raise NameNotFoundError(
            f"there is no experiment '{asked.experiment}'", nearest(asked.experiment, known)
        )
    experiment = names[asked.experiment]
    if asked.batch:
        experiment.batch(asked.batch)
    return [
        each
        for each in rules
        if each.experiment is experiment and asked.batch in ("", each.grid.batch)
    ]


def _with_each_once(batches: Sequence[Batch]) -> list[Batch]:
    """Of a point in several publications, the first one counts; without those that add nothing."""
    taken: set[Path] = set()
    told: set[tuple[str, Path]] = set()
    for batch in batches:
        found = batch.restorable.found
        for place in taken & found.keys():
            del found[place]
        taken |= found.keys()
    kept: dict[str, Batch] = {}
    for number, batch in enumerate(batches):
        left_out, name = batch.restorable.left_out, batch.publication.name
        for place in list(left_out):
            # A name may be published in several commits, such as your branch and the remote's.
            if place in taken or (name, place) in told:
                del left_out[place]
        told |= {(name, place) for place in left_out}
        adds = batch.restorable.found or left_out
        kept[batch.label if not adds else str(number)] = batch
    labels = {batch.label for key, batch in kept.items() if key != batch.label}
    return [batch for key, batch in kept.items() if key not in labels]


def _write(repository: Path, working: WorkingPaths, batch: Batch, force: bool) -> None:
    found = batch.restorable.found.values()
    wanted = [Wanted(record, place.by_destination, place.record) for place, record in found]
    if batch.publication.name != published_name(repository, working.machine):
        publication = batch.publication
        identities = [each.identity for each in wanted]
        note_restored(working, publication.name, publication.commit, identities)
    batch.outcome = restore_files(repository, batch.publication, wanted, force)


@contextmanager
def _explaining_failed_writes() -> Iterator[None]:
    """Turn an OSError into a KochiError that says what to do."""
    try:
        yield
    except OSError as error:
        file, why = error.filename, error.strerror or error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and file:
            raise KochiError(
                f"results cannot be restored: nothing can be written in "
                f"{os.path.abspath(os.path.dirname(file))} ({why})",
                "Type the command in a clone of your own.",
            ) from error
        where = f"{file}: " if file else ""
        raise KochiError(
            f"{where}{why}; results that were restored before are complete",
            "Then type the same command again: it goes on.",
        ) from error


def _note_finished(location: Location, freeze: str, asked: Asked, batches: Sequence[Batch]) -> None:
    """Let Snakemake note that restored results are finished, and make tables and plots."""
    globs = _globs(location, asked)
    targets, records = [batch.rules.name for batch in batches], []
    for batch in batches:
        there = batch.outcome.restored | batch.outcome.present
        found = batch.restorable.found.values()
        own = [str(place.record) for place, record in found if record["identity"] in there]
        records += own
        # Which results a batch with `repeat` needs, Snakemake asks only after looks at them.
        targets += own if batch.rules.grid.repeat is not None else []
    wanted = {
        "snakefile": str(workflow_directory() / "Snakefile"),
        "config": {"kochi_experiments": globs} if globs else {},
        "targets": targets,
        "freeze": freeze,
        "records": records,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "snakemake_kochi.library.restoring"],
        input=json.dumps(wanted),
        env={**os.environ, **location.variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise KochiError(
            f"the results are in results/, but Snakemake does not know them yet:\n"
            f"{done.stdout.strip()[-2000:]}",
            "Then type the same command again.",
        )


def _tell(batches: Sequence[Batch], read: Recorded, machine: str, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "machine": machine,
                "batches": list(map(_as_json, batches)),
                "other_machines": read.others,
                "without_batch": read.without_batch,
            }
        )
    else:
        for batch in batches:
            _tell_batch(batch)
        if any(batch.outcome.differing for batch in batches):
            remark("To replace what is there with another content, add: --force")
        if read.others:
            remark(f"Not restored: results of {told_machines(read.others)}")
        if read.without_batch:
            count = pluralize(read.without_batch, "result")
            remark(f"Not restored: {count} of no batch, such as outputs of your own rules")


def _tell_batch(batch: Batch) -> None:
    outcome, name = batch.outcome, batch.publication.name
    of = f"{batch.there} of {pluralize(batch.points, 'result')}"
    new = len(outcome.restored)
    how = f"{new} restored from {name}" if new else f"nothing new from {name}"
    if lacking := len(outcome.lacking):
        how = f"{new} restored from {name}; of {lacking} more, content is not in this clone"
    say(f"{batch.label}: {of} in results/, {how}")
    for files in list(outcome.differing.values())[:_MOST_NAMED]:
        remark(f"    {files[0]} is there with another content, and stays")
    if (more := len(outcome.differing) - _MOST_NAMED) > 0:
        remark(f"    and {more} more")
    for error in dict.fromkeys(outcome.lacking.values()):
        remark(f"    {error}")
    by_reason: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for record, reason in batch.restorable.left_out.values():
        by_reason[reason, str((record.get("snapshot") or {}).get("tree"))].append(record)
    for (reason, tree), records in list(by_reason.items())[:_MOST_NAMED]:
        snapshot = records[0].get("snapshot") or {}
        dirty = " with changes" if snapshot.get("dirty") else ""
        base = f"commit {str(snapshot.get('base'))[:12]}{dirty}"
        count = pluralize(len(records), "result")
        remark(f"    left out: {count} of {base}: {reason}")
        remark(f"    that code: git worktree add --detach DIR {shlex.quote(f'{CODE}/{tree}')}")


def _as_json(batch: Batch) -> dict[str, Any]:
    outcome, publication = batch.outcome, batch.publication
    return {
        "experiment": batch.rules.experiment.name,
        "batch": batch.rules.grid.batch,
        "name": publication.name,
        "commit": publication.commit,
        "points": batch.points,
        "restored": sorted(outcome.restored),
        "present": sorted(outcome.present),
        "own": sorted(outcome.own),
        "differing": sorted(str(file) for files in outcome.differing.values() for file in files),
        "lacking": {identity: str(why) for identity, why in outcome.lacking.items()},
        "left_out": {
            str(record["identity"]): reason for record, reason in batch.restorable.left_out.values()
        },
    }
