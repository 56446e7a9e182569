"""What an isolated script sees, how it ends, and what is said where it cannot be isolated."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from isolated_scripts import FILES, Isolated, sleeping, started
from support import write

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.errors import KochiError, PhaseError
from snakemake_kochi.project.grid import Isolation

ENVIRONMENT = Isolation(("environment",))


@pytest.fixture
def isolated(tmp_path: Path) -> Isolated:
    return Isolated(tmp_path)


def test_a_script_sees_its_workspace_and_what_is_declared_and_no_other_files(
    isolated: Isolated, tmp_path: Path
) -> None:
    secret = write(Path.home() / ".config" / "fib.conf", "threads = 3")
    elsewhere = write(tmp_path / "opt" / "libfib.so", "a library")
    for path in (secret, isolated.undeclared / "lib" / "libfib.so", elsewhere):
        assert isolated.run(f"cat '{path}'", ENVIRONMENT)[0].status == 0
        assert isolated.run(f"cat '{path}'", FILES)[0].status != 0
    _, printed = isolated.run("ls -A ~; ls -d /opt /usr/local /var/lib /run /srv", FILES)
    assert printed.count("cannot access") == printed.count("\n") == 5
    script = f"cat '{isolated.prefix}/lib/libfib.so'; echo; echo done > out.csv; "
    script += f"touch '{isolated.prefix}/new'; pwd; echo $KOCHI_PARAM_N"
    _, printed = isolated.run(script, FILES)
    assert (isolated.directory / "out.csv").read_text() == "done\n"
    assert printed.startswith("a library\n") and "Read-only file system" in printed
    assert printed.endswith(f"{isolated.directory}\n7\n")


def test_visible_paths_are_read_only_unless_they_are_said_to_be_writable(
    isolated: Isolated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(tmp_path / "data"))
    write(tmp_path / "data" / "in", "graph")
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "site")
    write(tmp_path / "site" / "module", "")
    isolation = Isolation(("files",), ("$DATA", f"{tmp_path}/out:rw"))
    # What a node of the machine lacks is left out.
    machine = {"visible": (str(tmp_path / "link"), "/not/on/this/node")}
    script = (
        f"cat $DATA/in; touch $DATA/new; touch {tmp_path}/out/new; ls {tmp_path}/link;"
        f"ls {tmp_path}/site"
    )
    _, printed = isolated.run(script, isolation, machine)
    assert printed.startswith("graph") and printed.endswith("module\nmodule\n")
    assert not (tmp_path / "data" / "new").exists()
    assert (tmp_path / "out" / "new").exists()


def test_temporary_files_and_those_in_home_are_private(isolated: Isolated) -> None:
    name = f"kochi-{os.getpid()}"
    ended, printed = isolated.run(
        f"echo x > /tmp/{name}; echo y > ~/{name}; cat /var/tmp/{name} ~/{name}; echo $TMPDIR",
        FILES,
    )
    assert (ended.status, printed) == (0, "x\ny\n/tmp\n")
    assert not Path("/tmp", name).exists() and not Path.home().joinpath(name).exists()


def test_a_script_without_network_reaches_no_listener(isolated: Isolated) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = f"exec 3<> /dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        for words in (("files",), ("environment",)):
            assert isolated.run(script, Isolation(words))[0].status == 0
        for words in (("network",), ("files", "network")):
            ended, printed = isolated.run(script, Isolation(words))
            assert ended.status != 0 and "Connection refused" in printed


def test_a_cleared_environment_has_only_a_list_and_what_recipes_set(
    isolated: Isolated, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MODULEPATH", "MODULESHOME", "API_TOKEN"):
        monkeypatch.setenv(name, "of the user")
    monkeypatch.setenv("PATH", f"/of/the/user:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    for words in (("environment",), ("environment", "files")):
        machine = {"environment": ("MODULE*",)}
        _, printed = isolated.run("env", Isolation(words), machine)
        seen = dict(line.split("=", 1) for line in printed.splitlines())
        assert {"LD_LIBRARY_PATH", "OMP_NUM_THREADS", "API_TOKEN"}.isdisjoint(seen)
        assert seen["MODULEPATH"] == seen["MODULESHOME"] == "of the user"
        assert (seen["SLURM_JOB_ID"], seen["KOCHI_PARAM_N"]) == ("12", "7")
        assert seen["KOCHI_INSTALL_PREFIX_FIB"] == str(isolated.prefix)
        assert "/of/the/user" not in seen["PATH"]
    assert isolated.run("echo $API_TOKEN", FILES)[1] == "of the user\n"
    # Everybody on a node can read the arguments of a process.
    assert "of the user" not in " ".join(isolated.command(""))


def test_exit_status_signal_usage_and_pipeline_are_those_of_the_script(isolated: Isolated) -> None:
    assert isolated.run("exit 7", FILES)[0].status == 7
    assert isolated.run("kill -KILL $$", FILES)[0].status == 128 + signal.SIGKILL
    big = "python3 -c 'import time; x = b\"x\" * (200 << 20); sum(range(4_000_000))'"
    ended, _ = isolated.run(f"{big}; seq 3 | tee >(sleep 0.3; sort -rn > lines) | wc -l", FILES)
    assert ended.usage is not None and ended.status == 0
    assert ended.usage["peak_memory_mb"] >= 200 and ended.usage["user_seconds"] > 0.01
    assert (isolated.directory / "lines").read_text() == "3\n2\n1\n"


def test_a_terminated_script_may_clean_up(isolated: Isolated, tmp_path: Path) -> None:
    script = "trap 'sleep 0.1; echo cleaned; exit 3' TERM\necho ready\nwhile :; do sleep 0.1; done"
    process = started(isolated.command(script), tmp_path / "output")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait() == 3
    assert (tmp_path / "output").read_text() == "ready\ncleaned\n"


@pytest.mark.parametrize("killed", ["program", "parent"])
def test_a_script_ends_with_its_program(isolated: Isolated, tmp_path: Path, killed: str) -> None:
    marker = f"{time.time_ns()}"
    command = isolated.command(f"echo ready; exec sleep 1{marker}")
    if killed == "parent":
        code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
        command = [sys.executable, "-c", code, *command]
    process = started(command, tmp_path / "output")
    assert wait_until(lambda: len(sleeping(marker)) == 1, 60.0, 0.01, 0.1)
    process.kill()
    process.wait()
    assert wait_until(lambda: not sleeping(marker), 60.0, 0.01, 0.1)


def test_a_task_that_a_daemon_starts_outside_enters_the_isolation(isolated: Isolated) -> None:
    secret = write(Path.home() / "fib.conf", "threads = 3")
    variables = {"KOCHI_LAUNCH": "env -u OTHER", "KOCHI_PARAM_N": "7"}
    isolated.environment = replace(isolated.environment, variables=variables)
    script = f"echo $KOCHI_LAUNCH; $KOCHI_LAUNCH ls -d {secret} ~"
    _, printed = isolated.run(script, FILES)
    line, *rest = printed.splitlines()
    assert line == f"env -u OTHER {isolated.scratch}/isolated"
    assert rest[0].endswith("No such file or directory") and rest[1] == str(Path.home())
    library = isolated.prefix / "lib" / "libfib.so"
    command = f"pwd; ls -d {secret}; cat {library}; exit 4"
    words = [*line.split(), "bash", "-c", command]
    task = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False)
    assert task.returncode == 4
    assert task.stdout == f"{isolated.directory}\na library"
    assert "No such file" in task.stderr


@pytest.mark.parametrize("words", [("files",), ("files", "network")])
def test_an_mpirun_inside_starts_tasks_that_share_memory(
    isolated: Isolated, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    variables = {"KOCHI_LAUNCH": "mpirun --oversubscribe -n 2"}
    isolated.environment = replace(isolated.environment, variables=variables)
    script = "$KOCHI_LAUNCH bash -c 'ls /opt 2> /dev/null; echo rank $OMPI_COMM_WORLD_RANK'"
    ended, printed = isolated.run(script, Isolation(words))
    assert ended.status == 0, printed
    assert sorted(re.findall("rank .", printed)) == ["rank 0", "rank 1"]


FORBIDDEN = '#!/bin/bash\necho "bwrap: No permissions to create new namespace" >&2; exit 1\n'


def test_isolation_is_refused_where_it_cannot_be_done(
    isolated: Isolated, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source, said in (("/no/such/path", "does not exist on "), ("$NOT_SET/x", "is not set")):
        with pytest.raises(KochiError, match=said) as raised:
            isolated.container(Isolation(("files",), (source,)))
        assert str(raised.value).startswith("fib.yaml: run.visible: ")
    monkeypatch.setenv("PATH", str(isolated.scratch / "bin"))
    with pytest.raises(PhaseError) as missing:
        isolated.container(FILES)
    said = str(missing.value)
    assert "fib.yaml: run.isolate: there is no bwrap on " in said and "Install bubblewrap" in said
    write(isolated.scratch / "bin" / "bwrap", FORBIDDEN).chmod(0o755)
    monkeypatch.setenv("PATH", f"{isolated.scratch}/bin:/usr/bin:/bin")
    with pytest.raises(PhaseError) as forbidden:
        isolated.run("true", FILES)
    said = str(forbidden.value)
    assert "fib.yaml: run: bwrap could not isolate the script on " in said
    assert "No permissions to create new namespace" in said and "unshare --user true" in said
