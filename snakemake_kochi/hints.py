"""What a message says to type, for somebody who types at another computer."""

from __future__ import annotations

import contextvars
import re
import shlex

# The machine on whose login host this command is executed for another computer.
_asked_for = contextvars.ContextVar[str | None]("asked_for", default=None)

# The commands with the option -m, as messages name them.
_COMMAND = re.compile(
    r"""\bkochi\ (
        show\ (?: log\ (?: install|job|worker ) | path\ (?: install|job|project|root|worker )
            | batch|pipeline|queues|workers|runs|jobs|job|installs|install|projects )
        | work|alloc_interact|alloc|release|inspect|launch|enqueue|interact|attach|batch|install|run
        | cancel|trace|doctor|clean|rerun|reproduce|artifact\ (?: restore|sync )
    )(?! [\w/.] | -\w )(?! [^\n;]*\ -m\ )""",
    re.VERBOSE,
)


def ask_for(machine: str | None) -> None:
    """Note that this command was typed at another computer, for a machine."""
    _asked_for.set(machine)


def typed(text: str) -> str:
    """A text for a person, whose commands are those to type where the person is."""
    if (machine := _asked_for.get()) is None:
        return text
    return _COMMAND.sub(lambda found: f"{found[0]} -m {shlex.quote(machine)}", text)
