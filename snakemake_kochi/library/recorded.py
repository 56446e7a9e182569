"""Whose results of which batches are restored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.reading import MAKE_RESULTS, published
from snakemake_kochi.artifacts.restore import Publication, published_records
from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.restorable import summary_of

_MOST_NAMED = 10
Records = dict[tuple[str, str], list[dict[str, Any]]]  # by experiment's file and batch


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
    without_batch: int

    @classmethod
    def read(cls, repository: Path, machine: str, asked: Asked) -> Recorded:
        """Raises GitError without a branch, NameNotFoundError for an unknown name or commit."""
        tips = published(repository, asked.commit or None).tips
        if asked.name and asked.name not in tips:
            raise NameNotFoundError(
                f"no artifact branch has results under the name '{asked.name}'",
                nearest(asked.name, tips),
            )
        found: dict[Publication, Records] = {}
        others: Counter[str] = Counter()
        without_batch = 0
        for name in [asked.name] if asked.name else tips:
            for commit in tips[name]:
                own = found.setdefault(Publication(name, commit), defaultdict(list))
                for record in published_records(repository, Publication(name, commit)):
                    if record.get("rerun_of"):
                        continue  # it is beside the result of the same point
                    if record.get("machine") == machine and not record.get("batch"):
                        without_batch += 1
                    elif record.get("machine") == machine:
                        key = (str(record.get("experiment")), str(record.get("batch")))
                        own[key].append(summary_of(record))
                    else:
                        others[str(record.get("machine"))] += 1
        return cls(machine, found, others, without_batch)

    def of_batches(self) -> Records:
        """The records of all names, newest first, by experiment's file and batch."""
        found: Records = defaultdict(list)
        for records in self.records.values():
            for key, some in records.items():
                found[key] += some
        for some in found.values():
            some.sort(key=lambda each: str(each["ended"]), reverse=True)
        return found

    def choose(
        self, rules: Sequence[BatchRules], own: str, asked: Asked
    ) -> list[tuple[BatchRules, Publication, list[dict[str, Any]]]]:
        """The publications of each batch: the machine's own one, and another one.

        Raises KochiError if several others have results of a batch and the own one has none, and
        NameNotFoundError if none has results of the batches.
        """
        chosen, unclear = [], []
        for each in rules:
            key = (each.experiment.file, each.grid.batch)
            having = {p: r[key] for p, r in self.records.items() if r.get(key)}
            # A name has several commits if clones with different results published under it.
            first = [publication for publication in having if publication.name == own]
            others = [publication for publication in having if publication.name != own]
            is_clear = len({publication.name for publication in others}) <= 1
            if not is_clear and not first:
                unclear.append((each, having))
            wanted = first + (others if is_clear else [])
            chosen += [(each, publication, having[publication]) for publication in wanted]
        if unclear:
            lines = [
                f"{each.experiment.file}: batch {each.grid.batch}: {counts}"
                for each, having in unclear[:_MOST_NAMED]
                for counts in [", ".join(f"{len(r)} of {p.name}" for p, r in having.items())]
            ]
            raise KochiError(
                "several people published results of the same batch:\n    " + "\n    ".join(lines),
                "Choose one. Type: kochi artifact restore --from NAME",
            )
        if not chosen:
            raise self._nothing(rules, asked)
        return chosen

    def _nothing(self, rules: Sequence[BatchRules], asked: Asked) -> KochiError:
        there = {
            f"{Path(file).stem} {batch}"
            for records in self.records.values()
            for file, batch in records
        }
        what = f"batch {asked.batch} of {asked.experiment}" if asked.batch else asked.experiment
        message = f"no artifact branch has results of {what or 'this project'}"
        message += f" on machine '{self.machine}'"
        if not there:
            hint = f"{MAKE_RESULTS}\nTo get those of others, type: kochi artifact fetch"
            if self.others:
                hint += "\nThere are results of " + told_machines(self.others)
            return KochiError(message, hint)
        wanted = f"{Path(asked.experiment).stem} {asked.batch}".strip()
        return NameNotFoundError(message, nearest(wanted, there))


def told_machines(others: Mapping[str, int]) -> str:
    named = [f"machine {name} ({count})" for name, count in sorted(others.items())]
    return f"{', '.join(named)}; for these, type: kochi artifact restore -m MACHINE"
