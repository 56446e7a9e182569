"""From records to a table and figures: one way, from `results/` and from artifact branches.

records   what records say of their runs; the wanted ones of the branches
codes     which of them are of one code
metrics   what they measured, from their artifacts
report    the table of a batch, its summary, its remarks; `figure` draws
collect   the report of a batch in `results/`, which rules write: `__main__` is their program
branch    that of a batch in the branches, for `kochi table` and `kochi plot`
frame     all runs in the branches, for pandas
"""
