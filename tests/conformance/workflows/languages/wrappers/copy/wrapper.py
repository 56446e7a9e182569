# ruff: noqa: F821 (Snakemake puts the name `snakemake` in front)
from pathlib import Path

from snakemake.shell import shell

shell("cat {snakemake.input} > {snakemake.output}")
with Path(snakemake.output[0]).open("a") as stream:
    print(snakemake.params.word, snakemake.rule, file=stream)
