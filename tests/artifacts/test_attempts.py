"""One record is left of a job that two attempts have completed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from git_helpers import git, write

from snakemake_kochi.artifacts.attempts import stop_if_given_up
from snakemake_kochi.artifacts.branch_content import record_path
from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal, pending
from snakemake_kochi.artifacts.published import branch_called as branch
from snakemake_kochi.errors import PhaseError
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.tickets.history import HAND_JOB
from snakemake_kochi.tickets.names import Name

MACHINE = "local"


def record_of(number: int, nonce: str = "", name: str = "p1") -> dict[str, str]:
    return {
        "machine": MACHINE,
        "queue": "q",
        "job": "7",
        "attempt": str(number),
        "nonce": nonce or f"nonce{number}",
        "name": name,
    }


@pytest.fixture
def attempt(paths: ProjectPaths, tmp_path: Path) -> Any:
    """Journal the result of an attempt of a job; give an attempt up."""

    class Attempts:
        def keep(self, number: int, nonce: str = "") -> None:
            source = write(tmp_path / f"attempt{number}", f"{number}")
            result = Result(f"attempt{number}", {"7.log": source}, record_of(number, nonce))
            journal(paths, MACHINE, result)

        def keep_point(self, number: int, name: str) -> None:
            """Of a job that makes several points, by a Snakemake of its own."""
            source = write(tmp_path / f"{name}-{number}", f"{number}")
            record = record_of(number, name=name)
            journal(paths, MACHINE, Result(f"{name}-{number}", {f"{name}.log": source}, record))

        def give_up(self, number: int) -> None:
            """Another worker has the ticket by now, in a later attempt."""
            running = Path(paths.machine(MACHINE).layout.queue("q").running)
            running.mkdir(parents=True, exist_ok=True)
            for earlier in running.iterdir():
                earlier.unlink()
            write(running / str(Name(7, HAND_JOB, number + 1, 1, "2")), "{}")
            Path(paths.machine(MACHINE).layout.run(7).directory).mkdir(parents=True, exist_ok=True)

    return Attempts()


def records(repository: Path) -> set[str]:
    listed = git(repository, "ls-tree", "-r", "--name-only", "--full-tree", branch(MACHINE))
    return {Path(path).stem for path in listed.splitlines() if "/.kochi/records/" in path}


@pytest.mark.parametrize("at_once", [True, False])
def test_a_result_that_a_later_attempt_made_again_is_set_aside_and_not_committed(
    repository: Path, paths: ProjectPaths, attempt: Any, at_once: bool
) -> None:
    attempt.give_up(1)
    attempt.keep(2)
    if not at_once:
        commit_pending(repository, paths, MACHINE)
    attempt.keep(1)
    commit_pending(repository, paths, MACHINE)
    assert records(repository) == {"attempt2"}
    assert git(repository, "show", f"{branch(MACHINE)}:{MACHINE}/7.log") == "2"
    assert [path.name for path in paths.late_results(MACHINE).iterdir()] == ["attempt1"]
    assert pending(paths, MACHINE) == ()


@pytest.mark.parametrize("given_up_first", [True, False])
def test_the_record_of_a_later_attempt_replaces_that_of_a_given_up_attempt(
    repository: Path, paths: ProjectPaths, attempt: Any, given_up_first: bool
) -> None:
    if given_up_first:
        attempt.give_up(1)
    attempt.keep(1)
    commit_pending(repository, paths, MACHINE)
    attempt.give_up(1)
    attempt.keep(2)
    commit_pending(repository, paths, MACHINE)
    assert records(repository) == {"attempt2"}
    assert git(repository, "show", f"{branch(MACHINE)}:{MACHINE}/7.log") == "2"
    before = f"{branch(MACHINE)}~:{record_path(MACHINE, 'attempt1')}"
    assert json.loads(git(repository, "show", before))["attempt"] == "1"


def test_each_result_of_a_job_counts_until_a_later_attempt_has_made_it_again(
    repository: Path, paths: ProjectPaths, attempt: Any
) -> None:
    attempt.keep_point(1, "p1")
    commit_pending(repository, paths, MACHINE)
    attempt.keep_point(1, "p2")
    attempt.keep_point(1, "p3")
    attempt.give_up(1)
    attempt.keep_point(2, "p3")
    attempt.keep_point(2, "p4")
    commit_pending(repository, paths, MACHINE)
    assert records(repository) == {"p1-1", "p2-1", "p3-2", "p4-2"}
    assert git(repository, "show", f"{branch(MACHINE)}:{MACHINE}/p2.log") == "1"
    assert [path.name for path in paths.late_results(MACHINE).iterdir()] == ["p3-1"]
    # Of those that were committed together.
    attempt.keep_point(2, "p1")
    commit_pending(repository, paths, MACHINE)
    assert records(repository) == {"p1-2", "p2-1", "p3-2", "p4-2"}


def test_a_reused_job_number_does_not_give_up_an_attempt(
    repository: Path, paths: ProjectPaths, attempt: Any
) -> None:
    attempt.give_up(1)
    attempt.keep(1, nonce="another")
    assert commit_pending(repository, paths, MACHINE) == 1
    assert records(repository) == {"attempt1"}


_STOPS = """
import json, sys
from pathlib import Path
from snakemake_kochi.artifacts.attempts import earlier_attempts, stop_if_given_up
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.tickets.history import HAND_JOB
from snakemake_kochi.tickets.names import Layout, Name

