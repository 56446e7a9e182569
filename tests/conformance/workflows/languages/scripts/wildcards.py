# ruff: noqa: F821 (Snakemake puts the name `snakemake` in front)
from pathlib import Path

for path in snakemake.output:
    Path(path).write_text(str(sorted(snakemake.wildcards.items())))
