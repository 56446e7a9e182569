"""`kochi run`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from .conftest import COMMAND, Outcome

Kochi = Callable[..., Outcome]


def test_a_command_runs_here_with_the_recipe_and_its_exit_status_is_ours(
    installed: Path, shell: Kochi
) -> None:
    outcome = shell(
        *("run", "-d", "tool:release", "--", "sh", "-c"),
        'sh "$KOCHI_INSTALL_PREFIX_TOOL/tool"; echo $TOOL_IS $KOCHI_MACHINE; pwd; exit 7',
    )
    assert (outcome.status, outcome.out) == (7, f"the tool\nrelease local\n{installed}\n")


def test_the_words_are_taken_as_they_are_and_standard_input_reaches_it(shell: Kochi) -> None:
    words = ["a;b", "$(id)", "*", ">x", "-m", "--help", "", "a\nb"]
    assert shell("run", "printf", "<%s>", *words).out == "".join(f"<{w}>" for w in words)
    assert shell("run", "cat", stdin="typed").out == "typed"


def test_a_signal_ends_the_command_and_not_only_kochi(installed: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "run", "-d", "tool:release", "sh", "-c", "echo $$; exec sleep 300"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.terminate()
    assert process.returncode == -15


def test_the_machine_s_environment_is_loaded_without_our_arguments(
    installed: Path, shell: Kochi
) -> None:
    # As scripts of compilers do that are sourced: they read the caller's arguments as options.
    (installed / "setvars.sh").write_text('[ $# = 0 ] || exit 9\nexport LOADED="$#"\n')
    with (installed / "kochi.yaml").open("a") as stream:
        stream.write("machines: {local: {load_env_script: '. ./setvars.sh'}}\n")
    outcome = shell("run", "sh", "-c", "echo loaded $LOADED")
    assert (outcome.status, outcome.out) == (0, "loaded 0\n")


def test_what_cannot_be_run_is_an_error(installed: Path, shell: Kochi) -> None:
    outcome = shell("run", "./nothing")
    assert outcome.status == 127
    assert outcome.err == "kochi: ./nothing: No such file or directory\n"
    outcome = shell("run", "-d", "tool:release", "--", "nosuchcmd")
    assert (outcome.status, outcome.err) == (127, "kochi: nosuchcmd: command not found\n")
    outcome = shell("run", "-d", "tool:debug", "true")
    assert outcome.status == 1
    assert "Type: kochi install -d tool:debug" in outcome.err
    assert shell("run").status == 2


def test_a_line_for_a_shell_is_told_from_a_program_with_what_to_type(
    installed: Path, kochi: Kochi, shell: Kochi
) -> None:
    outcome = shell("run", "echo x")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == (
        "kochi: there is no program 'echo x': a command is executed word for word, "
        "without a shell\n"
        "Type, after --:\necho x\nor, for a shell: bash -c 'echo x'\n"
    )
    assert shell("run", "--", "bash", "-c", "echo x").out == "x\n"
    # Words apart would not do.
    outcome = shell("run", "-d", "tool:release", "ls | wc -l")
    assert outcome.err.endswith("Type, after --:\nfor a shell: bash -c 'ls | wc -l'\n")
    outcome = kochi("enqueue", "-q", "test", "--", "make; ./fib 3 > out")
    assert outcome.status == 1
    assert "bash -c 'make; ./fib 3 > out'" in outcome.err
    assert kochi("show", "jobs", "--json").data == []
    # A name may have a blank.
    script = installed / "my script"
    script.write_text("#!/bin/sh\necho $1\n")
    script.chmod(0o755)
    assert shell("run", "./my script", "a b").out == "a b\n"
