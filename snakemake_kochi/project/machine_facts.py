"""The facts of a machine that the values and conditions of an experiment can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.parameters import Given
from snakemake_kochi.project.templates import FACT

# What every machine has, if its scheduler can be asked.
STANDARD_FACTS = ("name", "cores", "sockets", "memory_mb", "gpus", "nodes")


@dataclass(frozen=True)
class Facts:
    """What is known of a machine: `values` by "machine.NAME". `without`: why its scheduler's facts
    are not known, for people, or empty."""

    machine: str
    values: Mapping[str, str]
    without: str

    @classmethod
    def of(cls, given: Given | None, machine: str) -> Facts:
        """Those that are given, if they are of that machine."""
        values = {f"{FACT}name": machine}
        if given is None or given.machine != machine:
            return cls(machine, values, "")
        values |= {f"{FACT}{name}": value for name, value in given.facts.items()}
        return cls(machine, values, given.without)

    def problem(self, name: str) -> str:
        """What is wrong with a name that is not known, for people."""
        short = name.removeprefix(FACT)
        write = (
            f"write into kochi.yaml: machines: {{{self.machine}: {{facts: {{{short}: VALUE}}}}}}"
        )
        if short in STANDARD_FACTS:
            why = f": {self.without}" if self.without else ""
            return f"${name} is not known for machine '{self.machine}'{why}; {write}"
        known = [each.removeprefix(FACT) for each in self.values]
        said = nearest(short, dict.fromkeys([*known, *STANDARD_FACTS]))
        also = " Or " if said.endswith("?") else "; or "
        return f"machine '{self.machine}' has no fact '{short}', {said}{also}{write}"
