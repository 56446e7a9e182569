"""The arguments of a run are read without the parser of all phases, and as it reads them."""

from __future__ import annotations

import pytest

from snakemake_kochi.library.batch import RUN_COMMAND
from snakemake_kochi.phases.__main__ import make_parser
from snakemake_kochi.phases.arguments import Options, run_options

_REQUIRED = ("--duplicate", "0", "--build", "b/build.json", "--record", "r/record.json")
# As the rule library writes them, with nothing, with one and with several words in a list.
_READ = [
    ("run", "sum.yaml", *_REQUIRED),
    ("run", "sum.yaml", "--batch=b", "--parameters", *_REQUIRED, "--installs", "--artifacts"),
    (
        *("run", "dir/sum it's.yaml", "--batch=with = and blanks", "--parameters", "n=1", "m=", ""),
        *(*_REQUIRED[:4], "--installs", "one", "two", *_REQUIRED[4:], "--artifacts", "a b", "c"),
    ),
    (
        *("run", "sum.yaml", "--batch=", "--resource=nodes=2", "--resource=cpus_per_task=4"),
        *("--launcher=mpi", "--timeout=90.5", "--rerun-of=a.b.c", "--code=v1"),
        *("--prepared=prepared.json", *_REQUIRED, "--resource", "tasks=8"),
    ),
]
# What the parser reads otherwise, or refuses.
_LEFT = [
    ("build", "sum.yaml", "--output", "x"),
    ("run",),
    ("run", *_REQUIRED, "sum.yaml"),
    ("run", "sum.yaml"),
    ("run", "sum.yaml", *_REQUIRED, "--dup", "1"),
    ("run", "sum.yaml", *_REQUIRED, "--duplicate", "1"),
    ("run", "sum.yaml", *_REQUIRED, "--parameters", "--", "-n=1"),
    ("run", "sum.yaml", *_REQUIRED, "--parameters", "-1"),
    ("run", "sum.yaml", *_REQUIRED, "--artifacts=a"),
    ("run", "sum.yaml", *_REQUIRED, "--batch"),
    ("run", "sum.yaml", *_REQUIRED, "--batch", "--code"),
    ("run", "sum.yaml", *_REQUIRED, "--timeout=soon"),
    ("run", "sum.yaml", *_REQUIRED, "--unknown", "x"),
    ("run", "sum.yaml", "more.yaml", *_REQUIRED),
]


@pytest.mark.parametrize("words", _READ)
def test_the_arguments_of_a_run_are_those_that_the_parser_finds(words: tuple[str, ...]) -> None:
    found, parsed = run_options(words), make_parser().parse_args(words, Options())
    assert found is not None
    del parsed.phase, parsed.output_of
    assert found == parsed


@pytest.mark.parametrize("words", _LEFT)
def test_other_arguments_are_left_to_the_parser(words: tuple[str, ...]) -> None:
    assert run_options(words) is None


def test_each_option_of_a_run_is_read_without_the_parser() -> None:
    """Otherwise each run of some batch would take the longer way, and nobody would see it."""
    written = " ".join(" ".join(words) for words in _READ)
    options = {word.partition("=")[0] for word in RUN_COMMAND.split() if word.startswith("--")}
    assert options <= set(written.replace("=", " ").split())
    parsed = make_parser().parse_args(_READ[0], Options())
    names = {name for name in vars(parsed) if name not in ("phase", "output_of", "experiment")}
    assert {f"--{name.replace('_', '-')}" for name in names} <= set(
        written.replace("=", " ").split()
    )
