"""Finished work whose builds or installations are gone, as after KOCHI_ROOT was emptied.

Where a rule needs a file that is missing, Snakemake has it made, and then runs all that has it as
input, finished or not. So what is finished gets another file in its place that says the same and
that no rule makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_there
from snakemake_kochi.library.names import Directories, is_manifest
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.products import read_build, read_manifest

try:
    # How Snakemake has a file stand for another when it compares the sets of input files.
    from snakemake.io import sourcecache_entry
except ImportError:  # then what is finished runs again when what it came from is made again
    sourcecache_entry = None

Digests = dict[str, str]


@dataclass(frozen=True)
class Kept:
    """What the inputs of jobs are, while one Snakefile is parsed; `workflow` is Snakemake's.

    `forgets`: files that stand for installations and builds that are no more are deleted when they
    are asked for first, so that Snakemake makes them again for what needs them.
    """

    workflow: Any = None
    forgets: bool = False
    _known: dict[str, bool] = field(default_factory=dict)
    _digests: dict[str, Digests | None] = field(default_factory=dict)

    def is_there(self, file: str) -> bool:
        """Whether a file was there when this was asked first."""
        if file not in self._known:
            if self.forgets:
                forget_if_gone(Path(file))
            self._known[file] = is_there(file)
        return self._known[file]

    def are_there(self, files: Iterable[str]) -> bool:
        return all(map(self.is_there, files))

    def input_files(self, files: Iterable[str], is_finished: Callable[[], bool]) -> list[str]:
        """These files, of which a finished job does without those that are gone."""
        wanted = list(files)
        if self.are_there(wanted) or sourcecache_entry is None or self.is_forced():
            return wanted
        if not is_finished():
            return wanted
        return [file if self.is_there(file) else _stand_in(file) for file in wanted]

    def made(self, build: str, installs: Iterable[str]) -> Digests | None:
        """What a build and the installations of some manifests are, or were when they were there
        last: the digests, of installations by dependency, of the build by "". None where that is
        not known, or not one thing: what depends on a newer installation is to be made yet."""
        together: Digests = {}
        for file in (build, *installs):
            if file not in self._digests:
                self._digests[file] = _digests(Path(file))
            digests = self._digests[file]
            if digests is None or any(together.get(n, d) != d for n, d in digests.items()):
                return None
            together |= digests
        return together

    def is_forced(self) -> bool:
        """Whether something finished is to run all the same (`--forceall`, `--forcerun`)."""
        settings = getattr(self.workflow, "dag_settings", None)
        names = ("forceall", "forcerun", "forcetargets")
        return any(getattr(settings, name, False) for name in names)


def _stand_in(file: str) -> str:
    beside = str(WorkingPaths.remembered(Path(file)))
    return sourcecache_entry(beside, file) if is_there(beside) else file


def forget_if_gone(file: Path) -> None:
    """Delete a manifest or a build file whose installations or build are no more."""
    with suppress(FileNotFoundError):
        with suppress(DamagedFileError):
            if _are_there(_directories(file)):
                return
        file.unlink(missing_ok=True)
        if is_manifest(file):
            Directories.activation_beside(file).unlink(missing_ok=True)


def _directories(file: Path) -> list[Path]:
    if is_manifest(file):
        return [Path(install.prefix) for install in read_manifest(file)]
    return [read_build(file).tree]


def _digests(file: Path) -> Digests | None:
    for each in (file, WorkingPaths.remembered(file)):
        with suppress(FileNotFoundError, DamagedFileError):
            if is_manifest(file):
                return {install.dependency: install.digest for install in read_manifest(each)}
            return {"": read_build(each).digest}
    return None


def _are_there(directories: Iterable[Path]) -> bool:
    """Also where it is not known now: nothing is made again for that."""
    try:
        return all(map(is_there, directories))
    except OSError:
        return True
