"""What a phase of a point requests: cores, resources by name, and the time of its script.

Every run of a batch loads this module with its grid, so it imports little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.templates import Literal, TemplateError, Value, parse_value

if TYPE_CHECKING:
    from snakemake_kochi.project.grid import Phase
    from snakemake_kochi.project.problems import KeyPath, Problems

_WHOLE = re.compile(r"0*[0-9]{1,9}", re.ASCII)
# The resources that say how many cores a run has on a node.
TASKS_AND_CORES = ("tasks", "tasks_per_node", "cpus_per_task")
_SECONDS_AROUND = 60  # for the copy of the build and the artifacts, beside the script


@dataclass(frozen=True)
class Request:
    """What a phase of a point requests.

    `cores`: None if not given. `resources`: numbers and texts by the names that rules have for
    them (`schedulers/names.py`). `timeout`: the seconds after which the script is ended.
    """

    cores: int | None = None
    resources: Mapping[str, int | str] = FrozenDict()
    timeout: float | None = None

    @property
    def threads(self) -> int | None:
        """The cores of a run on its first node, if it says how many."""
        cpus, tasks = self._number("cpus_per_task"), self._number("tasks_per_node")
        if tasks is None and (in_all := self._number("tasks")) is not None:
            tasks = -(-in_all // (self._number("nodes") or 1))
        if self.cores is None and cpus is None and tasks is None:
            return None
        return max(self.cores or 1, cpus or 1) * (tasks or 1)

    def _number(self, name: str) -> int | None:
        value = self.resources.get(name)
        return value if isinstance(value, int) else None

    @cached_property
    def of_rule(self) -> dict[str, int | str]:
        """The resources as a rule has them. With a timeout they have a `runtime`, in minutes: that
        of the script and a minute for what happens before and after it."""
        found = dict(self.resources)
        if "tasks" in found or "tasks_per_node" in found:
            # Else the threads of the rule, which are those of all tasks, would be those of each.
            found["cpus_per_task"] = max(self.cores or 1, self._number("cpus_per_task") or 1)
        if self.timeout is not None:
            found["runtime"] = -int(-(self.timeout + _SECONDS_AROUND) // 60)
        return found

    def or_more(self, other: Request) -> Request:
        """The request of work that serves two: the larger of two numbers, the first of two texts,
        and the longer time; no limit, if one of them has none."""
        if self == other:
            return self
        resources = {**other.resources, **self.resources}
        for name, value in other.resources.items():
            own = resources[name]
            if isinstance(own, int) and isinstance(value, int):
                resources[name] = max(own, value)
        timeouts = [each.timeout for each in (self, other) if each.timeout is not None]
        runtimes = [each.of_rule.get("runtime") for each in (self, other)]
        if len(timeouts) == 2 or None in runtimes:
            resources.pop("runtime", None)
        elif timeouts:
            resources["runtime"] = max(each for each in runtimes if isinstance(each, int))
        return Request(
            resources=FrozenDict(resources),
            timeout=max(timeouts) if len(timeouts) == 2 else None,
        )


NO_REQUEST = Request()


def request_texts(phase: Phase) -> dict[KeyPath, str]:
    """The unresolved values of a phase's request, by their keys in `build` or `run`."""
    texts: dict[KeyPath, str] = {("cores",): phase.cores, ("timeout",): phase.timeout}
    texts |= {("resources", name): text for name, text in phase.resources.items()}
    return {key: text for key, text in texts.items() if text or key[0] == "resources"}


def missing_names(phase: Phase, values: Mapping[str, str]) -> Iterator[tuple[KeyPath, str]]:
    """The keys of a phase's request that need a name without a value, and the name."""
    for key, text in request_texts(phase).items():
        yield from ((key, name) for name in parse_value(text).names if name not in values)


def request_of(phase: Phase, values: Mapping[str, str]) -> tuple[Request, dict[KeyPath, str]]:
    """What a phase requests with these values; and for each key that is wrong, what is.

    What is wrong, or needs a name without a value, is left out of the request.
    """
    return _resolved({key: parse_value(t) for key, t in request_texts(phase).items()}, values)


def plain_request(resources: Mapping[str, str], timeout: str) -> tuple[Request, dict[KeyPath, str]]:
    """The request of texts in which nothing is substituted, as `request_of` has it."""
    found: dict[KeyPath, Value] = {("resources", n): Literal(t) for n, t in resources.items()}
    return _resolved(found | ({("timeout",): Literal(timeout)} if timeout else {}), {})


def check_time_limit(data: Mapping[str, Any], path: KeyPath, problems: Problems) -> None:
    """Note two time limits in the section at a key path."""
    if "runtime" in (data.get("resources") or {}) and data.get("timeout"):
        problems.add(
            (*path, "timeout"),
            "there is a 'runtime' in 'resources', too; leave out one of the two: a timeout is "
            "exact, and gives a runtime",
        )


def _resolved(
    texts: Mapping[KeyPath, Value], values: Mapping[str, str]
) -> tuple[Request, dict[KeyPath, str]]:
    found: dict[str, Any] = {}
    resources: dict[str, int | str] = {}
    wrong: dict[KeyPath, str] = {}
    for key, value in texts.items():
        try:
            text = value.render(values)
            (resources if len(key) > 1 else found)[str(key[-1])] = _read(key, text)
        except KeyError:
            continue
        except TemplateError as error:
            wrong[key] = str(error)
        except ValueError as error:
            given = ", ".join(f"{name}={values[name]!r}" for name in dict.fromkeys(value.names))
            wrong[key] = f"{error}, not {text!r}{f' with {given}' if given else ''}"
    return Request(resources=FrozenDict(resources), **found), wrong


def _read(key: KeyPath, text: str) -> Any:
    """The value of a text. Raises ValueError, which says what was expected."""
    if key == ("timeout",):
        return _seconds(text)
    if key == ("cores",):
        return _number(text, 1, "a whole number of cores, 1 or more,")
    # Imported here: few runs request anything.
    from snakemake_kochi.schedulers.names import NUMBERS

    name = str(key[1])
    if name not in NUMBERS:
        return text
    least = NUMBERS[name]
    of_what = " of minutes" if name == "runtime" else ""
    expected = f"a whole number{of_what}, {least} or more,"
    try:
        return _number(text, least, expected)
    except ValueError as error:
        if name == "runtime" and _is_time(text):
            raise ValueError(f"{error} (a time like 90s goes under the key 'timeout')") from error
        raise


def _number(text: str, least: int, expected: str) -> int:
    if not _WHOLE.fullmatch(text) or int(text) < least:
        raise ValueError(f"{expected} was expected")
    return int(text)


def _seconds(text: str) -> float:
    from snakemake_kochi.quantities import seconds_of

    if (bare := text.strip()).replace(".", "", 1).isdigit():
        raise ValueError(f"a time with its unit, like {bare}s or {bare}m, was expected")
    return seconds_of(text)


def _is_time(text: str) -> bool:
    try:
        return _seconds(text) > 0
    except ValueError:
        return False
