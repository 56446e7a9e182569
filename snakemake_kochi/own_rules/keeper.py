"""Keeps the artifacts of users' own rules: a record, the journal, a commit.

A thread does so when a job has ended, because Snakemake must not wait for it: it reads inputs and
runs git. Before that, a job is noted, so that a later process can keep its artifacts if this one is
killed:

.snakemake/kochi/<machine>/own-jobs/<run>.jsonl
    {"version", "freeze": the file with the code of the run, "process": `processes.this_process`}
    a job per line (`record.py`)

The process of a run has a lock on its notes (flock), which not every filesystem shows to others:
notes are removed only where their process is certainly dead. Kept twice, a result is the same.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from snakemake_kochi.artifacts.agreement import note_directory
from snakemake_kochi.artifacts.code import publish_code
from snakemake_kochi.artifacts.journal import Result, is_commit_due, journal, pending
from snakemake_kochi.artifacts.promises import promise_to_commit
from snakemake_kochi.errors import DamagedFileError, GitError, KochiError
from snakemake_kochi.files import (
    is_there,
    make_directory,
    random_word,
    read_json,
    to_json,
    write_atomically,
)
from snakemake_kochi.own_rules.record import Digests, Ending, Job, make_record
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import Freeze, load_freeze
from snakemake_kochi.phases.keep import commit_journal
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.processes import is_dead, this_process

VERSION = 1


class Keeper:
    """Keeps the artifacts of the jobs of one run in one working directory."""

    def __init__(self, freeze: Freeze, directory: Path) -> None:
        self.working = WorkingPaths(directory, freeze.machine_name)
        self._freeze = freeze
        self._digests = Digests(directory)
        self._notes: IO[str] | None = None
        self._thread = ThreadPoolExecutor(1, "kochi-own-rules")
        self._is_whole = True
        self._promise = ExitStack()

    def promise(self) -> None:
        """Promise that `finish` is called: until then, this run is alive for `kochi clean`."""
        promise = promise_to_commit(self._freeze.paths, self.working.machine)
        self._promise.enter_context(promise)

    def begin(self, job: Job) -> None:
        """Note a job that begins. Raises OSError."""
        if self._notes is None:
            note_directory(self._freeze.paths, self.working.machine, self.working.directory)
            make_directory(self.working.own_jobs)
            file = self.working.own_jobs / f"{os.getpid()}-{random_word()}.jsonl"
            self._notes = file.open("x", encoding="utf-8", errors="surrogateescape")
            with suppress(OSError):  # not every filesystem has locks
                fcntl.flock(self._notes, fcntl.LOCK_EX)
            header = {"freeze": str(self._freeze.file), "process": this_process()}
            print(json.dumps({"version": VERSION, **header}), file=self._notes)
        print(json.dumps(job), file=self._notes, flush=True)

    def end(self, job: Job, ending: Ending) -> None:
        """Have the thread keep the artifacts of a job that has succeeded."""
        try:
            self._thread.submit(self.keep, job, ending)
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            self.keep(job, ending)

    def finish(self) -> None:
        """Keep what is left, commit it, and forget the notes."""
        self._thread.shutdown()
        if self._notes is not None and self._is_whole:
            Path(self._notes.name).unlink(missing_ok=True)
        self._promise.close()
        freeze = self._freeze
        large = freeze.project.large_files
        commit_journal(freeze.directory, freeze.paths, freeze.machine_name, large)
        # Ctrl-C may have ended git while it published the code for an earlier commit.
        with suppress(KochiError, OSError, KeyboardInterrupt):
            publish_code(freeze.directory, freeze.paths, [{"snapshot": asdict(freeze.snapshot)}])

    def keep(self, job: Job, ending: Ending) -> None:
        """Journal the artifacts of a job and write its record, unless that was done, and commit
        the journal if that is due.

        A file that has changed is named and not kept; one that cannot be read or journaled now is
        kept by a later run.
        """
        was_whole, self._is_whole = self._is_whole, False
        try:
            self._keep(job, ending)
        except (OSError, GitError) as error:
            _say(f"not kept yet: {error}\nThe next run of snakemake here tries again.")
            return
        except KochiError as error:
            _say(f"not kept: {error}")
        self._is_whole = was_whole
        freeze = self._freeze
        if is_commit_due(freeze.paths, freeze.machine_name):
            from snakemake_kochi.artifacts.committer import commit_in_burst

            with suppress(KochiError, OSError):  # at the end once more, with a message
                commit_in_burst(freeze.directory, freeze.paths, freeze.machine_name)

    def _keep(self, job: Job, ending: Ending) -> None:
        freeze, directory = self._freeze, self.working.directory
        files = {path: directory / path for path in job["artifacts"]}
        allowed = [d.resolve() for d in (directory, freeze.directory, freeze.root.directory)]
        for path, file in files.items():
            # A link may lead to any file of this computer.
            if not any(file.resolve().is_relative_to(place) for place in allowed):
                raise KochiError(
                    f"{path} (rule {job['rule']}) is a link to {file.resolve()}, which is neither "
                    "in the project nor in KOCHI_ROOT",
                    "If its content is the result, let the rule copy it.",
                )
        record = make_record(freeze, directory, job, ending, self._digests)
        kept = self.working.own_record(digest_of(list(files)))
        if _identity_in(kept) != record["identity"]:
            result, large = Result(record["identity"], files, record), freeze.project.large_files
            journal(freeze.paths, freeze.machine_name, result, freeze.directory, large)
            make_directory(kept.parent)
            write_atomically(kept, to_json(record))


def keep_left(directory: Path, ending_of: Callable[[Job], Ending | None]) -> None:
    """Keep what killed processes have left in a working directory, and commit it.

    `ending_of` tells how a job ended; None if it has not, or has been changed since.
    """
    for notes in sorted(WorkingPaths.all_own_jobs(directory)):
        try:
            with notes.open("r+", encoding="utf-8", errors="surrogateescape") as lines:
                with suppress(OSError):  # see above
                    try:
                        fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue  # its run is alive
                _keep_noted(directory, notes, lines, ending_of)
        except (KochiError, OSError, KeyError, TypeError, ValueError) as error:
            # It is empty for a moment, or for ever on a disk that was full.
            if is_there(notes) and notes.stat().st_size:
                _say(f"{notes}: outputs of a killed run are not kept: {error}\nRemove this file.")


def _keep_noted(
    directory: Path, notes: Path, lines: IO[str], ending_of: Callable[[Job], Ending | None]
) -> None:
    """Raises OSError, and ValueError, KeyError and TypeError for a file that is not ours."""
    header = json.loads(lines.readline())
    if header["version"] > VERSION:
        raise ValueError("written by a newer snakemake_kochi")
    keeper = Keeper(load_freeze(Path(header["freeze"])), directory)
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # the last line of a killed process
            job = json.loads(line)
            if (ending := ending_of(job)) is not None:
                keeper.keep(job, ending)
    if keeper._is_whole and is_dead(header["process"]):
        notes.unlink(missing_ok=True)
    if pending(keeper._freeze.paths, keeper.working.machine):
        keeper.finish()


def _identity_in(file: Path) -> str:
    with suppress(OSError, DamagedFileError):
        return str(read_json(file).get("identity"))
    return ""


def _say(text: str) -> None:
    print(f"kochi: {text}", file=sys.stderr)
