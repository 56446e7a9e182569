"""Which runners may execute a job: the fastest that keeps all that its rule means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snakemake_kochi.executor.settings import RUNNERS
from snakemake_kochi.queue import ShellJob


@dataclass(frozen=True)
class Choice:
    """The fastest runner of a job, and why none faster is used, in a few words; "" if there is
    none. `shell` is there for the runner of that name."""

    runner: str
    why: str = ""
    shell: ShellJob | None = None


class Choices:
    """Chooses for the jobs of one workflow; `fastest` is one of RUNNERS, the first to be used."""

    def __init__(self, workflow: Any, fastest: str | None) -> None:
        self._workflow = workflow
        self._allowed = RUNNERS[RUNNERS.index(fastest or RUNNERS[0]) :]

    def of(self, job: Any) -> Choice:
        return Choice("command")
