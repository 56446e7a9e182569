"""Options that several commands have, so that they are the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Decorator = Callable[[_Function], _Function]


# What is counted, and what has a number. Python has larger ones, but no file's size, range or name.
COUNT = click.IntRange(min=1, max=2**31 - 1)
NUMBER = click.IntRange(min=0, max=2**53)


def machine_option(function: _Function) -> _Function:
    return click.option(
        *("-m", "--machine"),
        metavar="MACHINE",
        help="Where; by default $KOCHI_DEFAULT_MACHINE, else the machine of kochi.yaml that this "
        "host belongs to, else 'local', which is this computer.",
    )(function)


def json_option(function: _Function) -> _Function:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def quiet_option(function: _Function) -> _Function:
    return click.option("--quiet", is_flag=True, help="Print only what was asked for.")(function)


def yes_option(function: _Function) -> _Function:
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(function)


def dependency_option(required: bool) -> Callable[[_Function], _Function]:
    return click.option(
        *("-d", "--dependency", "dependencies"),
        metavar="DEPENDENCY:RECIPE",
        multiple=True,
        required=required,
        help="An installed recipe; may be given several times.",
    )
