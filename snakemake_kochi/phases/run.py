"""Running one point of an experiment in a private workspace: its record and its artifacts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from snakemake_kochi.artifacts.attempts import is_cancelled, stop_if_given_up
from snakemake_kochi.artifacts.begun import begin
from snakemake_kochi.errors import PhaseError, ScriptError
from snakemake_kochi.files import answered, last_lines, make_directory, read_json, to_json
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.facts import Facts
from snakemake_kochi.phases.node import load_now
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
    note_build,
    own_environment,
    run_script,
    scratch_directory,
    source_variables,
)
from snakemake_kochi.phases.variables import noted, noting
from snakemake_kochi.project.grid import Phase, Point

_WIDTH = 80
# It is in each run's artifact, and the end of a long build is the interesting part.
MOST_OF_BUILD = 64 * 1024  # bytes
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
    """A build could not be copied: the disk is full, or the build was deleted just now."""


def run_identity(phase: Phase, load_environment: str, point: Point, build_file: str) -> str:
    """A digest of everything that determines a run and its artifacts.

    The name of the file that says which build to use contains what determines the build.
    """
    return digest_of(
        {
            "script": phase.script,
            "strict": phase.strict,
            "load_environment": load_environment,
            "variables": point.environment(phase),
            "duplicate": point.duplicate,
            "build": build_file,
            "artifacts": [[each.type, each.dest, each.src] for each in point.artifacts],
        }
    )


def run_task(
    freeze: BatchFreeze,
    task: Task,
    build: Build,
    installs: Sequence[Install],
    outputs: Sequence[Output],
) -> dict[str, Any]:
    """Run a point's script in a private copy of its build, write its artifacts, return its record.

    The record is JSON, see `record.py`. Raises PhaseError when the script fails or an artifact is
    missing, CopyError when the build cannot be copied; nothing is written then, and the error of
    an attempt that began has its record.
    """
    machine = freeze.paths.machine(freeze.machine_name)
    variables = _job_variables(freeze, task)
    around = Environment(freeze.load_environment, installs, variables)
    # The record of a job of its own is not kept.
    facts = Facts(freeze.facts if task.batch else {}, around, build.digest)
    with scratch_directory(freeze.workspaces) as scratch:
        note_build(scratch, build)
        directory = _copy(build.tree, scratch / "workspace")
        _renew(freeze, build, directory)
        give_repository(freeze.git_directory, directory)
        captured = scratch / "stdout"
        record = make_record(freeze, task, build, installs, variables, load_now())
        if task.batch:
            begin(freeze.paths, record)
        record = complete(record, _run_measured(freeze, task, around, directory, captured))
        try:
            files = _products(freeze, task, build, outputs, record, directory, captured)
        except PhaseError as error:
            if was_stopped(record):  # whoever stops a run waits only some seconds for it
                record["facts"] = facts.known(machine)
            else:
                record["facts"] = facts.find(machine, directory, scratch)
            reason = f"{'cancelled: ' if is_cancelled(freeze.paths, record) else ''}{error.reason}"
            error.record = failed(record, reason, last_lines(captured, LAST_LINES))
            raise
        stop_if_given_up(freeze.paths, record)
        allowed = (directory, freeze.repository, Path(freeze.root))
        private = [output for output in outputs if _is_elsewhere(output, files, allowed)]
        for output in outputs:
            make_directory(output.file.parent)
            if output.type != "stats":
                shutil.copyfile(files[output.destination], output.file)
        # After the artifacts were copied, which a command could change.
        record["facts"] = facts.find(machine, directory, scratch)
        stop_if_given_up(freeze.paths, record)
        record["artifacts"] = [described(output) for output in outputs if output not in private]
        for output in outputs:
            if output.type == "stats":
                output.file.write_bytes(to_json(record))
    return record


def _run_measured(
    freeze: BatchFreeze, task: Task, around: Environment, directory: Path, captured: Path
) -> Measured:
    """Execute the run script in its workspace, with its parameters in the environment."""
    environment = replace(around, variables={**around.variables, **task.variables})
    seen = captured.with_name("variables")
    with Stopwatch() as watch:
        ended = run_script(
            freeze.run.script,
            f"run_{freeze.experiment}",
            directory,
            environment,
            freeze.run.strict,
            captured.parent,
            # A job by hand may print anything, for as long as it likes.
            captured if task.batch else None,
            noting(freeze.recorded_variables, seen) if task.batch else "",
        )
    given = own_environment() | dict(environment.variables)
    return Measured(watch, ended, noted(freeze.recorded_variables, seen, given))


def _products(
    freeze: BatchFreeze,
    task: Task,
    build: Build,
    outputs: Sequence[Output],
    record: dict[str, Any],
    directory: Path,
    captured: Path,
) -> dict[str, Path]:
    """The file of each artifact except those of type stats, by destination.

    Raises PhaseError if the script failed or left no such file.
    """
    _check_end(freeze, task, record["exit_status"], captured)
    printed = captured.with_name("printed")
    if any(output.type == "stdout" for output in outputs):
        build_log = freeze.paths.build(freeze.machine_name, build.digest).log
        record["output"] = write_printed(printed, task.name, record["job"], build_log, captured)
    return {
        output.destination: _file_of(output, directory, printed)
        for output in outputs
        if output.type != "stats"
    }


def _check_end(freeze: BatchFreeze, task: Task, status: int, captured: Path) -> None:
    if status == 0:
        return
    said = f"ended with exit status {status}"
    with suppress(ValueError):
        said += f", as after {signal.Signals(status - 128).name}"
    raise ScriptError(
        f"{freeze.file}: the run script of {task.name} {said}",
        status,
        reason=f"the run script {said}",
        output=last_lines(captured, LAST_LINES),
    )


def _copy(tree: Path, directory: Path) -> Path:
    """Make a private copy of a build."""
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


def _job_variables(freeze: BatchFreeze, task: Task) -> dict[str, str]:
    told = {name: os.environ.get(name, value) for name, value in _STANDALONE.items()}
    told |= source_variables(freeze.snapshot["base"], freeze.snapshot["dirty"])
    return told | {"KOCHI_MACHINE": freeze.machine_name, "KOCHI_JOB_NAME": task.name}


def _file_of(output: Output, directory: Path, printed: Path) -> Path:
    """The file of which an artifact is a copy, without links."""
    if output.type == "stdout":
        return printed
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


def write_printed(
    file: Path, name: str, job: str, build_log: Path, captured: Path
) -> dict[str, int]:
    """Write the artifact of type `stdout`, in the form that Kochi gave it.

        Kochi job NAME (ID=7) started.
        --------------------------------------------------------------------------------
        what the build printed, when it was built
        what the run printed
        --------------------------------------------------------------------------------
        Saving artifacts...

    Return the range of the run's own output for the record: `start` and `size` in bytes. Metrics
    are read from that alone. Records of earlier releases have no such key, and their file is the
    run's output alone.
    """
    rule = b"-" * _WIDTH + b"\n"
    with file.open("wb") as target:
        target.write(_encoded(f"Kochi job {name} (ID={job}) started.\n"))
        target.write(rule)
        _write_build(target, build_log)
        start = target.tell()
        with captured.open("rb") as source:
            shutil.copyfileobj(source, target, 1 << 20)
        size = target.tell() - start
        if not _ends_a_line(captured, size):
            target.write(b"\n")
        target.write(rule + b"Saving artifacts...\n")
    return {"start": start, "size": size}


def _write_build(target: BinaryIO, log: Path) -> None:
    try:
        text = answered(lambda: _end_of_build(log))
    except FileNotFoundError:
        return  # a build without a script, or made before logs were kept
    except OSError as error:
        # The run has succeeded, maybe after hours: it does not fail for that.
        text = _encoded(
            f"[the build's output, {log}, cannot be read now: {error.strerror or error}]\n"
        )
    target.write(text)
    if text and not text.endswith(b"\n"):
        target.write(b"\n")


def _end_of_build(log: Path) -> bytes:
    with log.open("rb") as source:
        size = source.seek(0, 2)
        source.seek(max(0, size - MOST_OF_BUILD))
        text = source.read(MOST_OF_BUILD)
    if size > MOST_OF_BUILD:
        text = text.partition(b"\n")[2]
        text = _encoded(f"[{size - len(text)} bytes before this are in {log}]\n") + text
    return text


def _encoded(text: str) -> bytes:
    """Paths and names need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _ends_a_line(file: Path, size: int) -> bool:
    if size == 0:
        return True
    with file.open("rb") as stream:
        stream.seek(-1, 2)
        return stream.read(1) == b"\n"


def own_output(record: Mapping[str, Any], file: Path) -> str:
    """The run's own output, from the artifact beside its record."""
    return own_output_in(record, answered(file.read_bytes))


def own_output_in(record: Mapping[str, Any], content: bytes) -> str:
    """The run's own output, from the content of the artifact."""
    if (place := record.get("output")) is not None:
        content = content[place["start"] : place["start"] + place["size"]]
    return content.decode("utf-8", "replace")
