"""`kochi farm`: what becomes of tasks, and what is said about it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from memory_cage import EATER, LIMIT_MB, Cage
from support import wait_until

from .conftest import FARM, Place

# One slot whatever this computer has: the order is known.
ONE = ("tasks", "-j", "1")


def test_each_line_runs_once_and_the_same_line_again_does_nothing(place: Place) -> None:
    place.write("echo $KOCHI_TASK_ID >> done", "", "# a remark", "echo $PROC_NUMBER >> done; cat")
    outcome = place.farm(*ONE)
    assert (outcome.status, outcome.out) == (0, "2 of 2 tasks finished\n")
    assert place.done == ["1", "4"]
    assert place.farm(*ONE).out == outcome.out
    assert place.done == ["1", "4"]
    assert (place.directory / "tasks.farm").stat().st_mode & 0o777 == 0o700
    assert not list(place.directory.glob("tasks.farm/logs/*"))


def test_failures_have_reasons_logs_and_lists(place: Place) -> None:
    place.write("echo one", "echo bad; exit 3", "kill -9 $$", "echo 'no end")
    outcome = place.farm("tasks", "-j", "2")
    assert outcome.status == 123
    assert "task 2 failed: exit status 3: echo bad; exit 3" in outcome.err
    assert "task 3 failed: killed by SIGKILL" in outcome.err
    assert "1 of 4 tasks finished, 3 failed\n" in outcome.out
    assert "kochi farm --retry failed tasks\n" in outcome.out
    farm = place.directory / "tasks.farm"
    assert (farm / "logs" / "log_2").read_text() == "bad\n"
    assert "unexpected EOF" in (farm / "logs" / "log_4").read_text()
    assert (farm / "finished").read_text() == "1 echo one\n"
    assert (farm / "failed").read_text().splitlines()[0] == "2 echo bad; exit 3"
    assert (farm / "toprocess").read_text() == ""
    assert place.farm("tasks", "--logs").status == 0
    with tarfile.open(farm / "logs.tar") as archive:
        assert sorted(archive.getnames()) == [f"logs/log_{n}" for n in (1, 2, 3, 4)]
        member = archive.extractfile("logs/log_2")
        assert member is not None and member.read() == b"bad\n"
    shown = place.farm("tasks", "--failed").out
    assert "exit status 3" in shown and "echo bad; exit 3" in shown
    found = place.numbers()
    assert (found["finished"], found["failed"], found["left"]) == (1, 3, 0)
    assert [(each["id"], each["state"]) for each in found["failures"]] == [
        (2, "failed"),
        (3, "signal"),
        (4, "failed"),
    ]


def test_failed_ones_run_again_on_request_alone(place: Place) -> None:
    place.write("echo a >> done; test -e there", "echo b >> done", "echo c >> done; false")
    assert place.farm(*ONE).status == 123
    assert place.farm(*ONE).status == 123
    assert place.done == ["a", "b", "c"]
    (place.directory / "there").touch()
    assert place.farm(*ONE, "--retry").out.startswith("2 of 3 tasks finished, 1 failed\n")
    assert place.done == ["a", "b", "c", "a", "c"]
    assert place.farm(*ONE, "--retry", "2,3").status == 123
    assert place.done[5:] == ["b", "c"]
    assert place.farm(*ONE, "--retry", "7").status == 1


def test_a_request_to_run_again_outlives_an_interruption_and_a_success(place: Place) -> None:
    lines = ["echo a >> done; test -e there", "echo b >> done; test ! -e gate", "echo c >> done"]
    place.write(*lines)
    (place.directory / "there").touch()
    assert place.farm(*ONE).status == 0
    (place.directory / "there").unlink()
    assert place.farm(*ONE, "--retry", "1").out.startswith("2 of 3 tasks finished, 1 failed\n")
    assert place.numbers()["failed"] == 1
    assert place.farm(*ONE, "--retry", "failed").status == 123
    assert place.done == ["a", "b", "c", "a", "a"]
    place.write("echo a >> done; kill -INT $(cat pid); sleep 100", lines[1], lines[2])
    script = 'echo $$ > pid; exec "$@"'
    command = ["bash", "-c", script, "bash", *FARM, *ONE, "--retry", "2,3"]
    assert subprocess.run(command, cwd=place.directory, timeout=60).returncode == 130
    assert place.numbers()["left"] == 3
    place.write("true", *lines[1:])
    assert place.farm(*ONE).status == 0
    assert place.done[5:] == ["a", "b", "c"]


def test_a_list_may_be_edited_between_runs(place: Place) -> None:
    place.write("echo a >> done", "echo b >> done", "echo c >> done", "echo same", "echo same")
    assert place.farm(*ONE).status == 0
    place.write("echo new >> done", "echo a >> done", "echo C >> done", "echo same")
    assert place.numbers()["left"] == 2
    assert place.numbers()["gone"] == 3  # b, c, and one of the equal lines
    assert place.farm(*ONE).out == "4 of 4 tasks finished, 3 gone\n"
    assert place.done == ["a", "b", "c", "new", "C"]
    place.write("echo a$PROC_NUMBER >> done")
    place.farm(*ONE)
    place.write("", "echo a$PROC_NUMBER >> done")
    assert place.farm(*ONE).status == 0
    assert place.done[5:] == ["a1", "a2"]


def test_what_a_task_needs_stands_behind_it_and_is_kept(place: Place) -> None:
    place.write("sleep 60 #: time=1s", "nproc >> done #: cores=2", "echo x # a remark")
    began = time.monotonic()
    outcome = place.farm("tasks", "-j", "2")
    assert time.monotonic() - began < 30
    assert "task 1 failed: timeout: ran for longer than its 1 second" in outcome.err
    place.write("sleep 60", "nproc >> done", "echo x # a remark")  # it is the same task
    assert place.farm("tasks", "-j", "2").out.startswith("2 of 3 tasks finished, 1 failed\n")


def test_options_say_what_all_other_tasks_need(place: Place) -> None:
    place.write("sleep 60", "nproc >> done #: time=5", "nproc >> done #: time=5 cores=1")
    options = ("--time", "1s", "--cores", "2", "--mem", "50M", "--gpus", "0")
    outcome = place.farm(*ONE, *options)
    assert "task 1 failed: timeout: ran for longer than its 1 second" in outcome.err
    assert place.done == [str(min(2, len(os.sched_getaffinity(0)))), "1"]
    wrong = place.farm(*ONE, "--mem", "much")
    assert wrong.status == 2 and "--mem=much: an amount of memory" in wrong.err


@pytest.mark.parametrize(("is_terminal", "form"), [(True, "\r{}\x1b[K"), (False, "kochi: {}\n")])
def test_the_progress_has_the_rate_and_the_time_left(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    form: str,
) -> None:
    from snakemake_kochi.farm.run import Screen
    from snakemake_kochi.logger.handler import Progress

    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    moments, screen = [0.0], Screen()
    screen._progress = Progress(lambda: moments[0])
    screen.progress(0, 0, 100)
    moments[0] = 100.0
    screen.progress(50, 2, 50)
    text = "50 of 100 tasks, 2 failed, 0.5 per second, 1 minute and 40 seconds left"
    assert capsys.readouterr().err.endswith(form.format(text))


def test_a_failed_task_is_tried_again_in_the_same_run(place: Place) -> None:
    place.write("echo a >> done; [ $(grep -c a done) = 3 ]", "echo b >> done")
    outcome = place.farm(*ONE, "--retries", "2")
    assert outcome.status == 0
    assert outcome.err.count("it is tried again") == 2
    assert place.done == ["a", "b", "a", "a"]
    assert [end[5] for end in place.ends if end[0] == "1"] == ["1", "2", "3"]


def test_a_task_that_runs_out_of_memory_is_tried_again_with_more(place: Place) -> None:
    place.write(EATER, name="eat")
    place.write("[ -e done ] || { echo a >> done; bash eat; } #: mem=20M")
    with Cage() as cage:
        outcome = place.farm(*ONE, "--retries", "1", before=cage.enter)
    assert outcome.status == 0
    assert "task 1: out of memory" in outcome.err
    (more,) = re.findall(r"it is tried again with (\d+) MiB", outcome.err)
    assert 40 <= int(more) <= LIMIT_MB
    assert [end[2] for end in place.ends] == ["memory", "success"]


def test_more_memory_is_asked_for_after_the_lack_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from snakemake_kochi.farm.run import Farm, Screen, Wishes
    from snakemake_kochi.farm.state import Ended, State
    from snakemake_kochi.farm.tasks import Task
    from snakemake_kochi.location import find_location
    from snakemake_kochi.tickets.ticket import Resources

    monkeypatch.chdir(place.directory)
    state = State(place.directory / "x.farm", "x", [])
    farm = Farm(find_location(), True, state, Wishes(retries=2), Screen())
    task = Task(1, "true", Resources(memory_mb=100))
    ended = Ended(1, "", "memory", 1.0, 120, 1, "", "out of memory")
    assert farm._tries_again(task, ended)
    assert farm._todo[0].needs.memory_mb == 240
    largest = Task(1, "true", farm._workers.fit("x", Resources(memory_mb=10**9)))
    assert not farm._tries_again(largest, ended)  # there is no more


def test_the_longest_ones_may_begin_first(place: Place) -> None:
    place.write("sleep 0.1; echo a >> done", "sleep 0.6; echo b >> done")
    assert place.farm(*ONE).status == 0
    place.write("sleep 0.1; echo a >> done", "sleep 0.6; echo b >> done", "echo c >> done")
    assert place.farm(*ONE, "--retry", "1,2", "--longest-first").status == 0
    assert place.done[2:] == ["c", "b", "a"]


def test_retries_come_last_unless_the_order_is_preferred(place: Place) -> None:
    first = "echo a >> done; [ $(grep -c a done) = 2 ]"
    place.write(first, *(f"echo {n} >> done" for n in range(300)))
    assert place.farm(*ONE, "--retries", "1", "--prefer-order").status == 0
    assert place.done.index("a", 1) < place.done.index("280")


def test_templates_quote_what_they_take_from_a_file(place: Place) -> None:
    place.write("x,name", "1,a b", "2,$(touch bad)", "3,it's", name="in.csv")
    words = ("--each", "in.csv", "--", "printf", "%s-%s\\n", "{x}", "{2}")
    assert place.farm(*words).status == 0
    assert place.farm("--logs", *words).status == 0
    with tarfile.open(place.directory / "in.csv.farm" / "logs.tar") as archive:
        member = archive.extractfile("logs/log_2")
        assert member is not None and member.read() == b"2-$(touch bad)\n"
    line = ("--each", "in.csv", "--", "echo {name} >> got; echo {{x}} | cat")
    assert place.farm(*line).status == 0
    assert sorted((place.directory / "got").read_text().splitlines()) == [
        "$(touch bad)",
        "a b",
        "it's",
    ]
    assert not (place.directory / "bad").exists()
    place.write("hello world", name="one.dat")
    assert place.farm("--each", "*.dat", "--", "cp {} {}.copy").status == 0
    assert (place.directory / "one.dat.copy").exists()
    assert place.farm("--each", "one.dat", "--", "echo", "{2}").status == 0


def test_names_that_the_shell_put_in_place_of_a_pattern_are_no_command(place: Place) -> None:
    place.write("x", "1", name="a.csv")
    place.write("touch bad", name="b.csv").chmod(0o755)
    for words in (("b.csv", "--", "echo", "{x}"), ("b.csv", "echo {x}")):
        outcome = place.farm("--each", "a.csv", *words)
        assert outcome.status == 2 and "put a pattern in quotes" in outcome.err
    assert sorted(os.listdir(place.directory)) == ["a.csv", "b.csv"]


def test_directories_of_templates_and_commands_are_told_apart(place: Place) -> None:
    for name in ("d1", "d2"):
        (place.directory / name).mkdir()
        place.write("x", name=f"{name}/x.dat")
        place.write("n", name, name=f"{name}/in.csv")
        assert place.farm("--each", f"{name}/*.dat", "--", "true").status == 0
        assert place.farm("--from", f"echo true {name}").status == 0
    assert place.farm("--each", "d1/in.csv", "--", "echo >>done").status == 0
    names = sorted(path.name for path in place.directory.rglob("*.farm"))
    assert [name.partition("-")[0] for name in names] == ["_.dat"] * 2 + ["from"] * 2 + [
        "in.csv.farm"
    ]
    assert len({*names}) == 5
    assert (place.directory / "d1" / "in.csv.farm").is_dir()


def test_a_value_without_a_place_comes_last(place: Place) -> None:
    place.write("a b", "c", name="names")
    assert place.farm("--each", "names", "--", "echo >>done").status == 0
    assert place.farm("--each", "names", "--", "mkdir").status == 0
    assert (place.directory / "a b").is_dir()
    assert sorted(place.done) == ["a", "b", "c"]
    place.write("x", '"a', 'b"', name="in.csv")
    assert (
        "in.csv, row 1: a command has several lines"
        in place.farm("--each", "in.csv", "--", "echo").err
    )


def test_marks_and_quotes_are_no_part_of_a_list(place: Place) -> None:
    lines = "echo 'a #: b' >> done\necho \"x #: cores=1\" >> done\n"
    place.write().write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert place.farm(*ONE, "--verbose").status == 0
    assert place.done == ["a", "#:", "b", "x", "#:", "cores=1"]
    place.write("false", name="-x")
    assert "--retry failed ./-x\n" in place.farm("--", "-x").out


def test_logs_follow_their_tasks_and_an_archive_is_not_lost(
    place: Place, isolated_environment: Path
) -> None:
    place.write("echo a; false", "echo b; false", "echo c; false")
    assert place.farm(*ONE).status == 123
    logs = place.directory / "tasks.farm" / "logs"
    place.write("true", "echo c; false", "echo a; false")
    assert place.farm(*ONE).status == 123
    assert {path.name: path.read_text() for path in logs.iterdir()} == {
        "log_2": "c\n",
        "log_3": "a\n",
    }
    assert place.farm("tasks", "--logs").status == 0
    archive = logs.with_suffix(".tar").read_bytes()
    machines = isolated_environment / "machines"
    machines.rename(machines.with_name("away"))
    outcome = place.farm("tasks", "--logs")
    assert outcome.status == 1 and "or its file system is away" in outcome.err
    assert logs.with_suffix(".tar").read_bytes() == archive
    assert (logs / "log_2").exists()


def test_the_end_of_an_allocation_is_no_defect(place: Place) -> None:
    place.write("echo a >> done; sleep 100")
    end = str(int(time.time()) + 30)
    outcome = place.farm(*ONE, SLURM_JOB_ID="1", SLURM_JOB_END_TIME=end)
    assert outcome.status == 124
    assert "the time of this allocation is over: running tasks were put back" in outcome.err
    assert "To go on, type: kochi farm tasks" in outcome.out


def test_a_list_may_come_from_a_command_or_standard_input(place: Place) -> None:
    assert place.farm("-", given=b"echo a >> done\n").status == 0
    assert place.farm("--from", "seq 2 | sed 's/$/ >> done/; s/^/echo /'").status == 0
    assert sorted(place.done) == ["1", "2", "a"]


def test_lines_that_are_appended_are_taken(place: Place) -> None:
    path = place.write("echo a >> done")
    farm = place.begin("tasks", "--watch", "-j", "1")
    place.wait_for("a")
    with path.open("a") as file:
        file.write("true #: quick\ntrue #: gpus=9\necho b >> done\necho c >> do")
        file.flush()
        place.wait_for("b")
        file.write("ne\n")
    place.wait_for("c")
    farm.send_signal(signal.SIGINT)
    said, _ = farm.communicate(timeout=30)
    assert farm.returncode == 130
    assert "tasks, line 2: after #: names and values were expected" in said
    assert "tasks, line 3" in said and "9 GPUs needed" in said


def test_of_a_list_that_is_edited_meanwhile_no_part_of_a_line_is_taken(place: Place) -> None:
    path = place.write("echo a >> done")
    farm = place.begin("tasks", "--watch", "-j", "1")
    place.wait_for("a")
    place.write("echo a  >> done;    echo b >> done", "echo c >> done")
    time.sleep(2.5)  # in which it looks twice
    assert place.done == ["a"]
    place.write("echo a >> done", "echo c >> done", name="new").rename(path)
    place.wait_for("c")
    place.write("echo d >> done")
    farm.send_signal(signal.SIGUSR1)
    said, _ = farm.communicate(timeout=30)
    assert farm.returncode == 138
    assert said.count("tasks was changed or removed meanwhile") == 2
    assert place.done == ["a", "c"]


def test_equal_lines_are_tasks_of_their_own(place: Place) -> None:
    place.write("echo a >> done", "echo a >> done", "echo a >> done")
    assert place.farm(*ONE).out == "3 of 3 tasks finished\n"
    assert place.farm(*ONE, "--retry", "2").status == 0
    assert [end[0] for end in place.ends] == ["1", "2", "3", "2"]
    assert len(place.done) == 4


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"true\n\0\n", "tasks, line 2: a zero byte"),
        (
            b"true\n" + b"x" * 2**20,
            "tasks, line 2: 1048576 bytes, and a command has at most 131071",
        ),
        (b"true #: mem=much", "tasks, line 1: mem=much: an amount of memory"),
        (b"true #: memory=4G", "did you mean 'mem'?"),
        (b"true #: quick", "after #: names and values were expected"),
        (b"true #: cores=0", "cores=0: a whole number"),
        (b"#", "there is no command in it"),
        (b"true #: gpus=9", "9 GPUs needed"),
        (b"true #: gpus=9", "`#: cores=N` on the line"),
    ],
)
def test_a_list_that_cannot_be_is_refused_before_anything_runs(
    place: Place, data: bytes, said: str
) -> None:
    place.write().write_bytes(data)
    outcome = place.farm("tasks")
    assert outcome.status == 1
    assert said in outcome.err
    assert len(outcome.err) < 600


def test_other_mistakes_are_told(place: Place) -> None:
    place.write("true")
    assert "task: No such file or directory" in place.farm("task").err
    assert "Is a directory" in place.farm(".").err
    assert place.farm().status == place.farm("tasks", "b").status == 2
    assert place.farm("tasks", "--retry", "x").status == 2
    assert "was not run yet" in place.farm("tasks", "--status").err
    place.write("a,b", "1,2", "3", name="in.csv")
    assert (
        "line 3: 1 cells for the columns a, b"
        in place.farm("--each", "in.csv", "--", "echo", "{a}").err
    )
    place.write("a,b", "1,2", name="in.csv")
    assert "within quotes" in place.farm("--each", "in.csv", "--", "echo '{a}'").err
    assert "{c} is no column" in place.farm("--each", "in.csv", "--", "echo", "{c}").err
    assert "ended with status 4" in place.farm("--from", "exit 4").err


def test_windows_line_ends_are_left_out_and_told(place: Place) -> None:
    place.write().write_bytes(b"echo a >> done\r\necho b >> done\r\n")
    assert "has Windows line ends" in place.farm(*ONE).err
    assert place.done == ["a", "b"]


def test_tasks_that_change_their_list_change_nothing_of_this_run(place: Place) -> None:
    place.write("echo a >> done; echo 'echo z >> done' >> tasks", "echo b >> done")
    outcome = place.farm(*ONE)
    assert "was changed or removed meanwhile" in outcome.err
    assert place.done == ["a", "b"]
    place.write("rm tasks", "echo c >> done", name="tasks")
    outcome = place.farm(*ONE)
    assert "was changed or removed meanwhile" in outcome.err and outcome.status == 0


def test_a_task_that_deletes_what_is_known_of_it_is_told(place: Place) -> None:
    place.write("rm -r tasks.farm", "echo a >> done")
    outcome = place.farm(*ONE)
    assert outcome.status == 1
    assert "was deleted while tasks needed it" in outcome.err
    place.write("echo a >> done")
    assert place.farm(*ONE).status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_what_another_user_wrote_is_not_taken(place: Place) -> None:
    place.write("true")
    farm = place.directory / "tasks.farm"
    farm.mkdir()
    os.chown(farm, 12345, 12345)
    err = place.farm("tasks").err
    assert "belongs to user 12345" in err and "--workdir DIRECTORY" in err


def test_a_list_belongs_to_one_kochi_root(place: Place, isolated_environment: Path) -> None:
    place.write("true")
    other = place.directory / "root"
    other.mkdir()
    other.chmod(0o777)
    assert "may write" in place.farm(*ONE, KOCHI_ROOT=str(other)).err
    assert not (place.directory / "tasks.farm").exists()
    other.chmod(0o700)
    assert place.farm(*ONE, KOCHI_ROOT=str(other)).status == 0
    err = place.farm(*ONE).err
    assert f"belongs to runs below {other}" in err and str(isolated_environment) in err
    assert place.farm(*ONE, "--status").out == "1 of 1 tasks finished\n"


def test_the_status_says_whether_a_farm_runs(place: Place) -> None:
    place.write("echo a >> done; while [ ! -e go ]; do sleep 0.05; done")
    farm = place.begin(*ONE)
    place.wait_for("a")
    assert (
        f"A farm works on it: run 1, process {farm.pid} on" in place.farm("tasks", "--status").out
    )
    (place.directory / "go").touch()
    assert farm.wait(120) == 0
    assert place.numbers()["running"] == ""


def test_its_tasks_are_jobs_for_all_other_commands(place: Place) -> None:
    def kochi(*words: str) -> str:
        command = [*FARM[:-1], *words]
        return subprocess.run(command, cwd=place.directory, text=True, capture_output=True).stdout

    place.write("echo a | tee -a done", "echo b >> done; sleep 100")
    farm = place.begin(*ONE)
    place.wait_for("b")
    assert "tasks:2" in kochi("show", "jobs")
    kochi("cancel", "1.2")
    assert farm.wait(60) == 123
    assert [end[2] for end in place.ends] == ["success", "cancelled"]
    assert kochi("show", "log", "job", place.ends[0][6]).endswith("a\n")
    kochi("trace", "-o", "trace.json", "1")
    assert "tasks:1" in (place.directory / "trace.json").read_text()


def test_a_view_does_not_read_standard_input_again(place: Place) -> None:
    outcome = place.farm("-", "--status")
    assert outcome.status == 2
    assert "See the files in stdin.farm" in outcome.err


def test_thousands_of_tasks_leave_few_files(place: Place, isolated_environment: Path) -> None:
    place.write(*(f"echo {n}" for n in range(2000)))
    outcome = place.farm("tasks", "-j", "2", "--json")
    assert outcome.status == 0
    assert len({end[0] for end in place.ends}) == len(place.ends) == 2000
    assert len(list(isolated_environment.rglob("*"))) < 70
    assert place.farm("tasks", "--logs").status == 0
    with tarfile.open(place.directory / "tasks.farm" / "logs.tar") as archive:
        member = archive.extractfile("logs/log_1500")
        assert member is not None and member.read() == b"1499\n"
    assert not list(isolated_environment.glob("machines/local/queues/*"))


# ---- kills and signals


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)]
)
def test_a_signal_puts_running_tasks_back(
    place: Place, number: signal.Signals, status: int
) -> None:
    place.write("echo a >> done", "echo b >> done; test -e go || sleep 100", "echo c >> done")
    farm = place.begin(*ONE)
    place.wait_for("b")
    farm.send_signal(number)
    assert farm.wait(30) == status
    (place.directory / "go").touch()
    assert place.numbers()["left"] == 2
    assert place.farm(*ONE).out == "3 of 3 tasks finished\n"
    assert place.done == ["a", "b", "b", "c"]


def test_the_end_of_its_time_puts_tasks_back(place: Place) -> None:
    place.write("echo a >> done", "sleep 100")
    outcome = place.farm(*ONE, "--timeout", "3s")
    assert outcome.status == 124
    assert "1 left" in outcome.out


def test_a_killed_farm_is_followed_by_the_next_one(place: Place) -> None:
    place.write(*(f"sleep 0.01; echo {n} >> done" for n in range(300)))
    for _ in range(2):
        farm = place.begin("tasks", "-j", "2")
        count = len(place.done)
        wait_until(lambda count=count: len(place.done) > count + 40)
        os.kill(farm.pid, signal.SIGKILL)
        farm.wait()
    outcome = place.farm("tasks", "-j", "2")
    assert outcome.status == 0
    assert "of them handed over before), " in outcome.err
    assert {*place.done} == {str(n) for n in range(300)}
    assert len(place.done) <= 300 + 2 * 2  # those that ran at a kill
    assert len({end[0] for end in place.ends}) == len(place.ends) == 300


def test_an_end_that_a_kill_has_torn_does_not_spoil_the_next_one(place: Place) -> None:
    place.write("echo a >> done", "echo b >> done", "echo c >> done; false")
    assert place.farm(*ONE).status == 123
    path = place.directory / "tasks.farm" / "ended.tsv"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + whole[1][:20])
    assert place.numbers()["left"] == 2
    assert place.farm(*ONE).status == 123
    assert place.done == ["a", "b", "c", "b", "c"]
    numbers = place.numbers()
    assert (numbers["finished"], numbers["failed"]) == (2, 1)


def test_a_killed_worker_loses_nothing(place: Place, isolated_environment: Path) -> None:
    place.write(*(f"sleep 0.02; echo {n} >> done" for n in range(200)))
    farm = place.begin("tasks", "-j", "2")
    place.wait_for("50")
    for line in os.popen(f"ps -eo pid,args --ppid {farm.pid}"):
        if "snakemake_kochi.worker" in line and str(isolated_environment) in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)
    assert farm.wait(120) == 0
    assert {*place.done} == {str(n) for n in range(200)}
    assert len(place.ends) == 200
    assert not list(isolated_environment.glob("machines/local/queues/*"))


def test_a_second_farm_helps_and_takes_over(place: Place) -> None:
    place.write(*(f"sleep 0.05; echo {n} >> done" for n in range(150)))
    first = place.begin("tasks", "-j", "1")
    place.wait_for("3")
    second = place.begin("tasks", "-j", "1")
    wait_until(lambda: len({end[6].partition("@")[2].partition("=")[0] for end in place.ends}) == 2)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert second.wait(120) == 0
    assert {*place.done} == {str(n) for n in range(150)}
    assert len({end[0] for end in place.ends}) == len(place.ends) == 150


def test_a_helper_that_is_stopped_tells_what_has_ended(place: Place) -> None:
    place.write("echo a >> done", *("echo b >> done; while [ ! -e go ]; do sleep 0.05; done",) * 2)
    first = place.begin(*ONE)
    place.wait_for("a", "b")
    second = place.begin(*ONE)
    wait_until(lambda: place.done.count("b") == 2)
    second.send_signal(signal.SIGINT)
    said, _ = second.communicate(timeout=30)
    assert second.returncode == 130
    assert "1 of 3 tasks finished, 2 left" in said
    assert (place.directory / "tasks.farm" / "finished").read_text() == "1 echo a >> done\n"
    (place.directory / "go").touch()
    assert first.wait(60) == 0


def test_two_farms_share_a_list_to_its_end(place: Place) -> None:
    place.write(*(f"sleep 0.03; echo {n} >> done" for n in range(100)))
    farms = [place.begin("tasks", "-j", "1") for _ in range(3)]
    assert [farm.wait(120) for farm in farms] == [0, 0, 0]
    assert sorted(place.done) == sorted(map(str, range(100)))


def test_an_interrupted_farm_leaves_to_its_helper_what_that_runs(place: Place) -> None:
    place.write(*(f"echo {n} >> done; sleep 1; echo end{n} >> done" for n in range(6)))
    first = place.begin("tasks", "-j", "1")
    place.wait_for("0")
    second = place.begin("tasks", "-j", "1")
    place.wait_for("1", "2")
    first.send_signal(signal.SIGINT)
    assert first.wait(30) == 130
    assert second.wait(120) == 0
    assert {f"end{n}" for n in range(6)} <= {*place.done}
    assert len(place.done) <= 13  # one of them was ended in its middle
