"""`kochi batch` for a batch with `machines`, and batches that are launched."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from laptop import EXPERIMENT
from support import git, wait_until, write

from snakemake_kochi.cli import machines_of_batch
from snakemake_kochi.cli.machines_of_batch import _Following, _Member
from snakemake_kochi.detached.launches import Found, last_launch
from snakemake_kochi.paths import Root

from .conftest import COMMAND, Outcome

Kochi = Callable[..., Outcome]


@pytest.fixture
def go(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file for which the runs wait, in a project with two machines that are this computer."""
    roots = {name: tmp_path / f"root of {name}" for name in ("one", "two")}
    machines = "\n".join(f"  {name}: {{kochi_root: '{root}'}}" for name, root in roots.items())
    write(project / "kochi.yaml", f"machines:\n{machines}\n")
    write(project / "wait.yaml", EXPERIMENT.replace("MACHINES", "one, two"))
    (project / "fib.yaml").unlink()
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "two machines")
    file = tmp_path / "go"
    monkeypatch.setenv("GO", str(file))
    yield file
    file.touch()
    for name in roots:
        if launched(tmp_path, name) is not None:
            wait_until(lambda name=name: is_over(tmp_path, name))


def launched(tmp_path: Path, machine: str) -> Found | None:
    root = Root(tmp_path / f"root of {machine}")
    return last_launch(root.machine(machine), str(tmp_path / "proj"))


def is_over(tmp_path: Path, machine: str) -> bool:
    found = launched(tmp_path, machine)
    return found is not None and found.is_over


def runs_of(go: Path) -> set[str]:
    return {path.name.removeprefix("go.") for path in go.parent.glob("go.*")}


ALL_RUNS = {f"{machine}.{n}" for machine in ("one", "two") for n in (1, 2)}


