"""The artifacts of a run, as files in results/; and keeping them: journaled first, then committed
to the machine's artifact branch.

Not every run commits, because git takes longer than many a run. In a burst one run in some seconds
commits what all have journaled, and the process that started them commits the rest at its end. A
run that outlives that process commits at once.
"""

from __future__ import annotations

import atexit
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.agreement import disagree, note_directory, told_missed
from snakemake_kochi.artifacts.begun import end, keep_unfinished
from snakemake_kochi.artifacts.journal import Result, is_commit_due, journal, pending
from snakemake_kochi.artifacts.promises import is_commit_promised, promise_to_commit
from snakemake_kochi.errors import STOPPED, GitError, KochiError, PhaseError
from snakemake_kochi.files import answered, blocks_of, copy_file, copy_stream, make_directory
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze

_RULE = b"-" * 80 + b"\n"
# Bytes. It is in each run's artifact, and the end of a long build is the interesting part.
MOST_OF_BUILD = 64 * 1024
_PATIENCE = 30.0  # seconds to wait for a branch


@dataclass(frozen=True)
class Output:
    """An artifact of a point and its file. `source`: a path in the workspace, for type "file";
    `destination`: the path below the machine's directory in the artifact branch."""

    type: str
    destination: str
    source: str | None
    file: Path


def files_of(
    outputs: Iterable[Output], directory: Path, allowed: Sequence[Path]
) -> dict[Output, Path]:
    """The files in a workspace of which artifacts of type file are copies, without links.

    Raises PhaseError if the script left no such file, or a link that leads out of the `allowed`
    directories, by mistake or on purpose: what it leads to would be published.
    """
    found = {}
    for output in outputs:
        if output.type == "file":
            file = directory / str(output.source)
            if not file.is_file():
                raise PhaseError(
                    f"artifact {output.destination}: the run left no file {output.source} in its "
                    "workspace",
                    "Correct 'src' or the metric's file, or let the run script write that file.",
                )
            found[output] = real = file.resolve()
            if not any(real.is_relative_to(place.resolve()) for place in allowed):
                raise PhaseError(
                    f"artifact {output.destination}: {output.source} is a link to {real}, which is "
                    "neither in the workspace nor in the project or KOCHI_ROOT",
                    "If its content is the result, let the run script copy it.",
                )
    return found


def write_outputs(
    outputs: Iterable[Output],
    files: Mapping[Output, Path],
    name: str,
    job: str,
    build_log: Path,
    captured: Path,
) -> dict[str, Any]:
    """Write the artifacts except those of type stats; return where in those of type stdout the
    output of the run's script is, as the key "output" of its record.

    `files`: those of type file. `captured`: the output. `name` and `job`: see `write_printed`.
    """
    printed: Path | None = None
    record: dict[str, Any] = {}
    for output in outputs:
        make_directory(output.file.parent)
        if output in files:
            copy_file(files[output], output.file)
        elif output.type == "stdout" and printed is not None:
            copy_file(printed, output.file)
        elif output.type == "stdout":
            # Not beside the output first: each file that is made takes its time.
            printed = output.file
            record["output"] = write_printed(printed, name, job, build_log, captured)
    return record


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

    Return the range of the run's own output: `start` and `size` in bytes. Metrics are read from
    that alone.
    """
    with file.open("wb") as target, captured.open("rb", buffering=0) as source:
        # Paths and names need not be UTF-8.
        title = f"Kochi job {name} (ID={job}) started.\n"
        target.write(title.encode("utf-8", "surrogateescape") + _RULE)
        if before := _printed_by_build(build_log):
            target.write(before if before.endswith(b"\n") else before + b"\n")
        start, size = target.tell(), copy_stream(source, target)
        if size:
            source.seek(-1, 2)
            target.write(b"\n" if source.read(1) != b"\n" else b"")
        target.write(_RULE + b"Saving artifacts...\n")
    return {"start": start, "size": size}


def _printed_by_build(log: Path) -> bytes:
    def read() -> bytes:
        with log.open("rb") as source:
            size = source.seek(0, 2)
            source.seek(max(0, size - MOST_OF_BUILD))
            text = source.read(MOST_OF_BUILD)
        if size > MOST_OF_BUILD:
            text = text.partition(b"\n")[2]
            said = f"[{size - len(text)} bytes before this are in {log}]\n"
            text = said.encode("utf-8", "surrogateescape") + text
        return text

    try:
        return answered(read)
    except FileNotFoundError:
        return b""  # a build without a script


def own_output(record: Mapping[str, Any], file: Path) -> str:
    """The run's own output, from the artifact beside its record."""
    return own_output_in(record, answered(file.read_bytes))


