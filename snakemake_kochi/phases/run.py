"""Running one point of an experiment in a private workspace: its record and its artifacts."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.artifacts.attempts import is_cancelled, stop_if_given_up
from snakemake_kochi.artifacts.begun import begin
from snakemake_kochi.errors import STOPPED, PhaseError, ScriptError
from snakemake_kochi.files import last_lines, note_use, read_json, to_json
from snakemake_kochi.node_lock import HELD_VARIABLE, count_others, held
from snakemake_kochi.paths import BuildPaths
from snakemake_kochi.phases.facts import Facts, noted, noting
from snakemake_kochi.phases.launcher import Started, binding, start
from snakemake_kochi.phases.node import Noise, load_now
from snakemake_kochi.phases.outputs import described, files_of, write_outputs
from snakemake_kochi.phases.products import BUILD_VERSION, LAST_LINES, digest_of
from snakemake_kochi.phases.record import Attempt, failed, make_record, times_of, was_stopped
from snakemake_kochi.phases.script import (
    STATUS_OF_TIMEOUT,
    Ended,
    Environment,
    Stopwatch,
    run_script,
)
from snakemake_kochi.phases.workspace import (
    CopyError,
    copy_tree,
    give_repository,
    scratch_directory,
)
from snakemake_kochi.project.grid import Phase, Point
from snakemake_kochi.schedulers.launchers import LAUNCHERS

if TYPE_CHECKING:
    from snakemake_kochi.phases.isolation import Container


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

    The record is JSON, see `record.py`. Raises PhaseError when the script fails or an artifact is
    missing, CopyError when the build cannot be copied, or is gone, as `prepared` may be; nothing is
    written then, and the error of an attempt that began has its record.
    """
    freeze, outputs = attempt.freeze, attempt.outputs
    paths, machine = freeze.paths, freeze.paths.machine(freeze.machine_name)
    with scratch_directory(freeze.workspaces, attempt.used) as scratch:
        for each in attempt.used:
            if not note_use(BuildPaths(each.tree.parent).manifest):
                raise CopyError(f"{each.tree} was deleted just now")
        directory, captured = _workspace(attempt, scratch), scratch / "stdout"
        environment = Environment(freeze.load_environment, attempt.installs, attempt.variables)
        started = start(attempt.placement, freeze.machine_name, freeze.run.exclusive, scratch)
        container = _container(attempt, directory, scratch)
        # The record of a job of its own is not kept.
        commands = freeze.facts if freeze.batch else {}
        facts = Facts(commands, environment, attempt.build.digest, container)
        isolation = container.record() if container and freeze.batch else None
        record = make_record(attempt, isolation, started.described)
        if freeze.batch:
            begin(paths, record)
        parts = (attempt, environment, started, container)
        ended, script, measured = _measured(*parts, record["system"], directory, captured)
        record |= measured
        try:
            if container:
                container.finish(ended, captured)
            _check(attempt, ended, captured, script)
            allowed = (directory, freeze.repository, Path(freeze.root))
            files = files_of(outputs, directory, allowed)
        except PhaseError as error:
            known = facts.known(machine) if was_stopped(record) else None
            record["facts"] = facts.find(machine, directory, scratch) if known is None else known
            is_over = is_cancelled(paths, record)
            reason = f"cancelled: {error.reason}" if is_over else error.reason
            error.record = failed(record, reason, last_lines(captured, LAST_LINES))
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
    freeze, directory, place = attempt.freeze, scratch / "workspace", attempt.build.tree.parent
    copy_tree(attempt.build.tree, directory)
    # Files of a build's snapshot that are no sources of it (README, other experiments) may be older
    # than the run's snapshot: git in the copy would report them as changed.
    was = read_json(BuildPaths(place).manifest, BUILD_VERSION)["snapshot"]
    if was != (now := freeze.snapshot["tree"]):
        # Imported here: it loads git, and most runs use the snapshot of their build.
        from snakemake_kochi.snapshot import renew

        renew(freeze.paths.store, was, now, directory)
    give_repository(freeze.git_directory, directory)
    return directory


