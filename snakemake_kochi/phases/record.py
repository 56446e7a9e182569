"""The record of one attempt of a run: what ran, from which code, where, and how it ended.

`workflow/schemas/record.schema.json` describes its keys; `artifacts/` stores it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.attempts import earlier_attempts
from snakemake_kochi.artifacts.record import RECORD_VERSION, new_identity
from snakemake_kochi.confidential import without_secrets
from snakemake_kochi.errors import STOPPED, DamagedFileError
from snakemake_kochi.files import random_word, read_json
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.paths import BuildPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.launcher import NO_PLACEMENT, Placement
from snakemake_kochi.phases.node import hardware, load_now, system
from snakemake_kochi.phases.outputs import Output
from snakemake_kochi.phases.products import BUILD_VERSION, MANIFEST_VERSION, Build, Install
from snakemake_kochi.phases.script import Ended, Stopwatch, source_variables
from snakemake_kochi.project.grid import Phase, Point
from snakemake_kochi.schedulers.environment import own_allocation

_LONGEST_LINE = 500  # characters
_STANDALONE = {
    "KOCHI_WORKER_ID": "local",
    "KOCHI_QUEUE": "",
    "KOCHI_JOB_ID": "0",
    "KOCHI_ATTEMPT": "1",
    "KOCHI_ATTEMPT_NONCE": "",
    "KOCHI_RUNNER": "",
}


@dataclass(frozen=True)
class Attempt:
    """One attempt to run a point: with its build, installations, what the `prepare` script of its
    batch has made, and the artifacts to write.

    `identity`: see `run_identity`; empty outside of any batch. `timeout`: seconds for its script.
    `placement`: how it starts tasks. `told`: further variables of its script.
    """

    freeze: BatchFreeze
    point: Point
    build: Build
    installs: Sequence[Install]
    outputs: Sequence[Output] = ()
    prepared: Build | None = None
    identity: str = ""
    timeout: float | None = None
    placement: Placement = NO_PLACEMENT
    told: Mapping[str, str] = FrozenDict()

    @property
    def used(self) -> tuple[Build, ...]:
        """What must not be deleted meanwhile."""
        return (self.build,) if self.prepared is None else (self.build, self.prepared)

    @cached_property
    def variables(self) -> dict[str, str]:
        """What a worker tells the job of itself, and of its code; the same without a worker."""
        snapshot = self.freeze.snapshot
        told = {name: os.environ.get(name, value) for name, value in _STANDALONE.items()}
        told |= source_variables(snapshot["base"], snapshot["dirty"])
        told |= {"KOCHI_MACHINE": self.freeze.machine_name, "KOCHI_JOB_NAME": self.point.name}
        if self.prepared is not None:
            told["KOCHI_PREPARED"] = str(self.prepared.tree)
        return told


def make_record(
    attempt: Attempt, isolation: Mapping[str, Any] | None, launcher: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The record of an attempt whose run script begins now: of one that is killed, it stays so.

    `isolation` is what `Container.record` tells, `launcher` what `Started` does.
    """
    freeze, point, build = attempt.freeze, attempt.point, attempt.build
    variables, prepared = attempt.variables, attempt.prepared
    started = datetime.now(UTC)
    label = f"{freeze.experiment}.{freeze.batch or 'single'}"
    allocation = own_allocation(os.environ)
    told = {name: variables[f"KOCHI_{name.upper()}"] for name in ("queue", "attempt")}
    told["job"] = variables["KOCHI_JOB_ID"]
    earlier = (told["queue"], told["job"], told["attempt"])
    place = freeze.paths.build(freeze.machine_name, build.digest)
    return {
        "version": RECORD_VERSION,
        "identity": new_identity(label, started, random_word(6)),
        "outcome": "lost",
        "reason": None,
        "experiment": freeze.file,
        "batch": freeze.batch,
        "name": point.name,
        "parameters": dict(point.parameters),
        "duplicate": point.duplicate,
        **({"rerun_of": point.rerun_of} if point.rerun_of else {}),
        **({"seed": freeze.seed} if freeze.seed is not None else {}),
        "build_parameters": _seen_by(freeze.build, point),
        "run_parameters": _seen_by(freeze.run, point),
        "build_script": freeze.build.script,
        "run_script": freeze.run.script,
        "machine": freeze.machine_name,
        "node": platform.node(),
        "worker": variables["KOCHI_WORKER_ID"],
        **told,
        "nonce": variables["KOCHI_ATTEMPT_NONCE"],
        "runner": variables["KOCHI_RUNNER"],
        "earlier_attempts": earlier_attempts(freeze.paths.machine(freeze.machine_name), *earlier),
        "cpus": os.environ.get("KOCHI_CPUS"),
        "allocation": allocation and {"scheduler": allocation.scheduler, "id": allocation.id},
        "hardware": hardware(),
        "system": system(load_now()),
        "facts": {},
        "environment": {},
        "usage": None,
        "launcher": None if launcher is None else dict(launcher),
        "binding": None,
        "noise": None,
        "snapshot": dict(freeze.snapshot),
        **({"configuration": dict(freeze.configuration)} if freeze.configuration else {}),
        "isolation": isolation,
        "recipes": [_recipe(freeze, install) for install in attempt.installs],
        "build": build.digest,
        "built": _made(place.manifest, BUILD_VERSION, place.log, "sources"),
        **({"preparation": {"prepare": _prepared(prepared)}} if prepared else {}),
        "run": attempt.identity,
        "started": started.isoformat(),
        "ended": started.isoformat(),
        "seconds": 0.0,
        "environment_seconds": None,
        "exit_status": None,
        "artifacts": [],
    }


