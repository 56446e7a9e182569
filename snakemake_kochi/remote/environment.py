"""What sessions for a machine begin with on its login host: its environment, loaded once.

load_env_script may be slow, and may have secrets, but all users of a host see the words of its
processes. So its text travels on standard input, in the first session of a command. What it has
changed is kept in a file there that only this user can read, which the other sessions execute: a
session on a terminal, or one that has the user's standard input, could not get a text there.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from snakemake_kochi.project.machines import Machine
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.refusal import RemoteError
from snakemake_kochi.remote.script import Script
from snakemake_kochi.remote.there import prologue
from snakemake_kochi.remote.version import NOT_SET_UP

# In this directory there, which is not in the home: a command that frees space must work when that
# is full.
_PLACE = "/tmp"
# In front of load_env_script: what a process inherits, except its directory.
_BEFORE = """\
declare -A kochi_were
for kochi_name in $(compgen -e); do kochi_were[$kochi_name]=${!kochi_name}; done
kochi_limits() {
  local kind line
  for kind in H S; do
    while IFS= read -r line; do
      line=${line##*-}
      printf 'ulimit -%s%s %s 2> /dev/null\\n' "$kind" "${line%%)*}" "${line##* }"
    done <<< "$(ulimit "-${kind}a")"
  done
}
kochi_limits_were=$(kochi_limits)
"""
# After it: a text for bash that makes the same changes. What belongs to one session, such as a
# terminal, has not changed. Leftovers of killed commands are removed after a day.
_KEEP = """\
kochi_umask=$(umask -p)
(
  umask 077
  find {place}/kochi-loaded-* -maxdepth 0 -user "$UID" -mmin +1440 -exec rm -rf {{}} + 2> /dev/null
  mkdir {directory} && {{
    for kochi_name in "${{!kochi_were[@]}}"; do
      [ -n "${{!kochi_name+set}}" ] || printf 'unset -v %s\\n' "$kochi_name"
    done
    for kochi_name in $(compgen -e); do
      case $kochi_name in _ | SHLVL | PWD | OLDPWD) continue ;; esac
      [ -n "${{kochi_were[$kochi_name]+set}}" ] &&
        [ "${{kochi_were[$kochi_name]}}" = "${{!kochi_name}}" ] ||
        printf 'export %s=%q\\n' "$kochi_name" "${{!kochi_name}}"
    done
    export -f
    [ "$(kochi_limits)" = "$kochi_limits_were" ] || kochi_limits
    printf '%s\\n' "$kochi_umask" kochi_is_loaded=1
  }} > {file} && [ "$(tail -n 1 {file})" = kochi_is_loaded=1 ]
) || {{
  rm -rf {directory}
  echo 'kochi: {place} of the login host cannot take a file: free some space there' >&2
  exit {status}
}}
"""
_LATER = """\
# In {place} anybody may put something in its place once it was removed.
[ ! -L {directory} ] && [ -O {directory} ] && [ -O {file} ] &&
  . {file} 2> /dev/null && [ "$kochi_is_loaded" = 1 ] || {{
  echo 'kochi: {file} on the login host was removed meanwhile. Type the same line again' >&2
  exit {status}
}}"""


class Environment:
    """The environment of one command's sessions. `text` sets and exports KOCHI_ROOT there, after
    `load`, a text for bash that loads the machine's environment."""

    def __init__(self, text: str, load: str = "") -> None:
        self._text, self._load = text, load
        self._directory = f"{_PLACE}/kochi-loaded-{secrets.token_hex(8)}"
        self.is_kept = False  # whether a file is there for the next session

    @classmethod
    def of(cls, machine: Machine) -> Environment:
        """That of a machine."""
        return cls(prologue(machine), machine.load_env_on_login_node)

    @property
    def is_loaded(self) -> bool:
        """Whether there is a script that loads it, so that a first session must have no terminal
        and no input."""
        return bool(self._load)

    def first(self, text: str, *, keep: bool, before: str = "") -> Script:
        """A script of the first session, which loads the environment. `keep`: for other sessions,
        after `before`."""
        if not self._load:
            return Script("\n".join([self._text, before, text]))
        parts = [self._load_text, self._text, before, text]
        if keep:
            self.is_kept = True
            parts = [_BEFORE, *parts[:-1], self._formatted(_KEEP), text]
        return Script("\n".join(parts), is_private=True)

    def later(self, *, last: bool = False) -> str:
        """What another session begins with. `last`: none comes after it."""
        if not self._load:
            return self._text
        text = self._formatted(_LATER)
        if not last:
            return text
        self.is_kept = False
        return f"{text}\nrm -rf {self._directory}"

    def forget(self, connection: Connection) -> None:
        """Remove what is there, after a command that did not get to its last session."""
        if self.is_kept:
            self.is_kept = False
            with suppress(RemoteError):
                connection.run(Script(f"rm -rf {self._directory}"))

    @property
    def _load_text(self) -> str:
        # A shell's options that it sets would end, or change, what follows, and a trap print.
        after = "set +aeuf +o pipefail\ntrap - EXIT\nIFS=$' \\t\\n'"
        return f"{{ {self._load}\n:; }} >&2 < /dev/null\n{after}"

    def _formatted(self, text: str) -> str:
        return text.format(
            place=_PLACE,
            directory=self._directory,
            file=f"{self._directory}/environment",
            status=NOT_SET_UP,
        )
