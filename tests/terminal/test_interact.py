"""`kochi interact` and `kochi attach`: a person at a terminal, a worker, programs."""

from __future__ import annotations

import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from seen import FIRST, find_job, log_of
from support import interruptible, wait_until, waiting_for

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import find_by_environment
from tests.cli.conftest import Outcome

from .conftest import PROMPT, Person, await_end, pid_of_host

Spawn = Callable[..., Person]
LEAVE = "\x1d\x1d\x1d"


def at_prompt(person: Spawn, *words: str, **options: object) -> Person:
    """Somebody in the shell of a job."""
    someone = person("interact", "-q", "test", *words, **options)
    someone.sees(PROMPT)
    return someone


# ---- the tutorial


def test_the_tutorial_a_shell_in_a_copy_of_the_repository(
    project: Path, person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    (project / "foo").write_text("not committed\n")
    someone = at_prompt(person, "-c")
    place = someone.asks("pwd").strip()
    assert Path(place).name == project.name and Path(place) != project
    assert "not committed" in someone.asks("cat foo")
    someone.asks("echo world >> foo")
    assert (
        someone.asks('echo "$KOCHI_JOB_ID $KOCHI_QUEUE $KOCHI_MACHINE"')
        == f"{FIRST} test local\r\n"
    )
    someone.types("exit")
    assert someone.leaves()[0] == 0
    assert (project / "foo").read_text() == "not committed\n"
    assert await_end(machine) == "succeeded"
    assert not Path(place).exists()


def test_the_worker_shows_which_job_has_a_terminal_and_not_what_is_typed(
    project: Path, person: Spawn, machine: MachinePaths, work: Callable[..., str]
) -> None:
    someone = person("interact", "-q", "test", "-n", "look")
    someone.sees(f"Job {FIRST} waits")
    worker = person("work", "-q", "test")
    worker.sees(f"Kochi job look (ID={FIRST}) started.")
    someone.sees(PROMPT)
    someone.asks("echo a''secret")
    someone.types("exit")
    assert someone.leaves()[0] == 0
    shown = worker.leaves()[1]
    assert "a terminal is attached" in shown
    assert "secret" not in shown


def test_an_experiment_is_built_and_its_run_script_is_in_the_history(
    installed: Path, person: Spawn, at_work: object
) -> None:
    someone = person("interact", "-q", "test", "fib.yaml", "n=4", "debug=1")
    someone.sees("Compiling with debug=1")
    someone.sees("The run script of fib.yaml is in the history")
    someone.sees(PROMPT)
    assert someone.asks("cat program; echo $KOCHI_PARAM_N $TOOL_IS") == (
        "echo fib of $1\r\n4 release\r\n"
    )
    someone.asks("true")
    someone.child.send("\x1b[A" * 3)
    someone.types("")
    someone.sees("fib of 4\r\n")
    # The last line of the script is `exit ...`.
    assert someone.leaves()[0] == 0


def test_a_shell_in_the_isolation_of_an_experiment_has_a_terminal(
    project: Path, person: Spawn, at_work: object
) -> None:
    text = "run: {isolate: [environment, files], script: echo the run}\n"
    (project / "apart.yaml").write_text(text)
    someone = person("interact", "-q", "test", "apart.yaml", env={"TERM": "screen"})
    someone.sees("press the up arrow.\r\n")
    someone.types("PS1='prompt''> '")
    someone.sees(PROMPT)
    assert someone.asks("echo $TERM; ls /home /work 2>&1 | wc -l; tty").startswith("screen\r\n")
    someone.interrupts_a_program()
    someone.child.send("\x1b[A" * 4)
    someone.types("")
    someone.sees("the run\r\n")


def test_a_recipe_is_loaded_in_the_current_directory(
    installed: Path, person: Spawn, at_work: object
) -> None:
    someone = at_prompt(person, "-d", "tool:release")
    assert someone.asks("pwd; cat $KOCHI_INSTALL_PREFIX_TOOL/tool; echo $TOOL_IS") == (
        f"{installed}\r\necho the tool\r\nrelease\r\n"
    )


def test_the_users_bashrc_is_read_and_the_environment_of_the_job_wins(
    installed: Path, person: Spawn, at_work: object
) -> None:
    someone = person("interact", "-q", "nobody")  # makes ~/.bashrc
    home = Path(os.environ["HOME"])
    with (home / ".bashrc").open("a") as bashrc:
        bashrc.write("export TOOL_IS=other\nalias greet='echo hello'\ncd /\n")
    someone.child.sendintr()
    someone = at_prompt(person, "-c", "-d", "tool:release")
    assert someone.asks("greet; echo $TOOL_IS; basename $PWD") == "hello\r\nrelease\r\nproj\r\n"


# ---- a real terminal


def test_a_shell_and_its_programs_have_a_real_terminal(
    person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    kind = {"TERM": "screen-256color", "COLORTERM": "truecolor"}
    someone = at_prompt(person, env=kind, dimensions=(33, 101))
    assert someone.asks("echo $TERM $COLORTERM; tput colors") == (
        "screen-256color truecolor\r\n256\r\n"
    )
    # The size of the window, and its changes.
    assert someone.asks("stty size") == "33 101\r\n"
    someone.types(waiting_for("WINCH", "ready", r"echo changed to \$(stty size); exit"))
    someone.sees("ready\r\n")
    someone.child.setwinsize(40, 120)
    someone.sees("changed to 40 120")
    someone.sees(PROMPT)
    # Ctrl-C and Ctrl-Z.
    someone.interrupts_a_program()
    assert find_job(machine, FIRST).state == "running"
    someone.types(interruptible("ready"))
    someone.sees("ready\r\n")
    someone.child.sendcontrol("z")
    someone.sees("Stopped")
    someone.sees(PROMPT)
    someone.types("bg; fg")
    someone.sees("done' &\r\n")
    someone.sees("done'\r\n")
    someone.interrupts_until_asked()
    # Each byte is passed on.
    text = "ä€𝄞" * 300
    someone.types(f"echo {text} | wc -m")
    someone.sees("\r\n901\r\n")
    # More than all buffers on the way have room for.
    someone.types("yes 0123456789 | head -n 200000 | tee >(cksum >&2) | tail -n 1; seq 50000")
    someone.sees("\r\n50000\r\n")


def test_ctrl_c_is_for_a_command_in_a_copy_that_handles_it(
    project: Path, person: Spawn, at_work: object
) -> None:
    script = "trap 'echo handled; exit 5' INT; echo ready; while :; do sleep 0.1; done"
    someone = person("interact", "-q", "test", "-c", "bash", "-c", script)
    someone.sees("ready\r\n")
    someone.child.sendintr()
    someone.sees("handled\r\n")
    assert someone.leaves()[0] == 5


def test_a_terminal_that_another_program_has_made_non_blocking(
    person: Spawn, at_work: object
) -> None:
    someone = at_prompt(person, preexec_fn=lambda: os.set_blocking(0, False))
    someone.types("seq 50000")
    someone.sees("\r\n50000\r\n")
    someone.types("exit 8")
    assert someone.leaves()[0] == 8


def test_a_client_that_was_stopped_has_its_terminal_again(person: Spawn, at_work: object) -> None:
    someone = at_prompt(person)
    process = psutil.Process(someone.child.pid)
    for number in (signal.SIGSTOP, signal.SIGTSTP):
        someone.child.kill(number)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "it is stopped")
        # As by the shell in which it was typed.
        settings = termios.tcgetattr(someone.child.child_fd)
        settings[3] |= termios.ICANON
        termios.tcsetattr(someone.child.child_fd, termios.TCSANOW, settings)
        someone.child.kill(signal.SIGCONT)
        wait_until(someone.is_in_raw_mode, "the terminal is raw")
        assert someone.asks("echo $((4+4))").endswith("8\r\n")


def test_standard_input_that_is_no_terminal_is_refused(
    person: Spawn, shell: Callable[..., Outcome]
) -> None:
    outcome = shell("interact", "-q", "test", stdin="ls\n")
    assert outcome.status == 1
    assert outcome.err == (
        "kochi: standard input is not a terminal, and this command joins a terminal with a job\n"
        "Without a terminal, type: kochi enqueue -q QUEUE -- COMMAND\n"
    )


# ---- waiting


def test_the_queue_is_named_and_what_the_job_waits_for(
    person: Spawn, machine: MachinePaths
) -> None:
    someone = person("interact", "-q", "test")
    someone.sees(
        f"Job {FIRST} waits: no worker serves queue test; start one with: kochi work -q test -b"
    )
    person("work", "-q", "test", "-b")
    someone.sees(PROMPT)
    other = person("interact", "-q", "test")
    other.sees(f"Job {FIRST + 1} waits: worker {FIRST} runs job {FIRST} (exclusive)")
    someone.types("exit")
    other.sees(PROMPT)


def test_ctrl_c_cancels_a_job_that_waits(person: Spawn, machine: MachinePaths) -> None:
    someone = person("interact", "-q", "test")
    someone.sees(f"Job {FIRST} waits")
    someone.child.sendintr()
    status, said = someone.leaves()
    assert status == 130
    assert f"Job {FIRST} was cancelled." in said
    assert await_end(machine) == "cancelled"


def test_a_window_that_is_closed_while_the_job_waits_cancels_it(
    person: Spawn, machine: MachinePaths
) -> None:
    someone = person("interact", "-q", "test")
    someone.sees(f"Job {FIRST} waits")
    someone.child.kill(signal.SIGHUP)
    someone.leaves()
    assert await_end(machine) == "cancelled"


# ---- the end


def test_a_command_has_the_terminal_and_its_end_is_told(
    project: Path, person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    command = "test -t 0 && test -t 1 && test -t 2 && printf '<%s>' \"$1\"; exit 7"
    someone = person("interact", "-q", "test", "--", "bash", "-c", command, "x", "a b")
    someone.sees("<a b>")
    status, said = someone.leaves()
    assert status == 7
    assert f"Job {FIRST} has ended: exit status 7." in said
    assert await_end(machine) == "exit status 7"
    # After each end the terminal is as it was before.
    someone = person("interact", "-q", "test", "--", "bash", "-c", "read x; exit 4")
    wait_until(someone.is_in_raw_mode)
    someone.types("")
    someone.sees("exit status 4")
    assert someone.leaves()[0] == 4
    for number, named in ((9, "9 (SIGKILL)"), (40, "40")):
        someone = person("interact", "-q", "test", "--", "bash", "-c", f"kill -{number} $$")
        status, said = someone.leaves()
        assert status == 128 + number
        assert f"was ended by signal {named}\r\n" in said
    someone = person("interact", "-q", "test", "./missing")
    someone.sees("./missing: command not found")
    assert someone.leaves()[0] == 127
    # A program may close its terminal, and open it again.
    script = "exec < /dev/null > /dev/null 2>&1; sleep 0.5; echo again > /dev/tty; exit 5"
    someone = person("interact", "-q", "test", "--", "bash", "-c", script)
    someone.sees("again\r\n")
    assert someone.leaves()[0] == 5


@pytest.mark.parametrize("victim", ["host", "worker"])
def test_a_job_that_is_killed_is_told_and_the_terminal_is_restored(
    victim: str, person: Spawn, at_work: subprocess.Popen[str], machine: MachinePaths
) -> None:
    enter = r"printf '\033[?1049h\033[?1000h'; echo full; sleep 1000"
    someone = person("interact", "-q", "test", "--", "bash", "-c", enter)
    someone.sees("full\r\n")
    number = pid_of_host()
    if victim == "worker":
        kill_worker(at_work)
    else:
        os.kill(number, signal.SIGKILL)
    someone.sees("\x1b[?1000l\x1b[?1049l")
    someone.sees(f"the connection to the terminal of job {FIRST} was lost")
    status, _ = someone.leaves()
    assert status == 255
    await_end(machine)
    wait_until(lambda: not processes_of_job())


def kill_worker(worker: subprocess.Popen[str]) -> None:
    """The one below its supervisor."""
    for child in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


def test_a_job_that_is_cancelled_is_told(
    person: Spawn, at_work: object, machine: MachinePaths, kochi: Callable[..., Outcome]
) -> None:
    someone = at_prompt(person)
    assert kochi("cancel", FIRST).status == 0
    status, said = someone.leaves()
    assert f"kochi: job {FIRST} was ended: its worker ended it (cancelled" in said
    assert status
    assert await_end(machine).startswith("cancelled")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_lost_client_ends_the_job_with_all_its_processes(
    number: signal.Signals, project: Path, person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    someone = at_prompt(person, "-c")
    place = Path(someone.asks("pwd").strip())
    someone.types("sleep 1000 & nohup sleep 1001 & sleep 1002")
    wait_until(lambda: b"1002" in _command_lines())
    someone.child.kill(number)
    someone.leaves()
    assert await_end(machine) == "exit status 129"
    assert not _command_lines()
    assert not place.exists()
    log = log_of(machine)
    assert "the program was told to end" in log


def processes_of_job() -> list[int]:
    """Those of the first job of this test."""
    own = {"KOCHI_JOB_ID": str(FIRST), "KOCHI_ROOT": os.environ["KOCHI_ROOT"]}
    return find_by_environment(own, 0)


def _command_lines() -> bytes:
    lines = b""
    for pid in processes_of_job():
        try:
            lines += Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    return lines


def test_a_client_that_is_killed_while_its_job_waits_leaves_no_shell(
    person: Spawn, worker: Callable[..., object], machine: MachinePaths
) -> None:
    someone = person("interact", "-q", "test")
    someone.sees(f"Job {FIRST} waits")
    someone.child.kill(signal.SIGKILL)
    someone.leaves()
    worker("test")
    assert await_end(machine) == "exit status 129"
    assert "no terminal was attached to it" in log_of(machine)


def test_ctrl_bracket_pressed_three_times_leaves_and_once_is_for_the_program(
    person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    someone = person(
        "interact", "-q", "test", "--", "bash", "-c", "stty raw -echo; echo ready; od -c -N 1; cat"
    )
    someone.sees("ready")
    someone.child.send("\x1d")
    someone.sees("035")
    time.sleep(1.1)
    someone.child.send(LEAVE)
    _, said = someone.leaves()
    assert f"Job {FIRST} ends: its terminal was closed." in said
    await_end(machine)


def test_what_is_typed_before_the_keys_that_leave_reaches_the_program(
    person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    someone = at_prompt(person, "--keep")
    someone.child.send(f"touch typed\r{LEAVE}")
    someone.leaves()
    wait_until(lambda: list(Path.cwd().rglob("typed")), "the line was read")


# ---- --keep


def test_a_kept_job_is_left_and_attached_to_again_with_its_recent_output(
    person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    someone = at_prompt(person, "--keep")
    wait = "while [ ! -e go ]; do sleep 0.1; done"
    someone.types(f"echo be''fore; ({wait}; echo mean''while; touch said) &")
    someone.sees("before\r\n")
    someone.child.send(LEAVE)
    status, said = someone.leaves()
    assert status == 0
    assert f"To attach to it, type: kochi attach {FIRST}" in said
    Path("go").touch()
    wait_until(lambda: Path("said").exists(), "it has said something meanwhile")
    again = person("attach", FIRST, dimensions=(50, 90))
    again.sees("before\r\n")
    again.sees("meanwhile\r\n")
    again.types("")
    again.sees(PROMPT)
    assert again.asks("stty size").endswith("50 90\r\n")
    again.types("exit 6")
    assert again.leaves()[0] == 6
    assert await_end(machine) == "exit status 6"


def test_a_kept_job_outlives_its_client(person: Spawn, at_work: object) -> None:
    someone = at_prompt(person, "--keep")
    someone.asks("x=kept")
    for number in (signal.SIGKILL, signal.SIGTERM):
        someone.child.kill(number)
        someone.leaves()
        someone = person("attach", FIRST)
        someone.sees(PROMPT)
        someone.types("echo $x$x")
        someone.sees("keptkept\r\n")


def test_a_kept_job_whose_worker_is_killed_is_not_begun_again(
    person: Spawn,
    at_work: subprocess.Popen[str],
    worker: Callable[..., subprocess.Popen[str]],
    machine: MachinePaths,
) -> None:
    someone = at_prompt(person, "--keep")
    kill_worker(at_work)
    someone.sees(f"the connection to the terminal of job {FIRST} was lost")
    assert someone.leaves()[0] == 255
    worker("test")
    assert await_end(machine) == "exit status 1"
    assert f"the terminal of job {FIRST} was lost in an earlier attempt" in log_of(machine)


def test_a_second_client_takes_the_terminal_of_a_kept_job(person: Spawn, at_work: object) -> None:
    someone = at_prompt(person, "--keep")
    other = person("attach", FIRST)
    status, said = someone.leaves()
    assert status == 0 and f"job {FIRST} goes on in another terminal" in said
    other.sees(PROMPT)
    other.types("exit")
    assert other.leaves()[0] == 0


def test_a_kept_job_that_ends_alone_has_its_last_output_in_its_log(
    person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    someone = person("interact", "-q", "test", "--keep", "bash", "-c", "echo one; read; echo two")
    someone.sees("one\r\n")
    someone.child.sendline("")
    assert someone.leaves()[0] == 0
    script = "echo one; while [ ! -e go ]; do sleep 0.1; done; echo two"
    someone = person("interact", "-q", "test", "--keep", "bash", "-c", script)
    someone.sees("one\r\n")
    someone.child.send(LEAVE)
    someone.leaves()
    Path("go").touch()
    await_end(machine, FIRST + 1)
    assert "two" in log_of(machine, FIRST + 1)
    assert "two" not in log_of(machine)


def test_attach_says_what_it_cannot_attach_to(
    person: Spawn, at_work: object, machine: MachinePaths, kochi: Callable[..., Outcome]
) -> None:
    at_prompt(person)
    said = person("attach", FIRST).leaves()[1]
    assert f"job {FIRST} has a terminal, and ends with it" in said and "--keep" in said
    kochi("cancel", FIRST)
    await_end(machine)
    assert f"job {FIRST} has ended: cancelled" in person("attach", FIRST).leaves()[1]
    kochi("enqueue", "-q", "test", "sleep", "1000")
    assert f"job {FIRST + 1} has no terminal" in person("attach", FIRST + 1).leaves()[1]
    assert "there is no job 17" in person("attach", 17).leaves()[1]
