"""What a phase of a point requests: cores, resources by name, and the time of its script.

Every run of a batch loads this module with its grid, so it imports little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.templates import TemplateError, Value, parse_value

if TYPE_CHECKING:
    from snakemake_kochi.project.grid import Phase
    from snakemake_kochi.project.problems import KeyPath

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


class Requests:
    """The requests of a phase for any parameters. Points with the same values share one."""

    def __init__(self, phase: Phase) -> None:
        """Raises TemplateError for a value that is no value."""
        self._values: dict[KeyPath, Value] = {
            key: parse_value(text) for key, text in request_texts(phase).items()
        }
        # In the order of the file, for messages.
        self._names = tuple(dict.fromkeys(n for each in self._values.values() for n in each.names))
        self._known: dict[tuple[str | None, ...], tuple[Request, dict[KeyPath, str]]] = {}

    def __bool__(self) -> bool:
        """Whether the phase requests anything."""
        return bool(self._values)

    def of(self, parameters: Mapping[str, str]) -> tuple[Request, Mapping[KeyPath, str]]:
        """The request with these parameters; and for each key that is wrong, what is.

        What is wrong, or needs a parameter without a value, is left out of the request.
        """
        given = tuple(map(parameters.get, self._names))
        if given not in self._known:
            self._known[given] = self._resolve(parameters)
        return self._known[given]

    def without_value(self, parameters: Mapping[str, str]) -> Iterator[tuple[KeyPath, str]]:
        """The keys that need a name without a value, and the name."""
        if not all(name in parameters for name in self._names):
            for key, value in self._values.items():
                yield from ((key, name) for name in value.names if name not in parameters)

    def _resolve(self, parameters: Mapping[str, str]) -> tuple[Request, dict[KeyPath, str]]:
        found: dict[KeyPath, int | str | float] = {}
        wrong: dict[KeyPath, str] = {}
        for key, value in self._values.items():
            try:
                found[key] = _resolved(key, value, parameters)
            except KeyError:  # of a parameter without a value, which was noted
                continue
            except TemplateError as error:
                wrong[key] = str(error)
        return _request(found), wrong


def request_texts(phase: Phase) -> dict[KeyPath, str]:
    """The unresolved values of a phase's request, by their keys in `build` or `run`."""
    texts: dict[KeyPath, str] = {("cores",): phase.cores, ("timeout",): phase.timeout}
    texts |= {("resources", name): text for name, text in phase.resources.items()}
    return {key: text for key, text in texts.items() if text or key[0] == "resources"}


def plain_request(resources: Mapping[str, str], timeout: str) -> tuple[Request, dict[KeyPath, str]]:
    """The request of texts in which nothing is substituted, as `Requests.of` has it."""
    found: dict[KeyPath, int | str | float] = {}
    wrong: dict[KeyPath, str] = {}
    texts: dict[KeyPath, str] = {("resources", name): text for name, text in resources.items()}
    for key, text in (texts | ({("timeout",): timeout} if timeout else {})).items():
        try:
            found[key] = _read(key, text)
        except ValueError as error:
            wrong[key] = f"{error}, not {text!r}"
    return _request(found), wrong


def _request(found: Mapping[KeyPath, int | str | float]) -> Request:
    cores, timeout = found.get(("cores",)), found.get(("timeout",))
    return Request(
        cores=cores if isinstance(cores, int) else None,
        resources=FrozenDict(
            (str(key[1]), value)
            for key, value in found.items()
            if key[0] == "resources" and not isinstance(value, float)
        ),
        timeout=None if timeout is None else float(timeout),
    )


def _resolved(key: KeyPath, value: Value, parameters: Mapping[str, str]) -> int | str | float:
    text = value.render(parameters)
    try:
        return _read(key, text)
    except ValueError as error:
        given = ", ".join(f"{name}={parameters[name]!r}" for name in dict.fromkeys(value.names))
        where = f" with {given}" if given else ""
        raise TemplateError(f"{error}, not {text!r}{where}") from error


def _read(key: KeyPath, text: str) -> int | str | float:
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
