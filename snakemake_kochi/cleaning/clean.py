"""One clean-up of a machine: what was deleted, and what could not be looked at."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field

from snakemake_kochi.cleaning.code import clean_code, clean_sent, repository_of
from snakemake_kochi.cleaning.jobs import clean_tickets
from snakemake_kochi.cleaning.projects import clean_project, needed_jobs
from snakemake_kochi.cleaning.records import clean_records
from snakemake_kochi.cleaning.removal import Freed, Removal, TimeUpError
from snakemake_kochi.cleaning.versions import clean_versions
from snakemake_kochi.files import time_of_server
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.project.clean_rules import KINDS, Rules


@dataclass
class Report:
    """What was deleted, by kind, or would be. `faults`: what stays because of an error.

    `is_complete` is false if the time was over before.
    """

    freed: dict[str, Freed] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def total(self) -> Freed:
        total = Freed()
        for each in self.freed.values():
            total.add(each)
        return total


def clean(
    root: Root,
    machine: MachinePaths,
    rules: Rules,
    is_dry: bool = False,
    seconds: float = math.inf,
) -> Report:
    """Delete what nothing needs on a machine, and of the projects of its KOCHI_ROOT.

    It is safe beside runs and workers, and may be killed at any time: the next call goes on. It
    ends after about so many `seconds`. With `is_dry` nothing is deleted.
    """
    removal = Removal(is_dry, time_of_server(machine.directory), time.monotonic() + seconds)
    is_complete = False
    with contextlib.suppress(TimeUpError):
        clean_records(machine, rules, removal)
        projects = root.projects()
        with removal.tolerating(f"jobs of machine {machine.name}"):
            clean_tickets(machine, rules, removal, needed_jobs(machine, projects))
        for project in projects:
            clean_project(machine, project, repository_of(project), rules, removal)
            clean_code(project, rules, removal)
        clean_sent(root, rules, removal)
        with removal.tolerating("versions of this package"):
            clean_versions(root, rules, removal)
        is_complete = True
    freed = {kind: removal.freed[kind] for kind in KINDS if kind in removal.freed}
    return Report(freed, tuple(dict.fromkeys(removal.faults)), is_complete)
