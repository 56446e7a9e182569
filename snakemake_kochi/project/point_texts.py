"""The texts of a point, made from the templates of its batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from snakemake_kochi.project.frozen import FrozenDict
from snakemake_kochi.project.grid import Artifact, Point
from snakemake_kochi.project.templates import Template
from snakemake_kochi.project.values import SUBSTITUTED

_NOTHING = Template(("",), ())


@dataclass(frozen=True)
class PointTexts:
    """The templates of a point: its job's name, queue and artifacts."""

    name: Template
    queue: Template | None
    artifacts: tuple[tuple[str, Template, Template | None], ...]  # type, dest, src

    @classmethod
    def parse(cls, name: str, queue: str | None, artifacts: Iterable[Artifact]) -> PointTexts:
        return cls(
            Template.parse(name),
            None if queue is None else Template.parse(queue),
            tuple(
                (a.type, Template.parse(a.dest), None if a.src is None else Template.parse(a.src))
                for a in artifacts
            ),
        )

    def knowing(self, parameters: Collection[str]) -> PointTexts:
        """With only those templates that need no other parameters; the others are left empty."""

        def known(template: Template | None) -> bool:
            names = template.names if template else ()
            return all(name in parameters or name in SUBSTITUTED for name in names)

        return PointTexts(
            self.name if known(self.name) else _NOTHING,
            self.queue if known(self.queue) else None,
            tuple(
                (type_, dest if known(dest) else _NOTHING, src if known(src) else None)
                for type_, dest, src in self.artifacts
            ),
        )

    def point(
        self, parameters: FrozenDict[str, str], batch: str, duplicate: int, encoded: dict[str, str]
    ) -> Point:
        """`encoded` holds the texts of all values, the batch's name included, for paths."""
        number = {"duplicate": str(duplicate)}
        raw = {**parameters, "batch_name": batch, **number}
        safe = encoded | number
        return Point(
            parameters=parameters,
            duplicate=duplicate,
            name=self.name.render(raw),
            queue=None if self.queue is None else self.queue.render(raw),
            artifacts=tuple(
                Artifact(type_, dest.render(safe), None if src is None else src.render(raw))
                for type_, dest, src in self.artifacts
            ),
        )