def _container(attempt: Attempt, directory: Path, scratch: Path) -> Container | None:
    freeze = attempt.freeze
    if freeze.run.isolation is None:
        return None
    # Imported here: most runs are not isolated.
    from snakemake_kochi.phases.isolation import Container

    trees = [each.tree for each in attempt.used]
    place = (directory, scratch, attempt.installs, trees, f"{freeze.file}: run")
    return Container(freeze.run.isolation, freeze.machine_isolation, *place)


def _measured(
    attempt: Attempt,
    around: Environment,
    started: Started,
    container: Container | None,
    system: Mapping[str, Any],
    directory: Path,
    captured: Path,
) -> tuple[Ended, str, dict[str, Any]]:
    """Execute the run script in its workspace, with its parameters in the environment, after its
    warm-ups; return how the last one of these ended, which one that is, and what the record says of
    it, as of a success. `system`: see `node.system`."""
    freeze, point = attempt.freeze, attempt.point
    # A Snakemake in the script must not wait for the end of the script.
    holding = {HELD_VARIABLE: os.uname().nodename}
    told = {**attempt.told, **point.environment(freeze.run), **holding}
    variables = {**around.variables, **started.variables, **told}
    environment, wrapper = replace(around, variables=variables), tuple[str, ...]()
    if container:
        environment, wrapper = container.around(environment)
    seen, recorded = captured.with_name("variables"), freeze.recorded_variables
    # Else a script finds its variables as its process was given them.
    is_noted = freeze.batch and (container or environment.is_loaded)
    allowed = binding()  # a script has what its parent has
    who = f"{point.name} of {freeze.repository}, process {os.getpid()},"
    warmups, timeout, began = 0, attempt.timeout, time.monotonic()
    with held(freeze.run.exclusive, who):
        while True:
            with Stopwatch() as watch:
                load = load_now()  # not that of a run for whose end this one waited
                noise = Noise(count_jobs=count_others) if freeze.batch else None
                ended = run_script(
                    freeze.run.script,
                    f"run_{freeze.experiment}",
                    directory,
                    environment,
                    freeze.run.strict,
                    captured.parent,
                    # A job by hand may print anything, for as long as it likes.
                    captured if freeze.batch else None,
                    started.before + (noting(seen) if is_noted else ""),
                    timeout=timeout,
                    wrapper=wrapper,
                    files=[directory / str(o.source) for o in attempt.outputs if o.type == "file"],
                )
            if warmups == freeze.run.warmup or ended.has_failed:
                break
            warmups += 1
            before = time.monotonic() - began
            timeout = None if attempt.timeout is None else max(0.0, attempt.timeout - before)
    usage = None if container and not container.is_parent else ended.usage
    own = None
    if usage is not None and started.counts_tasks:
        own = usage["user_seconds"] + usage["system_seconds"]
    script = "the run script" if warmups == freeze.run.warmup else "a warm-up of the run script"
    measured: dict[str, Any] = {
        "outcome": "success",
        **({"warmup_seconds": round(before, 6)} if warmups else {}),
        "environment": noted(recorded, seen, environment.of_process()),
        "usage": None if usage is None else dict(usage),
        "binding": allowed,
        "noise": None if noise is None else noise.found(own, system, freeze.quiet),
        **times_of(watch, ended),
        "system": {**system, "load": load},
        "exit_status": ended.status,
    }
    return ended, script, measured


def _check(attempt: Attempt, ended: Ended, captured: Path, script: str) -> None:
    """Raises ScriptError if the script failed."""
    if not ended.has_failed:
        return
    freeze, hint = attempt.freeze, None
    status = ended.status if ended.timeout is None else STATUS_OF_TIMEOUT
    launcher = LAUNCHERS.get(attempt.placement.launcher.text)
    # Who stops a run waits only some seconds. 127: the launcher itself is missing, or the program.
    if launcher is not None and status not in (*STOPPED, 127):
        hint = launcher[2](f"{freeze.load_environment}\n{freeze.run.script}")
    raise ScriptError(
        f"{freeze.file}: {script} of {attempt.point.name} {ended.how}",
        status,
        hint,
        reason=ended.reason(script),
        output=last_lines(captured, LAST_LINES),
    )
