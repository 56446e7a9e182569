# ruff: noqa: F821 (Snakemake puts the name `snakemake` in front)
"""Writes down all that a script is given."""

import os
import sys
from pathlib import Path

with open(snakemake.output[0], "w") as stream:
    for name in ("input", "output", "params", "wildcards", "log", "config"):
        print(name, getattr(snakemake, name), file=stream)
    resources = {name: value for name, value in snakemake.resources.items() if name[0] != "_"}
    print("resources", sorted(resources.items()), file=stream)
    print(snakemake.input.named, snakemake.params.value, snakemake.threads, file=stream)
    print(snakemake.rule, snakemake.bench_iteration, snakemake.scriptdir, file=stream)
    print(Path.cwd(), os.environ.get("OMP_NUM_THREADS"), file=stream)
    print(Path(sys.executable).name, file=stream)
Path(snakemake.log[0]).write_text("said\n")
