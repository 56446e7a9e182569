"""Containers by the real Podman, and the command lines of programs that are not to be had:
Apptainer, Shifter, podman-hpc."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from isolated_scripts import Isolated, sleeping, started
from support import wait_until, write

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.farm.runners import around_tasks
from snakemake_kochi.paths import Root
from snakemake_kochi.phases.node import Facts
from snakemake_kochi.phases.script import Ended
from snakemake_kochi.project.grid import Isolation

PROGRAMS_OF_IMAGE = ("bash", "cat", "ls", "sleep", "touch")
NAME = "localhost/tiny:1"
BY_PODMAN = {"programs": ("podman",)}
# A container with the tests may lack the capability to set limits, and have both versions of
# control groups side by side, with which crun does not work.
PODMAN = """#!/bin/sh
export CONTAINERS_CONF={top}/containers.conf CONTAINERS_STORAGE_CONF={top}/storage.conf
exec unshare --mount sh -c 'umount /sys/fs/cgroup/unified 2> /dev/null
  exec {podman} "$@"' podman "$@"
"""
LIMITS = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
cgroups = "disabled"
"""
STORAGE = """[storage]
driver = "vfs"
graphroot = "{top}/storage"
runroot = "{top}/run"
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a root filesystem: bash and some programs of this computer."""
    root = tmp_path_factory.mktemp("image")
    for name in ("dev", "etc", "proc", "sys", "tmp", "usr/bin", "var/tmp", "home"):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    write(root / "etc" / "passwd", "root:x:0:0::/root:/bin/bash\n")
    write(root / "etc" / "group", "root:x:0:\n")
    write(root / "etc" / "tiny", "of the image\n")
    for name in PROGRAMS_OF_IMAGE:
        program = shutil.which(name)
        assert program is not None
        shutil.copy(program, root / "usr" / "bin" / name)
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        for library in re.findall(r"/\S+", linked.stdout):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library[1:])
    return root


