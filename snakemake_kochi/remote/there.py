"""What a login host has of a machine: its directories and its `kochi`, as texts for bash there.

KOCHI_ROOT is that of a command that is typed there: variables and `~` in `kochi_root` and
`work_dir` are those of the login host.
"""

from __future__ import annotations

import re
import shlex
import subprocess

from snakemake_kochi.project.machines import Machine
from snakemake_kochi.remote.refusal import RemoteError
from snakemake_kochi.remote.version import NOT_SET_UP

# Bash that writes what to do about KOCHI_ROOT, after `prologue`.
CORRECT_ROOT = '"$kochi_correct"'
# Programs below it are executed, and must not refuse afterwards what was sent there. `ownership.py`
# examines the same, and groups above.
_EXAMINED = """\
for kochi_place in "$KOCHI_ROOT" "$KOCHI_ROOT/remote"; do
  kochi_found=$(stat -Lc %u:%G:%a -- "$kochi_place" 2> /dev/null) || continue
  case $kochi_found in "$EUID":* | 0:*) ;; *) {others} ;; esac
  case $kochi_found in *[2367]) {everybody} ;; *[0145]?) ;; *:"$(id -un)":*) ;; *)
    # Not where the filesystem shows a private file with other modes, too.
    kochi_trial=$(mktemp -p "$kochi_place" .trial.XXXXXXXX.tmp) &&
      kochi_found=$(stat -c %a "$kochi_trial")
    rm -f "$kochi_trial"
    [ "$kochi_found" != 600 ] || {group} ;;
  esac
done
kochi_place=$KOCHI_ROOT
while kochi_place=${{kochi_place%/*}}; [ -n "$kochi_place" ]; do
  case $(stat -Lc %a -- "$kochi_place" 2> /dev/null) in
    [1357]???) ;;
    *[2367]) {everybody} ;;
  esac
done
export KOCHI_ROOT"""
_PARTS = re.compile(r"(\A~[A-Za-z0-9_.-]*(?:/|\Z)|\$\{[A-Za-z_]\w*\}|\$[A-Za-z_]\w*)", re.ASCII)


def prologue(machine: Machine) -> str:
    """Bash that sets and exports KOCHI_ROOT, after the machine's environment was loaded.

    If a variable is not set there, the path is not absolute, or others could put something there
    or in its place, the text says so and exits with NOT_SET_UP.
    """
    correct = (
        "Choose a directory that only you may write to, below directories of only you or root, and "
        f"that all nodes see: {machine.root_said_at}"
    )
    lines = [f"kochi_correct={shlex.quote(correct)}"]
    if not machine.kochi_root:
        lines.append('KOCHI_ROOT="${KOCHI_ROOT:-$HOME/.kochi}"')
    lines += _require_variables(machine.kochi_root or "", machine.root_said_at, CORRECT_ROOT)
    if machine.kochi_root:
        lines.append(f"KOCHI_ROOT={_expanded(machine.kochi_root)}")
    said = f"kochi: KOCHI_ROOT of machine '{machine.name}'"
    relative = _complain(f"{said} is no absolute path on the login host:", '" $KOCHI_ROOT"')
    lines.append(f"case $KOCHI_ROOT in /*) ;; *) {relative} ;; esac")
    others = _complain(f"{said} belongs to another user:", '" $kochi_place"')
    everybody = _complain(f"{said} cannot be used: everybody may write to", '" $kochi_place"')
    group = _complain(f"{said} cannot be used: its group may write to", '" $kochi_place"')
    return "\n".join([*lines, _EXAMINED.format(others=others, everybody=everybody, group=group)])


def to_work_directory(machine: Machine) -> str:
    """Bash that goes to the machine's `work_dir`, or says that it cannot and exits with
    NOT_SET_UP."""
    assert machine.work_dir is not None
    at = f"machines: {machine.name}: work_dir"
    lines = _require_variables(machine.work_dir, at, "")
    said = f"kochi: {at}: {machine.work_dir} is no directory on the login host"
    # A relative path must not be looked up in $CDPATH.
    complaint = _complain(said, hint="")
    lines.append(f"CDPATH= cd -- {_expanded(machine.work_dir)} 2> /dev/null || {complaint}")
    return "\n".join(lines)


def _require_variables(text: str, at: str, hint: str = CORRECT_ROOT) -> list[str]:
    said = "kochi: {} has ${}, which is not set on the login host"
    return [
        f'[ -n "${{{name}+set}}" ] || {_complain(said.format(at, name), hint=hint)}'
        for name in _variables(text)
    ]


def _variables(text: str) -> list[str]:
    return [part.strip("${}") for part in _PARTS.split(text)[1::2] if part.startswith("$")]


def _expanded(text: str) -> str:
    """A path as a word of bash that expands `~` and variables, and nothing else."""
    texts = _PARTS.split(text)
    parts = [shlex.quote(part) if part else "" for part in texts]
    parts[1::2] = [part if part.startswith("~") else f'"{part}"' for part in texts[1::2]]
    return "".join(parts)


def _complain(said: str, rest: str = "", hint: str = CORRECT_ROOT) -> str:
    """`rest` and `hint` are words of bash."""
    return f"{{ printf '%s\\n' {shlex.quote(said)}{rest} {hint} >&2; exit {NOT_SET_UP}; }}"


def unfit(answer: subprocess.CompletedProcess[bytes], otherwise: str) -> RemoteError:
    """The error for a script that has failed there.

    It says what a text of this module, of `version` or of `setup` has said there with NOT_SET_UP;
    else that what `otherwise` names ended with a status, with the last lines.
    """
    lines = answer.stderr.decode(errors="replace").strip().splitlines()
    ours = [number for number, line in enumerate(lines) if line.startswith("kochi: ")]
    if answer.returncode == NOT_SET_UP and ours:
        message, *hints = lines[ours[-1] :]
        return RemoteError(message.removeprefix("kochi: "), "\n".join(hints) or None)
    last = "".join(f"\n  {line}" for line in lines[-5:])
    return RemoteError(f"{otherwise} ended with status {answer.returncode}{last}")
