"""Which kochi a login host uses, and whether it is the one from here."""

from __future__ import annotations

import shlex

import snakemake_kochi
from snakemake_kochi.paths import InstalledPaths
from snakemake_kochi.remote.wheels import identity

# The exit status where another version is there, or none (EX_CONFIG of sysexits.h).
NOT_SET_UP = 78


def find_kochi(machine: str) -> str:
    """A text for bash that sets `kochi` to the path of the program, for a script on a login host.

    $KOCHI_ROOT must be set before, and the machine's environment be loaded. The program is the one
    that `kochi machine setup` has put there from the package that runs here, else the one on PATH,
    if nothing was put there and it has the same version. Otherwise the text says on standard error
    what to type, and exits with NOT_SET_UP. Raises KochiError.
    """
    paths, own = InstalledPaths(), identity()
    version = snakemake_kochi.__version__
    setup = f"kochi machine setup {shlex.quote(machine)}"
    to_type = f"To put the version from here there, type: {setup}"
    link = shlex.quote(str(paths.current(own)))
    every = shlex.quote(str(paths.directory)) + "/" + InstalledPaths.LINKS + "/bin/python"
    return f"""\
kochi_link="$KOCHI_ROOT"/{link}
if [ -x "$kochi_link/bin/python" ]; then
  # Not through the link: a process keeps what it began with when the link leads elsewhere.
  kochi="$KOCHI_ROOT"/{shlex.quote(str(paths.directory))}/$(readlink -- "$kochi_link")/bin/kochi
  touch -c -- "$kochi_link/used" 2>/dev/null
else
  kochi_others=
  for kochi in "$KOCHI_ROOT"/{every}; do
    [ -x "$kochi" ] || continue
    kochi=${{kochi%/bin/python}}
    kochi_others="$kochi_others ${{kochi##*/python-}}"
  done
  if [ -n "$kochi_others" ]; then
    printf '%s\\n' {shlex.quote(_other(machine))}"$kochi_others"{shlex.quote(f", here: {own}")} \\
      {shlex.quote(to_type)} >&2
    exit {NOT_SET_UP}
  fi
  if ! kochi=$(command -v kochi); then
    printf '%s\\n' {shlex.quote(_none(machine))}" $KOCHI_ROOT or on PATH" \\
      {shlex.quote(to_type)} >&2
    exit {NOT_SET_UP}
  fi
  kochi_version=$("$kochi" --version 2>/dev/null </dev/null)
  if [ "${{kochi_version##* }}" != {shlex.quote(version)} ]; then
    printf '%s\\n' {shlex.quote(_other(machine))}" ${{kochi_version##* }} ($kochi)\
"{shlex.quote(f", here: {version}")} {shlex.quote(to_type)} >&2
    exit {NOT_SET_UP}
  fi
fi
"""


def _other(machine: str) -> str:
    return f"kochi: machine '{machine}' has another version of this package, there:"


def _none(machine: str) -> str:
    return f"kochi: machine '{machine}' does not have this package in its KOCHI_ROOT"
