"""Finished work whose builds or installations are gone, for example after KOCHI_ROOT was emptied.

If an input file is missing, Snakemake makes it, and then repeats every job with that input,
finished or not. So a finished job gets another input file with the same content, which no rule
makes.
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
    # How Snakemake lets a file stand for another when it compares the sets of input files.
    from snakemake.io import sourcecache_entry
except ImportError:  # then finished work is repeated when its inputs are made again
    sourcecache_entry = None

Digests = dict[str, str]


@dataclass(frozen=True)
class Kept:
    """The inputs of jobs, while one Snakefile is parsed; `workflow` is Snakemake's.

    `forgets`: files that stand for vanished installations and builds are deleted at the first
    question, so that Snakemake makes them again for jobs that need them.
    """

    workflow: Any = None
    forgets: bool = False
    _known: dict[str, bool] = field(default_factory=dict)
    _digests: dict[str, Digests | None] = field(default_factory=dict)

    def is_there(self, file: str) -> bool:
        """Whether a file existed at the first question."""
        if file not in self._known:
            if self.forgets:
                forget_if_gone(Path(file))
            self._known[file] = is_there(file)
        return self._known[file]

    def are_there(self, files: Iterable[str]) -> bool:
        return all(map(self.is_there, files))

    def input_files(self, files: Iterable[str], is_finished: Callable[[], bool]) -> list[str]:
        """These files; a finished job does without those that are gone."""
        wanted = list(files)
        if self.are_there(wanted) or sourcecache_entry is None or self.is_forced():
            return wanted
        if not is_finished():
            return wanted
        return [file if self.is_there(file) else _stand_in(file) for file in wanted]

    def made(self, build: str, installs: Iterable[str]) -> Digests | None:
        """The digests of a build and of the installations of some manifests, now or when they last
        existed: of installations by dependency, of the build by "".

        None where they are unknown or ambiguous: then what depends on a newer installation must be
        made first.
        """
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
        """Whether finished work must be repeated all the same (`--forceall`, `--forcerun`)."""
        settings = getattr(self.workflow, "dag_settings", None)
        names = ("forceall", "forcerun", "forcetargets")
        return any(getattr(settings, name, False) for name in names)


def _stand_in(file: str) -> str:
    beside = str(WorkingPaths.remembered(Path(file)))
    return sourcecache_entry(beside, file) if is_there(beside) else file


def forget_if_gone(file: Path) -> None:
    """Delete a manifest or a build file whose installations or build are gone."""
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
    """True also where it is not known now: nothing is repeated for that."""
    try:
        return all(map(is_there, directories))
    except OSError:
        return True
