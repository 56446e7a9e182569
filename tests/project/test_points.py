"""The points of batches: the rows of points.txt.

A section has a name, a machine, an indented file, and rows. In a row, the text before `=>` stands
for the @ of the file (⏎ is a line break), and after it stand the points of the batch b, separated
by |: all their parameters, quoted as in a shell; and, with a dot before each, some of their name,
queue, duplicate, dest and src, or the reason for which they are skipped.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from snakemake_kochi.project.experiment_file import load_experiment


def table() -> Iterator[object]:
    text = Path(__file__).with_name("points.txt").read_text("utf-8")
    for section in f"\n{text}".split("\n== ")[1:]:
        name, machine, *lines = section.splitlines()
        blank = lines.index("")
        file = "\n".join(line[4:] for line in lines[:blank]) + "\n"
        for number, row in enumerate(filter(None, lines[blank + 1 :])):
            written, _, expected = row.replace("⏎", "\n").partition(" => ")
            text = file.replace("@", written, 1)
            yield pytest.param(machine, text, expected, id=f"{name}-{number}")


def points(text: str, machine: str, named: str) -> Iterator[dict[str, str]]:
    grid = load_experiment("e.yaml", text, None).grid("b", machine)
    for point in grid.points:
        artifacts = point.artifacts
        texts = {
            ".name": point.name,
            ".queue": point.queue or "",
            ".duplicate": str(point.duplicate),
            ".dest": " ".join(each.dest for each in artifacts),
            ".src": " ".join(each.src or "" for each in artifacts),
        }
        yield dict(point.parameters) | {k: v for k, v in texts.items() if f"{k}=" in named}
    for skipped in grid.skipped:
        yield {**skipped.parameters, ".reason": skipped.reason}


@pytest.mark.parametrize(("machine", "text", "expected"), [*table()])
def test_a_batch_has_these_points(machine: str, text: str, expected: str) -> None:
    wanted = [dict(word.split("=", 1) for word in words) for words in _split(shlex.split(expected))]
    assert list(points(text, machine, expected)) == wanted


def _split(words: list[str]) -> Iterator[list[str]]:
    """The words between each |."""
    found: list[str] = []
    for word in words:
        if word == "|":
            yield found
            found = []
        else:
            found.append(word)
    yield found
