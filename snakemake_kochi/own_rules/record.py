"""The record of a job of a user's own rule: what is known when it begins and when it has ended."""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.attempts import earlier_attempts
from snakemake_kochi.artifacts.record import RECORD_VERSION, new_identity
from snakemake_kochi.confidential import (
    LEFT_OUT,
    is_secret_path,
    is_secret_variable,
    without_secrets,
)
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import answered, is_name, safe_name
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.node import hardware, system
from snakemake_kochi.phases.products import digest_of

# Bytes; of a larger input the record has only the size: reading it would take longer than many
# jobs.
LARGEST_HASHED = 100 << 20
_LONGEST = 4000  # characters of one of a rule's params in a record


@dataclass(frozen=True)
class OwnJob:
    """A job of a user's own rule, described when it begins, without what suggests secrets.

    `command` is the text of the shell command, or the kind of the rule with a file
    ("script: count.py", "run: Snakefile"). `params` are texts, those without a name under their
    position; `params_digest` is that of the whole values. All paths are relative to the working
    directory, or absolute. `artifacts` are the outputs to keep; `begun` is in seconds since 1970.
    """

    rule: str
    command: str
    wildcards: Mapping[str, str]
    params: Mapping[str, str]
    params_digest: str
    inputs: tuple[str, ...]
    log: tuple[str, ...]
    artifacts: tuple[str, ...]
    begun: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OwnJob:
        """Raises KeyError, TypeError and ValueError."""
        return cls(
            rule=str(data["rule"]),
            command=str(data["command"]),
            wildcards=dict(data["wildcards"]),
            params=dict(data["params"]),
            params_digest=str(data["params_digest"]),
            inputs=tuple(map(str, data["inputs"])),
            log=tuple(map(str, data["log"])),
            artifacts=tuple(map(str, data["artifacts"])),
            begun=float(data["begun"]),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Ending:
    """How a job ended, according to Snakemake's metadata.

    `ended` has the time of each artifact after the job, in seconds since 1970; it is empty where
    Snakemake keeps no metadata. `checksums` are those of inputs ("sha256:..." or only the digits).
    `worker` are keys of the record that the executor of the job knows, such as "node"; "started"
    and "ended" among them are more exact.
    """

    ended: Mapping[str, float] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)


def shown_command(command: str) -> str:
    """A command without lines that suggest secrets."""
    return "\n".join(without_secrets(command.strip().split("\n")))


