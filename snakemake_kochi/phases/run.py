"""Running one point of an experiment in a private workspace: its attempt, record and artifacts.

`workflow/schemas/record.schema.yaml` describes the keys of a record; `artifacts/` stores it.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.artifacts.attempts import earlier_attempts, is_cancelled, stop_if_given_up
from snakemake_kochi.artifacts.begun import begin
from snakemake_kochi.artifacts.record import RECORD_VERSION, new_identity
from snakemake_kochi.confidential import without_secrets
from snakemake_kochi.errors import STOPPED, DamagedFileError, PhaseError, ScriptError
from snakemake_kochi.files import last_lines, note_use, random_word, read_json, to_json
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.node_lock import HELD_VARIABLE, count_others, held
from snakemake_kochi.paths import BuildPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.launcher import NO_PLACEMENT, Placement, Started, binding, start
from snakemake_kochi.phases.node import Facts, Noise, hardware, load_now, noted, noting, system
from snakemake_kochi.phases.outputs import Output, described, files_of, write_outputs
from snakemake_kochi.phases.products import (
    LAST_LINES,
    VERSION,
    Build,
    CopyError,
    Install,
    copy_tree,
    digest_of,
    give_repository,
    scratch_directory,
)
from snakemake_kochi.phases.script import (
    STATUS_OF_TIMEOUT,
    Environment,
    run_script,
    source_variables,
)
from snakemake_kochi.project.grid import Phase, Point
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.schedulers.launchers import LAUNCHERS

if TYPE_CHECKING:
    from snakemake_kochi.phases.isolation import Container

_LONGEST_LINE = 500  # characters
# What a worker tells a job of itself; the values are those without a worker.
_WORKER = {
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
        """Of its script, without those of the point, the machine and the recipes."""
        snapshot = self.freeze.snapshot
        told = {name: os.environ.get(name, value) for name, value in _WORKER.items()}
        told |= source_variables(snapshot["base"], snapshot["dirty"])
        told |= {"KOCHI_MACHINE": self.freeze.machine_name, "KOCHI_JOB_NAME": self.point.name}
        return told | ({"KOCHI_PREPARED": str(self.prepared.tree)} if self.prepared else {})


def run_identity(
    phase: Phase,
    load_environment: str,
    point: Point,
    build_file: str,
    prepared: str | None = None,
    placement: Sequence[str] = (),
) -> str:
    """A digest of everything that determines a run and its artifacts.

    The name of the file that says which build to use contains what determines the build, and that
    of the file that says what was `prepared` does so, too. `placement`: see `Placement.determines`.
    """
    return digest_of(
        {
            **phase.beside_script,
            "script": phase.script,
            "strict": phase.strict,
            "load_environment": load_environment,
            "variables": point.environment(phase),
            "duplicate": point.duplicate,
            "build": build_file,
            "artifacts": [[each.type, each.dest, each.src] for each in point.artifacts],
            **({"preparation": [f"prepared={prepared}"]} if prepared else {}),
            **({"placement": list(placement)} if placement else {}),
        }
    )


def run_task(attempt: Attempt) -> dict[str, Any]:
    """Run a point's script in a private copy of its build, write its artifacts, return its record.

    Raises PhaseError when the script fails or an artifact is missing, CopyError when the build
    cannot be copied, or is gone, as `prepared` may be; nothing is written then, and the error of an
    attempt that began has its record.
    """
    freeze, outputs = attempt.freeze, attempt.outputs
    paths, machine = freeze.paths, freeze.paths.machine(freeze.machine_name)
    with scratch_directory(freeze.workspaces, attempt.used) as scratch:
        directory, captured = _workspace(attempt, scratch), scratch / "stdout"
        environment = Environment(freeze.load_environment, attempt.installs, attempt.variables)
        started = start(attempt.placement, freeze.machine_name, freeze.run.exclusive, scratch)
        container = None
        if freeze.run.isolation is not None:
            # Imported here: most runs are not isolated.
            from snakemake_kochi.phases.isolation import Container

            place = (directory, scratch, attempt.installs, [each.tree for each in attempt.used])
            key, of_machine = f"{freeze.file}: run", freeze.machine_isolation
            container = Container(freeze.run.isolation, of_machine, *place, key)
        # The record of a job of its own is not kept.
        commands = freeze.facts if freeze.batch else {}
        facts = Facts(commands, environment, attempt.build.digest, container)
        isolation = container.record() if container and freeze.batch else None
        record = make_record(attempt, isolation, started.described)
        if freeze.batch:
            begin(paths, record)
        try:
            _measure(attempt, environment, started, container, record, directory, captured)
            allowed = (directory, freeze.repository, Path(freeze.root))
            files = files_of(outputs, directory, allowed)
        except PhaseError as error:
            # Who stops a run waits only some seconds for its end.
            was_stopped = record["exit_status"] in STOPPED
            known = facts.known(machine) if was_stopped else None
            record["facts"] = facts.find(machine, directory, scratch) if known is None else known
            is_over = is_cancelled(paths, record)
            lines = without_secrets(last_lines(captured, LAST_LINES))
            error.record = record | {
                "outcome": "failed",
                "reason": f"cancelled: {error.reason}" if is_over else error.reason,
                "last_lines": [each[:_LONGEST_LINE] for each in lines],
                "artifacts": [],
            }
            raise
        stop_if_given_up(paths, record)
        log = BuildPaths(attempt.build.tree.parent).log
        record |= write_outputs(outputs, files, attempt.point.name, record["job"], log, captured)
        # After the artifacts were copied, which a command could change.
        record["facts"] = facts.find(machine, directory, scratch)
        stop_if_given_up(paths, record)
        record["artifacts"] = [described(output) for output in outputs]
        for output in outputs:
            if output.type == "stats":
                output.file.write_bytes(to_json(record))
    return record


def _workspace(attempt: Attempt, scratch: Path) -> Path:
    """A private copy of a build, with the files and the `.git` of the run's snapshot."""
    freeze, directory = attempt.freeze, scratch / "workspace"
    for each in attempt.used:
        if not note_use(BuildPaths(each.tree.parent).manifest):
            raise CopyError(f"{each.tree} was deleted just now")
    copy_tree(attempt.build.tree, directory)
    # Files of a build's snapshot that are no sources of it (README, other experiments) may be older
    # than the run's snapshot: git in the copy would report them as changed.
    was = read_json(BuildPaths(attempt.build.tree.parent).manifest, VERSION)["snapshot"]
    if was != (now := freeze.snapshot["tree"]):
        # Imported here: it loads git, and most runs use the snapshot of their build.
        from snakemake_kochi.snapshot import renew

        renew(freeze.paths.store, was, now, directory)
    give_repository(freeze.git_directory, directory)
    return directory