def test_a_batch_runs_on_each_of_its_machines_and_makes_one_table(
    project: Path, go: Path, shell: Kochi, tmp_path: Path
) -> None:
    assert shell("artifact", "init", "../collected").status == 0
    go.touch()
    outcome = shell("batch", "wait.yaml", "test")
    assert outcome.status == 0, outcome.err
    assert outcome.err.count(" --nolock") == 2  # each would delete the locks of the other
    lines = outcome.out.splitlines()
    for machine in ("one", "two"):
        assert f"{machine} | 5 of 5 steps (100%) done" in lines
        for n in (1, 2):
            assert (tmp_path / f"collected/{machine}/wait/{n}.log").exists()
    with (project / "results/plots/wait/test.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = [(row["machine"], row["n"], row["run_machine"], row["time"]) for row in rows]
    assert found == [(name, n, name, n) for name in ("one", "two") for n in ("1", "2")]
    assert "|       two |   1 |" in (project / "results/plots/wait/test.md").read_text()
    assert "machine" in (project / "results/plots/wait/test.svg").read_text()
    # The workflow itself has the points of one machine, and knows that they are done.
    again = shell("batch", "wait.yaml", "test", "-m", "two")
    assert "Nothing to be done" in again.err
    # Naming the machines is not a change of what is measured.
    text = (project / "wait.yaml").read_text()
    (project / "wait.yaml").write_text(text.replace("[one, two]", "two"))
    assert "Nothing to be done" in shell("batch", "wait.yaml", "test", "-m", "two").err
    listed = shell("show", "runs", "-m", "one", "--json").data
    assert [(run["name"], run["exit_status"], run["steps_done"]) for run in listed] == [
        ("wait.yaml test", 0, 5)
    ]


def test_ctrl_c_leaves_the_runs_and_the_same_line_follows_them(
    go: Path, shell: Kochi, tmp_path: Path
) -> None:
    words = [*COMMAND, "batch", "wait.yaml", "test"]
    for number in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        wait_until(lambda: runs_of(go) == ALL_RUNS)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert "The runs go on. To follow them again, type the same line" in err
            assert "Traceback" not in err
    first = {name: launched(tmp_path, name) for name in ("one", "two")}
    assert all(found is not None and found.state == "running" for found in first.values())
    output = tmp_path / "output of joining"
    with output.open("w") as stream:
        joining = subprocess.Popen(words, stdout=stream, stderr=subprocess.STDOUT)
    wait_until(lambda: output.read_text().count("This batch runs already") == 2)
    go.touch()
    assert joining.wait(120) == 0, output.read_text()
    out = output.read_text()
    assert "one | 5 of 5 steps (100%) done" in out
    assert runs_of(go) == ALL_RUNS
    done = [found.paths for found in first.values() if found is not None]
    assert [paths.end.exists() for paths in done] == [True, True]


def test_a_launched_batch_is_joined_by_the_same_line_and_refuses_another(
    project: Path, go: Path, shell: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("batch", "-m", "one", "--launch", "wait.yaml", "test")
    first = shell(*line)
    assert first.status == 0, first.err
    assert "to stop it: kochi launch -m one --stop" in first.err
    wait_until(lambda: {"one.1", "one.2"} <= runs_of(go))
    again = shell(*line, "--json").data
    assert again["joined"] is True
    assert again["launch"] in first.out
    other = shell(*line, "-w", "n=1")
    assert other.status == 1
    assert "a run launched in this directory goes on" in other.err
    go.touch()
    position = len(again["output"])
    followed = shell("launch", "-m", "one", "--follow", "--run", again["launch"])
    assert followed.status == 0
    rest = shell("launch", "-m", "one", "-f", "--run", again["launch"], "--from", str(position))
    assert rest.out == followed.out.encode()[position:].decode()
    monkeypatch.chdir(project / "sub")
    assert shell("launch", "-m", "one", "--status", "--json").data["launch"] == again["launch"]
    listed = shell("show", "runs", "-m", "one", "--json").data
    assert [each["launch"] for each in listed] == [again["launch"]]
    unknown = shell("launch", "-m", "one", "--follow", "--run", "x")
    assert "nothing was launched" in unknown.err


@pytest.mark.parametrize(
    ("machines", "said"),
    [
        ("[one, tow]", "wait.yaml:5: batches.test.machines: there is no machine 'tow', did you"),
        ("[one, one]", "machine 'one' is there twice; remove one"),
        ("[]", "batches.test.machines"),
    ],
)
def test_a_wrong_machine_is_said_before_anything_runs(
    project: Path, go: Path, shell: Kochi, machines: str, said: str
) -> None:
    text = (project / "wait.yaml").read_text()
    (project / "wait.yaml").write_text(text.replace("[one, two]", machines))
    outcome = shell("batch", "wait.yaml", "test")
    assert outcome.status == 1
    assert said in outcome.err
    assert not runs_of(go)


def test_a_dry_run_and_a_pause_are_for_each_machine(
    project: Path, go: Path, shell: Kochi, tmp_path: Path
) -> None:
    outcome = shell("batch", "wait.yaml", "test", "-n")
    assert outcome.status == 0, outcome.err
    assert {line.partition(" | ")[0] for line in outcome.out.splitlines()} == {"one", "two"}
    assert launched(tmp_path, "one") is None
    assert not (project / "results").exists()
    paused = shell("batch", "wait.yaml", "test", "--pause")
    assert paused.status == 1
    assert "two | kochi: no run of batch test of wait.yaml goes on" in paused.err


def test_the_failure_on_one_machine_is_the_exit_status_and_the_other_goes_on(
    project: Path, go: Path, shell: Kochi
) -> None:
    text = (project / "wait.yaml").read_text()
    fails = 'echo "time $KOCHI_PARAM_N"\n    [ $KOCHI_MACHINE != one ]'
    (project / "wait.yaml").write_text(text.replace('echo "time $KOCHI_PARAM_N"', fails))
    go.touch()
    outcome = shell("batch", "wait.yaml", "test")
    assert outcome.status == 1
    assert "one: exit status 1" in outcome.err
    assert "two | 5 of 5 steps (100%) done" in outcome.out
    assert "2 of 2 runs of machine 'one' have no result here" in outcome.err


# ---- machines that are away


def members(**programs: str) -> list[_Member]:
    return [_Member(name, [sys.executable, "-c", text]) for name, text in programs.items()]


def test_a_machine_that_is_away_is_tried_again_and_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines_of_batch, "_FIRST_PAUSE", 0.05)
    tries = tmp_path / "tries"
    away = (
        "import sys, os\n"
        f"with open({str(tries)!r}, 'a') as file: file.write('x')\n"
        "print('no way', file=sys.stderr)\n"
        "sys.exit(75)\n"
    )
    here = (
        "import os, time\n"
        f"while not os.path.exists({str(tries)!r}) or os.path.getsize({str(tries)!r}) < 3:\n"
        "    time.sleep(0.02)\n"
        "print('done')\n"
    )
    found = members(spica=away, local=here)
    _Following(found).follow()
    said = capsys.readouterr()
    assert said.err.count("no way") == 1
    assert said.err.count("spica is away. It is tried again while other machines run.") == 1
    assert said.out == "local | done\n"
    assert [(member.is_away, member.status) for member in found] == [(True, 75), (False, 0)]


def test_a_machine_that_comes_back_is_followed_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines_of_batch, "_FIRST_PAUSE", 0.05)
    mark, seen = tmp_path / "mark", tmp_path / "seen"
    back = (
        "import os, sys, time\n"
        f"if not os.path.exists({str(mark)!r}):\n"
        f"    open({str(mark)!r}, 'w').close()\n"
        "    sys.exit(75)\n"
        "print('here again', flush=True)\n"
        "time.sleep(1)\n"
        "print('the end')\n"
    )
    wait = f"import os, time\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.02)"
    show = _Following._print

    def show_and_note(self: _Following, member: _Member, number: int, line: str) -> None:
        show(self, member, number, line)
        seen.touch()

    # What was printed may be read later: only who is shown again is waited for.
    monkeypatch.setattr(_Following, "_print", show_and_note)
    found = members(spica=back, local=wait)
    _Following(found).follow()
    assert capsys.readouterr().out == "spica | here again\nspica | the end\n"
    assert [(member.is_away, member.status) for member in found] == [(False, 0), (False, 0)]


