"""Numbers that nothing has, names that are no text, and files that hold something else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from seen import FIRST
from support import write

from snakemake_kochi.files import last_lines
from snakemake_kochi.locks.settings import find_lock_settings
from snakemake_kochi.paths import Root

from .conftest import COMMAND

HUGE = "9" * 20
DIGITS = "9" * 5000  # more than Python reads as a number
BYTES = "\udcff"  # of a name that is no UTF-8


def check(done: Any, given: str) -> None:
    """Refused, in a few lines."""
    given = repr(given[:80])
    assert done.status in (1, 2), (given, done.out)
    assert "Traceback" not in done.err, given
    assert 0 < len([line for line in done.err.splitlines() if line]) < 6, given
    assert len(done.err) < 12_000, given


@pytest.mark.parametrize(
    "words",
    [
        "show jobs -l {}",
        "show job {}",
        "show log job {}",
        "show log worker {}",
        "show path job {}",
        "show path worker {}",
        "cancel {}",
        "doctor --deadline {}",
        "doctor --wait {}h",
        "work -q q --cores {}",
        "work -q q --gpus {}",
        "work -q q --walltime {}",
        "work -q q --walltime {}:00",
        "alloc -q q -d {}",
        "alloc -q q -n {}",
        "alloc -q q -t {}",
        "install -d tool:release --cores {}",
    ],
)
def test_a_number_that_nothing_has_is_refused(words: str, kochi: Any) -> None:
    for number in (HUGE, DIGITS):
        check(kochi(*words.format(number).split()), number)


def test_a_deadline_that_is_no_time_is_refused(kochi: Any) -> None:
    for number in ("nan", "inf", "-1", "1e999", "0"):
        check(kochi("doctor", "--deadline", number), number)


# None: where a name is expected.
NAMED: list[tuple[str | None, ...]] = [
    ("enqueue", "-q", None, "true"),
    ("enqueue", "-q", "q", "-d", None, "true"),
    ("enqueue", f"{None}.yaml"),
    ("show", "jobs", "-q", None),
    ("show", "path", "install", None),
    ("show", "log", "install", None),
    ("work", "-q", None),
    ("work", "-q", "q", "--gpus", None),
    ("alloc", "-q", None),
    ("install", "-d", None),
    ("run", "-d", None, "true"),
    ("batch", None, "test"),
    ("batch", "fib.yaml", None),
    ("trace", None),
    ("show", "jobs", "-m", None),
    (None,),
]


def test_a_name_that_cannot_be_one_is_refused(project: Path, kochi: Any) -> None:
    for words in NAMED:
        for text in ("", "a\nb", "a b", "../x", "x" * 5000, BYTES):
            # An empty one is as if it was left out.
            if text or words[0] not in ("trace", "show"):
                typed = [text if word is None else word.replace("None", text) for word in words]
                check(kochi(*typed), text)


@pytest.fixture
def queue(kochi: Any, work: Any) -> Path:
    """A queue with a job that ended and one that waits; the machine's directory."""
    kochi("enqueue", "-q", "test", "true")
    work()
    kochi("show", "job", FIRST)  # which writes its end into the history
    kochi("enqueue", "-q", "test", "true")
    return Root.find().machine("local").directory


DEEP = b'{"version": 1, "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
# Just what Python's parser reads, but what nothing can be done with that goes by recursion.
NEARLY = b'{"version": 1, "x": ' + b"[" * 600 + b"]" * 600 + b"}"
ODD = {
    "deep": DEEP,
    "nearly too deep": NEARLY,
    "infinite": b'{"version": 1, "worker": 1e999}',
    "no number": b'{"version": NaN}',
    "half a character": b'{"version": 1, "directory": "\\ud800", "kind": "flock"}',
    "NUL": b'{"version": 1, "directory": "\\u0000", "kind": "flock"}',
    "a list": b"[]",
    "nothing": b"",
}
TICKET = f"queues/test/waiting/{FIRST + 1}.1-1/1.a1.l0"
FILES = {
    "locks.json": "enqueue -q test true",
    TICKET: f"show job {FIRST + 1}",
    f"runs/{FIRST + 1}/run.json": f"show job {FIRST + 1}",
    f"runs/{FIRST + 1}/jobs.jsonl": f"show job {FIRST + 1}",
    f"runs/{FIRST + 1}/alive": "enqueue -q test true",
    f"history/{FIRST}-{FIRST}.*.jsonl": f"show job {FIRST}",
    f"workers/{FIRST}/worker.json": "show workers -a",
    f"workers/{FIRST}/alive": "show workers -a",
    f"workers/{FIRST}/left": "show workers -a",
}


def test_a_file_that_holds_something_else_gets_a_line(
    queue: Path, kochi: Any, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(queue, whole, symlinks=True, ignore=shutil.ignore_patterns("wake"))
    for (file, command), (content, damaged) in product(FILES.items(), ODD.items()):
        (path,) = queue.glob(file)
        path.write_bytes(damaged)
        find_lock_settings.cache_clear()
        cancel = f"cancel {FIRST + 1}"
        for each in (command, "show jobs -t -a", "show queues", "show workers -a", cancel):
            done = kochi(*each.split())
            assert done.status in (0, 1), (file, content, each)
            assert "Traceback" not in done.err, (file, content, each)
            assert len(done.err.splitlines()) < 6, (file, content, each)
            assert len(done.err) < 3000, (file, content, each)
        shutil.rmtree(queue)
        shutil.copytree(whole, queue, symlinks=True)


def test_an_experiment_that_cannot_be_read_is_one_line_and_no_name_to_suggest(
    project: Path,
) -> None:
    text = "run: echo\nbatches: {all: {}}\n"
    for name in ("sum.yaml", "other.yaml"):
        write(project / name, text)
    (project / "other.yaml").chmod(0)
    # Root, too, must not be able to read it.
    bounds = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    for name, said in (
        ("othr.yaml", "there is no file othr.yaml, known: fib.yaml, sum.yaml"),
        ("other.yaml", "other.yaml cannot be read: Permission denied"),
    ):
        command = [*(bounds if os.getuid() == 0 else ()), *COMMAND, "batch", name, "all"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, f"kochi: {said}\n")


def test_a_ticket_that_is_nested_too_deeply_is_set_aside_by_a_worker(
    queue: Path, kochi: Any, work: Any
) -> None:
    (queue / TICKET).write_bytes(DEEP)
    work()
    done = kochi("show", "job", FIRST + 1, "--json")
    assert json.loads(done.out)["reason"] == "failed"
    assert "nested too deeply" in json.loads(done.out)["detail"]


def test_a_message_moves_no_cursor_and_has_no_line_that_buries_it(
    project: Path, tmp_path: Path, kochi: Any
) -> None:
    outcome = kochi("batch", "a\x1b[2J.yaml", "test")
    assert outcome.status == 1
    assert "there is no file a\\x1b[2J.yaml" in outcome.err
    outcome = kochi("batch", f"{'a' * 9000}/b.yaml", "test")
    assert outcome.status == 1
    assert max(map(len, outcome.err.splitlines())) < 3000
    # The last lines of a script that failed.
    log = tmp_path / "log"
    log.write_text(f"one\n\x1b[2J\ttwo\n{'x' * 9000}y\n")
    lines = last_lines(log, 2)
    assert lines[0] == r"\x1b[2J    two"
    assert len(lines[1]) == 500
    assert lines[1].endswith("xy")
