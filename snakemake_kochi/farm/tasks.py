"""The tasks of a list: one command per line, with what it needs; or a template and its rows."""

from __future__ import annotations

import csv
import glob
import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from snakemake_kochi.errors import KochiError, nearest, printable
from snakemake_kochi.quantities import memory_of, walltime_of
from snakemake_kochi.tickets.ticket import Resources

LONGEST = 128 * 1024 - 1  # bytes that one argument of a program may have
_NEEDS = re.compile(r"\s+#:((?:\s*[a-z]+=\S*)+)\s*$")
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
        return digest_of(self.text)

    @property
    def has_place(self) -> bool:
        """Whether it is another task on another line."""
        return _READS_ID.search(self.text) is not None


def digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


@dataclass
class TaskList:
    """A file of commands; `name` for people."""

    name: str
    needs: Resources
    tasks: list[Task] = field(default_factory=list)
    lines: int = 0
    had_returns: bool = False
    _kinds: dict[str, Resources] = field(default_factory=dict)

    def add(self, data: bytes) -> None:
        """Take lines. Raises KochiError."""
        if data.endswith(b"\n"):
            data = data[:-1]
        for line in data.split(b"\n") if data else ():
            self.lines += 1
            if line.endswith(b"\r"):
                self.had_returns, line = True, line[:-1]
            if not line.strip() or line.lstrip().startswith(b"#"):
                continue
            self._check(line)
            text, needs = line.decode("utf-8", "surrogateescape").strip(), self.needs
            if " #:" in text or "\t#:" in text:
                text, needs = self._without_comment(text)
            self.tasks.append(Task(self.lines, text, needs))

    def _check(self, line: bytes) -> None:
        if b"\0" in line:
            raise KochiError(
                f"{self._here}: a zero byte: this is no list of commands, one per line"
            )
        if len(line) > LONGEST:
            raise KochiError(
                f"{self._here}: {len(line)} bytes, and a command has at most {LONGEST}",
                "Write it into a script, and the script's name into the list.",
            )

    @property
    def _here(self) -> str:
        return f"{self.name}, line {self.lines}"

    def _without_comment(self, text: str) -> tuple[str, Resources]:
        """`#: mem=4G time=10` at the end; another comment is the shell's."""
        match = _NEEDS.search(text)
        if match is None:
            raise KochiError(
                f"{self._here}: after #: names and values were expected, as in: "
                "#: cores=2 mem=4G gpus=1 time=10"
            )
        said = match[1].strip()
        if said not in self._kinds:
            pairs = dict(word.partition("=")[::2] for word in said.split())
            try:
                self._kinds[said] = needs_of(pairs, self.needs)
            except ValueError as error:
                raise KochiError(f"{self._here}: {error}") from error
        return text[: match.start()], self._kinds[said]


def needs_of(pairs: Mapping[str, str | None], default: Resources) -> Resources:
    """What a task needs: the default, and what is said. Raises ValueError."""
    changes: dict[str, int] = {}
    for name, text in pairs.items():
        if text is None:
            continue
        try:
            if name == "mem":
                changes["memory_mb"] = memory_of(text)
            elif name == "time":
                changes["runtime_seconds"] = max(1, round(walltime_of(text)))
            elif name not in ("cores", "gpus"):
                raise ValueError(nearest(name, ("cores", "gpus", "mem", "time")))
            elif not text.isdecimal() or not int(text) >= (name == "cores"):
                raise ValueError("a whole number was expected")
            else:
                changes[name] = int(text)
        except ValueError as error:
            raise ValueError(f"{name}={text}: {error}") from error
    return replace(default, **changes) if changes else default  # type: ignore[arg-type]


def read_list(path: Path) -> bytes:
    """Raises KochiError."""
    try:
        return path.read_bytes()
    except IsADirectoryError:
        raise KochiError(f"{path} is a directory: a file of commands was expected") from None
    except FileNotFoundError:
        beside = path.parent if path.parent.is_dir() else Path()
        raise KochiError(f"there is no file {path}, {nearest(path.name, _files(beside))}") from None


def _files(directory: Path) -> list[str]:
    return [entry.name for entry in os.scandir(directory) if entry.is_file()]


def printed(command: str) -> bytes:
    """The list that a command prints. Raises KochiError."""
    ran = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if ran.returncode:
        raise KochiError(f"--from: the command ended with status {ran.returncode}: {command}")
    return ran.stdout


# ---- templates


def from_rows(source: str, words: Sequence[str]) -> bytes:
    """A list: the template for each row of a CSV file, line of a file, or file of a pattern.

    One word is a line for bash; several are executed word for word. Raises KochiError.
    """
    lines = [_filled(words, row) for row in _rows(source)]
    if not lines:
        raise KochiError(f"--each {source}: there is no row, no line and no such file")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _rows(source: str) -> Iterator[dict[str, str]]:
    path = Path(source)
    if glob.has_magic(source) and not path.exists():
        for name in sorted(glob.glob(source)):
            yield {"": name, "1": name}
        return
    data = read_list(path).decode("utf-8-sig", "surrogateescape")
    if path.suffix == ".csv":
        yield from _of_csv(source, data.splitlines(keepends=True))
        return
    for line in data.splitlines():
        if line.strip():
            columns = {str(number): cell for number, cell in enumerate(line.split(), 1)}
            yield {"": line, **columns}


def _of_csv(source: str, lines: Iterable[str]) -> Iterator[dict[str, str]]:
    rows = csv.reader(lines, strict=True)
    try:
        names = next(rows, [])
        if len(set(names)) < len(names):
            raise KochiError(f"--each {source}: a column has the name of another: {names}")
        for row in rows:
            if len(row) not in (0, len(names)):
                raise KochiError(
                    f"--each {source}, line {rows.line_num}: {len(row)} cells, "
                    f"and the first line names {len(names)} columns"
                )
            if row:
                columns = {str(number): cell for number, cell in enumerate(row, 1)}
                yield {"": ",".join(row), **columns, **dict(zip(names, row, strict=True))}
    except csv.Error as error:
        raise KochiError(f"--each {source}, line {rows.line_num}: {error}") from error


def _filled(words: Sequence[str], row: Mapping[str, str]) -> str:
    def value(match: re.Match[str], quote: bool) -> str:
        if match[1] is not None:
            return f"{{{match[1]}}}"
        if match[2] not in row:
            names = nearest(match[2], row)
            raise KochiError(
                f"{match[0]} is no column: {names}", f"For the text itself, write {{{match[0]}}}."
            )
        text = row[match[2]]
        if "\n" in text or "\r" in text:
            raise KochiError(f"a value has several lines: {printable(text, 60)}")
        if quote and _is_quoted(match.string[: match.start()]):
            raise KochiError(
                f"{match[0]} is within quotes in: {match.string}",
                f"Leave the quotes out around {match[0]}: its value is quoted.",
            )
        return shlex.quote(text) if quote else text

    if len(words) == 1:
        return _PLACE.sub(lambda match: value(match, True), words[0])
    return shlex.join(_PLACE.sub(lambda match: value(match, False), word) for word in words)


def _is_quoted(before: str) -> bool:
    """Whether a quote is open at the end of this part of a line, for bash."""
    try:
        shlex.split(f"{before} ", posix=True)
    except ValueError:
        return True
    return False
