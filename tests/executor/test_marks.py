"""Snakemake's marks of outputs that are not complete yet, which a submission makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from executor.test_choice import tickets
from support import write

# Jobs are marked as begun: slowly at first, so that the filesystem counts as a slow one.
_MARKS = """
import itertools, sys, threading, time
from snakemake.jobs import Job
register, count, meeting = Job.register, itertools.count(), threading.Barrier(3)
def slow(job, *arguments, **options):
    number = next(count)
    if number < 2:
        time.sleep(0.01)
    elif {meets}:
        meeting.wait(60)
    else:
        assert threading.current_thread() is threading.main_thread()
    return register(job, *arguments, **options)
Job.register = slow
from snakemake.cli import main
main(sys.argv[1:])
"""
_FIVE = """
rule all:
    input: expand("{n}", n=range(5))
rule each:
    output: "{n}"
    shell: "touch {output}"
"""


@pytest.mark.compatibility
def test_the_outputs_of_many_jobs_are_marked_at_the_same_time_on_a_slow_filesystem(
    tmp_path: Path,
) -> None:
    write(tmp_path / "Snakefile", _FIVE)
    tickets(tmp_path, command=("-c", _MARKS.format(meets=True)))
    assert len(list((tmp_path / ".snakemake" / "incomplete").iterdir())) == 5


def test_marks_in_a_database_are_made_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", _FIVE)
    options = ("--persistence-backend", "db")
    tickets(tmp_path, *options, command=("-c", _MARKS.format(meets=False)))
