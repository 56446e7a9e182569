"""The tasks of a list: one command per line, with what it needs; or a template and its rows."""

from __future__ import annotations

import codecs
import csv
import glob
import hashlib
import io
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from snakemake_kochi.errors import KochiError, nearest, printable
from snakemake_kochi.quantities import memory_of, walltime_of
from snakemake_kochi.tickets.ticket import Resources

LONGEST = 128 * 1024 - 1  # bytes that one argument of a program may have
_NEEDS = re.compile(r"\s+#:((?:\s*[a-z]+=\S*)+)$")
_PLACE = re.compile(r"\{\{(\w*)\}\}|\{(\w*)\}")
# What else than its text may decide what a task does.
_READS_ID = re.compile(r"\b(PROC_NUMBER|KOCHI_TASK_ID)\b")


@dataclass(slots=True)
class Task:
    """`text`: the command, without its comment; `id`: the number of its line."""

    id: int
    text: str
    needs: Resources
    attempt: int = 1  # of this run, as a user counts them

    @property
    def digest(self) -> str:
        text = self.text.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    @property
    def has_place(self) -> bool:
        """Whether it is another task on another line."""
        return _READS_ID.search(self.text) is not None


def tasks_in(data: bytes, name: str, default: Resources, before: int = 0) -> list[Task]:
    """The commands of lines, which follow so many other ones. Raises KochiError."""
    tasks, data = [], data if before else data.removeprefix(codecs.BOM_UTF8)
    for number, line in enumerate(data.split(b"\n"), before + 1):
        if not (line := line.strip()) or line.startswith(b"#"):
            continue
        try:
            tasks.append(Task(number, *_command(line, default)))
        except ValueError as error:
            raise KochiError(f"{name}, line {number}: {error}") from error
    return tasks


def _command(line: bytes, default: Resources) -> tuple[str, Resources]:
    """`#: mem=4G time=10` at the end; another comment is the shell's. Raises ValueError."""
    if b"\0" in line:
        raise ValueError("a zero byte: this is no list of commands, one per line")
    if len(line) > LONGEST:
        size = f"{len(line)} bytes, and a command has at most {LONGEST}"
        raise ValueError(f"{size}; write it into a script, and the script's name into the list")
    text = line.decode("utf-8", "surrogateescape")
    if " #:" not in text and "\t#:" not in text:
        return text, default
    try:
        if (match := _NEEDS.search(text)) is None:
            example = "#: cores=2 mem=4G gpus=1 time=10"
            raise ValueError(f"after #: names and values were expected, as in: {example}")
        return text[: match.start()], needs_of(tuple(match[1].split()), default)
    except ValueError:
        if _is_in_quotes(text[: text.rindex("#:")]):
            return text, default
        raise


def _is_in_quotes(before: str) -> bool:
    """Whether a quote is open after this text."""
    try:
        shlex.split(f"{before} ")
    except ValueError:
        return True
    return False


@lru_cache
def needs_of(words: tuple[str, ...], default: Resources) -> Resources:
    """What a task needs, from words like mem=4G. Raises ValueError."""
    changes: dict[str, int] = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            if name == "mem":
                changes["memory_mb"] = memory_of(text)
            elif name == "time":
                changes["runtime_seconds"] = max(1, round(walltime_of(text)))
            elif name not in ("cores", "gpus"):
                raise ValueError(nearest(name, ("cores", "gpus", "mem", "time")))
            elif not text.isdecimal() or int(text) < (name == "cores"):
                raise ValueError("a whole number was expected")
            else:
                changes[name] = int(text)
        except ValueError as error:
            raise ValueError(f"{word}: {error}") from error
    return replace(default, **changes)  # type: ignore[arg-type]


# ---- where lines come from: these raise KochiError, and OSError


def printed(command: str) -> bytes:
    ran = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if ran.returncode:
        raise KochiError(f"--from: the command ended with status {ran.returncode}: {command}")
    return ran.stdout


def from_rows(source: str, words: Sequence[str]) -> bytes:
    """The template for each row of a CSV file, line of a file, or file of a pattern.

    One word is a line for bash; several are executed word for word. Without a place in it, the
    value comes at its end.
    """
    if not any(map(_PLACE.search, words)):
        words = [f"{words[0]} {{}}"] if len(words) == 1 else [*words, "{}"]
    lines = []
    for number, row in enumerate(_rows(source), 1):
        lines.append(_filled(words, row))
        if "\n" in lines[-1]:
            text = f"a command has several lines: {printable(lines[-1], 60)}"
            raise KochiError(f"--each {source}, row {number}: {text}")
    if not lines:
        raise KochiError(f"--each {source}: there is no row, no line and no such file")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _rows(source: str) -> Iterator[dict[str, str]]:
    path = Path(source)
    if glob.has_magic(source) and not path.exists():
        yield from ({"": name, "1": name} for name in sorted(glob.glob(source)))
        return
    text = io.StringIO(path.read_bytes().decode("utf-8-sig", "surrogateescape"), newline="")
    if path.suffix != ".csv":
        yield from (_columns(line.strip("\r\n"), line.split()) for line in text if line.strip())
        return
    rows = csv.reader(text, strict=True)
    try:
        names = next(rows, [])
        for row in filter(None, rows):
            if not len(row) == len(names) == len({*names}):
                raise csv.Error(f"{len(row)} cells for the columns {', '.join(names)}")
            yield _columns(",".join(row), row) | dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise KochiError(f"--each {source}, line {rows.line_num}: {error}") from error


def _columns(line: str, cells: Iterable[str]) -> dict[str, str]:
    return {"": line, **{str(number): cell for number, cell in enumerate(cells, 1)}}


def _filled(words: Sequence[str], row: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            return f"{{{match[1]}}}"
        if match[2] not in row:
            hint = f"For the text itself, write {{{match[0]}}}."
            raise KochiError(f"{match[0]} is no column: {nearest(match[2], row)}", hint)
        if len(words) > 1:
            return row[match[2]]
        if _is_in_quotes(match.string[: match.start()]):
            hint = f"Leave the quotes out around {match[0]}: its value is quoted."
            raise KochiError(f"{match[0]} is within quotes in: {match.string}", hint)
        return shlex.quote(row[match[2]])

    filled = [_PLACE.sub(value, word) for word in words]
    return filled[0] if len(words) == 1 else shlex.join(filled)
