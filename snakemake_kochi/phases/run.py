"""Running one point of an experiment in a private workspace: its record and its artifacts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.artifacts.attempts import is_cancelled, stop_if_given_up
from snakemake_kochi.artifacts.begun import begin
from snakemake_kochi.errors import STOPPED, PhaseError, ScriptError
from snakemake_kochi.files import (
    copy_file,
    copy_small_tree,
    is_there,
    last_lines,
    make_directory,
    read_json,
    to_json,
)
from snakemake_kochi.node_lock import HELD_VARIABLE, count_others, held
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.ending import STATUS_OF_TIMEOUT, Ended
from snakemake_kochi.phases.facts import Facts, is_as_given, noted, noting
from snakemake_kochi.phases.launcher import Started, start
from snakemake_kochi.phases.node import Noise, load_now
from snakemake_kochi.phases.printed import write_printed
from snakemake_kochi.phases.products import BUILD_VERSION, LAST_LINES, Build, Install, digest_of
from snakemake_kochi.phases.record import (
    Measured,
    Output,
    Task,
    complete,
    described,
    failed,
    make_record,
    was_stopped,
)
from snakemake_kochi.phases.script import (
    Environment,
    Stopwatch,
    give_repository,
    run_script,
    scratch_directory,
    source_variables,
)
from snakemake_kochi.project.grid import Phase, Point
from snakemake_kochi.schedulers.launchers import LAUNCHERS

if TYPE_CHECKING:
    from snakemake_kochi.phases.isolation import Container

# What the worker tells a job of itself; under another executor a job sees the same names.
_STANDALONE = {
    "KOCHI_WORKER_ID": "local",
    "KOCHI_QUEUE": "",
    "KOCHI_JOB_ID": "0",
    "KOCHI_ATTEMPT": "1",
    "KOCHI_ATTEMPT_NONCE": "",
    "KOCHI_RUNNER": "",
}


class CopyError(PhaseError):
    """A build could not be copied: the disk is full, or it, or what was prepared for the batch, was
    deleted just now."""


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
            **phase.isolated,
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


def run_task(
    freeze: BatchFreeze,
    task: Task,
    build: Build,
    installs: Sequence[Install],
    outputs: Sequence[Output],
    prepared: Build | None = None,
) -> dict[str, Any]:
    """Run a point's script in a private copy of its build, write its artifacts, return its record.

    `prepared` is what the `prepare` script of its batch has made. The record is JSON, see
    `record.py`. Raises PhaseError when the script fails or an artifact is missing, CopyError when
    the build cannot be copied, or `prepared` is gone; nothing is written then, and the error of an
    attempt that began has its record.
    """
    machine = freeze.paths.machine(freeze.machine_name)
    variables = _job_variables(freeze, task, prepared)
    around = Environment(freeze.load_environment, installs, variables)
    used = (build,) if prepared is None else (build, prepared)
    with scratch_directory(freeze.workspaces, used) as scratch:
        if prepared is not None and not is_there(prepared.tree):
            raise CopyError(f"{prepared.tree} was deleted just now")
        directory = _workspace(freeze, build, scratch)
        captured = scratch / "stdout"
        started = start(task.placement, freeze.machine_name, freeze.run.exclusive, scratch)
        parts = (freeze, task, build, installs, variables, prepared)
        container = _container(freeze, directory, scratch, installs, used)
        # The record of a job of its own is not kept.
        facts = Facts(freeze.facts if task.batch else {}, around, build.digest, container)
        isolation = container.record() if container and task.batch else None
        record = make_record(*parts, load_now(), isolation, started.described)
        if task.batch:
            begin(freeze.paths, record)
        measured = _run_measured(
            *(freeze, task, around, directory, captured, started, container, record["system"]),
            [directory / str(output.source) for output in outputs if output.type == "file"],
        )
        record = complete(record, measured)
        try:
            started.check(measured.ended.status)
            _check_end(freeze, task, measured.ended, captured, container)
            files = {
                output.destination: _file_of(output, directory)
                for output in outputs
                if output.type == "file"
            }
        except PhaseError as error:
            # Whoever stops a run waits only some seconds for it.
            record["facts"] = (
                facts.known(machine)
                if was_stopped(record)
                else facts.find(machine, directory, scratch)
            )
            reason = _reason(freeze, record, error)
            error.record = failed(record, reason, last_lines(captured, LAST_LINES))
            raise
        stop_if_given_up(freeze.paths, record)
        allowed = (directory, freeze.repository, Path(freeze.root))
        private = [output for output in outputs if _is_elsewhere(output, files, allowed)]
        _write_products(freeze, task, build, outputs, record, files, captured)
        # After the artifacts were copied, which a command could change.
        record["facts"] = facts.find(machine, directory, scratch)
        stop_if_given_up(freeze.paths, record)
        record["artifacts"] = [described(output) for output in outputs if output not in private]
        for output in outputs:
            if output.type == "stats":
                output.file.write_bytes(to_json(record))
    return record


def _container(
    freeze: BatchFreeze,
    directory: Path,
    scratch: Path,
    installs: Sequence[Install],
    used: Sequence[Build],
) -> Container | None:
    if freeze.run.isolation is None:
        return None
    # Imported here: most runs are not isolated.
    from snakemake_kochi.phases.isolation import Container

    place = (directory, scratch, installs, [each.tree for each in used], f"{freeze.file}: run")
    return Container(freeze.run.isolation, freeze.machine_isolation, *place)


def _reason(freeze: BatchFreeze, record: Mapping[str, Any], error: PhaseError) -> str:
    """Why an attempt failed, for its record."""
    return f"cancelled: {error.reason}" if is_cancelled(freeze.paths, record) else error.reason


def _run_measured(
    freeze: BatchFreeze,
    task: Task,
    around: Environment,
    directory: Path,
    captured: Path,
    started: Started,
    container: Container | None,
    system: Mapping[str, Any],
    files: Sequence[Path],
) -> Measured:
    """Execute the run script in its workspace, with its parameters in the environment.

    `system`: that of the node, see `node.system`. `files`: its artifacts.
    """
    # A Snakemake in the script must not wait for the end of the script.
    holding = {HELD_VARIABLE: os.uname().nodename}
    variables = {**around.variables, **started.variables, **task.variables, **holding}
    environment, wrapper = replace(around, variables=variables), tuple[str, ...]()
    if container:
        environment, wrapper = container.around(environment)
    seen, recorded = captured.with_name("variables"), freeze.recorded_variables
    # What an isolated script finds is decided elsewhere.
    is_noted = task.batch and (container or not is_as_given(environment, recorded))
    who = f"{task.name} of {freeze.repository}, process {os.getpid()},"
    with held(freeze.run.exclusive, who), Stopwatch() as watch:
        load = load_now()  # not that of a run for whose end this one waited
        noise = Noise(count_jobs=count_others) if task.batch else None
        ended = run_script(
            freeze.run.script,
            f"run_{freeze.experiment}",
            directory,
            environment,
            freeze.run.strict,
            captured.parent,
            # A job by hand may print anything, for as long as it likes.
            captured if task.batch else None,
            started.before + (noting(recorded, seen) if is_noted else ""),
            timeout=task.timeout,
            wrapper=wrapper,
            files=files,
        )
    if container and not container.is_parent:
        ended = replace(ended, usage=None)
    seen_by_script = noted(recorded, seen, environment.of_process())
    disturbed = None
    if noise is not None:
        own = started.own_seconds(ended.usage)
        disturbed = noise.found(own, system, freeze.quiet)
    return Measured(watch, ended, seen_by_script, started.binding, disturbed, load)


def _write_products(
    freeze: BatchFreeze,
    task: Task,
    build: Build,
    outputs: Sequence[Output],
    record: dict[str, Any],
    files: Mapping[str, Path],
    captured: Path,
) -> None:
    """Write the artifacts except those of type stats, and note in the record where the output of
    the run's script is in those of type stdout.

    `files`: those of type file, by destination. `captured`: the output.
    """
    printed: Path | None = None
    for output in outputs:
        make_directory(output.file.parent)
        if output.type == "file":
            copy_file(files[output.destination], output.file)
        elif output.type == "stdout" and printed is not None:
            copy_file(printed, output.file)
        elif output.type == "stdout":
            # Not beside the output first: each file that is made takes its time.
            printed = output.file
            log = freeze.paths.build(freeze.machine_name, build.digest).log
            place = write_printed(printed, task.name, record["job"], log, captured)
            record["output"] = place


def _check_end(
    freeze: BatchFreeze, task: Task, ended: Ended, captured: Path, container: Container | None
) -> None:
    """Raises PhaseError if the script could not be isolated, ScriptError if it failed."""
    if container:
        container.finish(ended, captured)
    if not ended.has_failed:
        return
    status = ended.status if ended.timeout is None else STATUS_OF_TIMEOUT
    hint, launcher = None, LAUNCHERS.get(task.placement.launcher.text)
    if launcher is not None and status not in STOPPED:  # who stops a run waits only some seconds
        hint = launcher[2](f"{freeze.load_environment}\n{freeze.run.script}")
    raise ScriptError(
        f"{freeze.file}: the run script of {task.name} {ended.how}",
        status,
        hint,
        reason=ended.reason("the run script"),
        output=last_lines(captured, LAST_LINES),
    )


def _workspace(freeze: BatchFreeze, build: Build, scratch: Path) -> Path:
    directory = _copy(build.tree, scratch / "workspace")
    _renew(freeze, build, directory)
    give_repository(freeze.git_directory, directory)
    return directory


def _copy(tree: Path, directory: Path) -> Path:
    """Make a private copy of a build."""
    if copy_small_tree(tree, directory):
        return directory
    # cp shares blocks where the filesystem can; with hard links, a run that edits a file in place
    # would change the build.
    command = ["cp", "-a", "--reflink=auto", "--", str(tree), str(directory)]
    copied = subprocess.run(command, capture_output=True, check=False)
    if copied.returncode != 0:
        # It has a line for each file; on a full disk they all say the same.
        said = copied.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise CopyError(f"could not copy {tree} into a workspace: {said}")
    return directory


def _renew(freeze: BatchFreeze, build: Build, directory: Path) -> None:
    """Files of a build's snapshot that are no sources of it (README, other experiments) may be
    older than the run's snapshot: git in the copy would report them as changed."""
    manifest = freeze.paths.build(freeze.machine_name, build.digest).manifest
    was, now = read_json(manifest, BUILD_VERSION)["snapshot"], freeze.snapshot["tree"]
    if was != now:
        # Imported here: it loads git, and most runs use the snapshot of their build.
        from snakemake_kochi.snapshot import renew

        renew(freeze.paths.store, was, now, directory)


