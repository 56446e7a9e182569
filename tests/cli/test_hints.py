"""Messages name the machine to somebody who types at another computer."""

from __future__ import annotations

import contextvars

import click
import pytest

from snakemake_kochi.cli.main import kochi
from snakemake_kochi.hints import ask_for, typed


def _named(text: str, machine: str | None = "spica") -> str:
    def convert() -> str:
        ask_for(machine)
        return typed(text)

    return contextvars.copy_context().run(convert)


def _commands(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, bool]]:
    context = click.Context(command)
    if not isinstance(command, click.Group):
        return [(" ".join(words), any("-m" in each.opts for each in command.params))]
    found = []
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        found += _commands(inner, (*words, name))
    return found


def test_only_commands_that_take_a_machine_get_it() -> None:
    for words, takes_machine in _commands(kochi):
        line = f"type: kochi {words}"
        if not takes_machine:
            assert _named(line) == line
        elif words.split(" ")[0] in ("show", "work", "alloc", "alloc_interact", "batch", "launch"):
            assert _named(line) == f"{line} -m spica"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kochi show jobs -t", "kochi show jobs -m spica -t"),
        ("type: kochi attach 2", "type: kochi attach -m spica 2"),
        (
            "kochi show workers; kochi show log worker 3",
            "kochi show workers -m spica; kochi show log worker -m spica 3",
        ),
        ("kochi launch -m spica --follow", "kochi launch -m spica --follow"),
        ("kochi launch --follow -m spica", "kochi launch --follow -m spica"),
        ("in /home/kochi work/run", "in /home/kochi work/run"),
        ("kochi batches", "kochi batches"),
    ],
)
def test_a_line_to_type_names_the_machine_once(text: str, said: str) -> None:
    assert _named(text) == said
    assert _named(text, None) == text
