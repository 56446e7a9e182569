"""What the documentation of PyTaskFarmer shows, done by `kochi farm`: its command, its batch
scripts and its INI files. Each test names the part to which it corresponds."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from support import start

from .conftest import FARM, Outcome, Place

KOCHI_FARM = shlex.join(FARM)
# Notes its arguments, and does what the container would.
PROGRAM = r"""#!/bin/bash
printf '%s\0' "${0##*/}" "$@" > "$RECORDS/$PROC_NUMBER"
for word; do [[ $word == --workdir=* ]] && cd "${word#*=}"; done
until [ "$1" = /bin/bash ]; do shift; done
exec "$@"
"""


class Programs:
    """Programs for containers, and what they were called with."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._bin, self._records = place.directory / "bin", place.directory / "records"
        for directory in (self._bin, self._records):
            directory.mkdir()
        for name in ("shifter", "apptainer", "podman-hpc"):
            (self._bin / name).write_text(PROGRAM)
            (self._bin / name).chmod(0o755)

    def farm(self, ini: str, *words: str) -> Outcome:
        (self._place.directory / "own.ini").write_text(ini)
        path = f"{self._bin}:{os.environ['PATH']}"
        return self._place.farm("tasks", *words, PATH=path, RECORDS=str(self._records))

    def called(self, task: int) -> list[str]:
        return (self._records / str(task)).read_text().split("\0")[:-1]


@pytest.fixture
def programs(place: Place) -> Programs:
    return Programs(place)


# ---- "Quick Start" and "Usage"


def test_its_command_works_with_the_name_changed(place: Place) -> None:
    place.write(*(f"echo {n} >> done" for n in range(11)), name="mywork.tasks")
    words = ("--proc", "8", "--timeout", "600", "--workdir", "myworkdir", "mywork.tasks")
    outcome = place.farm(*words)
    assert outcome.out == "11 of 11 tasks finished\n"
    assert sorted(map(int, place.done)) == [*range(11)]
    made = {path.name for path in (place.directory / "myworkdir").iterdir()}
    assert {"finished", "failed", "toprocess"} <= made
    assert place.farm("-n", "2", "-w", "other", "-r", "default", "-t", "default", words[-1]).out


def test_a_directory_that_it_has_begun_is_refused(place: Place) -> None:
    place.write("true", "false")
    work = place.directory / "tasks_workdir"
    work.mkdir()
    (work / "toprocess").write_text("1 false\n")
    (work / "finished").write_text("0 true\n")
    for words in ((), ("--status",)):
        outcome = place.farm("tasks", "--workdir", "tasks_workdir", *words)
        assert outcome.status == 1
        assert "tasks_workdir was begun by another program" in outcome.err
        assert "--workdir DIRECTORY" in outcome.err
    assert (work / "finished").read_text() == "0 true\n"


# ---- "SLURM example" and "Clean-up In Batch Jobs"

BATCH_SCRIPT = f"""#!/bin/bash
#SBATCH --signal=B:USR1@10
function handle_signal
{{
    echo "$(date) bash is being killed, also kill ${{PROCPID}}"
    kill -s USR1 ${{PROCPID}}
    wait ${{PROCPID}}
}}
trap handle_signal INT USR1
{KOCHI_FARM} --proc 1 ${{1}} &
export PROCPID=${{!}}
wait ${{PROCPID}}
"""


def test_a_batch_script_that_gets_usr1_puts_its_tasks_back(place: Place) -> None:
    place.write("echo a >> done", "echo b >> done; test -e go || sleep 100", "echo c >> done")
    (place.directory / "slurm_test.sh").write_text(BATCH_SCRIPT)
    words = ("bash", "slurm_test.sh", "tasks")
    script = start(*words, cwd=place.directory, start_new_session=True)
    place.started.append(script)
    place.wait_for("b")
    script.send_signal(signal.SIGUSR1)  # as Slurm sends it to the batch script alone
    script.wait(60)
    assert place.numbers()["left"] == 2
    assert (place.directory / "tasks.farm" / "toprocess").read_text().startswith("2 echo b")
    (place.directory / "go").touch()
    subprocess.run(words, cwd=place.directory, check=True, timeout=120)
    assert place.done == ["a", "b", "b", "c"]


def test_the_elements_of_an_array_share_a_list(place: Place) -> None:
    place.write(*(f"sleep 0.05; echo {n} >> done" for n in range(40)))
    (place.directory / "slurm_test.sh").write_text(BATCH_SCRIPT)
    for _ in range(2):
        place.started.append(start("bash", "slurm_test.sh", "tasks", cwd=place.directory))
    assert [script.wait(170) for script in place.started] == [0, 0]
    assert sorted(map(int, place.done)) == [*range(40)]


# ---- "Runners"


