"""Checks with another process, here or on another node, which performs calls.

They communicate through files, each written once under a name that both know. `python -m
snakemake_kochi.doctor.peer DIRECTORY` is the other process, as a job of a worker.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.doctor.filesystem import (
    Sightings,
    claim_tickets,
    judge_claims,
    judge_sightings,
    judge_skew,
    make_tickets,
    read_versions,
    write_version,
    write_versions,
)
from snakemake_kochi.doctor.report import Finding, Report
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import read_json, to_json, write_atomically
from snakemake_kochi.locks.lock import Kind, LockBusyError, advice, hold
from snakemake_kochi.locks.settings import find_lock_settings
from snakemake_kochi.paths import MachinePaths, TrialPaths
from snakemake_kochi.processes import Node, this_node

_VERSION = 1
# Seconds. NFS may notice a new file only after a minute, with the default of acdirmax.
PATIENCE = 90.0
# Seconds within which another process sees that a lock is free.
_LOCK_PATIENCE = 0.3
_LONGEST_PAUSE = 0.05  # seconds
_ROUNDS = 5
_SLOW = 2.0  # seconds for a round trip


class SilenceError(KochiError):
    """The other side did not send the expected message, or the conversation is over."""


def _tell(trial: TrialPaths, name: str, **content: Any) -> None:
    write_atomically(trial.message(name), to_json({"version": _VERSION, **content}))


def _hear(trial: TrialPaths, name: str, patience: float = PATIENCE) -> dict[str, Any]:
    """Wait for a message. Raises SilenceError."""
    if not wait_until(lambda: _is_told(trial, name), patience, 0.001, _LONGEST_PAUSE):
        raise SilenceError(f"no answer from the other node within {patience:g} seconds")
    return read_json(trial.message(name), _VERSION)


def _is_told(trial: TrialPaths, name: str) -> bool:
    # Listed, as in the queue: NFS remembers for longer that a single name did not exist.
    try:
        return trial.message(name).name in os.listdir(trial.directory)
    except FileNotFoundError:
        raise SilenceError(
            f"directory {trial.directory} does not exist, or no longer",
            "Is KOCHI_ROOT the same directory on both nodes?",
        ) from None


class Peer:
    """The other process, for the examining one.

    `is_silent`: it did not answer a call, and will answer no other one.
    """

    def __init__(self, trial: TrialPaths) -> None:
        self.trial = trial
        self.is_silent = False
        self._numbers = count()

    @property
    def has_greeted(self) -> bool:
        """Whether it serves calls."""
        return _is_told(self.trial, "hello")

    def node(self) -> Node:
        """Its node. Raises SilenceError."""
        return Node.from_dict(_hear(self.trial, "hello")["node"])

    def begin(self, name: str, *arguments: Any) -> Callable[..., Any]:
        """Call a method of `Server`, "end" for its end; returns a function that returns its result.

        It raises KochiError for an error there, and SilenceError.
        """
        number = next(self._numbers)
        _tell(self.trial, f"call-{number}", method=name, arguments=arguments)
        return partial(self._result, number)

    def _result(self, number: int, patience: float = PATIENCE) -> Any:
        self.is_silent = True
        answer = _hear(self.trial, f"answer-{number}", patience)
        self.is_silent = False
        if "error" in answer:
            raise KochiError(answer["error"], answer["hint"])
        return answer["result"]

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of `Server`, see `begin`."""
        return self.begin(name, *arguments)()


class Server:
    """The methods that the examining process may call; arguments and results are of JSON."""

    def __init__(self, trial: TrialPaths) -> None:
        self._trial = trial
        self._held = contextlib.ExitStack()

    def serve(self) -> None:
        """Answer calls up to "end". Raises SilenceError when none comes any more."""
        with self._held:
            for number in count():
                call = _hear(self._trial, f"call-{number}")
                if call["method"] == "end":
                    return
                answer: dict[str, Any]
                try:
                    answer = {"result": getattr(self, call["method"])(*call["arguments"])}
                except (KochiError, OSError) as error:
                    found = Finding.of_error(error)
                    said = f"on {this_node().host}: {found.measured}"
                    answer = {"error": said, "hint": found.advice}
                _tell(self._trial, f"answer-{number}", **answer)

    def try_lock(self, path: str, kind: Kind) -> bool:
        return _try_lock(Path(path), kind)

    def hold(self, path: str, kind: Kind) -> None:
        self._held.enter_context(hold(Path(path), kind, patience=0))

    def release(self) -> None:
        self._held.close()

    def time(self) -> float:
        return time.time()

    def claim(self) -> int:
        """Rename the files of a directory, as the other side does; return how many."""
        os.listdir(self._trial.other_directory)
        _tell(self._trial, "claiming")
        return claim_tickets(self._trial, "there")

    def read(self) -> dict[str, Any]:
        """Read the replaced document; return the sightings."""
        _tell(self._trial, "reading")
        return asdict(read_versions(self._trial.document))

    def examine(
        self, name: str, machine: str, nonce: str, what: str, here: str
    ) -> list[dict[str, Any]]:
        """The findings of this node with a further peer; for the arguments see `examine`."""
        sent: list[Any] = []
        examine(Report(sent.append), MachinePaths(name, Path(machine)), nonce, what, here)
        return [asdict(each) for each in sent if isinstance(each, Finding)]


