"""Keeps the artifacts of users' own rules: a record, the journal, a commit.

A thread does so when a job has ended, because Snakemake must not wait for it: it reads inputs and
runs git. Before that, a job is noted, so that a later process can keep its artifacts if this one is
killed:

.snakemake/kochi/<machine>/own-jobs/<run>.jsonl
    {"version", "freeze": the file with the code of the run, "pid", "start", "node"}
    an OwnJob per line
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from snakemake_kochi.own_rules.record import Digests, Ending, OwnJob, make_record
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import Freeze, load_freeze
from snakemake_kochi.phases.keep import commit_journal
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.processes import Node, ProcessIdentity, this_node

VERSION = 1


class Keeper:
    """Keeps the artifacts of the jobs of one run in one working directory."""

    def __init__(self, freeze: Freeze, directory: Path) -> None:
        self.working = WorkingPaths(directory, freeze.machine_name)
        self._freeze = freeze
        self._digests = Digests()
        self._notes = self.working.own_jobs / f"{os.getpid()}-{random_word()}.jsonl"
        self._ended: queue.SimpleQueue[tuple[OwnJob, Ending] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_whole = True
        self._promise = ExitStack()

    def promise(self) -> None:
        """Promise that `finish` is called: until then, this run is alive for `kochi clean`."""
        promise = promise_to_commit(self._freeze.paths, self.working.machine)
        self._promise.enter_context(promise)

    def begin(self, job: OwnJob) -> None:
        """Note a job that begins. Raises OSError."""
        is_new = not self._notes.exists()
        if is_new:
            note_directory(self._freeze.paths, self.working.machine, self.working.directory)
            make_directory(self._notes.parent)
        with self._notes.open("a", encoding="utf-8", errors="surrogateescape") as notes:
            if is_new:
                notes.write(f"{json.dumps(_header(self._freeze))}\n")
            notes.write(f"{json.dumps(job.to_dict())}\n")

    def end(self, job: OwnJob, ending: Ending) -> None:
        """Have the thread keep the artifacts of a job that has succeeded.

        Without a thread, they are kept before this returns.
        """
        if self._thread is None:
            # A daemon: at the end of the process, `finish` waits for it.
            thread = threading.Thread(target=self._work, name="kochi-own-rules", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, or there are too many threads
                self.keep(job, ending)
                return
            self._thread = thread
        self._ended.put((job, ending))

    def finish(self) -> None:
        """Keep what is left, commit it, and forget the notes."""
        if self._thread is not None:
            self._ended.put(None)
            self._thread.join()
        if self._is_whole:
            self._notes.unlink(missing_ok=True)
        self._promise.close()
        freeze = self._freeze
        large = freeze.project.large_files
        commit_journal(freeze.directory, freeze.paths, freeze.machine_name, large)
        if self._thread is not None:
            # Ctrl-C may have ended git while it published the code for an earlier commit.
            with suppress(KochiError, OSError, KeyboardInterrupt):
                code = {"snapshot": asdict(freeze.snapshot)}
                publish_code(freeze.directory, freeze.paths, [code])

    def keep(self, job: OwnJob, ending: Ending) -> None:
        """Journal the artifacts of a job and write its record, unless that was done.

        A file that has changed is named and not kept; one that cannot be read or journaled now is
        kept by a later run.
        """
        freeze = self._freeze
        file = self.working.own_record(digest_of(list(job.artifacts)))
        try:
            # A link may lead to any file of this computer.
            self._check_links(job)
            record = make_record(freeze, self.working.directory, job, ending, self._digests)
            if _identity_in(file) == record["identity"]:
                return
            files = {path: self.working.directory / path for path in job.artifacts}
            result, large = Result(record["identity"], files, record), freeze.project.large_files
            journal(freeze.paths, freeze.machine_name, result, freeze.directory, large)
            make_directory(file.parent)
            write_atomically(file, to_json(record))
        except (OSError, GitError) as error:
            self._is_whole = False
            _say(f"not kept yet: {error}\nThe next run of snakemake here tries again.")
        except KochiError as error:
            _say(f"not kept: {error}")

    def _check_links(self, job: OwnJob) -> None:
        allowed = (self.working.directory, self._freeze.directory, self._freeze.root.directory)
        for path in job.artifacts:
            real = (self.working.directory / path).resolve()
            if not any(real.is_relative_to(place.resolve()) for place in allowed):
                raise KochiError(
                    f"{path} (rule {job.rule}) is a link to {real}, which is neither in the "
                    "project nor in KOCHI_ROOT",
                    "If its content is the result, let the rule copy it.",
                )

    def _work(self) -> None:
        try:
            while (ended := self._ended.get()) is not None:
                self.keep(*ended)
                if self._ended.empty():
                    self._commit_if_due()
        except BaseException:
            self._is_whole = False  # so the notes stay
            raise

    def _commit_if_due(self) -> None:
        freeze = self._freeze
        if is_commit_due(freeze.paths, freeze.machine_name):
            with suppress(KochiError, OSError):  # at the end once more, with a message
                from snakemake_kochi.artifacts.committer import commit_in_burst

                commit_in_burst(freeze.directory, freeze.paths, freeze.machine_name)


def keep_left(directory: Path, ending_of: Callable[[OwnJob], Ending | None]) -> None:
    """Keep what killed processes have left in a working directory, and commit it.

    `ending_of` tells how a job ended; None if it has not, or has been changed since.
    """
    for notes in sorted(WorkingPaths.all_own_jobs(directory)):
        try:
            header, jobs = _read(notes)
            keeper = Keeper(load_freeze(Path(header["freeze"])), directory)
        except (KochiError, OSError, KeyError, TypeError, ValueError) as error:
            # It is empty for a moment, or for ever on a disk that was full.
            if is_there(notes) and notes.stat().st_size:
                _say(f"{notes}: outputs of a killed run are not kept: {error}\nRemove this file.")
            continue
        for job in jobs:
            if (ending := ending_of(job)) is not None:
                keeper.keep(job, ending)
        if keeper._is_whole and _is_dead(header):
            notes.unlink(missing_ok=True)
        if pending(keeper._freeze.paths, keeper.working.machine):
            keeper.finish()


def _header(freeze: Freeze) -> dict[str, Any]:
    process = ProcessIdentity.of(os.getpid())
    own = {} if process is None else asdict(process)
    return {"version": VERSION, "freeze": str(freeze.file), **own, "node": asdict(this_node())}


def _read(notes: Path) -> tuple[dict[str, Any], list[OwnJob]]:
    """Raises OSError, and ValueError, KeyError and TypeError for a file that is not ours."""
    first, *lines = notes.read_text("utf-8", "surrogateescape").split("\n")
    header = json.loads(first)
    if header["version"] > VERSION:
        raise ValueError("written by a newer snakemake_kochi")
    return header, list(_jobs(lines))


def _jobs(lines: list[str]) -> Iterator[OwnJob]:
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # the last line of a killed process
            yield OwnJob.from_dict(json.loads(line))


def _is_dead(header: dict[str, Any]) -> bool:
    """Whether the process of notes certainly exists no more."""
    with suppress(KeyError, TypeError, ValueError):
        node, here = Node.from_dict(header["node"]), this_node()
        if here.has_rebooted_since(node):
            return True
        return here.can_see(node) and not ProcessIdentity.from_dict(header).is_alive()
    return False


def _identity_in(file: Path) -> str:
    with suppress(OSError, DamagedFileError):
        return str(read_json(file).get("identity"))
    return ""


def _say(text: str) -> None:
    print(f"kochi: {text}", file=sys.stderr)
