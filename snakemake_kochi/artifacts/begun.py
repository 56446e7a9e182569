"""Records of attempts that have begun, for those that cannot write their own.

An attempt that is killed for its memory or its time, or with its worker, writes nothing any more.
What was known when it began becomes its record, and the queue says how it ended.

artifacts/<machine>/begun/<identity>.json   {"version", "node", "process", "record"}
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.attempts import ending
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import list_names, make_directory, read_json, to_json, write_new
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node

VERSION = 1
# Seconds that the queue has to say how an attempt ended whose process is dead. Its job may have
# been deleted.
_PATIENCE = 24 * 3600.0


def begin(paths: ProjectPaths, record: Mapping[str, Any]) -> None:
    """Note the record of an attempt of this process. A fault costs only this note."""
    with suppress(OSError):
        process = ProcessIdentity.of(os.getpid())
        content = {
            "version": VERSION,
            "node": vars(this_node()),
            "process": vars(process) if process else {},
            "record": record,
        }
        place = make_directory(paths.begun(record["machine"]))
        write_new(place / f"{record['identity']}.json", to_json(content))


def end(paths: ProjectPaths, record: Mapping[str, Any]) -> None:
    """Forget the note of an attempt whose record is in the journal, or in results/."""
    with suppress(OSError):
        (paths.begun(record["machine"]) / f"{record['identity']}.json").unlink(missing_ok=True)


@dataclass
class Begun:
    """The attempts of a project that go on without a worker, as under another executor.

    Those of workers are known by the queues. Looks again and again; reads each note once.
    """

    paths: ProjectPaths
    machine: str
    _known: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def look(self) -> list[Mapping[str, Any]]:
        """Their records. One that cannot be read now is left out."""
        names: list[str] = []
        with suppress(OSError):
            names = list_names(self.paths.begun(self.machine))
        self._known = {name: self._read(name) for name in names if name.endswith(".json")}
        found = []
        for noted in self._known.values():
            with suppress(KeyError, TypeError, ValueError):
                if noted is not None and not _has_died(noted):
                    found.append(noted["record"])
        return found

    def _read(self, name: str) -> dict[str, Any] | None:
        if name not in self._known:
            self._known[name] = None
            with suppress(OSError, KochiError, KeyError, TypeError):
                noted = read_json(self.paths.begun(self.machine) / name, VERSION)
                if not noted["record"]["queue"]:
                    self._known[name] = noted
        return self._known[name]


def keep_unfinished(paths: ProjectPaths, machine: str) -> None:
    """Journal the records of attempts that have ended without one.

    Nothing happens twice: the journal, and later the branch, have one record of each identity. What
    cannot be read or journaled now is left to the next call.
    """
    with suppress(OSError):
        for name in sorted(list_names(paths.begun(machine))):
            file = paths.begun(machine) / name
            with suppress(OSError, KochiError, KeyError, TypeError, ValueError, AttributeError):
                noted = read_json(file, VERSION)
                if (record := _ended(paths, noted, file)) is not None:
                    if record["outcome"] != "success":
                        journal(paths, machine, Result(record["identity"], {}, record))
                    file.unlink(missing_ok=True)


def _ended(paths: ProjectPaths, noted: Mapping[str, Any], file: Path) -> dict[str, Any] | None:
    """The record of an attempt that is over; None if it may go on."""
    record = dict(noted["record"])
    if (found := ending(paths, record)) is not None:
        reason = str(found["reason"])
        outcome = reason if reason in ("success", "lost") else "failed"
        if reason == "signal":
            reason = f"killed by signal {found.get('signal')}"
        reason = ": ".join(filter(None, (reason, str(found.get("detail") or ""))))
        ended = str(found["ended"])
    else:
        if not _has_died(noted):
            return None
        modified = file.stat().st_mtime
        if record["queue"] and time.time() - modified < _PATIENCE:
            return None
        outcome, reason, ended = "failed", "its process was killed", datetime.now(UTC).isoformat()
    began = datetime.fromisoformat(record["started"])
    seconds = max(0.0, (datetime.fromisoformat(ended) - began).total_seconds())
    return record | {
        "outcome": outcome,
        "reason": reason,
        "ended": ended,
        "seconds": round(seconds, 6),
    }


def _has_died(noted: Mapping[str, Any]) -> bool:
    """Whether the process of an attempt has certainly ended."""
    return ProcessIdentity.from_dict(noted["process"]).has_ended(Node.from_dict(noted["node"]))