def _try_lock(path: Path, kind: Kind) -> bool:
    try:
        with hold(path, kind, patience=_LOCK_PATIENCE):
            return True
    except LockBusyError:
        return False


def examine(
    report: Report, machine: MachinePaths, nonce: str, what: str, here: str, if_hanging: str = ""
) -> None:
    """Examine, with a peer that serves in the machine's trial `nonce`, if it is on another node.

    `what` is the end of the names of the checks, `here` the name of this node in their sentences.
    """
    peer = Peer(machine.trial(nonce))
    node = peer.node()
    if this_node().can_see(node):
        said = f"not tested: a worker on this node ({node.host}) took the job"
        finding = Finding("warning", said, "End it, or use another queue.")
        report.check(what, None, lambda: finding)
    else:
        report.check(what, None, lambda: Finding("ok", f"a worker on {node.host} answers"))
        check = partial(report.check, patience=3 * PATIENCE)
        locks = find_lock_settings(machine).paths.directory
        lock = partial(_lock, peer, machine, nonce, node.host, here)
        check(f"lock {what}", locks, lock, if_hanging=if_hanging)
        for name, directory, measure in (
            ("visibility", machine.directory, partial(_visibility, peer)),
            ("claim", machine.directory, partial(_claim, peer, node.host)),
            ("clock", None, partial(_clock, peer, node.host, here)),
            ("rename", machine.directory, partial(_rename, peer, node.host)),
        ):
            if not peer.is_silent:
                check(f"{name} {what}", directory, measure)
    peer.begin("end")


def _lock(peer: Peer, machine: MachinePaths, nonce: str, host: str, here: str) -> Finding:
    settings = find_lock_settings(machine)
    trial, kind = settings.paths.trial(nonce), settings.kind
    ours, theirs = trial.lock("here"), trial.lock("there")
    admitted = []
    with hold(ours, kind, patience=0):
        if peer.call("try_lock", str(ours), kind):
            admitted.append(f"{host} got it while {here} held it")
    peer.call("hold", str(theirs), kind)
    if _try_lock(theirs, kind):
        admitted.append(f"{here} got it while {host} held it")
    peer.call("release")
    if admitted:
        # Reported at once: otherwise the next use of the machine would be refused.
        file = settings.machine.lock_settings
        then = f"{advice(kind)} After that, with no worker or run left: rm {file}"
        return Finding("failed", f"{kind}: {' and '.join(admitted)}", then)
    return Finding("ok", f"{kind}: {host} and {here} keep each other out")


def _visibility(peer: Peer) -> Finding:
    trips = [trip for trip, _ in _round_trips(peer)]
    said = f"a file and the answer to it took {min(trips):.3f} to {max(trips):.3f} s there and back"
    if max(trips) <= _SLOW:
        return Finding("ok", said)
    return Finding("note", said, f"Give Snakemake --latency-wait {int(max(trips)) + 1} or more.")


def _claim(peer: Peer, host: str) -> Finding:
    make_tickets(peer.trial)
    peer.call("time")  # it sees the files
    theirs = peer.begin("claim")
    _hear(peer.trial, "claiming")
    ours = claim_tickets(peer.trial, "here")
    count = theirs()
    return judge_claims(ours, count, os.listdir(peer.trial.other_directory), host)


def _clock(peer: Peer, host: str, here: str) -> Finding:
    # The duration of the answer is known only up to half of a round trip.
    shortest, skew = min(_round_trips(peer))
    return judge_skew(skew, shortest / 2, f"the clock of {host}", here)


def _round_trips(peer: Peer) -> list[tuple[float, float]]:
    """The seconds of each round trip, and by how many the other clock is ahead."""
    trips = []
    for _ in range(_ROUNDS):
        sent = time.time()
        answered = peer.call("time")
        received = time.time()
        trips.append((received - sent, answered - (sent + received) / 2))
    return trips


def _rename(peer: Peer, whose: str) -> Finding:
    document = peer.trial.document
    write_version(document)
    result = peer.begin("read")
    _hear(peer.trial, "reading")
    written = write_versions(document)
    return judge_sightings(Sightings(**result()), written, whose)


def examine_rename(trial: TrialPaths) -> Finding:
    """Examine rename with another process of this node."""
    if os.fork() == 0:
        try:
            Server(trial).serve()
        finally:
            os._exit(0)
    peer = Peer(trial)
    outcome = _rename(peer, "another process")
    peer.begin("end")
    return outcome


def main(directory: str) -> None:
    """The main program of a job; it exits with a message when it fails."""
    trial = TrialPaths(Path(directory))
    try:
        _tell(trial, "hello", node=asdict(this_node()))
        Server(trial).serve()
    except (KochiError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