def shown_params(params: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The params of a job as texts, and their digest; those that suggest secrets are in neither."""
    texts = {name: str(value) for name, value in params.items()}
    secret = {name for name, text in texts.items() if is_secret_variable(name, text)}
    digest = digest_of({name: text for name, text in texts.items() if name not in secret})
    shown = {name: LEFT_OUT if name in secret else _cut(text) for name, text in texts.items()}
    return shown, digest


def _cut(text: str) -> str:
    rest = len(text) - _LONGEST
    return f"{text[:_LONGEST]} [and {rest} more characters]" if rest > 0 else text


class Digests:
    """The SHA-256 of files. A file that many jobs read is read once, as long as it is the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    def input(self, directory: Path, path: str, checksums: Mapping[str, str]) -> dict[str, Any]:
        """An input as its record describes it: "path", and where they are known "size" (bytes) and
        "sha256"."""
        described: dict[str, Any] = {"path": path}
        place = directory / path
        try:
            found = answered(partial(os.stat, place))
            if stat.S_ISREG(found.st_mode):
                described["size"] = found.st_size
                if found.st_size <= LARGEST_HASHED and not is_secret_path(path):
                    described["sha256"] = self.of(place, found)
        except OSError:
            # A temporary file is gone already. Snakemake has read it in time, if it is small.
            known = checksums.get(path, "").removeprefix("sha256:")
            if known and not is_secret_path(path):
                described["sha256"] = known
        return described

    def of(self, place: Path, found: os.stat_result) -> str:
        """The digest of a file in the state that `found` describes. Raises OSError."""
        key = (str(place), found.st_size, found.st_mtime_ns)
        if key not in self._known:
            with place.open("rb") as file:
                self._known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._known[key]


class ChangedError(KochiError):
    """An artifact is not any more what its job wrote."""


def make_record(
    freeze: Freeze, directory: Path, job: OwnJob, ending: Ending, digests: Digests
) -> dict[str, Any]:
    """The record (JSON) of a job that has succeeded in a working directory.

    It has the keys of the record of a run (`phases/record.py`), those of a batch empty, and "rule":
    `workflow/schemas/record.schema.json` describes them. Its identity depends only on what
    happened, so that a job has one record, whichever process makes it. Raises ChangedError and
    OSError.
    """
    artifacts, newest = [], 0
    for path in job.artifacts:
        place = directory / path
        try:
            found = answered(partial(os.stat, place))
            written = max(found.st_mtime, os.lstat(place).st_mtime)
        except FileNotFoundError:
            raise ChangedError(f"{path} is gone since its job (rule {job.rule})") from None
        if written != ending.ended.get(path, written):
            raise ChangedError(f"{path} was changed after its job (rule {job.rule})")
        digest = digests.of(place, found)
        described = {"type": "file", "dest": path, "src": path}
        artifacts.append({**described, "size": found.st_size, "sha256": digest})
        newest = max(newest, found.st_mtime_ns)
    inputs = [digests.input(directory, path, ending.checksums) for path in job.inputs]
    ended = max(newest / 1e9, *ending.ended.values()) if ending.ended else newest / 1e9
    # Not the beginning in the metadata: with executors for clusters it may be after the end.
    times = {"started": job.begun, "ended": ended}
    facts = {key: float(ending.worker.get(key, when)) for key, when in times.items()}
    # Not the executor's time: the main process may have been killed, and another one asks.
    moment = datetime.fromtimestamp(newest // 10**9, UTC)
    name = job.rule if is_name(job.rule) else safe_name(f"rule_{job.rule}")
    about = [str(directory), job.rule, list(job.artifacts), newest]
    node = str(ending.worker.get("node", ""))
    is_here = bool(node) and node == platform.node()
    return {
        "version": RECORD_VERSION,
        "identity": new_identity(name, moment, digest_of(about)),
        "outcome": "success",
        "reason": None,
        "experiment": "",
        "batch": "",
        "name": job.rule,
        "parameters": dict(job.wildcards),
        "duplicate": 0,
        "build_parameters": {},
        "run_parameters": {},
        "build_script": "",
        "run_script": "",
        "machine": freeze.machine_name,
        **_attempt(freeze, ending.worker),
        "cpus": None,
        "allocation": None,
        # Of another node nothing is known.
        "hardware": hardware() if is_here else None,
        "system": system(None) if is_here else None,
        "facts": {},
        "environment": {},
        "usage": None,
        "isolation": None,
        "launcher": None,
        "binding": None,
        "noise": None,
        "snapshot": {**asdict(freeze.snapshot), "diff": freeze.diff},
        "recipes": [],
        "build": "",
        "built": None,
        "run": digest_of([job.rule, job.command, job.params_digest, inputs]),
        "started": datetime.fromtimestamp(facts["started"], UTC).isoformat(),
        "ended": datetime.fromtimestamp(facts["ended"], UTC).isoformat(),
        "seconds": round(max(0.0, facts["ended"] - facts["started"]), 6),
        "environment_seconds": None,
        "exit_status": 0,
        "artifacts": artifacts,
        "rule": {
            "name": job.rule,
            "command": job.command,
            "params": dict(job.params),
            "params_digest": job.params_digest,
            "inputs": inputs,
            "log": list(job.log),
        },
    }


def _attempt(freeze: Freeze, worker: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of which only an executor knows the values."""
    keys = ("node", "worker", "queue", "job", "attempt", "nonce", "runner")
    known = {key: str(worker.get(key, "")) for key in keys}
    machine = freeze.paths.machine(freeze.machine_name)
    words = (known["queue"], known["job"], known["attempt"])
    return {**known, "earlier_attempts": earlier_attempts(machine, *words)}
