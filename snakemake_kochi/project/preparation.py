"""The scripts before and after the runs of a batch: the keys `prepare`,
`prepare_node`, `finish_node`, `finish`.

Every run of a batch that has them loads this module, so it imports neither YAML nor recipes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from snakemake_kochi.project.values import parameter_variables

if TYPE_CHECKING:
    from snakemake_kochi.project.problems import KeyPath, Problems


@dataclass(frozen=True)
class Step:
    """A script before or after the runs, and the parameters that it sees.

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


@dataclass(frozen=True)
class Preparation:
    """The scripts of a batch; None for those that it does not have."""

    prepare: Step | None = None
    prepare_node: Step | None = None
    finish_node: Step | None = None
    finish: Step | None = None

    def steps(self) -> Iterator[tuple[str, Step]]:
        """The scripts with their keys, in the order in which they run."""
        for key in KEYS:
            if (step := getattr(self, key)) is not None:
                yield key, step

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Preparation:
        """From `asdict` of one that went through JSON."""
        return cls(**{key: Step.from_json(step) for key, step in data.items() if step is not None})

    def determining(
        self, parameters: Mapping[str, str], prepared: str, node_code: str
    ) -> list[str]:
        """What determines a run, in words, besides its own script.

        `prepared`: the file that says what its batch has prepared, whose name contains what
        determines that. `node_code`: the digest of the code of `prepare_node`.
        """
        words = []
        if self.prepare is not None:
            words.append(f"prepared={prepared}")
        if self.prepare_node is not None:
            seen = self.prepare_node.environment(parameters)
            words += [f"prepare_node={node_code}", *(f"{n}={v}" for n, v in seen.items())]
        return words


KEYS = tuple(field.name for field in fields(Preparation))


def read_preparation(
    top: Mapping[str, Any], batch: Mapping[str, Any], path: KeyPath, problems: Problems
) -> Preparation | None:
    """The scripts of a batch at `path`, or those of the file (`batch` and `path` are empty).

    Keys of the batch replace those of the file, one by one. A script without text is none.
    """
    if not any(key in each for each in (top, batch) for key in KEYS):
        return None
    steps = dict(_read_steps(top, batch, path, problems))
    if "finish_node" in steps and "prepare_node" not in steps:
        place = problems.source_map.first((*path, "finish_node"), ("finish_node",))
        said = "a script 'prepare_node' was expected, too: finish_node is for what that makes"
        problems.add_once(place, said, ("finish_node",))
    return Preparation(**steps) if steps else None


def _read_steps(
    top: Mapping[str, Any], batch: Mapping[str, Any], path: KeyPath, problems: Problems
) -> Iterator[tuple[str, Step]]:
    # Imported here: a run reads no YAML.
    from snakemake_kochi.project.document import script, section

    for key in KEYS:
        data = section(top, key) | section(batch, key)
        own, shared = (*path, key), (key,)
        if not data:
            continue
        if "script" not in data:
            # A batch may give the script of a section that the file begins.
            if path or not section(top, "batches"):
                place = problems.source_map.first(own, shared)
                problems.add_once(place, "the key 'script' is missing", shared)
            continue
        step = Step(
            depend_params=_names(data.get("depend_params")) or (),
            script=script(data["script"]),
            strict="strict" not in data or data["strict"].is_true,
            sources=_names(data.get("sources")),
        )
        for pattern in step.sources or ():
            if ".." in pattern.split("/") or not pattern.strip("/ "):
                place = problems.source_map.first((*own, "sources"), (*shared, "sources"))
                said = "a glob relative to the project, without '..', was expected"
                problems.add_once(place, f"{pattern!r}: {said}", (*shared, "sources"))
        if step.script.strip():
            yield key, step


def _names(data: Any) -> tuple[str, ...] | None:
    """A list of names, each once; None if it is not given."""
    if not isinstance(data, list):
        return None
    return tuple(dict.fromkeys(str(name) for name in data if name is not None))
