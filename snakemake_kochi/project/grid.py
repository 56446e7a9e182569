"""Batches, their grids and points: combinations of parameters, resolved, and what they request.

Every run of a batch loads this module to make its own point, so it imports neither YAML nor
recipes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.expressions import Template, TemplateError, parse_text, parse_value
from snakemake_kochi.project.values import (
    ABSENT,
    encode_component,
    environment_name,
    line_problem,
    queue_problem,
)

if TYPE_CHECKING:
    from snakemake_kochi.project.document import KeyPath
    from snakemake_kochi.project.plots import Metric, Plot, Quantity, Reference
    from snakemake_kochi.project.recipes import Requirement
    from snakemake_kochi.project.sweeps import ParameterValues, Sweep

# No benchmark repeats a point so often; the limit finds an extra zero before any point is made.
MAXIMUM_DUPLICATES = 10_000
ROUNDS = "rounds"  # of the orders of runs, the default
_WHOLE = re.compile(r"0*[0-9]{1,9}", re.ASCII)
# The resources that say how many cores a run has on a node.
TASKS_AND_CORES = ("tasks", "tasks_per_node", "cpus_per_task")
_SECONDS_AROUND = 60  # for the copy of the build and the artifacts, beside the script


# ---- requests


@dataclass(frozen=True)
class Request:
    """What a phase of a point requests: `cores`, `resources` by the names that rules have for them
    (`schedulers/names.py`), and `timeout`, the seconds after which the script is ended."""

    cores: int | None = None
    resources: Mapping[str, int | str] = FrozenDict()
    timeout: float | None = None

    @property
    def threads(self) -> int | None:
        """The cores of a run on its first node, if it says how many."""
        if self.cores is None and not {*TASKS_AND_CORES} & {*self.resources}:
            return None
        tasks, nodes = self._number("tasks"), self._number("nodes") or 1
        of_node = self._number("tasks_per_node") or -(-tasks // nodes) or 1
        return max(self.cores or 1, self._number("cpus_per_task")) * of_node

    def _number(self, name: str) -> int:
        value = self.resources.get(name)
        return value if isinstance(value, int) else 0

    @cached_property
    def of_rule(self) -> dict[str, int | str]:
        """The resources as a rule has them. With a timeout they have a `runtime`, in minutes: that
        of the script and a minute for what happens before and after it."""
        found = dict(self.resources)
        if "tasks" in found or "tasks_per_node" in found:
            # Else the threads of the rule, which are those of all tasks, would be those of each.
            found["cpus_per_task"] = max(self.cores or 1, self._number("cpus_per_task"))
        if self.timeout is not None:
            found["runtime"] = -int(-(self.timeout + _SECONDS_AROUND) // 60)
        return found


NO_REQUEST = Request()


def request_of(
    texts: Mapping[KeyPath, Template], values: Mapping[str, str], section: str = ""
) -> tuple[Request, dict[KeyPath, str]]:
    """What is requested by values at the keys of a section; and for each key that is wrong, what
    is. What is wrong, or needs a name without a value, is left out of the request."""
    if not texts:
        return NO_REQUEST, {}
    fields, resources = dict[str, Any](), dict[str, Any]()
    wrong: dict[KeyPath, str] = {}
    for key, value in texts.items():
        name = str(key[-1])
        try:
            text = value.render(values)
            (resources if len(key) > 1 else fields)[name] = _read(name, text)
        except KeyError:
            continue
        except TemplateError as error:
            wrong[section, *key] = str(error)
        except ValueError as error:
            given = ", ".join(f"{name}={values[name]!r}" for name in dict.fromkeys(value.names))
            said = f"{error}, not {text!r}{f' with {given}' if given else ''}"
            wrong[section, *key] = said
    return Request(resources=FrozenDict(resources), **fields), wrong


def _read(name: str, text: str) -> Any:
    """The value of a text. Raises ValueError, which says what was expected."""
    # Imported here: few runs request anything.
    from snakemake_kochi.quantities import seconds_of
    from snakemake_kochi.schedulers.names import NUMBERS

    if name == "timeout":
        if (bare := text.strip()).replace(".", "", 1).isdigit():
            raise ValueError(f"a time with its unit, like {bare}s or {bare}m, was expected")
        return seconds_of(text)
    least = 1 if name == "cores" else NUMBERS.get(name)
    if least is None:
        return text
    if _WHOLE.fullmatch(text) and int(text) >= least:
        return int(text)
    of_what = {"cores": " of cores", "runtime": " of minutes"}.get(name, "")
    said = f"a whole number{of_what}, {least} or more, was expected"
    if name == "runtime" and re.fullmatch(r"\s*[0-9.]+\s*[a-z]+\s*", text):
        said += " (a time like 90s goes under the key 'timeout')"
    raise ValueError(said)


# ---- scripts


@dataclass(frozen=True)
class Isolation:
    """How a script is isolated: `words` of the key `isolate`, sorted, `visible` paths `PATH[:rw]`,
    and of a container its `image`, `volumes` `SOURCE[:TARGET][:ro]` and `modules`."""

    words: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    image: str = ""
    volumes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Isolation:
        """From JSON of `dataclasses.asdict`. Raises TypeError."""
        fields: dict[str, Any] = {k: v if isinstance(v, str) else tuple(v) for k, v in data.items()}
        return cls(**fields)


@dataclass(frozen=True)
class _Script:
    """A script and the parameters that it sees."""

    depend_params: tuple[str, ...] = ()
    script: str = ""
    strict: bool = True

    def environment(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """KOCHI_PARAM_<NAME> for the parameters that the script sees, without a sub-parameter that
        a point does not have."""
        names = (name for name in self.depend_params if name in parameters)
        return {f"KOCHI_PARAM_{environment_name(name)}": parameters[name] for name in names}


@dataclass(frozen=True)
class Phase(_Script):
    """A build or a run. `cores`, `timeout`, `launcher` and those of `resources` are unresolved
    values, empty if not given; see `Request` and `launchers.py`."""

    exclusive: bool = True
    warmup: int = 0
    cores: str = ""
    resources: Mapping[str, str] = FrozenDict()
    timeout: str = ""
    isolation: Isolation | None = None
    launcher: str = ""
    spread: str = ""

    @property
    def determining(self) -> Phase:
        """The phase without what it requests, which determines no result."""
        return replace(self, cores="", resources=FrozenDict(), timeout="")

    @property
    def beside_script(self) -> dict[str, Any]:
        """What else of it determines a result, as JSON: isolation and warm-ups, if it has some."""
        isolation = {} if self.isolation is None else {"isolation": asdict(self.isolation)}
        return {**isolation, **({"warmup": self.warmup} if self.warmup else {})}

    @cached_property
    def requested(self) -> dict[KeyPath, Template]:
        """The values of its request, by their keys in `build` or `run`. Raises TemplateError."""
        texts: dict[KeyPath, str] = {("resources", name): t for name, t in self.resources.items()}
        texts |= {(key,): t for key in ("cores", "timeout") if (t := getattr(self, key))}
        return {key: parse_value(text) for key, text in texts.items()}


@dataclass(frozen=True)
class Step(_Script):
    """A script before the runs. `sources` are patterns of the code that determines it; None for the
    code of the experiment."""

    sources: tuple[str, ...] | None = None


# ---- points


@dataclass(frozen=True)
class Artifact:
    """A result file: `type` is stdout, stats or file (`src`: its path in the workspace)."""

    type: str
    dest: str
    src: str | None


@dataclass(frozen=True)
class Point:
    """One combination of parameters, all resolved.

    `duplicate` counts repetitions from 0. `request` is what the run requests. `rerun_of` is the
    record that a rerun repeats, `sweep` the index in `Batch.sweeps`.
    """

    parameters: Mapping[str, str]
    duplicate: int
    name: str
    queue: str | None
    artifacts: tuple[Artifact, ...]
    request: Request = NO_REQUEST
    rerun_of: str = ""
    sweep: int = 0

    def environment(self, phase: Phase) -> dict[str, str]:
        """KOCHI_PARAM_<NAME> for the parameters on which the phase depends, and no others."""
        return phase.environment(self.parameters)

    @property
    def problems(self) -> dict[KeyPath, str]:
        """What is wrong with its name and its queue, by their keys in the batch."""
        wrong = {"name": line_problem(self.name), "queue": queue_problem(self.queue or "_")}
        return {(key,): f"{getattr(self, key)!r}: {said}" for key, said in wrong.items() if said}


@dataclass(frozen=True)
class PointTexts:
    """The name of a point's job, its queue and its artifacts before substitution."""

    name: str
    queue: str | None
    artifacts: tuple[Artifact, ...]

    def point(
        self,
        parameters: FrozenDict[str, str],
        batch: str,
        duplicate: int,
        sweep: int = 0,
        absent: Collection[str] | None = None,
    ) -> Point:
        """A destination has a word for a parameter that only other points have, which is one of
        those that may be `absent`; None: any."""
        raw = {**parameters, "batch_name": batch, "duplicate": str(duplicate)}
        used = (name for each in self.artifacts for name in parse_text(each.dest).names)
        safe = dict.fromkeys((n for n in used if absent is None or n in absent), ABSENT)
        safe |= {name: encode_component(text) for name, text in raw.items()}
        return Point(
            parameters=parameters,
            duplicate=duplicate,
            name=_filled(self.name, raw) or "",
            queue=_filled(self.queue, raw),
            artifacts=tuple(
                Artifact(each.type, _filled(each.dest, safe) or "", _filled(each.src, raw))
                for each in self.artifacts
            ),
            sweep=sweep,
        )