def test_the_runner_of_its_documentation_starts_shifter(programs: Programs, place: Place) -> None:
    place.write("echo $PROC_NUMBER $KIND >> done", "echo it\\'s; exit 3")
    ini = """[reco22]
Runner = taskfarmer.runners.ShifterRunner
image = zlmarshall/atlas-grid-centos7:20191110
setup = export KIND="a b" && export BOTH=1
volumes = /data:/in /scratch:/out:ro
modules = cvmfs gpu
"""
    outcome = programs.farm(ini, "--runner", "reco22")
    assert outcome.status == 123
    assert "--runner reco22 tasks" in outcome.out
    assert "task 2 failed: exit status 3: echo it\\'s; exit 3" in outcome.err
    assert place.done == ["1", "a", "b"]
    assert programs.called(1) == [
        "shifter",
        f"--workdir={place.directory}",
        "--module=cvmfs,gpu",
        *("--volume=/data:/in", "--volume=/scratch:/out:ro"),
        *("--image=docker:zlmarshall/atlas-grid-centos7:20191110", "--", "/bin/bash", "-c"),
        'export KIND="a b" && export BOTH=1 || exit\necho $PROC_NUMBER $KIND >> done',
    ]


def test_each_task_may_have_a_temporary_directory(programs: Programs, place: Place) -> None:
    place.write(*[f"touch here; pwd >> {place.directory}/done"] * 2)
    ini = "[t]\nRunner = taskfarmer.runners.ShifterRunner\nimage = docker:a/b:1\ntempdir = True\n"
    assert programs.farm(ini, "--runner", "t").status == 0
    assert len({*place.done}) == 2
    assert not any(Path(each).exists() for each in place.done)
    assert "--image=docker:a/b:1" in programs.called(1)


def test_a_setup_that_fails_runs_no_task(programs: Programs, place: Place) -> None:
    place.write("echo a >> done")
    ini = "[t]\nRunner = shifter\nimage = a\nsetup = source there.sh && true\n"
    assert programs.farm(ini, "--runner", "t").status == 123
    assert place.done == []


@pytest.mark.parametrize(
    ("ini", "called"),
    [
        (
            "Runner = apptainer\nimage = docker:a/b:1\nmodules = gpu\nvolumes = /data",
            "apptainer exec --pwd={0} --bind={0} --nv --bind=/data:/data docker://a/b:1",
        ),
        (
            "Runner = podman-hpc\nimage = docker:a/b:1\nmodules = gpu mpich\nvolumes = /d:/e:ro",
            "podman-hpc run --rm --log-driver none --security-opt label=disable --network host "
            "--env-host --workdir={0} --volume={0}:{0} --gpu --mpich --volume=/d:/e:ro a/b:1",
        ),
    ],
)
def test_other_programs_take_the_same_keys(
    programs: Programs, place: Place, ini: str, called: str
) -> None:
    place.write("echo $PROC_NUMBER >> done; false")
    assert programs.farm(f"[x]\n{ini}\nsetup = true\n", "--runner", "x").status == 123
    assert place.done == ["1"]
    words = programs.called(1)
    assert words[: words.index("/bin/bash")] == called.format(place.directory).split()


def test_a_runner_of_the_home_directory_is_found_and_replaced_here(
    place: Place, programs: Programs
) -> None:
    own = Path.home() / ".pytaskfarmer" / "runners.d"
    own.mkdir(parents=True)
    (own / "my.ini").write_text("[a]\nRunner = shifter\nimage = x\n[b]\nRunner = shifter\n")
    place.write("true")
    assert programs.farm("[other]\nx = 1\n", "--runner", "a").status == 0
    assert "--image=docker:x" in programs.called(1)
    again = ("--retry", "1", "--runner", "a")
    assert programs.farm("[a]\nRunner = shifter\nimage = y\n", *again).status == 0
    assert "--image=docker:y" in programs.called(1)
    assert "the key 'image' is missing" in programs.farm("", "--runner", "b").err


# ---- "TaskList Handlers"


def test_a_list_of_lines_is_a_list(programs: Programs, place: Place) -> None:
    place.write("echo a >> done")
    ini = "[mine]\nTaskList = taskfarmer.task.ListTaskList\n"
    assert programs.farm(ini, "--tasklist", "mine").status == 0
    assert place.done == ["a"]


@pytest.mark.parametrize(
    ("ini", "words", "said"),
    [
        ("[a]\nRunner = mine.Runner", "--runner a", "no code is loaded from such files"),
        ("[a]\nTaskList = taskfarmer.atlas.TransformTaskList", "--tasklist a", "kochi farm --each"),
        ("[abc]\nRunner = shifter", "--runner abd", "did you mean 'abc'?"),
        ("[a]\nRunner = shifter\nimage = x\nvolume = y", "--runner a", "did you mean 'volumes'?"),
        ("[a]\nRunner = taskfarmer.runners.BasicRunner\nx = 1", "-r a", "unknown key 'x'"),
        ("[a]\nRunner = shifter\nimage = x\ntempdir = maybe", "--runner a", "True or False"),
        ("[a]\nRunner = podman\nimage = x\nmodules = gpu", "--runner a", "podman cannot take"),
        ("[a]\nRunner = shifter\nimage = /a.sif", "--runner a", "shifter cannot take '/a.sif'"),
        ("[a\nRunner", "--runner a", "own.ini cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    programs: Programs, place: Place, ini: str, words: str, said: str
) -> None:
    (place.directory / "mine.py").write_text("open('loaded', 'w')")
    place.write("echo a >> done")
    outcome = programs.farm(ini, *words.split())
    assert outcome.status == 1
    assert said in outcome.err
    assert place.done == []
    assert not (place.directory / "loaded").exists()