def times_of(watch: Stopwatch, ended: Ended) -> dict[str, Any]:
    """The keys about when a script ran, without its environment and the rest of its pipeline."""
    whole = max(0.0, watch.seconds - ended.pipeline_seconds)
    # The clock may have been set meanwhile.
    loading = min(ended.environment_seconds, whole)
    started = datetime.fromtimestamp(watch.started + loading, UTC)
    return {
        "started": started.isoformat(),
        "ended": (started + timedelta(seconds=whole - loading)).isoformat(),
        "seconds": round(whole - loading, 6),
        "environment_seconds": round(loading, 6),
    }


def failed(record: Mapping[str, Any], reason: str, last_lines: Sequence[str]) -> dict[str, Any]:
    """The record of an attempt that has failed, with the last lines that its script printed."""
    return {
        **record,
        "outcome": "failed",
        "reason": reason,
        "last_lines": [each[:_LONGEST_LINE] for each in without_secrets(last_lines)],
        "artifacts": [],
    }


def was_stopped(record: Mapping[str, Any]) -> bool:
    """Whether the run script ended as after a signal that a worker or a person sends, who waits
    only some seconds for the end of the run."""
    return record["exit_status"] in STOPPED


def _seen_by(phase: Phase, point: Point) -> dict[str, str]:
    return {n: point.parameters[n] for n in phase.depend_params if n in point.parameters}


def _recipe(freeze: BatchFreeze, install: Install) -> dict[str, Any]:
    place = freeze.paths.install(
        freeze.machine_name, install.dependency, install.recipe, install.digest
    )
    frozen = freeze.recipes.get(f"{install.dependency}:{install.recipe}", {})
    made = _made(place.manifest, MANIFEST_VERSION, place.log)
    return {**asdict(install), "script": "", "envs": {}, **frozen, "install": made}


def _prepared(prepared: Build) -> dict[str, Any]:
    """What was prepared for a run."""
    place = BuildPaths(prepared.tree.parent)
    made = dict.fromkeys(("script", "started", "seconds", "node"))
    found = _made(place.manifest, BUILD_VERSION, place.log, "script") or {}
    found.pop("log", None)
    return {"digest": prepared.digest, **made, **found, "directory": str(place.tree)}


def _made(file: Path, version: int, log: Path, *more: str) -> dict[str, Any] | None:
    """When and where an installation or a build was made, from its own record; None without one."""
    with suppress(OSError, DamagedFileError, KeyError):
        made = read_json(file, version)
        found = {key: made[key] for key in ("started", "seconds", "node", *more)}
        return found | {"log": str(log)}
    return None
