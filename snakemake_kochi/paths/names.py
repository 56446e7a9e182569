"""Names that become parts of paths."""

from __future__ import annotations

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_name

SHARD = 256  # entries per directory: listing one costs the same however many jobs there are


def name_of(kind: str, name: str) -> str:
    if not is_name(name):
        raise KochiError(
            f"{kind} name {name!r} cannot be used: it becomes part of a path",
            "Use 1 to 128 letters, digits and any of ._+@=- , not starting with a dot or dash.",
        )
    return name


def safe(host: str) -> str:
    # A host name cannot be refused, so it is made safe.
    return "".join(c if is_name("x" + c) else "_" for c in host)[:64]
