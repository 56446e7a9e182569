"""The script before the runs of a batch: the key `prepare`.

Every run of a batch that has one loads this module, so it imports neither YAML nor recipes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snakemake_kochi.project.values import parameter_variables

if TYPE_CHECKING:
    from snakemake_kochi.project.problems import KeyPath, Problems


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


def read_prepare(
    top: Mapping[str, Any],
    batch: Mapping[str, Any],
    path: KeyPath,
    known: Collection[str],
    problems: Problems,
) -> Step | None:
    """The `prepare` script of a batch at `path`, or that of the file (`batch`, `path` are empty).
    `known`: the parameters that there are.

    Keys of the batch replace those of the file, one by one. A script without text is none.
    """
    # Imported here: a run reads no YAML.
    from snakemake_kochi.project.document import script, section
    from snakemake_kochi.project.visibility import depend_params

    data = section(top, "prepare") | section(batch, "prepare")
    own, shared = (*path, "prepare"), ("prepare",)
    if not data:
        return None
    if "script" not in data:
        # A batch may give the script of a section that the file begins.
        if path or not section(top, "batches"):
            place = problems.source_map.first(own, shared)
            problems.add_once(place, "the key 'script' is missing", shared)
        return None
    step = Step(
        depend_params=depend_params(data, known),
        script=script(data["script"]),
        strict="strict" not in data or data["strict"].is_true,
        sources=_names(data.get("sources")),
    )
    for pattern in step.sources or ():
        if ".." in pattern.split("/") or not pattern.strip("/ "):
            place = problems.source_map.first((*own, "sources"), (*shared, "sources"))
            said = "a glob relative to the project, without '..', was expected"
            problems.add_once(place, f"{pattern!r}: {said}", (*shared, "sources"))
    return step if step.script.strip() else None


def _names(data: Any) -> tuple[str, ...] | None:
    """A list of names, each once; None if it is not given."""
    if not isinstance(data, list):
        return None
    return tuple(dict.fromkeys(str(name) for name in data if name is not None))
