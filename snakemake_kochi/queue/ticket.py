"""The names of `tickets.ticket`, for this package and those that go with it."""

from snakemake_kochi.tickets.ticket import (
    VERSION,
    Benchmark,
    Kind,
    Resources,
    ShellJob,
    Ticket,
    now,
    read_ticket,
)

__all__ = [
    "VERSION",
    "Benchmark",
    "Kind",
    "Resources",
    "ShellJob",
    "Ticket",
    "now",
    "read_ticket",
]
