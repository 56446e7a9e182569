"""What is published: the same facts for the crate, the citation file and the appendix."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from humanfriendly.text import pluralize

from snakemake_kochi.artifacts.branch_content import paths_in, records_directory, tip_of
from snakemake_kochi.artifacts.code import CODE
from snakemake_kochi.errors import KochiError
from snakemake_kochi.export.repository import About, about, browsable
from snakemake_kochi.export.selection import Run, Selection
from snakemake_kochi.git import FULL_IDENTITY, run_git

_SHORT = 12  # digits of an id
_MOST_NAMED = 3  # batches in a title
_SNAKEFILES = ("Snakefile", "snakefile", "workflow/Snakefile", "workflow/snakefile")


@dataclass(frozen=True)
class Code:
    """Files that a run used, at a commit of this repository; `directory` is that in the crate."""

    commit: str
    directory: str
    files: frozenset[str]


@dataclass(frozen=True)
class Recipe:
    """A recipe that runs used. `git` is an address, `commit` is of it; `source` is the name of its
    files in `Publication.code`, "" if they are elsewhere."""

    name: str
    digest: str
    git: str
    commit: str
    source: str


@dataclass(frozen=True)
class Publication:
    """The results to publish.

    `code` has the files of snapshots and of local sources of recipes by the id of their tree or
    commit, as far as this clone has them. `date` is ISO 8601, UTC.
    """

    title: str
    date: str
    about: About
    selection: Selection
    code: Mapping[str, Code]

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.selection.runs

    @property
    def newest(self) -> Run:
        """The newest run whose code is here, else the newest."""
        with_code = [run for run in self.runs if self.workflow_file(run)]
        return (with_code or self.runs)[-1]

    @property
    def without_code(self) -> list[Run]:
        """The runs whose code is not in this clone."""
        return [run for run in self.runs if run.tree not in self.code]

    @property
    def summary(self) -> str:
        """A sentence."""
        nodes = {(run.record["machine"], run.record["node"]) for run in self.runs}
        began, ended = self.period
        when = f"on {began}" if began == ended else f"from {began} to {ended}"
        failed = sum(not run.has_succeeded for run in self.runs)
        count = pluralize(len(self.runs), "run") + (f" ({failed} failed)" if failed else "")
        names = _batches(self.selection, len(self.runs))
        return f"{count} of {names}, on {pluralize(len(nodes), 'node')}, {when}."

    @property
    def period(self) -> tuple[str, str]:
        """The days on which the first run began and the last one ended."""
        return self.runs[0].record["started"][:10], max(r.record["ended"] for r in self.runs)[:10]

    def workflow_file(self, run: Run) -> str:
        """The path in the crate of a run's experiment, or of the Snakefile of an own rule.

        It is "" if the code of the run is not here or lacks the file.
        """
        if (code := self.code.get(str(run.configuration["tree"]))) is None:
            return ""
        some = [run.experiment] if run.experiment else [*_SNAKEFILES, *_rule_files(code)]
        found = next((path for path in some if path in code.files), "")
        return f"{code.directory}/{found}" if found else ""


def publication(repository: Path, selection: Selection) -> Publication:
    """Gather what is known of some results. Raises GitError."""
    code = _code(repository, selection.runs)
    commits = [_checked_out(repository, {run.name for run in selection.runs})]
    commits += [code[run.tree].commit for run in selection.runs[::-1] if run.tree in code]
    if not (commit := next(filter(None, commits), "")):
        raise KochiError(
            f"{repository} has no commit, and no code of these results",
            "To bring the code here, type: kochi artifact fetch",
        )
    facts = about(repository, commit)
    return Publication(
        title=f"{facts.title or facts.project}: results of {_batches(selection, _MOST_NAMED)}",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        about=facts,
        selection=selection,
        code=code,
    )


def recipes_of(record: Mapping[str, Any]) -> list[Recipe]:
    """The recipes of a run; an address has no password, and a directory of a computer is none."""
    found = []
    for each in record["recipes"]:
        source = part(each, "source")
        commit, tree = (source.get(key) or "" for key in ("commit", "tree"))
        known = [str(name) for name in (tree, commit) if FULL_IDENTITY.fullmatch(str(name))]
        found.append(
            Recipe(
                name=f"{each['dependency']}:{each['recipe']}",
                digest=str(each.get("digest", "")),
                git=browsable(str(source.get("git") or "")),
                commit=str(commit),
                source=known[0] if known else "",
            )
        )
    return found


def part(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping in a record, {} if it is not recorded."""
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def plain(text: str) -> str:
    """A text for UTF-8: names of files need not be it."""
    return text.encode("utf-8", "replace").decode()


def _rule_files(code: Code) -> list[str]:
    return sorted(path for path in code.files if path.endswith(".smk") and "/" not in path)


def batch_title(workflow: str, batch: str) -> str:
    """An experiment and a batch, or a rule, for people."""
    if workflow.startswith("rule "):
        return workflow
    stem = PurePosixPath(workflow).stem
    return f"{stem} {batch}" if batch else f"jobs of {stem}"


def _batches(selection: Selection, most: int) -> str:
    """The experiments and batches, for people."""
    names = [batch_title(workflow, batch) for workflow, batch in selection.batches]
    if len(names) <= most:
        return ", ".join(names)
    more = pluralize(len(names) - most, "more batch", "more batches")
    return f"{', '.join(names[:most])} and {more}"


def _checked_out(repository: Path, names: Collection[str]) -> str:
    """The commit that is checked out, "" if there is none or if it is one of results."""
    head = tip_of(repository, "HEAD")
    is_of_results = paths_in(repository, head, [records_directory(name) for name in names])
    return "" if is_of_results else head


def _code(repository: Path, runs: Iterable[Run]) -> dict[str, Code]:
    wanted: dict[str, None] = {}
    for run in runs:
        wanted |= dict.fromkeys((run.tree, str(run.configuration["tree"])))
        wanted |= dict.fromkeys(recipe.source for recipe in recipes_of(run.record))
    wanted.pop("", None)
    code = {}
    for name, commit in _published(repository, list(wanted)).items():
        files = run_git(repository, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
        code[name] = Code(
            commit,
            f"code/{name[:_SHORT]}",
            frozenset(os.fsdecode(path) for path in files.split(b"\0") if path),
        )
    return code


def _published(repository: Path, names: Sequence[str]) -> dict[str, str]:
    """The commits of the code that this repository has, by name."""
    words = ("for-each-ref", "--format=%(refname) %(objectname)", "--", f"{CODE}/")
    lines = (line.split(" ") for line in run_git(repository, *words).decode().splitlines())
    known = {ref.removeprefix(f"{CODE}/"): commit for ref, commit in lines}
    return {name: known[name] for name in names if name in known}
