"""What Kochi itself gets wrong in its queue and its workers, and the tests that show ours does not.

A fault without a test, and a test that was renamed or removed, fail here.
"""

from __future__ import annotations

import ast
import json
from datetime import datetime
from pathlib import Path

import pytest
from faults.stage import Stage
from support import REPOSITORY

from snakemake_kochi.queue import find_job, find_worker

ENDING = "tests/worker/test_ending.py"
RUNNING = "tests/worker/test_running.py"
QUEUE = "tests/queue/test_queue.py"
ENQUEUE = "tests/cli/test_enqueue.py"
COMMITTER = "tests/artifacts/test_committer.py"
HERE = "tests/faults/test_original_faults.py"

FAULTS: dict[str, list[str]] = {
    "kill -9 of a worker: its job is never queued again": [
        f"{ENDING}::test_an_idle_worker_recovers_the_tickets_of_a_dead_worker",
        "tests/worker/test_loss.py::test_the_ticket_of_a_worker_that_died_on_another_node_is_requeued",
        "tests/faults/test_every_step.py::test_a_worker_from_its_first_step_to_its_last",
        "tests/faults/test_chaos.py::"
        "test_no_job_is_lost_or_reported_twice_while_workers_and_controllers_die",
    ],
    "kill -9 of a worker: the job's processes are orphaned": [
        f"{ENDING}::test_nothing_of_a_killed_workers_job_runs_on_by_itself",
        f"{ENDING}::"
        "test_the_job_of_a_killed_worker_is_finished_by_another_and_has_no_second_writer",
        "tests/worker/test_supervisor.py::"
        "test_a_process_hidden_from_its_job_ends_with_a_killed_worker",
    ],
    "SIGTERM is not handled": [
        f"{ENDING}::test_a_worker_that_is_told_to_stop_requeues_its_jobs",
        "tests/faults/test_every_step.py::test_a_worker_that_is_told_to_stop",
    ],
    "a job that fails takes its worker along": [
        f"{RUNNING}::test_a_failure_keeps_its_exit_status_and_the_worker_goes_on",
        f"{RUNNING}::test_a_damaged_ticket_does_not_stop_a_worker",
    ],
    "the exit status is not kept": [
        f"{RUNNING}::test_a_failure_keeps_its_exit_status_and_the_worker_goes_on",
        f"{ENQUEUE}::test_the_exit_status_of_command_copy_and_experiment_is_the_jobs",
    ],
    "from 16 workers on results are lost": [
        f"{COMMITTER}::test_results_of_eight_processes_are_all_recorded_exactly_once",
        f"{QUEUE}::test_each_ticket_is_claimed_once_by_processes_that_race",
        f"{QUEUE}::test_numbers_are_given_once_to_processes_that_race",
    ],
    "a command is quoted again: ; $(...) * > take effect": [
        f"{RUNNING}::test_arguments_arrive_as_they_were_given",
        f"{ENQUEUE}::test_the_words_of_a_command_are_taken_as_they_are",
    ],
    "values with =, $ and ${x} break": [
        f"{ENQUEUE}::test_a_value_is_text_with_everything_after_the_first_equals_sign",
    ],
    "a background child that holds stdout blocks the worker": [
        f"{RUNNING}::test_a_background_child_that_holds_stdout_does_not_block",
        f"{RUNNING}::test_leftover_processes_of_a_job_end_even_in_a_session_of_their_own",
    ],
    "cancel leaves grandchildren": [
        f"{ENDING}::test_cancel_ends_grandchildren_and_nothing_else",
    ],
    "cancel hits other jobs of the process group": [
        f"{ENDING}::test_cancel_ends_grandchildren_and_nothing_else",
        "tests/worker/test_resources.py::test_neighbours_of_a_job_that_is_cancelled_go_on",
    ],
    "cancel does nothing": [
        f"{QUEUE}::test_a_waiting_job_is_cancelled_at_once",
        f"{ENDING}::test_cancel_of_a_job_whose_worker_was_killed_ends_it",
        "tests/faults/test_every_step.py::test_who_cancels",
    ],
    "a queue's name writes outside of the root": [
        f"{QUEUE}::test_an_invalid_queue_name_is_refused_and_nothing_is_written",
        "tests/executor/test_runs.py::test_a_queue_name_that_leaves_its_directory_is_refused",
    ],
    "/ and line breaks in names": [
        f"{QUEUE}::test_an_invalid_queue_name_is_refused_and_nothing_is_written",
        "tests/queue/test_ticket.py::test_a_value_that_cannot_be_used_is_named",
        "tests/cli/test_show.py::test_a_name_cannot_write_to_the_terminal",
    ],
    "a pickle in a queue's file runs code": [
        f"{QUEUE}::test_a_damaged_ticket_is_set_aside_and_the_next_one_runs",
        f"{QUEUE}::test_what_is_written_is_private_and_plain_json",
    ],
    "two repositories of one directory name share state": [
        f"{COMMITTER}::test_repositories_of_one_directory_name_share_no_journal",
    ],
    "the whole environment goes into state that all can read": [
        f"{QUEUE}::test_what_is_written_is_private_and_plain_json",
        f"{RUNNING}::test_directories_are_private",
        f"{HERE}::test_the_environment_of_a_worker_is_in_no_file",
    ],
    "tracebacks for errors of users and of the system": [
        f"{RUNNING}::test_a_worker_with_invalid_settings_is_refused_without_a_traceback",
        "tests/faults/test_system_calls.py::"
        "test_who_hands_over_is_told_what_is_wrong_and_nothing_is_handed_over",
        "tests/faults/test_system_calls.py::test_an_error_in_a_worker_costs_no_ticket",
    ],
    "times in whole seconds": [f"{HERE}::test_times_are_kept_to_the_microsecond"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_test_shows_that_ours_is_not_so(fault: str) -> None:
    assert FAULTS[fault], "no test is named"
    for name in FAULTS[fault]:
        path, _, function = name.partition("::")
        tree = ast.parse((REPOSITORY / path).read_text())
        assert function in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, name


def test_the_environment_of_a_worker_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "not-to-be-written")
    stage = Stage(tmp_path / "stage")
    stage.submit("a", work='echo "$SECRET_TOKEN" > seen; ')
    stage.repair()
    assert (stage.directory / "seen").read_text() == "not-to-be-written\n"
    files = [path for path in stage.machine.directory.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert b"not-to-be-written" not in path.read_bytes(), path
    stage.close()


def test_times_are_kept_to_the_microsecond(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    stage.submit("a", "b")
    stage.repair()
    times = []
    for job in (0, 1):
        view = find_job(stage.machine, job)
        assert view.ticket is not None and view.result is not None and view.started is not None
        times += [view.ticket.submitted, view.started, view.result.ended]
    times += [find_worker(stage.machine, 0).started]
    times += [json.loads(stage.machine.job(0).attempt(1).read_text())["started"]]
    for time in times:
        moment = datetime.fromisoformat(time)
        assert moment.tzinfo is not None
        assert time == moment.isoformat(timespec="microseconds")
    fractions = {datetime.fromisoformat(time).microsecond for time in times}
    assert len(fractions) > 2, "they are not of whole seconds"
    stage.close()