stop_if_given_up(ProjectPaths(Path(sys.argv[1])), json.loads(sys.argv[2]))
print("goes on")
"""


def test_a_given_up_attempt_stops_with_its_whole_job_and_other_attempts_continue(
    paths: ProjectPaths, attempt: Any, tmp_path: Path
) -> None:
    def run(number: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", _STOPS, str(paths.directory), json.dumps(record_of(number))]
        # A Snakemake around it would remove the outputs of a job that failed.
        around = f'"$@"; touch {tmp_path}/around$?'
        return subprocess.run(
            ["bash", "-c", around, "bash", *words],
            start_new_session=True,
            capture_output=True,
            text=True,
            check=False,
        )

    attempt.give_up(1)
    stopped = run(1)
    assert stopped.returncode == -signal.SIGKILL
    assert "attempt 1 of job 7 was given up" in stopped.stderr
    assert list(tmp_path.glob("around*")) == []
    assert run(2).stdout == "goes on\n"
    assert list(tmp_path.glob("around*")) == [tmp_path / "around0"]


def test_a_given_up_attempt_outside_a_process_group_of_its_own_is_an_error(
    paths: ProjectPaths, attempt: Any
) -> None:
    attempt.give_up(1)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            stop_if_given_up(paths, record_of(1))
        except PhaseError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def failed_records(repository: Path) -> list[str]:
    listed = git(repository, "ls-tree", "-r", "--name-only", "--full-tree", branch(MACHINE))
    return sorted(Path(path).stem for path in listed.splitlines() if "/.kochi/failed/" in path)


def keep_failed(paths: ProjectPaths, number: int) -> None:
    record = {**record_of(number), "outcome": "failed"}
    journal(paths, MACHINE, Result(f"failed{number}", {}, record))


def test_the_record_of_a_failed_attempt_is_kept_apart_and_disturbs_no_result(
    repository: Path, paths: ProjectPaths, attempt: Any
) -> None:
    attempt.keep(1)
    attempt.give_up(1)
    # The attempt after it has failed: it has made nothing again, and replaces nothing.
    keep_failed(paths, 2)
    assert commit_pending(repository, paths, MACHINE) == 1
    assert records(repository) == {"attempt1"}
    assert failed_records(repository) == ["failed2"]
    subject = git(repository, "log", "-1", "--format=%s", branch(MACHINE))
    assert subject.strip() == "1 result and 1 failed attempt from local"
    # Neither does one that comes alone, or whose own attempt was given up.
    attempt.give_up(2)
    keep_failed(paths, 3)
    attempt.give_up(3)
    assert commit_pending(repository, paths, MACHINE) == 0
    assert records(repository) == {"attempt1"}
    assert failed_records(repository) == ["failed2", "failed3"]
    assert not paths.late_results(MACHINE).exists()


def test_the_record_of_a_failed_attempt_is_committed_once(
    repository: Path, paths: ProjectPaths
) -> None:
    keep_failed(paths, 1)
    commit_pending(repository, paths, MACHINE)
    # As if the process had been killed before it removed the entry.
    keep_failed(paths, 1)
    commit_pending(repository, paths, MACHINE)
    assert pending(paths, MACHINE) == ()
    assert git(repository, "rev-list", "--count", branch(MACHINE)).strip() == "1"
