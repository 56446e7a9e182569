"""What the tests of `kochi machine setup` share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ssh_host import SshHost
from support import git, run_apart

from snakemake_kochi.remote import setup
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.environment import Environment
from snakemake_kochi.remote.script import Script
from snakemake_kochi.remote.wheels import identity

KOCHI = [sys.executable, "-P", "-m", "snakemake_kochi.cli"]
# The Python of this environment, which its wheels fit: the network is not needed.
PYTHON = os.path.realpath(sys.executable)
NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
PROLOGUE = 'export KOCHI_ROOT="${KOCHI_ROOT:-$HOME/.kochi}"'


def make_project(directory: Path, text: str) -> Path:
    directory.mkdir()
    git(directory, "init", "--quiet", "--initial-branch", "main")
    (directory / "kochi.yaml").write_text(f"{text}dependencies: {{}}\n")
    return directory


def show(project: Path, root: Path) -> list[str]:
    """That the version from here is there; the Pythons that are."""
    shown = run_apart(*KOCHI, "machine", "show", "spica", "--json", cwd=project)
    data = json.loads(shown.stdout)
    assert data["kochi"] == [identity()]
    assert (data["kochi_root"], data["missing"]) == (str(root), [])
    pythons: list[str] = data["python"]
    return pythons


def there(host: SshHost, text: str, prologue: str = PROLOGUE) -> subprocess.CompletedProcess[str]:
    """Run a text for sh there; what tests set so that the checkout is found is not set."""
    with Connection(host.name) as connection:
        done = connection.run(Script(f"unset PYTHONPATH\n{prologue}\n{text}"))
    return subprocess.CompletedProcess(
        (), done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def set_up(host: SshHost, prologue: str = PROLOGUE, **options: object) -> list[str]:
    """Put the package there with PYTHON, or with the Python in `python`; None names none."""
    said: list[str] = []
    named = options.get("python", PYTHON)
    with Connection(host.name) as connection:
        setup.set_up(
            connection,
            Environment(prologue),
            None if named is None else str(named),
            bool(options.get("again", False)),
            said.append,
        )
    return said
