"""The record of one attempt of a run: what ran, from which code, where, and how it ended.

`workflow/schemas/record.schema.json` describes its keys; `artifacts/` stores it.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.attempts import earlier_attempts
from snakemake_kochi.artifacts.record import RECORD_VERSION, new_identity
from snakemake_kochi.confidential import without_secrets
from snakemake_kochi.errors import STOPPED, DamagedFileError
from snakemake_kochi.files import blocks_of, random_word, read_json
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.paths import BuildPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.ending import Ended
from snakemake_kochi.phases.launcher import NO_PLACEMENT, Placement
from snakemake_kochi.phases.node import hardware, system
from snakemake_kochi.phases.products import BUILD_VERSION, MANIFEST_VERSION, Build, Install
from snakemake_kochi.phases.script import Stopwatch
from snakemake_kochi.project.grid import Phase
from snakemake_kochi.schedulers.environment import own_allocation

_LONGEST_LINE = 500  # characters


@dataclass(frozen=True)
class Output:
    """An artifact of a point and its file.

    `source` is a path in the workspace, for type "file"; `destination` is the path below the
    machine's directory in the artifact branch.
    """

    type: str
    destination: str
    source: str | None
    file: Path


@dataclass(frozen=True)
class Task:
    """One point to run: its name, all its parameters, and those that its script sees (`variables`:
    KOCHI_PARAM_<NAME> -> value).

    `batch` is empty for a job outside of any batch, and so is `identity` (see `run_identity`).
    `rerun_of`: the identity of the record that a rerun repeats. `resources`: the numbers among the
    resources with which it was submitted, if its experiment has any. `timeout`: seconds for its
    script. `placement`: how it starts tasks.
    """

    name: str
    batch: str
    parameters: Mapping[str, str]
    duplicate: int
    variables: Mapping[str, str]
    identity: str = ""
    rerun_of: str = ""
    resources: Mapping[str, int] = FrozenDict()
    timeout: float | None = None
    placement: Placement = NO_PLACEMENT


@dataclass(frozen=True)
class Measured:
    """What was seen of the run script. `environment`: variables, see `variables.py`. `binding`: see
    `tasks.py`. `noise`: see `noise.py`. `load`: that of the node when it began."""

    watch: Stopwatch
    ended: Ended
    environment: Mapping[str, str]
    binding: Mapping[str, Any]
    noise: Mapping[str, Any] | None = None
    load: float | None = None


def make_record(
    freeze: BatchFreeze,
    task: Task,
    build: Build,
    installs: Sequence[Install],
    variables: Mapping[str, str],
    prepared: Build | None,
    load: float | None,
    isolation: Mapping[str, Any] | None = None,
    launcher: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of an attempt whose run script begins now; `complete` adds how it ended.

    `variables` are those that tell the job of itself, `prepared` is what the `prepare` script of
    its batch has made, `load` is that of the node, `isolation` what `Container.record` tells,
    `launcher` what `Started` does.
    """
    started = datetime.now(UTC)
    label = f"{freeze.experiment}.{task.batch or 'single'}"
    allocation = own_allocation(os.environ)
    return {
        "version": RECORD_VERSION,
        "identity": new_identity(label, started, random_word(6)),
        "outcome": "lost",
        "reason": None,
        "experiment": freeze.file,
        "batch": task.batch,
        "name": task.name,
        "parameters": dict(task.parameters),
        "duplicate": task.duplicate,
        **({"rerun_of": task.rerun_of} if task.rerun_of else {}),
        **({"seed": freeze.seed} if freeze.seed is not None else {}),
        "build_parameters": _seen_by(freeze.build, task),
        "run_parameters": _seen_by(freeze.run, task),
        "build_script": freeze.build.script,
        "run_script": freeze.run.script,
        "machine": freeze.machine_name,
        "node": platform.node(),
        "worker": variables["KOCHI_WORKER_ID"],
        "queue": variables["KOCHI_QUEUE"],
        "job": variables["KOCHI_JOB_ID"],
        "attempt": variables["KOCHI_ATTEMPT"],
        "nonce": variables["KOCHI_ATTEMPT_NONCE"],
        "runner": variables["KOCHI_RUNNER"],
        "earlier_attempts": earlier_attempts(
            freeze.paths.machine(freeze.machine_name),
            variables["KOCHI_QUEUE"],
            variables["KOCHI_JOB_ID"],
            variables["KOCHI_ATTEMPT"],
        ),
        "cpus": os.environ.get("KOCHI_CPUS"),
        "allocation": None
        if allocation is None
        else {"scheduler": allocation.scheduler, "id": allocation.id},
        "hardware": hardware(),
        "system": system(load),
        "facts": {},
        "environment": {},
        "usage": None,
        "launcher": None if launcher is None else dict(launcher),
        "binding": None,
        "noise": None,
        "snapshot": dict(freeze.snapshot),
        **({"configuration": dict(freeze.configuration)} if freeze.configuration else {}),
        "isolation": isolation,
        "recipes": [_recipe(freeze, install) for install in installs],
        "build": build.digest,
        "built": _made(
            freeze.paths.build(freeze.machine_name, build.digest).manifest,
            freeze.paths.build(freeze.machine_name, build.digest).log,
            BUILD_VERSION,
            ("sources",),
        ),
        **({"preparation": _preparation(prepared)} if prepared else {}),
        "run": task.identity,
        "started": started.isoformat(),
        "ended": started.isoformat(),
        "seconds": 0.0,
        "environment_seconds": None,
        "exit_status": None,
        "artifacts": [],
    }


