"""`python -m snakemake_kochi.cli`: the same as `kochi`."""

from snakemake_kochi.cli import main

main()
