"""Which records of artifact branches are those of the present code, so that they count as done.

A record counts for a point if what determines its run is what determines it here, which is
computed anew: the names of builds and installations are a part of that. Of a record that somebody
else wrote, nothing is believed but the commit of a remote source, the digest of its build, and that
the files are those of the run.

An installation or a build of another computer is not here. As after KOCHI_ROOT was emptied, a file
says which one it is, and the phase that needs it makes it again. A source that is a directory of
another computer is not here either; the project's repository has the code that results used.

`python -m snakemake_kochi.library.restoring` lets Snakemake note that restored results are
finished: else it would not see later changes. It reads JSON: "snakefile", "config", "targets":
names of rules and files, "records": those of the restored results, which are still aside and come
to their place only now, and "freeze": the freeze with whose code they agree. Nothing of the
workflow is executed but tables and plots. Private parts of Snakemake that are used: the DAG after a
dry run, and the methods with which it notes the beginning and the end of a job.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.reading import MAKE_RESULTS, published
from snakemake_kochi.artifacts.restore import Publication, published_records
from snakemake_kochi.errors import DamagedFileError, KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import is_there
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.files import Place
from snakemake_kochi.library.library import FREEZE_VARIABLE
from snakemake_kochi.library.products import Products
from snakemake_kochi.library.states import EDITED, OTHER_PRODUCTS, Changes
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.make import as_recorded
from snakemake_kochi.phases.products import (
    Build,
    Install,
    merge,
    read_build,
    read_manifest,
    write_build,
    write_manifest,
)
from snakemake_kochi.phases.sources import Sources, determining, is_missing, is_source_of
from snakemake_kochi.project.recipes import Recipe

_DIGEST = re.compile(r"[0-9a-f]{16}").fullmatch
# Older than any result: Snakemake takes a younger input for a change.
_OLD = (1, 1)
_MOST_NAMED = 10

Record = Mapping[str, Any]
Records = dict[tuple[str, str], list[Record]]  # by experiment's file and batch


@dataclass(frozen=True)
class Asked:
    """What was typed. `experiment` is a name or a file; "" stands for all, or for the default."""

    experiment: str = ""
    batch: str = ""
    name: str = ""
    commit: str = ""
    force: bool = False


@dataclass
class Recorded:
    """The records of a machine in the branches, by the name under which they are published.

    Not among them are those of `others`, counted by machine, and those `without_batch`: of outputs
    of users' own rules, and of jobs by hand.
    """

    machine: str
    records: dict[Publication, Records]
    others: Counter[str]
    without_batch: int = 0

    @classmethod
    def read(cls, repository: Path, machine: str, asked: Asked) -> Recorded:
        """Raises GitError without a branch, NameNotFoundError for an unknown name or commit."""
        tips = published(repository, asked.commit or None).tips
        if asked.name and asked.name not in tips:
            raise NameNotFoundError(
                f"no artifact branch has results under the name '{asked.name}'",
                nearest(asked.name, tips),
            )
        read = cls(machine, {}, Counter())
        for name in [asked.name] if asked.name else tips:
            for commit in tips[name]:
                publication = Publication(name, commit)
                own = read.records.setdefault(publication, defaultdict(list))
                for record in published_records(repository, publication):
                    if record.get("rerun_of"):
                        continue  # it is beside the result of the same point
                    if record.get("machine") != machine:
                        read.others[str(record.get("machine"))] += 1
                    elif not record.get("batch"):
                        read.without_batch += 1
                    else:
                        key = (str(record.get("experiment")), str(record["batch"]))
                        # Its difference may be long.
                        snapshot = {**record.get("snapshot", {}), "diff": ""}
                        own[key].append({**record, "snapshot": snapshot})
        return read

    def of_batches(self) -> Records:
        """The records of all names, newest first, by experiment's file and batch."""
        together: Records = defaultdict(list)
        for records in self.records.values():
            for key, some in records.items():
                together[key] += some
        return {key: _newest_first(some) for key, some in together.items()}

    def choose(
        self, rules: Sequence[BatchRules], own: str, asked: Asked
    ) -> list[tuple[BatchRules, Publication, list[Record]]]:
        """The publications of each batch: the machine's own one, and another one.

        Raises KochiError if several others have results of a batch and the own one has none, and
        NameNotFoundError if none has results of the batches.
        """
        chosen, unclear = [], []
        for each in rules:
            key = (each.experiment.file, each.grid.batch)
            having = {p: records[key] for p, records in self.records.items() if records.get(key)}
            # A name has several commits if clones with different results published under it.
            first = [publication for publication in having if publication.name == own]
            others = [publication for publication in having if publication.name != own]
            is_clear = len({publication.name for publication in others}) <= 1
            if not is_clear and not first:
                counts = ", ".join(f"{len(some)} of {p.name}" for p, some in having.items())
                unclear.append(f"{each.experiment.file}: batch {each.grid.batch}: {counts}")
            wanted = first + (others if is_clear else [])
            chosen += [(each, publication, having[publication]) for publication in wanted]
        if unclear:
            lines = "\n    ".join(unclear[:_MOST_NAMED])
            raise KochiError(
                f"several people published results of the same batch:\n    {lines}",
                "Choose one. Type: kochi artifact restore --from NAME",
            )
        if not chosen:
            raise self._nothing(asked)
        return chosen

    def _nothing(self, asked: Asked) -> KochiError:
        what = f"batch {asked.batch} of {asked.experiment}" if asked.batch else asked.experiment
        message = f"no artifact branch has results of {what or 'this project'}"
        message += f" on machine '{self.machine}'"
        if known := [f"{Path(file).stem} {batch}" for file, batch in self.of_batches()]:
            wanted = f"{Path(asked.experiment).stem} {asked.batch}".strip()
            return NameNotFoundError(message, nearest(wanted, known))
        hint = f"{MAKE_RESULTS}\nTo get those of others, type: kochi artifact fetch"
        if self.others:
            hint += "\nThere are results of " + told_machines(self.others)
        return KochiError(message, hint)


