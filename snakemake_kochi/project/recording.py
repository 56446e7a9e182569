"""What records say beyond what Kochi knows itself: facts, and variables of the environment.

A fact is the output of a command, by name. Facts and variables determine nothing: a run is not
repeated because they change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import names, script, section
from snakemake_kochi.project.problems import Problems
from snakemake_kochi.project.values import value_problem

DEFAULT_FACTS: Mapping[str, str] = FrozenDict(
    {
        # sed reads all lines, so cc is not ended by SIGPIPE.
        "cc": "cc --version | sed -n 1p",
        "modules": 'if [ -n "${LOADEDMODULES-}" ]; then echo "$LOADEDMODULES"; '
        "elif type module > /dev/null 2>&1; then module -t list 2>&1; fi",
    }
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


@dataclass(frozen=True)
class Recording:
    """The keys `facts` and `recorded_variables` of kochi.yaml or of an experiment.

    `facts` maps names to commands for bash; "" turns a fact off. `variables` are names of
    environment variables, or the beginnings of names with a `*` after them.
    """

    facts: Mapping[str, str] = FrozenDict()
    variables: tuple[str, ...] = ()

    def and_those_of(self, other: Recording) -> Recording:
        """With the keys of another file, whose facts replace those of the same name."""
        variables = dict.fromkeys((*self.variables, *other.variables))
        return Recording(FrozenDict({**self.facts, **other.facts}), tuple(variables))


NOTHING_MORE = Recording()


def read_recording(data: Mapping[str, Any], problems: Problems) -> Recording:
    """The keys of one document, whose shape was checked; notes problems."""
    facts = {name: script(command) for name, command in section(data, "facts").items()}
    for name, command in facts.items():
        if not _NAME.fullmatch(name):
            said = "the name of a fact has letters, digits, _, . and -, at most 64"
            problems.add(("facts", name), said)
        if wrong := value_problem(command):
            problems.add(("facts", name), wrong)
    variables = names(data.get("recorded_variables")) or ()
    for index, name in enumerate(variables):
        if not _VARIABLE.fullmatch(name):
            said = f"'{name}': the name of an environment variable was expected; a * may end it"
            place = ("recorded_variables",)
            is_list = isinstance(data["recorded_variables"], list)
            problems.add((*place, index) if is_list else place, said)
    return Recording(FrozenDict(facts), variables)
