"""Batches, their grids and points: combinations of parameters, resolved.

Every run of a batch loads this module to make its own point, so it imports neither YAML nor
recipes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from snakemake_kochi.files import is_name
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.requests import NO_REQUEST, Request
from snakemake_kochi.project.templates import Template
from snakemake_kochi.project.values import (
    ABSENT,
    SUBSTITUTED,
    encode_component,
    has_control_character,
    parameter_variables,
)

if TYPE_CHECKING:
    from snakemake_kochi.project.parameters import ParameterValues, Skipped, Sweep
    from snakemake_kochi.project.plots import Metric, Plot, Quantity
    from snakemake_kochi.project.problems import KeyPath
    from snakemake_kochi.project.recipes import Requirement


# No benchmark repeats a point so often; the limit finds an extra zero before any point is made.
MAXIMUM_DUPLICATES = 10_000
ROUNDS = "rounds"  # of the orders of runs, the default


@dataclass(frozen=True)
class Isolation:
    """How a script is isolated, in the texts of the experiment: `words` of the key `isolate`,
    sorted, `visible` paths `PATH[:rw]`, and of a container its `image`, `volumes`
    `SOURCE[:TARGET][:ro]` and `modules`."""

    words: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    image: str = ""
    volumes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Isolation:
        """From JSON of `dataclasses.asdict`. Raises TypeError."""
        fields: dict[str, Any] = {
            key: value if isinstance(value, str) else tuple(value) for key, value in data.items()
        }
        return cls(**fields)


@dataclass(frozen=True)
class Phase:
    """A script and the parameters that it sees. `cores`, `timeout`, `launcher` and those of
    `resources` are unresolved values, empty if not given; see `Request` and `launchers.py`.
    `spread`: one of SPREADS, or empty."""

    depend_params: tuple[str, ...]
    script: str
    strict: bool = True
    exclusive: bool = True
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
    def isolated(self) -> dict[str, Any]:
        """Its isolation among what determines a result, as JSON; empty without one."""
        return {} if self.isolation is None else {"isolation": asdict(self.isolation)}

    def environment(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """KOCHI_PARAM_<NAME> for the parameters on which the phase depends."""
        return parameter_variables(self.depend_params, parameters)


@dataclass(frozen=True)
class Step:
    """A script before the runs, and the parameters that it sees.

    `sources` are patterns of the code that determines it; None for the code of the experiment.
    """

    depend_params: tuple[str, ...]
    script: str
    strict: bool = True
    sources: tuple[str, ...] | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        """From `asdict` of one that went through JSON."""
        depend, sources = data["depend_params"], data["sources"]
        return cls(
            **{
                **data,
                "depend_params": tuple(depend),
                "sources": None if sources is None else tuple(sources),
            }
        )

    def environment(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """KOCHI_PARAM_<NAME> for the parameters that the script sees."""
        return parameter_variables(self.depend_params, parameters)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Step | None:
        """The section `prepare` of a batch or a file. A script without text is none."""
        if not data.get("script", "").strip():
            return None
        sources = data.get("sources")
        return cls(
            depend_params=tuple(dict.fromkeys(data.get("depend_params", ()))),
            script=data["script"],
            strict=data.get("strict", True),
            sources=None if sources is None else tuple(dict.fromkeys(sources)),
        )


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


@dataclass(frozen=True)
class Recorded:
    """A point as its record has it: all its parameters, resolved, and the record's identity."""

    parameters: Mapping[str, str]
    duplicate: int
    identity: str


@dataclass(frozen=True)
class Batch:
    """A named grid.

    `parameters` holds all entries of the batch's own parameters and sub-parameters, `sweeps` what
    is combined with what. `sometimes` are the parameters that only some points have. `job_name`,
    `queue` and `artifacts` are templates. `metrics` has no expressions when no artifact keeps the
    standard output for which they are; `quantities` says how they are shown, and `plots` in which
    figures. `recorded`: in a rerun, the points that it repeats, instead of the grid; `below`: the
    directory of its results. `has_code`: whether the parameter `code` names the project's own code.
    `machines`: those on which the whole batch is run, empty for the one that is named or chosen.
    `order`: ROUNDS or "listed"; `seed`: that of the rounds, if the experiment has one.
    """

    name: str
    job_name: str
    queue: str | None
    duplicates: int
    parameters: Mapping[str, tuple[ParameterValues, ...]]
    artifacts: tuple[Artifact, ...]
    requirements: tuple[Requirement, ...]
    build: Phase
    run: Phase
    metrics: Mapping[str, Metric]
    sweeps: tuple[Sweep, ...] = ()
    sometimes: frozenset[str] = frozenset()
    quantities: Mapping[str, Quantity] = FrozenDict()
    plots: tuple[Plot, ...] = ()
    recorded: tuple[Recorded, ...] | None = None
    below: str = ""
    prepare: Step | None = None
    has_code: bool = False
    machines: tuple[str, ...] = ()
    order: str = ROUNDS
    seed: int | None = None


