"""What a check found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

# From good to bad. A note says what cannot be judged, or was not tried.
Verdict = Literal["ok", "note", "warning", "failed"]


@dataclass(frozen=True)
class Outcome:
    """`measured` is a sentence about what was seen, `advice` one about what to do, if anything."""

    verdict: Verdict
    measured: str
    advice: str = ""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `directory` is where, "" if it is about the node."""

    check: str
    directory: str
    outcome: Outcome

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    def to_dict(self) -> dict[str, Any]:
        return {"check": self.check, "directory": self.directory, **asdict(self.outcome)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        outcome = Outcome(data["verdict"], data["measured"], data["advice"])
        return cls(data["check"], data["directory"], outcome)
