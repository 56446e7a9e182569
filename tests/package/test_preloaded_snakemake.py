"""What the tests start instead of `python -m snakemake` is no different from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import SNAKEMAKE, run, start, wait_until, write

COMMAND = (sys.executable, "-m", "snakemake", "--executor", "local", "--cores", "1")
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
        assert SNAKEMAKE.serves(COMMAND, environment)
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


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 1), (signal.SIGKILL, -9)])
def test_a_forked_run_ends_by_a_signal_as_any_process(
    number: int, status: int, tmp_path: Path
) -> None:
    write(tmp_path / "Snakefile", "rule all:\n    shell: 'touch begun; sleep 100'\n")
    process = start(*COMMAND, cwd=tmp_path, start_new_session=True)
    wait_until(lambda: (tmp_path / "begun").exists() or process.poll() is not None)
    assert process.poll() is None
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == status, said