def complete(record: Mapping[str, Any], measured: Measured) -> dict[str, Any]:
    """The record of an attempt whose script has ended, as that of a success without artifacts."""
    whole = max(0.0, measured.watch.seconds - measured.ended.pipeline_seconds)
    loading = measured.ended.environment_seconds
    # The clock may have been set meanwhile.
    loading = min(loading, whole)
    started = datetime.fromtimestamp(measured.watch.started + loading, UTC)
    return {
        **record,
        "outcome": "success",
        "environment": dict(measured.environment),
        "usage": None if measured.ended.usage is None else dict(vars(measured.ended.usage)),
        "binding": dict(measured.binding),
        "noise": measured.noise,
        "system": {**record.get("system", {}), "load": measured.load},
        "started": started.isoformat(),
        "ended": (started + timedelta(seconds=whole - loading)).isoformat(),
        "seconds": round(whole - loading, 6),
        "environment_seconds": round(loading, 6),
        "exit_status": measured.ended.status,
    }


def failed(record: Mapping[str, Any], reason: str, last_lines: Sequence[str]) -> dict[str, Any]:
    """The record of an attempt that has failed, with the last lines that its script printed."""
    kept = {key: value for key, value in record.items() if key != "output"}
    return kept | {
        "outcome": "failed",
        "reason": reason,
        "last_lines": [each[:_LONGEST_LINE] for each in without_secrets(last_lines)],
        "artifacts": [],
    }


def was_stopped(record: Mapping[str, Any]) -> bool:
    """Whether the run script ended as after a signal that a worker or a person sends."""
    return record["exit_status"] in STOPPED


def described(output: Output) -> dict[str, Any]:
    """An artifact as its record describes it.

    With "size" in bytes and "sha256" in hex, except in type "stats", which is the record itself.
    """
    found = {"type": output.type, "dest": output.destination, "src": output.source}
    if output.type == "stats":
        return found
    # Not by hashlib.file_digest, which clears a buffer of 256 KiB first.
    digest, size = hashlib.sha256(), 0
    with output.file.open("rb", buffering=0) as file:
        for block in blocks_of(file):
            digest.update(block)
            size += len(block)
    return {**found, "size": size, "sha256": digest.hexdigest()}


def _seen_by(phase: Phase, task: Task) -> dict[str, str]:
    return {name: task.parameters[name] for name in phase.depend_params if name in task.parameters}


def _recipe(freeze: BatchFreeze, install: Install) -> dict[str, Any]:
    place = freeze.paths.install(
        freeze.machine_name, install.dependency, install.recipe, install.digest
    )
    frozen = freeze.recipes.get(f"{install.dependency}:{install.recipe}", {})
    made = _made(place.record, place.log, MANIFEST_VERSION)
    return asdict(install) | {"script": "", "envs": {}} | dict(frozen) | {"install": made}


def _preparation(prepared: Build) -> dict[str, Any]:
    """What was prepared for a run."""
    place = BuildPaths(prepared.tree.parent)
    keys = ("digest", "script", "node", "started", "seconds")
    made = dict.fromkeys(keys) | {"digest": prepared.digest}
    with suppress(OSError, DamagedFileError, KeyError):
        found = read_json(place.manifest, BUILD_VERSION)
        made = {key: found[key] for key in keys}
    return {"prepare": {**made, "directory": str(place.tree)}}


def _made(file: Path, log: Path, version: int, more: Sequence[str] = ()) -> dict[str, Any] | None:
    """When and where an installation or a build was made, from its own record; None without one."""
    with suppress(OSError, DamagedFileError, KeyError):
        made = read_json(file, version)
        found = {key: made[key] for key in ("started", "seconds", "node", *more)}
        return found | {"log": str(log)}
    return None