@dataclass(frozen=True)
class Grid:
    """All points of a batch on a machine, and the combinations that are `skipped` there.

    `artifacts` are templates; `varying` are the parameters with more than one value over the
    points, in the order of the file. `below` and `has_code`: see
    `Batch`.
    """

    experiment: str
    batch: str
    machine: str
    points: tuple[Point, ...]
    artifacts: tuple[Artifact, ...]
    requirements: tuple[Requirement, ...]
    build: Phase
    run: Phase
    varying: tuple[str, ...]
    metrics: Mapping[str, Metric] = FrozenDict()
    quantities: Mapping[str, Quantity] = FrozenDict()
    plots: tuple[Plot, ...] = ()
    below: str = ""
    skipped: tuple[Skipped, ...] = ()
    prepare: Step | None = None
    has_code: bool = False

    @property
    def skipped_by_reason(self) -> Mapping[str, int]:
        """The number of skipped points for each reason; duplicates count once."""
        found: dict[str, int] = {}
        for each in self.skipped:
            found[each.reason] = found.get(each.reason, 0) + 1
        return found


@dataclass(frozen=True)
class PointTexts:
    """The templates of a point: its job's name, queue and artifacts."""

    name: Template
    queue: Template | None
    artifacts: tuple[tuple[str, Template, Template | None], ...]  # type, dest, src

    @classmethod
    def parse(cls, name: str, queue: str | None, artifacts: Iterable[Artifact]) -> PointTexts:
        def parsed(text: str | None) -> Template | None:
            return None if text is None else Template.parse(text)

        texts = ((each.type, Template.parse(each.dest), parsed(each.src)) for each in artifacts)
        return cls(Template.parse(name), parsed(queue), tuple(texts))

    def missing(self, parameters: Collection[str]) -> Iterator[tuple[KeyPath, str]]:
        """The names that are not among the parameters, and the keys of a batch with them."""
        keys: list[tuple[KeyPath, Template | None]] = [(("name",), self.name)]
        keys.append((("queue",), self.queue))
        for index, (_, _, src) in enumerate(self.artifacts):
            keys.append((("artifacts", index, "src"), src))
        for key, template in keys:
            for name in template.names if template else ():
                if name not in parameters and name not in SUBSTITUTED:
                    yield key, name

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
        used = (name for _, dest, _ in self.artifacts for name in dest.names)
        safe = dict.fromkeys((n for n in used if absent is None or n in absent), ABSENT)
        safe |= {name: encode_component(text) for name, text in raw.items()}
        return Point(
            parameters=parameters,
            duplicate=duplicate,
            name=_filled(self.name, raw) or "",
            queue=_filled(self.queue, raw),
            artifacts=tuple(
                Artifact(type_, _filled(dest, safe) or "", _filled(src, raw))
                for type_, dest, src in self.artifacts
            ),
            sweep=sweep,
        )


def _filled(template: Template | None, values: Mapping[str, str]) -> str | None:
    """None if a name has no value, which was noted."""
    if template is None or not all(name in values for name in template.names):
        return None
    return template.render(values)


def job_name_problem(name: str) -> str | None:
    """Why a text cannot be a job's name, or None."""
    if has_control_character(name):
        return "a job's name cannot contain control characters such as line breaks"
    return None


def queue_problem(queue: str) -> str | None:
    """Why a text cannot be a queue's name, or None."""
    if is_name(queue):
        return None
    return (
        "the queue's name cannot be used in paths; 1 to 128 letters, digits and any of "
        "._+@=- were expected, not starting with a dot or dash"
    )


def point_problems(point: Point) -> Iterator[tuple[str, str]]:
    """The keys ("name", "queue") that are wrong in a resolved point, and the problems."""
    if wrong := job_name_problem(point.name):
        yield "name", f"{point.name!r}: {wrong}"
    if point.queue is not None and (wrong := queue_problem(point.queue)):
        yield "queue", f"{point.queue!r}: {wrong}"


def varying_parameters(points: Sequence[Point]) -> tuple[str, ...]:
    """The parameters that have more than one value over the points, or that some do not have."""
    seen: dict[str, set[str]] = {}
    count: dict[str, int] = {}
    for point in points:
        for name, value in point.parameters.items():
            seen.setdefault(name, set()).add(value)
            count[name] = count.get(name, 0) + 1
    return tuple(name for name in seen if len(seen[name]) > 1 or count[name] < len(points))
