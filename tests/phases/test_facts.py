"""Facts and variables of records: found where the run runs, and no run fails because of them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from support import write

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.phases import node as module
from snakemake_kochi.phases.node import Facts, noted, noting
from snakemake_kochi.phases.products import Install
from snakemake_kochi.phases.script import Environment, run_script
from snakemake_kochi.processes import process_entry

TOOL = Install("tool", "fast", "d", "/the/prefix", {}, "export ACTIVE=yes")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace, in a directory whose name needs quotes."""
    return make_directory(tmp_path / "a 'place'" / "workspace")


def find(
    place: Path, commands: dict[str, str], load: str = "", build: str = "b", limit: float = 30.0
) -> dict[str, tuple[str, int | None]]:
    """The output and the exit status of each command."""
    facts = Facts(commands, Environment(load, [TOOL], {"KOCHI_MACHINE": "local"}), build)
    scratch = make_directory(place.parent / f"scratch-{time.time_ns()}")
    found = facts.find(MachinePaths("local", place.parent / "machine"), place, scratch, limit)
    return {name: (each["output"], each["exit_status"]) for name, each in found.items()}


def test_commands_see_the_environment_of_the_run_and_its_workspace(place: Path) -> None:
    write(place / "VERSION", "1.2\n")
    loaded = 'echo "$LOADED $ACTIVE $KOCHI_INSTALL_PREFIX_TOOL $KOCHI_MACHINE"'
    several = "greet\nfalse\necho two"
    commands = {"file": "cat VERSION", "loaded": loaded, "several": several}
    assert find(place, commands, "greet() { echo hello; }; export LOADED=yes; cd /") == {
        "file": ("1.2", 0),
        "loaded": ("yes yes /the/prefix local", 0),
        "several": ("hello\ntwo", 0),
    }


def test_a_command_that_fails_hangs_or_prints_much_ends_no_run(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = {
        "missing": "no-such-program --version",
        "hangs": "echo begun; sleep 60",
        "floods": "yes | head -c 100000000",
        "leaves": "sleep 60 & echo $!",
        "exits": "exit 7",
        "secret": "echo 'API_TOKEN=hunter2'; echo rest",
        "reads": "cat",
        "syntax": "if",
    }
    began = time.monotonic()
    found = find(place, commands, limit=10)
    assert time.monotonic() - began < 30
    assert "not found within 10 seconds" in capfd.readouterr().err
    left = int(found.pop("leaves")[0])
    assert len(found.pop("floods")[0]) <= 4096
    assert found.pop("syntax")[1] not in (0, None)
    assert found == {
        # Without a path that is another one each time.
        "missing": ("missing: line 1: no-such-program: command not found", 127),
        "hangs": ("begun", None),
        "exits": ("", 7),
        "secret": ("[left out]\nrest", 0),
        "reads": ("", 0),
    }
    # What a command leaves running is ended.
    assert wait_until(
        lambda: (entry := process_entry(left)) is None or entry.state in "ZX", 60, 0.02
    )
    assert find(place, {"a": "echo a"}, "exit 1") == {"a": ("", 1)}


def test_what_loads_the_environment_is_no_argument_and_may_be_long(place: Path) -> None:
    load = f"export TOKEN=hunter2\n: {'x' * 200_000}\necho loading\nsleep 600 &"
    commands = {"a": "echo $TOKEN", "all": "tr '\\0' ' ' < /proc/$$/cmdline"}
    found = find(place, commands, load, limit=20)
    assert found["a"] == ("hunter2", 0)
    assert "hunter2" not in found["all"][0] and found["all"][0].startswith("bash --norc ")
    # Why there is no output, if the environment could not be loaded.
    assert find(place, {"a": "echo a"}, "echo no such module; exit 3") == {
        "a": ("no such module", 3)
    }


def test_commands_are_executed_once_for_each_build_and_environment(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = place.parent.parent / "ran"
    commands = {"a": f"echo x >> '{ran}'"}

    def times(**others: Any) -> int:
        find(place, commands, **others)
        return len(ran.read_text().splitlines())

    assert [times(), times()] == [1, 1]
    assert [times(build="c"), times(load="export A=1")] == [2, 3]
    # Not for ever: a compiler may be replaced.
    monkeypatch.setattr(module, "_FRESH", 0.0)
    assert times() == 4
    monkeypatch.undo()
    # A file that is no such file, and a directory that cannot be written.
    for file in (place.parent / "machine").rglob("*.json"):
        file.write_text("[]")
    assert times() == 5
    facts = Facts(commands, Environment("", [], {}), "b")
    machine = MachinePaths("m", write(place.parent / "machine-is-a-file", ""))
    assert facts.find(machine, place, make_directory(place.parent / "scratch"))


def test_variables_are_those_that_the_script_sees(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, more = place.parent / "variables", ("MINE_*", "GIVEN")
    for name in noted((), file, os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_PLACES", "cores")
    monkeypatch.setenv("OMP_REMOVED", "1")
    preamble = """
        export OMP_NUM_THREADS=4 MKL_X=$'two\\nlines' MINE_A=1 MINE=2 OTHER=3 OMP_LONG
        OMP_NOT_EXPORTED=1
        unset OMP_REMOVED
        export MALLOC_API_KEY=x UCX_X='https://u:p@host' MKL_Y='password: x'
        OMP_LONG=$(printf %2000s x)
        IFS=_; set -fuC
        """
    environment, before = Environment(preamble, [], {"GIVEN": "1"}), noting(file)
    output = place / "out"
    assert run_script("true", "x", place, environment, True, place, output, before).status == 0
    seen = noted(more, file, {})
    assert len(seen.pop("OMP_LONG")) == 1000
    assert seen == {
        "OMP_PLACES": "cores",
        "OMP_NUM_THREADS": "4",
        "MKL_X": "two\nlines",
        "MINE_A": "1",
        "GIVEN": "1",
    }
    # Without what the script sees: what it was given.
    assert noted((), place / "no-file", os.environ) == {"OMP_PLACES": "cores", "OMP_REMOVED": "1"}
