# ruff: noqa: F821 (Snakemake puts the name `snakemake` in front)
from pathlib import Path

Path(snakemake.output[0]).write_text(Path(snakemake.input[0]).read_text())
Path("left").touch()