@pytest.fixture(scope="module")
def programs(image: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A $PATH with Podman, which has the image by a name."""
    top = tmp_path_factory.mktemp("podman")
    write(top / "containers.conf", LIMITS)
    write(top / "storage.conf", STORAGE.format(top=top))
    podman = write(top / "bin" / "podman", PODMAN.format(top=top, podman=shutil.which("podman")))
    podman.chmod(0o755)
    with subprocess.Popen(["tar", "-C", image, "-c", "."], stdout=subprocess.PIPE) as tar:
        command = [podman, "import", "--quiet", "-", NAME]
        subprocess.run(command, stdin=tar.stdout, check=True, capture_output=True)
    return f"{top}/bin:{os.environ['PATH']}"


@pytest.fixture
def isolated(tmp_path: Path, programs: str, monkeypatch: pytest.MonkeyPatch) -> Isolated:
    monkeypatch.setenv("PATH", programs)
    return Isolated(tmp_path)


@pytest.mark.parametrize("kind", ["name", "directory"])
def test_a_script_runs_in_a_container(
    isolated: Isolated,
    tmp_path: Path,
    image: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setenv("API_TOKEN", "two\nlines")
    hidden = write(Path.home() / "fib.conf", "threads = 3")
    graphs, out = write(tmp_path / "graphs" / "small", "graph").parent, tmp_path / "out"
    out.mkdir()
    script = f"""
        cat /etc/tiny /graphs/small; echo "$API_TOKEN $KOCHI_PARAM_N $OMP_NUM_THREADS"; ls {hidden}
        type python3 || echo only the image
        touch /graphs/new || touch {out}/new
        echo done > out.csv
        cat {isolated.prefix}/lib/libfib.so
        exit 7
    """
    isolation = Isolation(
        ("environment",),
        image=NAME if kind == "name" else str(image),
        volumes=(f"{graphs}:/graphs:ro", str(out)),
    )
    machine = {"programs": ("podman",), "environment": ("API_*",)}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    ended, printed = isolated.run(script, isolation, machine)
    assert ended.status == 7
    assert printed.startswith("of the image\ngraphtwo\nlines 7 \n")
    assert "only the image" in printed and "cannot access" in printed
    # Podman passes the two streams on one by one, so their order is not that of the script.
    assert "a library" in printed
    assert (isolated.directory / "out.csv").exists()
    assert (out / "new").exists() and os.listdir(graphs) == ["small"]
    assert not (image / "graphs").exists()
    recorded = isolated.container(isolation, machine).record()["container"]
    assert recorded["volumes"] == [f"{graphs}:/graphs:ro", str(out)]
    assert (recorded["digest"] or "").startswith("sha256:") == (kind == "name")


def test_a_terminated_script_in_podman_cleans_up_and_a_killed_one_leaves_nothing(
    isolated: Isolated, tmp_path: Path
) -> None:
    marker = f"{time.time_ns()}"
    script = f"trap 'echo cleaned; exit 3' TERM; sleep 1{marker} & echo ready; wait"
    isolation = Isolation(image=NAME)
    process = started(isolated.command(script, isolation, BY_PODMAN), tmp_path / "output")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 3
    assert (tmp_path / "output").read_text() == "ready\ncleaned\n"
    wait_until(lambda: not sleeping(marker))
    process = started(isolated.command(script, isolation, BY_PODMAN), tmp_path / "output")
    process.kill()
    container = isolated.container(isolation, BY_PODMAN)
    container.around(isolated.environment)
    container.finish(Ended(-process.wait(), None), tmp_path / "output")
    wait_until(lambda: not sleeping(marker))


def test_an_image_that_cannot_be_used_is_named_with_what_the_program_said(
    isolated: Isolated, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    isolation = Isolation(image=str(tmp_path / "empty"))
    with pytest.raises(PhaseError, match=r"run: podman could not isolate the script on .*bash"):
        isolated.run("true", isolation, BY_PODMAN)
    # Nothing that would need the same image is tried after that.
    container = isolated.container(isolation, BY_PODMAN)
    facts = Facts({"cc": "echo found"}, isolated.environment, "", container)
    assert facts.find(Root(tmp_path).machine("local"), isolated.directory, isolated.scratch) == {}
    with pytest.raises(
        PhaseError, match=r"fib.yaml: run.container.image: /no/x.sif does not exist"
    ):
        isolated.container(Isolation(image="/no/x.sif"), BY_PODMAN)


def test_facts_are_found_in_one_container_that_is_gone_afterwards(
    isolated: Isolated, tmp_path: Path
) -> None:
    marker = f"{time.time_ns()}"
    container = isolated.container(Isolation(image=NAME), BY_PODMAN)
    (isolated.scratch / "entered").touch()
    commands = {"one": "cat /etc/tiny", "two": "echo 2", "hangs": f"echo begun; sleep 1{marker}"}
    facts = Facts(commands, isolated.environment, "", container)
    machine = Root(tmp_path).machine("local")
    found = facts.find(machine, isolated.directory, isolated.scratch, limit=15.0)
    assert {name: (each["output"], each["exit_status"]) for name, each in found.items()} == {
        "one": ("of the image", 0),
        "two": ("2", 0),
        "hangs": ("begun", None),
    }
    wait_until(lambda: not sleeping(marker))


def test_what_the_pipeline_of_a_script_in_podman_still_writes_is_waited_for(
    isolated: Isolated, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation = Isolation(image=NAME)
    script = "echo begun > >(sleep 0.3; cat > out.csv)"
    assert isolated.run(script, isolation, BY_PODMAN)[0].status == 0
    assert (isolated.directory / "out.csv").read_text() == "begun\n"
    monkeypatch.setenv("KOCHI_PIPELINE_SECONDS", "1")
    ended, printed = isolated.run("sleep 1000 &", isolation, BY_PODMAN)
    assert ended.status == 124
    assert "the script left processes in its container that do not end" in printed


# Not the real programs: what their manuals say, as a fake program gets it.
IMAGE = "docker:registry.org/tool:1.5"
TWO = ("gpu", "mpich")


def words(
    isolated: Isolated, monkeypatch: pytest.MonkeyPatch, program: str, isolation: Isolation
) -> tuple[str, ...]:
    """What a program, which only has to be there, is called with."""
    fake = write(isolated.scratch / "bin" / program, "#!/bin/bash\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    container = isolated.container(isolation, {"programs": ("no-such-program", program)})
    return container.around(isolated.environment)[1]


@pytest.mark.parametrize(
    ("program", "name", "modules", "expected"),
    [
        (
            *("apptainer", IMAGE, ("gpu",)),
            "--silent exec --contain --cleanenv --no-home --no-mount bind-paths,tmp "
            "--pwd {directory} --nv --bind={data}:/graphs:ro ... "
            "docker://registry.org/tool:1.5 bash {enter}",
        ),
        (
            *("shifter", IMAGE, TWO),
            "--clearenv --workdir={directory} --module=gpu,mpich --volume={data}:/graphs:ro "
            "--image=docker:registry.org/tool:1.5 -- bash {enter}",
        ),
        (
            *("podman-hpc", IMAGE, TWO),
            "run --rm --name kochi-one --log-driver none --security-opt label=disable "
            "--workdir {directory} --network host --gpu --mpich ... "
            "--volume={data}:/graphs:ro ... registry.org/tool:1.5 bash {enter}",
        ),
        ("apptainer", "docker.io/library/debian:12", (), "... docker://docker.io/library/debian"),
        ("apptainer", "oras://registry.org/tool", (), "... oras://registry.org/tool bash"),
        ("apptainer", "/etc/passwd", (), "... /etc/passwd bash"),
        ("podman", "docker://tool:1", (), "... tool:1 bash"),
        ("shifter", "docker://tool:1", (), "... --image=docker:tool:1 -- bash"),
    ],
)
def test_the_arguments_of_programs_of_sites(
    isolated: Isolated,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    name: str,
    modules: tuple[str, ...],
    expected: str,
) -> None:
    monkeypatch.setenv("API_TOKEN", "hunter2")
    data = tmp_path / "data"
    data.mkdir()
    isolation = Isolation(image=name, volumes=(f"{data}:/graphs:ro",), modules=modules)
    _, *given = words(isolated, monkeypatch, program, isolation)
    assert "hunter2" not in (arguments := " ".join(given))
    names = {"directory": isolated.directory, "data": data, "enter": isolated.scratch / "enter.sh"}
    pattern = ".*".join(re.escape(part) for part in expected.format(**names).split("... "))
    assert re.match(pattern, arguments)


@pytest.mark.parametrize(
    ("program", "isolation", "said"),
    [
        ("podman", Isolation(image="tool:1", modules=("gpu",)), "load modules of images"),
        ("shifter", Isolation(("network",), image="tool:1"), "turn off the network"),
        ("shifter", Isolation(image="/tmp"), "take an image from a file"),
        ("apptainer", Isolation(image="tool:1", volumes=("$ODD",)), "show the path /tmp/a:b"),
    ],
)
def test_what_a_program_cannot_do_is_said(
    isolated: Isolated,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    isolation: Isolation,
    said: str,
) -> None:
    odd = tmp_path / "a:b"
    odd.mkdir()
    monkeypatch.setenv("ODD", str(odd))
    with pytest.raises(PhaseError) as raised:
        words(isolated, monkeypatch, program, isolation)
    assert f"fib.yaml: run.container: {program} on " in str(raised.value)
    assert f" cannot {said.replace('/tmp/a:b', str(odd))}" in str(raised.value)
    assert "isolation: programs: [...]" in str(raised.value)


# ---- the runners of `kochi farm`, in which a task keeps its variables


@pytest.mark.parametrize("tempdir", [False, True])
def test_a_task_runs_in_podman_with_the_users_variables(
    tmp_path: Path, programs: str, monkeypatch: pytest.MonkeyPatch, tempdir: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    volume = write(tmp_path / "data" / "x", "data\n").parent
    keys = f"image = {NAME}\nsetup = export SET=1\nvolumes = {volume}:/data:ro\ntempdir = {tempdir}"
    write(tmp_path / "own.ini", f"[tiny]\nRunner = podman\n{keys}\n")
    around = around_tasks("tiny", None)
    text = around('cat /etc/tiny /data/x; echo "$PROC_NUMBER $SET"; touch here; exit 7')
    environment = {**os.environ, "PATH": programs, "PROC_NUMBER": "3"}
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "of the image\ndata\n3 1\n")
    assert (tmp_path / "here").exists() == (not tempdir)
