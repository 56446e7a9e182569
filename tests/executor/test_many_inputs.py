"""Jobs with so many inputs that Snakemake writes their list to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_helpers import results
from support import write

pytestmark = pytest.mark.compatibility

SNAKEFILE = """
    rule all:
        input: "ran", "scripted"
    rule part:
        output: "part/{i}"
        shell: "echo {wildcards.i} > {output}"
    rule run:
        input: expand("part/{i}", i=range(25))
        output: "ran"
        run:
            import os
            with open(output[0], "w") as stream:
                print(os.environ["KOCHI_RUNNER"], len(input), file=stream)
    rule script:
        input: expand("part/{i}", i=range(25))
        output: "scripted"
        script: "count.py"
"""
SCRIPT = """
    import os
    with open(snakemake.output[0], "w") as stream:
        print(os.environ["KOCHI_RUNNER"], len(snakemake.input), file=stream)
"""


@pytest.mark.parametrize("runner", ["zygote", "command"])
def test_jobs_with_many_inputs_are_executed_by_the_runner_that_fits(
    tmp_path: Path, snakemake: Any, runner: str
) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    write(tmp_path / "count.py", SCRIPT)
    for i in range(25):
        write(tmp_path / "part" / str(i), f"{i}\n")
    done = snakemake("--executor", "kochi", "-j2", "--kochi-runner", runner, cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "ran").read_text() == f"{runner} 25\n"
    assert (tmp_path / "scripted").read_text() == f"{runner} 25\n"
    assert {result["runner"] for result in results()} == {runner}
