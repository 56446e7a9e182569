"""A file of commands as one target of a Snakefile."""

from __future__ import annotations

import subprocess
import sys

from .conftest import Place

SNAKEFILE = """
from snakemake_kochi import snakefile

module simulation:
    snakefile: snakefile("tasks")
    config: {"tasks": "lists/my tasks", "options": "-j 1"}

use rule tasks from simulation as simulate

rule last:
    input: rules.simulate.output
    output: "last"
    shell: "cp {input:q} {output}"
"""


def snakemake(place: Place, *words: str) -> tuple[int, str]:
    command = (sys.executable, "-m", "snakemake", "--cores", "1", *words)
    done = subprocess.run(command, cwd=place.directory, capture_output=True, text=True, timeout=170)
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout


def test_a_list_is_one_target_and_what_failed_runs_again(place: Place) -> None:
    (place.directory / "Snakefile").write_text(SNAKEFILE)
    (place.directory / "lists").mkdir()
    lines = ["echo a >> done", "echo b >> done; test -e there"]
    place.write(*lines, name="lists/my tasks")
    assert snakemake(place, "last", "--quiet", "all")[0] == 1
    (place.directory / "there").touch()
    assert snakemake(place, "last", "--quiet", "all")[0] == 0
    assert place.done == ["a", "b", "b"]
    assert (place.directory / "last").read_text().startswith("1 echo a")
    status, out = snakemake(place, "last", "-n")
    assert (status, "Nothing to be done" in out) == (0, True)
    place.write(*lines, "echo c >> done", name="lists/my tasks")
    assert snakemake(place, "last", "--quiet", "all")[0] == 0
    assert place.done == ["a", "b", "b", "c"]
