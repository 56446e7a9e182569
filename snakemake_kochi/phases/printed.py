"""The artifact of type `stdout`: what a build and a run printed, in the form that Kochi gave it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from snakemake_kochi.files import answered, copy_stream

_WIDTH = 80
# It is in each run's artifact, and the end of a long build is the interesting part.
MOST_OF_BUILD = 64 * 1024  # bytes


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
        with captured.open("rb", buffering=0) as source:
            size = copy_stream(source, target)
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
