"""What a message says to type, for somebody whose commands need the option -m."""

from __future__ import annotations

import contextvars
import os
import re
import shlex

# The machine that the option -m of this command names.
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
    """Note that this command was typed for a machine."""
    _asked_for.set(machine)


def typed(text: str) -> str:
    """A text for a person, whose commands are those to type where the person is.

    They name the machine that -m or $KOCHI_DEFAULT_MACHINE names: the latter may be set for this
    process only, and reading it needs no location.
    """
    machine = _asked_for.get() or os.environ.get("KOCHI_DEFAULT_MACHINE")
    if not machine:
        return text
    return _COMMAND.sub(lambda found: f"{found[0]} -m {shlex.quote(machine)}", text)