def test_a_command_that_is_tried_again_goes_on_after_what_was_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines_of_batch, "_FIRST_PAUSE", 0.05)
    program = (
        "import os, sys\n"
        "rest = b'one\\ntwo \\xff\\nthree\\n'[int(sys.argv[2]):]\n"
        f"is_first = not os.path.exists({str(tmp_path / 'mark')!r})\n"
        f"mark = open({str(tmp_path / 'mark')!r} + '-again' * (not is_first), 'w')\n"
        "print(os.getpid(), file=mark, flush=True)\n"
        "head = b'Launched x\\n' if is_first else b'This batch runs already, x\\n'\n"
        "sys.stdout.buffer.write(head + (rest[:10] if is_first else rest))\n"
        "sys.exit(75 if is_first else 0)\n"
    )
    script = write(tmp_path / "program.py", program)
    again = str(tmp_path / "mark-again")
    # Until the second one is gone: by then, all that it printed was read.
    wait = (
        "import contextlib, os, time\n"
        "while True:\n"
        "    time.sleep(.02)\n"
        "    with contextlib.suppress(FileNotFoundError, ValueError):\n"
        f"        pid = int(open({again!r}).read())\n"
        "        try:\n"
        "            os.kill(pid, 0)\n"
        "        except ProcessLookupError:\n"
        "            break\n"
    )
    waiting = _Member("local", [sys.executable, "-c", wait])
    found = [_Member("spica", [sys.executable, "-P", "-s", "-E", str(script)], 0), waiting]
    _Following(found).follow()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" | ")[2] for line in lines] == [
        *("Launched x", "one", "two \N{REPLACEMENT CHARACTER}"),
        *("This batch runs already, x", "three"),
    ]
    assert found[0].shown == len(b"one\ntwo \xff\nthree\n")


def test_two_machines_that_are_away_do_not_wait_for_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = "import sys; sys.exit(75)"
    found = members(spica=away, vega=away)
    _Following(found).follow()
    assert all(member.is_away for member in found)


def test_output_of_any_kind_is_shown_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    odd = (
        "import sys\n"
        "sys.stdout.buffer.write(b'a\\tb\\r10%\\r20%\\n\\xff\\x1b[2J\\n' + b'x' * 200000)\n"
    )
    found = members(spica=odd)
    _Following(found).follow()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        *("spica | a       b", "spica | 10%", "spica | 20%"),
        "spica | \N{REPLACEMENT CHARACTER}\\x1b[2J",
    ]
    assert sum(line.count("x") for line in lines[4:]) == 200000


def test_a_named_machine_is_the_only_one(go: Path, shell: Kochi, monkeypatch: Any) -> None:
    go.touch()
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "two")
    assert shell("batch", "wait.yaml", "test").status == 0
    assert runs_of(go) == {"two.1", "two.2"}
    assert os.environ["KOCHI_DEFAULT_MACHINE"] == "two"
