"""Mistakes that people make in their files: each is told with its line, its key and what to type.

The table is `mistakes/rows.txt`: there is how to read it, and how to add a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from support import git

from snakemake_kochi.cli.main import run

DIRECTORY = Path(__file__).parent / "mistakes"
FILES = {file.name: file.read_text() for file in DIRECTORY.glob("*.yaml")}
# A run of no point: all is checked, and no Snakemake begins.
CHECK = {name: ["batch", name, "--retry", "failed"] for name in FILES}
CHECK["fib.yaml"].insert(2, "scaling")
CHECK["kochi.yaml"] = CHECK["sort.yaml"]
# What is no YAML is read no further; the points of two mistakes are those of neither.
ONE_AT_A_TIME = ("YAML", "points", "more")
Tell = Callable[[str, str], list[str]]


class Row(NamedTuple):
    old: str
    new: str
    line: str
    key: str
    words: str

    def edit(self, text: str) -> str:
        return self.new if self.old == "FILE" else text.replace(self.old, self.new, 1)

    def is_told(self, told: Sequence[str], file: str, key: str = "") -> bool:
        place = file if self.line == "-" else f"{file}:{self.line}"
        start = f"{place}: {key}: " if key else f"{place}: "
        # Without its key: the one above may be mistyped, too.
        words = ".*".join(map(re.escape, self.words.split(" ... ")))
        return any(each.startswith(start) and re.search(words, each) for each in told)


def read_table() -> dict[str, list[Row]]:
    table: dict[str, list[Row]] = {}
    for line in (DIRECTORY / "rows.txt").read_text().splitlines():
        if header := re.fullmatch(r"\[(\S+\.yaml: \w+)\]", line):
            rows = table.setdefault(header[1], [])
        elif line and not line.startswith("#"):
            edit, expected = line.split("  =>  ")
            for written, meant in ((r"\n", "\n"), (r"\t", "\t"), (r"\xff", "\udcff")):
                edit = edit.replace(written, meant)
            place, _, words = expected.partition(": ")
            number, _, key = place.partition(" ")
            old, _, new = edit.partition(" -> ")
            rows.append(Row(old, new, number, key, words))
    return table


TABLE = read_table()


@pytest.fixture
def tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Tell:
    """What is told, in lines, of a project in which a file has another text."""
    git(tmp_path, "init", "--quiet")
    monkeypatch.chdir(tmp_path)

    def with_text(file: str, text: str) -> list[str]:
        for name, sound in FILES.items():
            content = text if name == file else sound
            (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
        assert run(CHECK[file]) == (text != FILES[file]), text
        return [line.removeprefix("kochi: ") for line in capfd.readouterr().err.splitlines()]

    return with_text


@pytest.mark.parametrize("section", TABLE)
def test_a_mistake_is_told_with_its_place_and_what_was_expected(section: str, tell: Tell) -> None:
    file = section.partition(":")[0]
    assert tell(file, FILES[file]) == []
    wrong = []
    for row in TABLE[section]:
        assert row.old == "FILE" or row.old in FILES[file], row
        told = tell(file, row.edit(FILES[file]))
        if not row.is_told(told, file, row.key) or len(told) > 3:
            wrong.append((row, told))
    assert wrong == []


@pytest.mark.parametrize("section", [name for name in TABLE if not name.endswith(ONE_AT_A_TIME)])
def test_all_mistakes_of_one_stage_are_told_at_once(section: str, tell: Tell) -> None:
    file = section.partition(":")[0]
    text, together = FILES[file], dict[str, Row]()
    for row in TABLE[section]:
        is_one_line = row.old.count("\n") == row.new.count("\n")
        if row.old in text and is_one_line and row.line not in together:
            text, together[row.line] = row.edit(text), row
    told = tell(file, text)
    wrong = [row for row in together.values() if not row.is_told(told, file)]
    assert wrong == [], (text, told)
    assert len(told) >= len(together)