def _measure(
    attempt: Attempt,
    around: Environment,
    started: Started,
    container: Container | None,
    record: dict[str, Any],
    directory: Path,
    captured: Path,
) -> None:
    """Execute the run script in its workspace, with its parameters in the environment, after its
    warm-ups; note in the record how the last one of these ended. Raises PhaseError if it failed."""
    freeze, point = attempt.freeze, attempt.point
    # A Snakemake in the script must not wait for the end of the script.
    holding = {HELD_VARIABLE: os.uname().nodename}
    told = {**attempt.told, **point.environment(freeze.run), **holding}
    variables = {**around.variables, **started.variables, **told}
    environment, wrapper = replace(around, variables=variables), tuple[str, ...]()
    if container:
        environment, wrapper = container.around(environment)
    seen = captured.with_name("variables")
    # Else a script finds its variables as its process was given them.
    is_noted = freeze.batch and (container or environment.is_loaded)
    record["binding"] = binding()  # a script has what its parent has
    who = f"{point.name} of {freeze.repository}, process {os.getpid()},"
    warmups, timeout, began = freeze.run.warmup, attempt.timeout, time.monotonic()
    with held(freeze.run.exclusive, who):
        while True:
            load = load_now()  # not that of a run for whose end this one waited
            noise = Noise(count_jobs=count_others) if freeze.batch else None
            ended = run_script(
                *(freeze.run.script, f"run_{freeze.experiment}", directory, environment),
                *(freeze.run.strict, captured.parent),
                # A job by hand may print anything, for as long as it likes.
                captured if freeze.batch else None,
                started.before + (noting(seen) if is_noted else ""),
                timeout=timeout,
                wrapper=wrapper,
                files=[directory / str(o.source) for o in attempt.outputs if o.type == "file"],
            )
            if not warmups or ended.has_failed:
                break
            warmups -= 1
            before = record["warmup_seconds"] = round(time.monotonic() - began, 6)
            timeout = None if attempt.timeout is None else max(0.0, attempt.timeout - before)
    usage = None if container and not container.is_parent else ended.usage
    is_counted = usage is not None and started.counts_tasks
    own = usage["user_seconds"] + usage["system_seconds"] if usage and is_counted else None
    node = record["system"]
    record |= {
        "outcome": "success",
        "environment": noted(freeze.recorded_variables, seen, environment.of_process()),
        "usage": None if usage is None else dict(usage),
        "noise": None if noise is None else noise.found(own, node, freeze.quiet),
        **ended.times,
        "system": {**node, "load": load},
        "exit_status": ended.status,
    }
    if container:
        container.finish(ended, captured)
    if ended.has_failed:
        hint, launcher = None, LAUNCHERS.get(attempt.placement.launcher.text)
        status = ended.status if ended.timeout is None else STATUS_OF_TIMEOUT
        # 127: the launcher itself is missing, or the program.
        if launcher is not None and status not in (*STOPPED, 127):
            hint = launcher[2](f"{freeze.load_environment}\n{freeze.run.script}")
        script = "a warm-up of the run script" if warmups else "the run script"
        message = f"{freeze.file}: {script} of {point.name} {ended.how}"
        output, reason = last_lines(captured, LAST_LINES), ended.reason(script)
        raise ScriptError(message, status, hint, reason=reason, output=output)


