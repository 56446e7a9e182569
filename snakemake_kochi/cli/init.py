"""`kochi init`: files that are written once, for the user to change."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import click

from snakemake_kochi.cli.output import say
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import OF_A_PERSON, edit_atomically, write_new
from snakemake_kochi.git import run_git
from snakemake_kochi.paths import Root
from snakemake_kochi.project.configuration import load_project, repository
from snakemake_kochi.project.document import read_text, read_yaml, section
from snakemake_kochi.snapshot import toplevel

SNAKEFILES = ("Snakefile", "snakefile", "workflow/Snakefile", "workflow/snakefile")
_MACHINES_ALONE = re.compile(r"machines:\s*(#.*)?\Z")
_IGNORED = ("results/", ".snakemake/")

_KOCHI_YAML = """\
# What this project depends on, and where it runs. All keys are optional.
#
# dependencies:
#   massivethreads:
#     git: https://github.com/massivethreads/massivethreads.git
#     script:
#       - ./configure --prefix=$KOCHI_INSTALL_PREFIX
#       - make -j
#       - make install
#     recipes:
#       - name: release
#         branch: master
#         envs:
#           CFLAGS: -O3
#       - name: develop          # a directory as it stands, uncommitted work included
#         mirror: true
#         mirror_dir: ../massivethreads
#
# machines:
#   local:
#     load_env_script:
#       - module load gcc
#   spica:                       # a cluster: snakemake --profile cluster
#     hosts: "login*.spica.org"  # its login nodes
#     scheduler: slurm           # for any other, an alloc_script
#     kochi_root: /shared/me/.kochi  # on a filesystem that all nodes see
#     allocation:
#       partition: short
#       time: 4:00:00
"""
_LINES = """\
from snakemake_kochi import snakefile


module kochi:
    snakefile:
        snakefile()
    config:
        config


use rule * from kochi
"""
_SNAKEFILE = (
    f"# The rules for kochi.yaml and the experiments: snakemake --list-target-rules\n{_LINES}"
)


@click.command()
@click.option(
    "--machine",
    is_flag=True,
    help="Also add the cluster of this login node to kochi.yaml, as its Slurm describes it. "
    "Outside of any repository, write it only to $KOCHI_ROOT/conf.yaml, which applies to all "
    "projects.",
)
@click.argument("directory", default=".", type=click.Path(path_type=Path))
def init_command(machine: bool, directory: Path) -> None:
    """Turn the git repository of DIRECTORY (by default the current one) into a project.

    Writes kochi.yaml, a Snakefile and lines of .gitignore if they are missing. Changes nothing
    else.
    """
    if not directory.is_dir():
        raise KochiError(
            f"{directory}: no such directory",
            f"To create it as a git repository, type: git init {directory}",
        )
    if machine and repository(directory) is None:
        root = Root.find()
        root.secure(root.directory)
        _add_machine(root.configuration)
        return
    top = toplevel(directory)
    if machine:
        # First: if the machine cannot be determined, no half-made project remains.
        _add_machine(top / "kochi.yaml")
    else:
        _write(top / "kochi.yaml", _KOCHI_YAML)
    existing = next((top / name for name in SNAKEFILES if (top / name).exists()), None)
    if existing is None:
        _write(top / "Snakefile", _SNAKEFILE)
    else:
        _keep_snakefile(existing)
    _ignore(top)
    say("Next, type for example:")
    say("  kochi batch EXPERIMENT.yaml")
    say("  snakemake --list-target-rules")
    say("  kochi artifact init " + shlex.quote(f"../{top.name}-artifacts"))


def _add_machine(file: Path) -> None:
    """Add the machine of this host's scheduler, unless kochi.yaml has it already."""
    from snakemake_kochi.schedulers.native import system_of_host

    text = read_text(file, str(file)) if file.exists() else ""
    found = system_of_host().describe_machine()
    if has_machine(file, text, found.machine):
        say(f"Kept {file}, which has the machine {found.machine}")
        return
    added = with_machine(file, text, found.machine, found.text)
    if added is None:
        say(f"Add these lines to {file}, below 'machines:':\n")
        say(textwrap.indent(found.text, "  "))
        return
    edit_atomically(file, added.encode())
    say(f"Added the machine {found.machine} to {file}")


def _write(path: Path, text: str) -> None:
    try:
        # It never overwrites a file that was written in the meantime.
        write_new(path, text.encode(), mode=OF_A_PERSON)
    except FileExistsError:
        say(f"Kept {path}")
    else:
        say(f"Wrote {path}")


def _keep_snakefile(path: Path) -> None:
    say(f"Kept {path}")
    if "snakemake_kochi" not in path.read_text("utf-8", "replace"):
        say("Add these lines to it for the rules of kochi.yaml and the experiments:\n")
        say(_LINES)


def _ignore(top: Path) -> None:
    missing = [
        pattern
        for pattern in _IGNORED
        if not run_git(top, "check-ignore", "--no-index", "--", f"{pattern}x", accept=(0, 1))
    ]
    path = top / ".gitignore"
    if not missing:
        return
    before = path.read_bytes() if path.exists() else b""
    separator = b"" if not before or before.endswith(b"\n") else b"\n"
    added = "".join(f"/{pattern}\n" for pattern in missing)
    edit_atomically(path, before + separator + added.encode())
    say(f"Added {' and '.join(missing)} to {path}")


def has_machine(file: Path, text: str, name: str) -> bool:
    """Whether a kochi.yaml has a machine of that name. Raises ConfigError for invalid YAML."""
    data = read_yaml(str(file), text).data
    return name in section(data, "machines") if isinstance(data, dict) else False


def with_machine(file: Path, text: str, name: str, entry: str) -> str | None:
    """The text of a kochi.yaml with a further entry of `machines:`.

    None if it cannot be written without changing existing text. Raises ConfigError for invalid
    YAML.
    """
    document = read_yaml(str(file), text)
    if not isinstance(document.data, dict):
        return None
    lines = text.splitlines(keepends=True)
    if "machines" not in document.data:
        gap = "\n" if text.strip() else ""
        end = "" if not text or text.endswith("\n") else "\n"
        added = f"{text}{end}{gap}machines:\n{textwrap.indent(entry, '  ')}"
    else:
        line = document.source_map.lines[("machines",)]
        if not _MACHINES_ALONE.match(lines[line - 1].rstrip("\n")):
            return None
        there = section(document.data, "machines")
        first = document.source_map.line(("machines", next(iter(there)))) if there else None
        before = re.match(" *", lines[first - 1]) if first is not None else None
        lines.insert(line, textwrap.indent(entry, before[0] if before is not None else "  "))
        added = "".join(lines)
    return added if _is_there(file, added, name) else None


def _is_there(file: Path, text: str, name: str) -> bool:
    try:
        return load_project(file.parent, text, file).machine(name).scheduler is not None
    except KochiError:
        return False