def told_machines(others: Mapping[str, int]) -> str:
    named = [f"machine {name} ({count})" for name, count in sorted(others.items())]
    return f"{', '.join(named)}; for these, type: kochi artifact restore -m MACHINE"


def _newest_first(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda each: str(each.get("ended")), reverse=True)


@dataclass
class Restorable:
    """The records that count for the points of some batches.

    `found`: by the place's record, the place and the record that counts for it. `left_out`: the
    newest record of a point for which none counts, and why it does not.
    """

    found: dict[Path, tuple[Place, Record]] = field(default_factory=dict)
    left_out: dict[Path, tuple[Record, str]] = field(default_factory=dict)


class Restoration:
    """Compares records with the code of one freeze, and remembers what they were made with."""

    def __init__(self, freeze: Freeze) -> None:
        self._freeze = freeze
        self._products = Products(freeze)
        # What chosen records used, by the files that stand for it.
        self._installs: dict[str, tuple[Install, ...]] = {}
        self._builds: dict[str, str] = {}  # digests

    def choose(self, batch: BatchRules, records: Iterable[Record]) -> Restorable:
        """The newest record that counts for each point of a batch."""
        by_run: dict[str, list[Record]] = defaultdict(list)
        by_point: dict[tuple[str, ...], list[Record]] = defaultdict(list)
        for record in _newest_first(records):
            with suppress(KeyError, TypeError, AttributeError):  # edited by hand
                by_point[_key(record["parameters"], record["duplicate"])].append(record)
                by_run[str(record["run"])].append(record)
        chosen, changes = Restorable(), Changes(batch)
        for place in batch.files.places:
            point = place.point
            same = by_point.get(_key(point.parameters, point.duplicate), [])
            # First those of the same point: another one may see the same values.
            candidates = by_run.get(batch.identity(point), [])
            for record in sorted(candidates, key=lambda each: each not in same):
                if not place.files and record not in same:
                    continue  # nothing but the parameters says of which point it is
                why = self._obstacle(batch, place, record)
                if why is None:
                    chosen.found[place.record] = (place, record)
                    break
                chosen.left_out.setdefault(place.record, (record, why))
            else:
                for record in same[:1]:
                    chosen.left_out.setdefault(place.record, (record, changes.since(record, point)))
        for file in chosen.found:
            chosen.left_out.pop(file, None)
        return chosen

    def _obstacle(self, batch: BatchRules, place: Place, record: Record) -> str | None:
        """Why a record with the run of a place does not count: it does not tell what it was made
        with or its files, or it was made with something else than what is here."""
        point = place.point
        try:
            own = {(a["type"], a["dest"], a["src"]): a for a in record["artifacts"]}
            used = {each["dependency"]: each for each in record["recipes"]}
            builds = {batch.build_file(point): str(record["build"])}
            if file := batch.prepared_for(point):
                builds[file] = str(record["preparation"]["prepare"]["digest"])
            is_whole = all(
                each.type == "stats" or own[each.type, each.dest, each.src]["sha256"]
                for each in point.artifacts
            )
            installs = {
                self._products.manifest(recipe): self._set_of(recipe, used)
                for recipe in batch.variants.at(point).recipes
            }
        except (KeyError, TypeError, AttributeError):
            return EDITED
        if not is_whole or None in installs.values() or not all(map(_DIGEST, builds.values())):
            return EDITED
        # Names of installations have no commit of a remote source that is not in kochi.lock.
        for file, made in installs.items():
            with suppress(OSError, DamagedFileError):
                here = self._installs.get(file) or read_manifest(Path(file))
                if {(i.dependency, i.digest) for i in here} != {
                    (i.dependency, i.digest) for i in made or ()
                }:
                    return OTHER_PRODUCTS
        for file, digest in builds.items():
            with suppress(OSError, DamagedFileError, KeyError):
                if (self._builds.get(file) or read_build(Path(file)).digest) != digest:
                    return OTHER_PRODUCTS
        self._installs |= {file: made for file, made in installs.items() if made}
        self._builds |= builds
        return None

    def _set_of(self, recipe: Recipe, used: Mapping[str, Record]) -> tuple[Install, ...] | None:
        """The installation of a recipe that a run used, with those on which it depends; None if it
        was made by another recipe."""
        needed = [self._set_of(each, used) for each in self._products.depends(recipe)]
        below = merge(each for each in needed if each is not None)
        if None in needed or recipe.dependency not in used:
            return None
        return as_recorded(self._freeze, recipe, below, used[recipe.dependency])

    def remember(self) -> None:
        """Write which installations and builds the chosen records used, where this is not known
        yet."""
        paths, machine = self._freeze.paths, self._freeze.machine_name
        for file, installs in self._installs.items():
            for each in (WorkingPaths.remembered(Path(file)), Path(file)):
                if not is_there(each):
                    write_manifest(each, machine, installs)
                    os.utime(each, _OLD)
        for name, digest in self._builds.items():
            place = paths.prepared if name.endswith("/prepared.json") else paths.build
            if not is_there(name):
                write_build(Path(name), Build(digest, place(machine, digest).tree))