# ---- the record


def make_record(
    attempt: Attempt, isolation: Mapping[str, Any] | None, launcher: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The record of an attempt whose run script begins now: of one that is killed, it stays so.

    `isolation` is what `Container.record` tells, `launcher` what `Started` does.
    """
    freeze, point, build = attempt.freeze, attempt.point, attempt.build
    worker = {name: attempt.variables[name] for name in _WORKER}
    started = datetime.now(UTC)
    allocation = own_allocation(os.environ)
    job = [worker[f"KOCHI_{name}"] for name in ("QUEUE", "JOB_ID", "ATTEMPT")]
    place = freeze.paths.build(freeze.machine_name, build.digest)
    seen = {
        kind: {n: point.parameters[n] for n in phase.depend_params if n in point.parameters}
        for kind, phase in (("build", freeze.build), ("run", freeze.run))
    }
    return {
        "version": RECORD_VERSION,
        "identity": new_identity(
            f"{freeze.experiment}.{freeze.batch or 'single'}", started, random_word(6)
        ),
        "outcome": "lost",
        "reason": None,
        "experiment": freeze.file,
        "batch": freeze.batch,
        "name": point.name,
        "parameters": dict(point.parameters),
        "duplicate": point.duplicate,
        **({"rerun_of": point.rerun_of} if point.rerun_of else {}),
        **({"seed": freeze.seed} if freeze.seed is not None else {}),
        "build_parameters": seen["build"],
        "run_parameters": seen["run"],
        "build_script": freeze.build.script,
        "run_script": freeze.run.script,
        "machine": freeze.machine_name,
        "node": platform.node(),
        "worker": worker["KOCHI_WORKER_ID"],
        **dict(zip(("queue", "job", "attempt"), job, strict=True)),
        "nonce": worker["KOCHI_ATTEMPT_NONCE"],
        "runner": worker["KOCHI_RUNNER"],
        "earlier_attempts": earlier_attempts(freeze.paths.machine(freeze.machine_name), *job),
        "cpus": os.environ.get("KOCHI_CPUS"),
        "allocation": allocation and {"scheduler": allocation.scheduler, "id": allocation.id},
        "hardware": hardware(),
        "system": system(load_now()),
        "facts": {},
        "environment": {},
        **dict.fromkeys(("usage", "binding", "noise", "environment_seconds", "exit_status")),
        "launcher": None if launcher is None else dict(launcher),
        "snapshot": dict(freeze.snapshot),
        **({"configuration": dict(freeze.configuration)} if freeze.configuration else {}),
        "isolation": isolation,
        "recipes": [_recipe(freeze, install) for install in attempt.installs],
        "build": build.digest,
        "built": _made(place.manifest, place.log, "sources"),
        **({"preparation": {"prepare": _prepared(attempt.prepared)}} if attempt.prepared else {}),
        "run": attempt.identity,
        "started": started.isoformat(),
        "ended": started.isoformat(),
        "seconds": 0.0,
        "artifacts": [],
    }


def _recipe(freeze: BatchFreeze, install: Install) -> dict[str, Any]:
    names = (install.dependency, install.recipe, install.digest)
    place = freeze.paths.install(freeze.machine_name, *names)
    frozen = freeze.recipes.get(f"{install.dependency}:{install.recipe}", {})
    made = _made(place.manifest, place.log)
    return {**asdict(install), "script": "", "envs": {}, **frozen, "install": made}


def _prepared(prepared: Build) -> dict[str, Any]:
    place = BuildPaths(prepared.tree.parent)
    made = dict.fromkeys(("script", "started", "seconds", "node"))
    made |= _made(place.manifest, place.log, "script") or {}
    made.pop("log", None)
    return {"digest": prepared.digest, **made, "directory": str(place.tree)}


def _made(file: Path, log: Path, *more: str) -> dict[str, Any] | None:
    """When and where an installation or a build was made, from its own record; None without one."""
    with suppress(OSError, DamagedFileError, KeyError):
        made = read_json(file, VERSION)
        return {key: made[key] for key in ("started", "seconds", "node", *more)} | {"log": str(log)}
    return None
