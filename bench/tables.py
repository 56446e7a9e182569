"""How long does `snakemake_kochi.results` take to read many records?"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.measure import REPOSITORY, Row, Size
from snakemake_kochi.artifacts.branch_content import record_path
from snakemake_kochi.files import to_json

_NAME = "bench"
_IN_A_COMMIT = 100
_ON_A_SNAPSHOT = 500
_METRICS = {"time": r"^time: (\d+)", "speed": r"^speed: (.+)"}
# What a notebook does. Each line of its output is a time in seconds.
_NOTEBOOK = """
import sys, time
began = time.perf_counter()
from snakemake_kochi import results
for options in ({}, {}, {"batch": "batch0"}):
    count = len(results(sys.argv[1], metrics=False, **options))
    print(count, time.perf_counter() - began)
    began = time.perf_counter()
results(sys.argv[1], metrics=%r)
print(count, time.perf_counter() - began)
"""


def measure(directory: Path, size: Size) -> list[Row]:
    """In a new process each round, with the imports: the records of one branch, of 3 to 6 KB each,
    2,000 in a batch; then again in that process; then one batch; then the records again, with two
    metrics from outputs of 400 bytes."""
    count, runs = size.number(100_000, 200), size.runs(3)
    repository = directory / "project"
    repository.mkdir()
    _git(repository, "init", "--quiet")
    _git(repository, "fast-import", "--quiet", stdin=_commits(count))
    measured: list[list[float]] = [[], [], [], []]
    for _ in range(runs):
        lines = _output(repository)
        if int(lines[0][0]) != count:
            raise RuntimeError(f"{lines[0][0]} of {count} records were read")
        for into, (_, seconds) in zip(measured, lines, strict=True):
            into.append(float(seconds))
    first, again, batch, metrics = measured
    return [
        Row(f"{count:,} records", first, "s", limit=10.0),
        Row("the same again", again, "s"),
        Row("one batch of them", batch, "s"),
        Row("all again, with two metrics", metrics, "s"),
    ]


def _output(repository: Path) -> list[list[str]]:
    command = [sys.executable, "-P", "-c", _NOTEBOOK % _METRICS, str(repository)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}  # not the installed package
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return [line.split() for line in done.stdout.splitlines()]


def _commits(count: int) -> Iterator[bytes]:
    """The commands of git-fast-import(1) that make a branch of so many results."""
    chance = random.Random(1)
    for first in range(0, count, _IN_A_COMMIT):
        yield b"commit refs/heads/kochi_artifacts_%s\n" % _NAME.encode()
        yield b"committer kochi <kochi@localhost> %d +0000\ndata 1\n.\n" % (1_700_000_000 + first)
        for number in range(first, min(count, first + _IN_A_COMMIT)):
            own = f"input {number}\n" + "working ...\n" * 25
            own += f"time: {chance.randrange(10**9)}\nspeed: {chance.random()}\n"
            head = f"Kochi job fib (ID={number}) started.\n{'-' * 80}\n"
            text = f"{head}{own}{'-' * 80}\nSaving artifacts...\n".encode()
            record = _record(number, len(head), len(own), text)
            dest = record["artifacts"][0]["dest"]
            yield from _file(f"{_NAME}/{dest}", text)
            yield from _file(record_path(_NAME, record["identity"]), to_json(record))


def _file(path: str, content: bytes) -> Iterator[bytes]:
    yield b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(content), content)


def _record(number: int, start: int, size: int, output: bytes) -> dict[str, Any]:
    """A record like those of `phases/run.py`."""
    snapshot, batch = number // _ON_A_SNAPSHOT, f"batch{number // 2000}"
    time_of_day = f"{number // 3600 % 24:02}{number // 60 % 60:02}{number % 60:02}"
    dirty = bool(snapshot % 2)
    parameters = {"n": str(number % 50), "workers": str(2 ** (number % 6)), "flags": "-O2"}
    return {
        "version": 1,
        "identity": f"fib.{batch}.20260101T{time_of_day}.{number:012x}",
        "experiment": "fib.yaml",
        "batch": batch,
        "name": "fib",
        "parameters": parameters,
        "duplicate": number % 3,
        "build_parameters": {"flags": "-O2"},
        "run_parameters": parameters,
        "build_script": "make -j\n" * 10,
        "run_script": "./fib --threads 1\n" * 20,
        "machine": "local",
        "node": f"node{number % 8}",
        "worker": "1",
        "queue": "q",
        "job": str(number),
        "attempt": "1",
        "nonce": f"{number:016x}",
        "runner": "shell",
        "snapshot": {
            "tree": hashlib.sha1(b"tree %d" % snapshot).hexdigest(),
            "commit": hashlib.sha1(b"commit %d" % snapshot).hexdigest(),
            "base": hashlib.sha1(b"base %d" % snapshot).hexdigest(),
            "dirty": dirty,
            "diff": f"+a line of change {snapshot}\n" * 120 if dirty else "",
        },
        "recipes": [
            {
                "dependency": "massivethreads",
                "recipe": "release",
                "digest": "a" * 64,
                "prefix": "/home/ada/.kochi/projects/fib-1/installs/local/massivethreads/prefix",
                "source": {"git": "https://example.org/massivethreads", "commit": "c" * 40},
                "activate_script": 'export PATH="$KOCHI_INSTALL_PREFIX_MASSIVETHREADS/bin:$PATH"',
                "script": "./configure\nmake -j\nmake install\n",
                "envs": {"CFLAGS": "-O3"},
            }
        ],
        "build": "b" * 64,
        "run": "c" * 64,
        "started": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}.25+00:00",
        "ended": f"2026-01-01T01:{number // 60 % 60:02}:{number % 60:02}.25+00:00",
        "seconds": 3600.0 + number % 60,
        "exit_status": 0,
        "output": {"start": start, "size": size},
        "artifacts": [
            {
                "type": "stdout",
                "dest": f"fib/{batch}/{number}.log",
                "src": None,
                "size": len(output),
                "sha256": hashlib.sha256(output).hexdigest(),
            }
        ],
    }


def _git(repository: Path, *arguments: str, stdin: Iterable[bytes] = ()) -> None:
    process = subprocess.Popen(["git", *arguments], cwd=repository, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as stream:
        for chunk in stdin:
            stream.write(chunk)
    if process.wait():
        raise RuntimeError(f"git {' '.join(arguments)} failed")
