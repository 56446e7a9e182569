"""The command as a whole: names, errors, exit statuses."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from snakemake_kochi import __version__
from snakemake_kochi.paths import Root
from snakemake_kochi.queue.views import find_job

from .conftest import COMMAND, Outcome

COMMANDS = (
    [
        "init",
        "profile",
        "work",
        "alloc",
        "release",
        "inspect",
        "alloc_interact",
        "launch",
        "enqueue",
        "farm",
        "interact",
        "attach",
        "forward",
        "batch",
        "install",
        "run",
        "cancel",
        "show",
        "trace",
        "doctor",
        "clean",
        "why",
        "table",
        "plot",
        "check",
        "compare",
        "history",
        "bisect",
        "export",
        "rerun",
        "reproduce",
        "artifact",
        "machine",
    ],
    ["show", "batch"],
    ["show", "pipeline"],
    ["show", "queues"],
    ["show", "workers"],
    ["show", "runs"],
    ["show", "jobs"],
    ["show", "job"],
    ["show", "installs"],
    ["show", "install"],
    ["show", "record"],
    ["show", "projects"],
    ["show", "log", "job"],
    ["show", "log", "worker"],
    ["show", "log", "install"],
    ["show", "path", "root"],
    ["artifact", "init"],
    ["artifact", "sync"],
    ["artifact", "push"],
    ["artifact", "fetch"],
    ["artifact", "restore"],
    ["artifact", "discard"],
    ["artifact", "log"],
    ["machine", "setup"],
    ["machine", "show"],
    ["profile", "install"],
    ["profile", "list"],
)
Kochi = Callable[..., Outcome]


def test_every_command_has_a_help_text(kochi: Kochi) -> None:
    for words in [*([name] for name in COMMANDS[0]), *COMMANDS[1:]]:
        outcome = kochi(*words, "--help")
        assert outcome.status == 0, words
        assert outcome.out.startswith(f"Usage: kochi {' '.join(words)}")


def test_the_help_lists_every_command(kochi: Kochi) -> None:
    text = kochi("--help").out
    assert [line.split()[0] for line in text.split("Commands:\n")[1].splitlines()] == COMMANDS[0]


def test_an_unknown_command_gets_the_nearest_one_and_status_2(kochi: Kochi) -> None:
    outcome = kochi("shwo")
    assert outcome.status == 2
    assert "there is no command 'shwo', did you mean 'show'?" in outcome.err
    outcome = kochi("show", "jbos")
    assert outcome.status == 2
    assert "did you mean 'jobs'?" in outcome.err


def test_an_unknown_option_gets_the_nearest_one_and_status_2(kochi: Kochi) -> None:
    outcome = kochi("work", "--blockin", "-q", "x")
    assert outcome.status == 2
    assert "--blocking" in outcome.err


def test_an_option_without_its_value_is_told_with_its_command(kochi: Kochi) -> None:
    for words in (["batch", "-m"], ["machine", "setup", "--python"], ["show", "jobs", "-m"]):
        outcome = kochi(*words)
        assert outcome.status == 2
        assert outcome.err.startswith(f"Usage: kochi {' '.join(words[:-1])} [OPTIONS]")
        assert f"Option '{words[-1]}' requires an argument." in outcome.err


@pytest.mark.parametrize(
    "words", [["-m", "spica", "show", "jobs"], ["show", "--machine", "spica", "log", "job", "3"]]
)
def test_a_machine_before_the_whole_command_is_told_where_it_belongs(
    kochi: Kochi, words: list[str]
) -> None:
    outcome = kochi(*words)
    assert outcome.status == 2
    assert "-m comes after the whole command, as in: kochi show jobs -m MACHINE" in outcome.err


def test_a_command_has_one_machine(project: Path, kochi: Kochi) -> None:
    outcome = kochi("enqueue", "-m", "spica", "-m", "local", "-q", "test", "true")
    assert outcome.status == 2
    assert "one machine was expected after -m, and not spica, local." in outcome.err
    # A variable of a script that is not set: the job is not meant for this computer.
    outcome = kochi("enqueue", "-m", "", "-q", "test", "true")
    assert outcome.status == 2
    assert "a machine was expected after -m, and not an empty text" in outcome.err
    assert kochi("show", "jobs", "-a", "--json").data == []
    assert kochi("show", "jobs", "-m", "local", "-m", "local").status == 0


def test_a_name_in_place_of_a_number_is_told_where_the_numbers_are(kochi: Kochi) -> None:
    for words, expected in (
        (["cancel", "fib"], "'JOB...': 'fib' is not the number of a job. To list "),
        (["show", "job", "1.x"], "'JOB': '1.x' is not the number of a job."),
        (["release", "w1"], "'w1' is not the number of a worker. To list "),
        (["inspect", "w1"], "'w1' is not the number of a worker. To list "),
        (["inspect", "jobs", "1"], "'worker' or 'job' was expected, and not 'jobs', did you mean "),
        (
            ["show", "jobs", "-l", "few"],
            "--limit': 'few' is not a whole number of 1 or more",
        ),
    ):
        outcome = kochi(*words)
        assert outcome.status == 2
        assert expected in outcome.err


def test_a_number_or_a_misspelt_word_in_place_of_a_command_gets_what_to_type(kochi: Kochi) -> None:
    for words, typed in (
        (["show", "log"], "kochi show log job 99 or: kochi show log worker 99"),
        (["show", "path"], "kochi show path job 99 or: kochi show path worker 99"),
        (["show"], "kochi show job 99"),
    ):
        outcome = kochi(*words, "99")
        assert outcome.status == 2
        assert "Error: there is no command '99'. If it is the number of a " in outcome.err
        assert outcome.err.endswith(f", type: {typed}\n")
    assert "did you mean 'worker'?" in kochi("show", "log", "wroker", "1").err
    assert "did you mean 'sync'?" in kochi("artifact", "snyc").err


def test_the_version_is_told(kochi: Kochi) -> None:
    assert kochi("--version").out == f"kochi, version {__version__}\n"


def test_an_error_is_a_message_and_what_to_type_and_no_traceback(shell: Kochi) -> None:
    outcome = shell("show", "job", "7")
    assert outcome.status == 1
    assert outcome.out == ""
    assert outcome.err == (
        "kochi: there is no job 7 on machine local; there are none\n"
        "List them with: kochi show jobs -t\n"
    )


def test_a_directory_that_cannot_be_written_is_an_error_and_no_traceback(
    own_surroundings: Path, monkeypatch: pytest.MonkeyPatch, kochi: Kochi
) -> None:
    (own_surroundings / "file").write_text("")
    monkeypatch.setenv("KOCHI_ROOT", str(own_surroundings / "file" / "root"))
    outcome = kochi("enqueue", "-q", "test", "true")
    assert outcome.status == 1
    root = own_surroundings / "file" / "root"
    assert outcome.err.startswith(f"kochi: KOCHI_ROOT {root} cannot be used: ")
    assert "It is set by $KOCHI_ROOT" in outcome.err
    assert "Traceback" not in outcome.err


def test_an_unknown_machine_is_named(project: Path, kochi: Kochi) -> None:
    outcome = kochi("show", "jobs", "-m", "locl")
    assert outcome.status == 1
    assert "there is no machine 'locl'" in outcome.err
    assert "did you mean 'local'?" in outcome.err


def test_an_error_in_kochi_yaml_is_told_with_its_line(project: Path, kochi: Kochi) -> None:
    (project / "kochi.yaml").write_text("dependencies: {}\ndependencis: {}\n")
    outcome = kochi("show", "installs")
    assert outcome.status == 1
    assert outcome.err.startswith("kochi: kochi.yaml:2: dependencis")


def test_nothing_is_handed_to_a_machine_behind_a_login_host(project: Path, kochi: Kochi) -> None:
    (project / "kochi.yaml").write_text("machines: {spica: {login_host: deneb}}\n")
    for words in (
        ["enqueue", "-q", "test", "true"],
        ["batch", "fib.yaml", "test"],
        ["cancel", "1"],
        ["run", "true"],
    ):
        outcome = kochi(words[0], "-m", "spica", *words[1:])
        assert outcome.status == 75
        assert "no connection to deneb" in outcome.err


def test_a_reader_that_leaves_early_is_no_error(kochi: Kochi) -> None:
    script = f"{' '.join(COMMAND)} show jobs --json | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stderr == ""


def test_an_interrupt_ends_with_status_130_and_no_traceback(kochi: Kochi) -> None:
    kochi("enqueue", "-q", "nobodys", "true")
    file = find_job(Root.find().machine("local"), 1).log
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("followed\n")
    command = [*COMMAND, "show", "log", "job", "1", "-f"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "followed\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read().strip() == ""


@pytest.mark.parametrize("words", [["show", "jobs"], ["--help"], ["compare", "--help"]])
def test_showing_jobs_and_helping_import_neither_snakemake_nor_numbers(words: list[str]) -> None:
    slow = ("snakemake", "pandas", "numpy", "scipy", "matplotlib")
    script = (
        f"import sys\nfrom snakemake_kochi.cli.main import run\nrun({words})\n"
        f"print([name for name in {slow} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.endswith("[]\n")
