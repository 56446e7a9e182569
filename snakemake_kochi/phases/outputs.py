"""The artifacts of a run: what it leaves in its workspace and prints, as files in results/."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import answered, blocks_of, copy_file, copy_stream, make_directory

_RULE = b"-" * 80 + b"\n"
# It is in each run's artifact, and the end of a long build is the interesting part.
MOST_OF_BUILD = 64 * 1024  # bytes


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
        target.write(_encoded(f"Kochi job {name} (ID={job}) started.\n") + _RULE)
        if before := _printed_by_build(build_log):
            target.write(before if before.endswith(b"\n") else before + b"\n")
        start, size = target.tell(), copy_stream(source, target)
        if size and not _ends_a_line(captured):
            target.write(b"\n")
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
            text = _encoded(f"[{size - len(text)} bytes before this are in {log}]\n") + text
        return text

    try:
        return answered(read)
    except FileNotFoundError:
        return b""  # a build without a script


def _ends_a_line(file: Path) -> bool:
    with file.open("rb") as stream:
        stream.seek(-1, 2)
        return stream.read(1) == b"\n"


def _encoded(text: str) -> bytes:
    """Paths and names need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def own_output(record: Mapping[str, Any], file: Path) -> str:
    """The run's own output, from the artifact beside its record."""
    return own_output_in(record, answered(file.read_bytes))


def own_output_in(record: Mapping[str, Any], content: bytes) -> str:
    """The run's own output, from the content of the artifact."""
    if (found := record.get("output")) is not None:
        content = content[found["start"] : found["start"] + found["size"]]
    return content.decode("utf-8", "replace")


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
