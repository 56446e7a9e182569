"""What a run left in its directory, in a form in which two runs can be compared.

Equal runs are equal but for what no two runs have in common: their directories, times, what a
benchmark measured. These are replaced, and nothing else is.
"""

from __future__ import annotations

import json
import os
import re
import stat
from ast import literal_eval
from base64 import b64decode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]

# In metadata: two are times, and job_hash is a Python hash, different in each process.
NOT_COMPARED = ("starttime", "endtime", "job_hash")
# Below .snakemake: what has no files after a run that ended.
TEMPORARY = ("incomplete", "locks", "shadow", "scripts")


def files_of(
    directory: Path, relative_to: Path, normalised: Callable[[str], str]
) -> dict[str, tuple[str, ...]]:
    """Kind, permissions and content of all below a directory, but for .snakemake."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if ".snakemake" not in path.relative_to(directory).parts:
            found[os.path.relpath(path, relative_to)] = _file(path, normalised)
    return found


def _file(path: Path, normalised: Callable[[str], str]) -> tuple[str, ...]:
    status = path.lstat()
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if stat.S_ISLNK(status.st_mode):
        return ("link", normalised(str(path.readlink())))
    if stat.S_ISDIR(status.st_mode):
        return ("directory", mode)
    if not stat.S_ISREG(status.st_mode):
        return ("special", stat.filemode(status.st_mode))
    text = normalised(path.read_bytes().decode("utf-8", "surrogateescape"))
    if path.suffix == ".ipynb":
        text = _outputs_of_notebook(text)
    if path.stem.startswith("numbers"):
        text = benchmark_shape(path.suffix, text)
    return ("file", mode, text)


def _outputs_of_notebook(text: str) -> str:
    # The first cell is Snakemake's and has the pickled job; others have times.
    cells = json.loads(text)["cells"][1:]
    return json.dumps([[cell["source"], cell["outputs"]] for cell in cells])


def benchmark_shape(suffix: str, text: str) -> str:
    """The columns of a benchmark file, its rows, and what in them is no measurement."""
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
    else:
        header, *lines = (line.split("\t") for line in text.splitlines())
        rows = [dict(zip(header, line, strict=True)) for line in lines]
    return "\n".join(json.dumps({key: _shape(row[key]) for key in row}) for row in rows)


def _shape(value: Any) -> Any:
    """Numbers, durations, and what stands for one that a short job gives no time to measure are one
    and the same; dictionaries are in order."""
    text = "null" if value is None else str(value)
    if text.startswith("{"):
        return sorted(literal_eval(text).items())
    return "(number)" if re.fullmatch(r"null|NA|-|nan|[\d.e+-]+|\d+:\d+:\d+", text) else value


def metadata_of(directory: Path, normalised: Callable[[str], str]) -> dict[str, Record]:
    """The records by which Snakemake decides what to run again, by output."""
    records = {}
    top = directory / ".snakemake" / "metadata"
    for path in top.rglob("*"):
        if path.is_file():
            # A long name is cut into directories, marked by an @.
            parts = path.relative_to(top).parts
            name = b64decode("".join(part.removeprefix("@") for part in parts)).decode()
            record = json.loads(normalised(path.read_text()))
            records[name] = {key: record[key] for key in record if key not in NOT_COMPARED}
    return records


def left_behind(directory: Path) -> list[str]:
    """Files below .snakemake that a run should have removed at its end."""
    top = directory / ".snakemake"
    files = (path for name in TEMPORARY for path in (top / name).rglob("*") if path.is_file())
    return sorted(str(path.relative_to(directory)) for path in files)