def own_output_in(record: Mapping[str, Any], content: bytes) -> str:
    """The run's own output, from the content of the artifact of type stdout."""
    if (found := record.get("output")) is not None:
        content = content[found["start"] : found["start"] + found["size"]]
    return content.decode("utf-8", "replace")


def described(output: Output) -> dict[str, Any]:
    """An artifact as its record describes it, with "size" in bytes and "sha256" in hex, except in
    type "stats", which is the record itself."""
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


# ---- keeping them


def keep_result(
    freeze: BatchFreeze, record: Mapping[str, Any], outputs: Sequence[Output] = ()
) -> None:
    """Journal the artifacts and the record of an attempt, and commit the journal if that is due. An
    attempt that failed has no artifacts.

    Raises KochiError for invalid artifacts. If they cannot be journaled or committed now (a full
    disk, a branch that another process holds), the run does not fail, which would lose its
    products: they are in the results directory, with the record, and are committed later.
    """
    paths, machine = freeze.paths, freeze.machine_name
    is_failure = record.get("outcome") == "failed"
    files = {each.destination: each.file for each in outputs}
    try:
        result = Result(record["identity"], files, record)
        journal(paths, machine, result, freeze.repository, freeze.large_files)
    except (OSError, GitError) as error:
        said = f"the record of this failed attempt is not kept: {error}"
        if not is_failure:
            disagree(paths, machine)
            said = f"the result is only in results/ for now: {error}\nThe next run, or "
            said += "'kochi artifact sync', commits it from there."
        print(f"kochi: {said}", file=sys.stderr)
        return
    finally:
        end(paths, record)
    # Who stops a run waits only some seconds for its end.
    if is_failure and record["exit_status"] in STOPPED:
        return
    if is_commit_due(paths, machine) or not is_commit_promised(paths, machine):
        with _not_now():
            from snakemake_kochi.artifacts.committer import commit_in_burst  # loads git

            commit_in_burst(freeze.repository, paths, machine)


def commit_at_exit(
    repository: Path,
    paths: ProjectPaths,
    machine: str,
    wanted: Callable[[], bool],
    large: int | None = None,
) -> None:
    """At the end of this process, commit what runs left in the journal, and results in results/ in
    the current directory that no commit has, if `wanted` says so then.

    `large`: see `journal`. If this process is killed, runs that are still running and the next
    process do so.
    """
    promise = ExitStack()
    promise.enter_context(promise_to_commit(paths, machine))
    note_directory(paths, machine, Path.cwd().resolve())
    if wanted():
        from snakemake_kochi.artifacts.published import fix_published_name  # loads git

        with suppress(GitError, OSError):  # as for a result that cannot be committed now
            fix_published_name(repository, machine)

    def commit_rest() -> None:
        promise.close()
        if wanted():
            commit_journal(repository, paths, machine, large)

    atexit.register(commit_rest)


@contextmanager
def alive(repository: Path, paths: ProjectPaths, machine: str) -> Iterator[None]:
    """Let `kochi clean` see a process that starts several runs, one after another, by the promise
    to commit, which is then kept: a run that outlives its own main process may rely on it."""
    try:
        with promise_to_commit(paths, machine):
            yield
    finally:
        if pending(paths, machine):
            commit_journal(repository, paths, machine)


def commit_journal(
    repository: Path, paths: ProjectPaths, machine: str, large: int | None = None
) -> None:
    """Commit what is in the journal, and results that no commit has; say so if that fails."""
    from snakemake_kochi.artifacts.committer import commit_in_burst, commit_missing
    from snakemake_kochi.artifacts.replaced import take_replaced

    with _not_now():
        keep_unfinished(paths, machine)
        if pending(paths, machine):
            commit_in_burst(repository, paths, machine, _PATIENCE)
        if count := commit_missing(repository, paths, machine, _PATIENCE, large=large):
            print(f"kochi: committed {told_missed(count, machine)}", file=sys.stderr)
        if (replaced := take_replaced(paths, machine)) is not None:
            print(f"kochi: {replaced.describe()}", file=sys.stderr)


@contextmanager
def _not_now() -> Iterator[None]:
    try:
        yield
    except (KochiError, OSError, KeyboardInterrupt) as error:
        print(
            f"kochi: not committed yet: {error or 'interrupted'}\n"
            "The result is kept; 'kochi artifact sync' commits it.",
            file=sys.stderr,
        )
