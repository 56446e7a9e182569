"""`kochi work`: what a person says of the worker's limits."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from .conftest import COMMAND, Outcome

Kochi = Callable[..., Outcome]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--walltime", "2x"), "'--walltime': '2x': a time like 90s, 30m, 2h or 1.5d was expected"),
        (("--walltime", "0"), "'--walltime': '0': a time like"),
        (("--memory", "lots"), "'--memory': 'lots': an amount of memory like 512M or 16G"),
        (("--memory", "1000"), "'--memory': '1000': an amount"),
        (("--walltime", "5s"), "a walltime of 5 seconds leaves no time for jobs"),
        (("--gpus", "a,b"), "--gpus a,b: a number of GPUs was expected"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(
    kochi: Kochi, arguments: tuple[str, ...], said: str
) -> None:
    done = kochi("work", "-q", "q", *arguments)
    assert done.status != 0
    assert said in done.err
    assert "Traceback" not in done.err


def test_the_limits_reach_the_worker(kochi: Kochi) -> None:
    limits = ("--cores", "3", "--memory", "2G", "--gpus", "0,2", "--walltime", "1.5h")
    subprocess.run([*COMMAND, "work", "-q", "q", *limits], check=True)
    (worker,) = kochi("show", "workers", "-a", "--json").data
    assert (worker["cores"], worker["memory_mb"], worker["gpus"]) == (3, 2048, 2)
    assert worker["until"] is not None