def _key(parameters: Mapping[str, str], duplicate: object) -> tuple[str, ...]:
    """What tells a point of a batch from others, whatever its code."""
    return (str(duplicate), *(f"{name}={parameters[name]}" for name in sorted(parameters)))


def absent_sources(freeze: Freeze, records: Records, noted: Sources) -> Sources:
    """A source for each recipe whose directory is missing, by `dependency:recipe`: that of the
    newest result of the present code, else of the newest result, else the `noted` one. A recipe
    that no result used is left out."""
    every = {str(each): each for each in freeze.all_recipes if not each.is_remote}
    absent = {n: each for n, each in every.items() if is_missing(each, freeze.project)}
    chosen: dict[str, Mapping[str, str]] = {}
    newest = _newest_first(record for some in records.values() for record in some)
    tree = freeze.snapshot.tree
    for record in sorted(newest, key=lambda each: each["snapshot"].get("tree") != tree):
        for each in record.get("recipes") or ():
            name, source = f"{each.get('dependency')}:{each.get('recipe')}", each.get("source")
            if name in absent and is_source_of(absent[name], source or {}):
                known = noted.get(name, {})
                is_same = determining(known) == determining(source)
                chosen.setdefault(name, known if is_same else dict(source))
    return {name: source for name, source in noted.items() if name in absent} | chosen


# ---- Snakemake learns that restored results are finished


def main() -> int:
    """Exit status 1, with a message, if Snakemake refuses the workflow or lacks a part."""
    wanted = json.load(sys.stdin)
    try:
        _note_jobs(_planned(wanted), set(wanted["records"]))
    except (KochiError, OSError) as error:
        print(f"kochi: {error}", file=sys.stderr)
        return 1
    except (AttributeError, TypeError, ImportError) as error:
        said = "this Snakemake lacks a part that is needed to restore results"
        print(f"kochi: {said}: {error!r}", file=sys.stderr)
        return 1
    return 0


def _planned(wanted: Mapping[str, Any]) -> Any:
    """The workflow after a dry run."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings import types as settings

    output = settings.OutputSettings(dryrun=True, quiet={settings.Quietness.ALL})
    with SnakemakeApi(output) as snakemake:
        workflow = snakemake.workflow(
            resource_settings=settings.ResourceSettings(cores=1),
            config_settings=settings.ConfigSettings(config=wanted["config"]),
            snakefile=Path(wanted["snakefile"]),
        )
        dag = workflow.dag(settings.DAGSettings(targets=set(wanted["targets"])))
        try:
            dag.execute_workflow(executor="dryrun")
        except Exception as error:
            snakemake.print_exception(error)
            raise KochiError("Snakemake refuses the workflow") from error
        if os.environ[FREEZE_VARIABLE] != wanted["freeze"]:
            raise KochiError(
                "the project was changed while its results were restored",
                "Type the same command again.",
            )
        return workflow._workflow


def _note_jobs(workflow: Any, records: Collection[str]) -> None:
    dag, persistence = workflow.dag, workflow.persistence
    noted = set()
    for job in dag.jobs:
        own = [Path(output) for output in job.output if str(output) in records]
        if own:
            # If this process is killed here, Snakemake takes the job for incomplete.
            persistence.started(job)
            for record in own:
                with suppress(FileNotFoundError):  # it is in its place already
                    os.replace(WorkingPaths.record_aside(record), record)
            _note_end(persistence, job)
            noted.add(job)
    for job in dag.jobs:
        needed = set(dag.dependencies.get(job, {}))
        is_complete = not any(dag.needrun(each) for each in needed - noted)
        if job.rule.name.startswith("collect_") and needed & noted and is_complete:
            persistence.started(job)
            for output in job.output:
                os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
            if subprocess.run(["bash", "-c", job.shellcmd], check=False).returncode == 0:
                _note_end(persistence, job)
            else:
                persistence.cleanup(job)


def _note_end(persistence: Any, job: Any) -> None:
    """The job was not executed here, so its time is none: the record has that of its run."""
    for output in job.output:
        # Snakemake writes a job's outputs after its beginning; the record is the last of them.
        now = time.time_ns()
        os.utime(output, ns=(now, now))
    asyncio.run(persistence.finished(job))


if __name__ == "__main__":
    sys.exit(main())
