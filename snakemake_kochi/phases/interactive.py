"""The interactive shell of a job: bash with the user's habits and the job's environment."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

# What programs learn from variables about their terminal.
TERMINAL_VARIABLES = ("TERM", "COLORTERM")

# Of one script: bash is asked once per line whether a command is complete.
_MOST_LINES = 200

# Replaces ~/.bashrc. That may set PATH or load modules, as for a login: what the job's recipes and
# scripts have exported is put back afterwards.
_START = """\
_kochi_exported=$(export -p) _kochi_directory=$PWD
if [ -r ~/.bashrc ]; then . ~/.bashrc; fi
eval "$_kochi_exported" 2> /dev/null
cd -- "$_kochi_directory"
unset _kochi_exported _kochi_directory
"""
# Bash does not read the file any more once there is an entry.
_OWN_HISTORY = 'if [ -r "${HISTFILE-}" ]; then history -r; fi\n'


def shell_script(history: Sequence[str] = (), of: str = "") -> str:
    """Bash that becomes the interactive shell, with these commands in its history; `of` names where
    they come from."""
    start = _START
    if history:
        start += _OWN_HISTORY
        start += "".join(f"history -s -- {shlex.quote(each)}\n" for each in history)
        said = f"The commands of {of} are in the history: press the up arrow."
        start += f"echo {shlex.quote(said)}\n"
    # Not from a file: an isolated script sees few of them.
    return f"exec bash --rcfile <(printf %s {shlex.quote(start)}) -i\n"


def shell_command() -> tuple[str, ...]:
    """An argument list that becomes the interactive shell."""
    return ("bash", "-c", shell_script())


def commands_of(script: str) -> list[str]:
    """The commands of a bash script, one by one, as a person would type them.

    A loop or a here-document is one command. What bash cannot parse is one command, too.
    """
    lines = script.splitlines()
    if len(lines) > _MOST_LINES:
        return [script.strip()]
    found, pending = list[str](), list[str]()
    for line in lines:
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        pending.append(line)
        if _is_complete("\n".join(pending)):
            found.append("\n".join(pending).strip())
            pending = []
    return [*found, *(["\n".join(pending).strip()] if pending else [])]


def _is_complete(text: str) -> bool:
    if text.endswith("\\"):
        return False
    # A here-document without its end is only a warning.
    done = subprocess.run(
        ["bash", "-n"], input=text.encode("utf-8", "surrogateescape"), capture_output=True
    )
    return done.returncode == 0 and not done.stderr
