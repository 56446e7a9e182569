"""What the tests start instead of `python -m snakemake` or `kochi` is no different from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support import PROGRAMS, git, run, run_apart, start, wait_until, write

COMMAND = (sys.executable, "-m", "snakemake", "--executor", "local", "--cores", "1")
KOCHI = ("-m", "snakemake_kochi.cli")
GIVEN = "more than fits into a pipe" * 5000
SNAKEFILE = """
    import json, os, sys, tempfile
    from pathlib import Path

    rule all:
        output: "out"
        shell: "env | sort > {output}"

    block = Path("/proc/self/environ").read_text().split("\\0")
    seen = {
        "arguments": sys.argv,
        "path": sys.path,
        "main": sys.modules["__main__"].__file__,
        "directory": os.getcwd(),
        "started in": getattr(workflow, "rundir", None),
        "environment": dict(os.environ),
        "environment of the process": sorted(filter(None, block)),
        "files": sorted(os.listdir("/proc/self/fd")),
        "temporary": tempfile.gettempdir(),
        "ours": sorted(
            (name, module.__file__)
            for name, module in sys.modules.items()
            if name.startswith("snakemake_kochi")
        ),
    }
    Path(os.environ["SEEN"]).write_text(json.dumps(seen))
    """


@pytest.mark.compatibility
def test_a_run_that_was_forked_has_all_that_a_new_process_has(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    (tmp_path / "tmp").mkdir()
    seen, made = [], []
    for name in ("forked", "new"):
        file = tmp_path / name
        environment = {**os.environ, "SEEN": str(file), "TMPDIR": str(tmp_path / "tmp")}
        assert PROGRAMS.serves(COMMAND, environment)
        if name == "forked":
            assert run(*COMMAND, cwd=tmp_path, env=environment).returncode == 0
        else:
            options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
            subprocess.run(COMMAND, cwd=tmp_path, env=environment, check=True, **options)
        seen.append(json.loads(file.read_text().replace(str(file), "SEEN")))
        made.append((tmp_path / "out").read_text().replace(str(file), "SEEN"))
        (tmp_path / "out").unlink()
    assert seen[0] == seen[1]
    assert made[0] == made[1]


# What `kochi run` becomes.
SHOW = r"""
    tr '\0' '\n' < /proc/$$/environ | grep . | sort
    pwd; ls /proc/$$/fd; cat; echo to the errors >&2; exit 7
    """


@pytest.mark.parametrize("option", [(), ("-P",)])
def test_a_command_that_was_forked_has_all_that_a_new_process_has(
    option: tuple[str, ...], tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path / "kochi.yaml", "dependencies: {}\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    command = (sys.executable, *option, *KOCHI, "run", "--", "sh", "-c", SHOW)
    assert PROGRAMS.serves(command, os.environ)
    forked = run_apart(*command, cwd=tmp_path, given=GIVEN)
    # Python's own copy of the environment, without what a library in C has put into the other.
    options = {"env": dict(os.environ), "input": GIVEN, "capture_output": True}
    new = subprocess.run(command, cwd=tmp_path, text=True, **options)
    assert forked.stdout.splitlines() == new.stdout.splitlines()
    assert (forked.returncode, forked.stderr) == (new.returncode, new.stderr)
    assert "to the errors" in new.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 1), (signal.SIGKILL, -9)])
def test_a_forked_run_ends_by_a_signal_as_any_process(
    number: int, status: int, tmp_path: Path
) -> None:
    write(tmp_path / "Snakefile", "rule all:\n    shell: 'touch begun; sleep 100'\n")
    process = start(*COMMAND, cwd=tmp_path, start_new_session=True)
    wait_until(lambda: (tmp_path / "begun").exists() or process.poll() is not None)
    assert process.poll() is None
    for _ in range(6):
        # Snakemake may lose an interrupt that comes while it starts a thread.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            said, _ = process.communicate(timeout=10)
            break
    assert process.returncode == status, said
