"""Packs: the files of ended jobs in a few archives, and how they are read.

A job that has ended has four inodes in `jobs/`. After its end they move into a pack, a ZIP archive
with the files of up to 256 jobs (`packing/` makes it). Each file of a job is in the directory of
the job, in a pack, or for a moment in both. So a reader looks into the directory first, and then
into the packs: a file moves only from the first to the second. `pack.py` is loaded only where there
is a pack, because every worker imports this package.
"""

from snakemake_kochi.packs.packs import Packs, covered_by, group_summaries
from snakemake_kochi.packs.summary import (
    JobFilter,
    Summaries,
    Summary,
    summaries_from_lines,
    summaries_to_lines,
)

__all__ = [
    "JobFilter",
    "Packs",
    "Summaries",
    "Summary",
    "covered_by",
    "group_summaries",
    "summaries_from_lines",
    "summaries_to_lines",
]
