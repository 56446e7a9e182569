"""load_env_script of a machine: it runs once per command there, and nobody else sees its text."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from ssh_host import SshHost
from support import git, run_apart, write

from snakemake_kochi.remote.environment import Environment
from snakemake_kochi.remote.version import NOT_SET_UP

KOCHI = (sys.executable, "-m", "snakemake_kochi.cli")
SECRET = "kept-secret"
# Everything that runs there at this moment, with the words of sessions, which are in base64.
LOOK = "cat /proc/[0-9]*/cmdline >> ~/seen 2> /dev/null"
LOAD = f"""
echo loaded >> ~/loads
export TOKEN={SECRET} LINES_OF="a
  b'c" PLACE="$HOME/a place"
unset DROPPED
tool() {{ echo "tool of $1"; }}
export -f tool
umask 027
ulimit -S -n 300
{LOOK}
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    with SshHost("spica", tmp_path, variables={"DROPPED": "1"}) as host:
        host.use(monkeypatch)
        for name in ("git", "kochi"):
            path = f"PATH=$(printf %s \"$PATH\" | sed 's,{host.bin}:,,')"
            own = f'{sys.executable} -P -m snakemake_kochi.cli "$@"'
            run = own if name == "kochi" else f'{path} exec git "$@"'
            # dash, which may be the sh here, drops functions of the environment.
            write(host.program(name, ""), f"#!/bin/bash\n{LOOK}\n{run}\n")
        yield host


@pytest.fixture
def project(host: SshHost, tmp_path: Path) -> Path:
    top = tmp_path / "fib"
    git(tmp_path, "init", "-q", str(top))
    load = f"    load_env_script: {{on_login_node: {json.dumps(LOAD)}}}\n"
    write(top / "kochi.yaml", host.machine() + load)
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    return top


def kochi(*words: str, cwd: Path, given: str = "") -> str:
    done = run_apart(*KOCHI, *words, cwd=cwd, given=given, timeout=120)
    print(f"$ kochi {' '.join(words)}\n{done.stdout}{done.stderr}[{done.returncode}]")
    assert done.returncode == 0
    return done.stdout


def on_terminal(*words: str, cwd: Path) -> str:
    child = pexpect.spawn(
        KOCHI[0], [*KOCHI[1:], *words], cwd=str(cwd), timeout=120, encoding="utf-8"
    )
    child.expect(pexpect.EOF)
    child.close()
    print(f"$ kochi {' '.join(words)}\n{child.before}")
    assert child.exitstatus == 0
    return str(child.before)


def loads(host: SshHost) -> int:
    """How often the script ran since the last call."""
    file = host.home / "loads"
    count = len(file.read_text().splitlines())
    file.unlink()
    return count


def kept_files() -> list[Path]:
    """The files there that have what the script made."""
    found = Path("/tmp").glob("kochi-loaded-*/environment")
    return [file for file in found if SECRET in file.read_text(errors="replace")]


def test_the_script_runs_once_per_command_and_is_in_no_process_list(
    host: SshHost, project: Path
) -> None:
    run = ("run", "-m", "spica", "--", "sh", "-c", f"{LOOK}; cat; echo $TOKEN")
    assert kochi(*run, cwd=project, given="given\n") == f"given\n{SECRET}\n"
    assert loads(host) == 1
    write(project / "new.txt", "")
    assert SECRET in on_terminal(*run[:-1], f"{LOOK}; echo $TOKEN", cwd=project)
    assert loads(host) == 1
    assert kochi("show", "queues", "-m", "spica", "--json", cwd=project) == "[]\n"
    assert loads(host) == 1
    on_terminal("show", "queues", "-m", "spica", cwd=project)
    assert loads(host) == 1
    kochi("artifact", "init", "../results", cwd=project)
    kochi("artifact", "sync", "-m", "spica", cwd=project)
    assert loads(host) == 1
    kochi("machine", "show", "spica", cwd=project)
    assert loads(host) == 1
    seen = (host.home / "seen").read_bytes()
    # Paths of others look like base64, too.
    texts = [base64.b64decode(each) for each in re.findall(b"(?:[A-Za-z0-9+/]{4}){10,}", seen)]
    assert any(b"KOCHI_MACHINE" in text for text in texts)
    assert not any(SECRET.encode() in text for text in (seen, *texts))
    assert kept_files() == []


def test_what_the_script_makes_is_there_for_the_command(host: SshHost, project: Path) -> None:
    asked = 'echo "$LINES_OF|$PLACE|${DROPPED-gone}|$(tool 1)"; umask; ulimit -S -n; ulimit -H -n'
    said = kochi("run", "-m", "spica", "--", "bash", "-c", asked, cwd=project)
    *first, umask, soft, hard = said.splitlines()
    assert "\n".join(first) == f"a\n  b'c|{host.home}/a place|gone|tool of 1"
    assert (umask, soft) == ("0027", "300")
    assert hard != soft


@pytest.mark.parametrize("of", ["directory", "environment"])
def test_what_somebody_else_puts_in_the_place_of_its_file_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setattr("snakemake_kochi.remote.environment._PLACE", str(tmp_path))
    later = Environment("", "export TOKEN=1").later()
    (name,) = set(re.findall(r"kochi-loaded-\w+", later))
    file = write(tmp_path / name / "environment", f"touch {tmp_path}/trap; kochi_is_loaded=1\n")
    assert run_apart("bash", "-c", later).returncode == 0
    (tmp_path / "trap").unlink()
    os.chown(file.parent if of == "directory" else file, 4711, 4711)
    done = run_apart("bash", "-c", later)
    assert (done.returncode, "was removed meanwhile" in done.stderr) == (NOT_SET_UP, True)
    assert not (tmp_path / "trap").exists()


def test_what_a_killed_command_has_left_is_deleted_after_a_day(
    host: SshHost, project: Path
) -> None:
    left = [Path(f"/tmp/kochi-loaded-{os.urandom(8).hex()}") for _ in range(2)]
    for directory in left:
        directory.mkdir(mode=0o700)
        write(directory / "environment", "export TOKEN=old\n")
    old = time.time() - 2 * 24 * 3600
    os.utime(left[0], (old, old))
    kochi("run", "-m", "spica", "--", "true", cwd=project)
    assert [directory.exists() for directory in left] == [False, True]
    (left[1] / "environment").unlink()
    left[1].rmdir()


def test_a_script_that_fails_is_said_and_leaves_nothing(host: SshHost, project: Path) -> None:
    text = (project / "kochi.yaml").read_text()
    write(project / "kochi.yaml", text.replace("umask 027", "echo no such module >&2; exit 3"))
    for words in (("run", "-m", "spica", "--", "true"), ("show", "queues", "-m", "spica")):
        done = run_apart(*KOCHI, *words, cwd=project)
        assert done.returncode != 0
        assert "no such module" in done.stderr and "Traceback" not in done.stderr
    assert kept_files() == []