def _filled(text: str | None, values: Mapping[str, str]) -> str | None:
    """None if a name has no value, which was noted."""
    try:
        return None if text is None else parse_text(text).render(values)
    except KeyError:
        return None


def varying_parameters(points: Sequence[Point]) -> tuple[str, ...]:
    """The parameters that have more than one value over the points, or that some do not have."""
    counts = Counter(each for point in points for each in point.parameters.items())
    return tuple(dict.fromkeys(name for (name, _), count in counts.items() if count < len(points)))


# ---- batches


@dataclass(frozen=True)
class Recorded:
    """A point as its record has it: all its parameters, resolved, and the record's identity."""

    parameters: Mapping[str, str]
    duplicate: int
    identity: str


@dataclass(frozen=True)
class Skipped:
    """A combination of parameters that is not run, and why, for people."""

    parameters: FrozenDict[str, str]
    reason: str


@dataclass(frozen=True)
class Repeat:
    """Until when points are repeated: after `least` to `most` runs, when half of the width of the
    interval of the median of `metric`, at a `confidence`, is at most `until` of the median; or when
    all runs of the batch have taken the `budget`, in seconds of a node. Fractions. `by`: instead of
    the median, the ratios to the first value of this parameter are to be known."""

    until: float
    metric: str
    confidence: float = 0.95
    least: int = 10
    most: int = 60
    budget: float | None = None
    by: str = ""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a batch says, or an experiment for all of its batches.

    `job_name`, `queue` and `artifacts` are templates. `metrics` has no expressions when no artifact
    keeps the standard output for which they are; `quantities` says how they are shown, and `plots`
    in which figures. `sweeps`: what is combined with what. `has_code`: whether the parameter `code`
    names the project's own code.
    """

    job_name: str = "ANON"
    queue: str | None = None
    duplicates: int = 1
    artifacts: tuple[Artifact, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    build: Phase = Phase()
    run: Phase = Phase()
    metrics: Mapping[str, Metric] = FrozenDict()
    quantities: Mapping[str, Quantity] = FrozenDict()
    plots: tuple[Plot, ...] = ()
    prepare: Step | None = None
    sweeps: tuple[Sweep, ...] = ()
    has_code: bool = False

    @property
    def path(self) -> KeyPath:
        """The key of the section in the file."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Batch(Settings):
    """A named grid.

    `parameters` holds all entries of the batch's own parameters and sub-parameters. `sometimes` are
    the parameters that only some points have. `recorded`: in a rerun, the points that it repeats,
    instead of the grid; `below`: the directory of its results. `machines`: those on which the whole
    batch is run, empty for the one that is named or chosen. `order`: ROUNDS or "listed"; `seed`:
    that of the rounds, if given. With `repeat`, `duplicates` are the most that are possible.
    """

    name: str
    parameters: Mapping[str, tuple[ParameterValues, ...]] = FrozenDict()
    sometimes: frozenset[str] = frozenset()
    recorded: tuple[Recorded, ...] | None = None
    below: str = ""
    machines: tuple[str, ...] = ()
    order: str = ROUNDS
    seed: int | None = None
    repeat: Repeat | None = None
    references: tuple[Reference, ...] = ()

    @property
    def least(self) -> int:
        """How often each point runs at least."""
        return self.duplicates if self.repeat is None else self.repeat.least

    @property
    def path(self) -> KeyPath:
        return ("batches", self.name)


@dataclass(frozen=True, kw_only=True)
class Grid(Batch):
    """A batch of an experiment on a machine: all points, the combinations that are `skipped` there,
    and the requirements there. `varying` are the parameters with more than one value."""

    experiment: str
    machine: str
    points: tuple[Point, ...]
    skipped: tuple[Skipped, ...] = ()
    varying: tuple[str, ...] = ()

    @property
    def batch(self) -> str:
        """The batch's name."""
        return self.name

    def named(self, parameters: Mapping[str, str]) -> str:
        """The values that tell a point from others, for people; all if none does."""
        names = [name for name in self.varying if name in parameters] or parameters
        return ", ".join(f"{name}={parameters[name]}" for name in names)

    @property
    def skipped_by_reason(self) -> Mapping[str, int]:
        """The number of skipped points for each reason; duplicates count once."""
        return Counter(each.reason for each in self.skipped)