def _job_variables(freeze: BatchFreeze, task: Task, prepared: Build | None) -> dict[str, str]:
    told = {name: os.environ.get(name, value) for name, value in _STANDALONE.items()}
    told |= source_variables(freeze.snapshot["base"], freeze.snapshot["dirty"])
    told |= {"KOCHI_MACHINE": freeze.machine_name, "KOCHI_JOB_NAME": task.name}
    return told if prepared is None else told | {"KOCHI_PREPARED": str(prepared.tree)}


def _file_of(output: Output, directory: Path) -> Path:
    """The file of which an artifact of type file is a copy, without links.

    Raises PhaseError if the script left no such file.
    """
    file = directory / str(output.source)
    if not file.is_file():
        raise PhaseError(
            f"artifact {output.destination}: the run left no file {output.source} in its workspace",
            "Correct 'src' of the artifact, or let the run script write that file.",
        )
    return file.resolve()


def _is_elsewhere(output: Output, files: Mapping[str, Path], allowed: Sequence[Path]) -> bool:
    """Whether a link leads out of the `allowed` directories, by mistake or on purpose.

    The run does not fail, which would discard the work of hours.
    """
    if output.type != "file":
        return False
    real = files[output.destination]
    if any(real.is_relative_to(place.resolve()) for place in allowed):
        return False
    print(
        f"kochi: artifact {output.destination} is not kept in git, only in results/: "
        f"{output.source} is a link to {real}, which is neither in the workspace nor in the "
        "project or KOCHI_ROOT\nIf its content is the result, let the run script copy it.",
        file=sys.stderr,
    )
    return True
