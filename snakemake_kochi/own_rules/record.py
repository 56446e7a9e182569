"""The record of a job of a user's own rule.

A job is described when it begins (a dict of JSON), without what suggests secrets:

    rule, command (the shell command, or "script: count.py", "run: Snakefile"), wildcards,
    params (texts; those without a name under their position), params_digest (of the whole values),
    inputs, log, artifacts (the outputs to keep), begun (seconds since 1970)

All paths are relative to the working directory, or absolute.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.attempts import earlier_attempts
from snakemake_kochi.artifacts.record import RECORD_VERSION, new_identity, record_schema
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
_EMPTY: Mapping[str, Any] = {"string": "", "integer": 0, "object": {}, "array": []}

Job = Mapping[str, Any]


@dataclass(frozen=True)
class Ending:
    """How a job ended, according to Snakemake's metadata.

    `ended` has the time of each artifact after the job, in seconds since 1970; it is empty where
    Snakemake keeps no metadata. `checksums` are those of inputs ("sha256:..." or only the digits).
    `worker` are keys of the record that the executor of the job knows, such as "node"; "started"
    and "ended" among them are more exact.
    """

    ended: dict[str, float] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    worker: dict[str, Any] = field(default_factory=dict)


def shown_command(command: str) -> str:
    """A command without lines that suggest secrets."""
    return "\n".join(without_secrets(command.strip().split("\n")))


def shown_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The params of a job as texts, and their digest; those that suggest secrets are in neither."""
    texts = {name: str(value) for name, value in params.items()}
    secret = {name for name, text in texts.items() if is_secret_variable(name, text)}
    public = {name: text for name, text in texts.items() if name not in secret}
    shown = {name: LEFT_OUT if name in secret else _cut(text) for name, text in texts.items()}
    return {"params": shown, "params_digest": digest_of(public)}


def _cut(text: str) -> str:
    rest = len(text) - _LONGEST
    return f"{text[:_LONGEST]} [and {rest} more characters]" if rest > 0 else text


class Digests:
    """The SHA-256 of files. A file that many jobs read is read once, as long as it is the same."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[tuple[str, int, int], str] = {}

    def of(self, path: str) -> tuple[os.stat_result, str | None]:
        """The state of a file and its digest; None for a secret or large input, or no file. Raises
        OSError."""
        place = self._directory / path
        status = answered(partial(os.stat, place))
        if not stat.S_ISREG(status.st_mode):
            return status, None
        key = (path, status.st_size, status.st_mtime_ns)
        if key not in self._known:
            with place.open("rb") as file:
                self._known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return status, self._known[key]

    def input(self, path: str, checksums: Mapping[str, str]) -> dict[str, Any]:
        """An input as its record describes it: "path", and where they are known "size" (bytes) and
        "sha256"."""
        described: dict[str, Any] = {"path": path}
        digest: str | None = None
        try:
            status = answered(partial(os.stat, self._directory / path))
            if stat.S_ISREG(status.st_mode):
                described["size"] = status.st_size
                if status.st_size <= LARGEST_HASHED and not is_secret_path(path):
                    _, digest = self.of(path)
        except OSError:
            # A temporary file is gone already. Snakemake has read it in time, if it is small.
            digest = checksums.get(path, "").removeprefix("sha256:")
        return described | ({"sha256": digest} if digest and not is_secret_path(path) else {})

    def artifacts(self, job: Job, ended: Mapping[str, float]) -> tuple[list[dict[str, Any]], int]:
        """The artifacts of a job as its record describes them, and when the last was written, in
        nanoseconds. Raises KochiError for one that has changed since, and OSError."""
        described, newest = [], 0
        for path in job["artifacts"]:
            try:
                status, digest = self.of(path)
                written = max(status.st_mtime, os.lstat(self._directory / path).st_mtime)
            except FileNotFoundError:
                why = "is gone since its job"
                raise KochiError(f"{path} {why} (rule {job['rule']})") from None
            if written != ended.get(path, written):
                raise KochiError(f"{path} was changed after its job (rule {job['rule']})")
            own = {"type": "file", "dest": path, "src": path, "size": status.st_size}
            described.append({**own, "sha256": digest})
            newest = max(newest, status.st_mtime_ns)
        return described, newest


def make_record(
    freeze: Freeze, directory: Path, job: Job, ending: Ending, digests: Digests
) -> dict[str, Any]:
    """The record (JSON) of a job that has succeeded in a working directory.

    It has the keys of the record of a run, those of a batch empty, and "rule":
    `workflow/schemas/record.schema.json` describes them. Its identity depends only on what
    happened, so that a job has one record, whichever process makes it. Raises KochiError for an
    artifact that is not any more what its job wrote, and OSError.
    """
    name, worker = str(job["rule"]), ending.worker
    artifacts, newest = digests.artifacts(job, ending.ended)
    inputs = [digests.input(path, ending.checksums) for path in job["inputs"]]
    # Not the beginning in the metadata: with executors for clusters it may be after the end.
    known_times = {"started": job["begun"], "ended": max([newest / 1e9, *ending.ended.values()])}
    started, ended = (float(worker.get(key) or when) for key, when in known_times.items())
    # Not the executor's time: the main process may have been killed, and another one asks.
    moment = datetime.fromtimestamp(newest // 10**9, UTC)
    about = [str(directory), name, list(job["artifacts"]), newest]
    label = name if is_name(name) else safe_name(f"rule_{name}")
    told = ("node", "worker", "queue", "job", "attempt", "nonce", "runner")
    known = {key: str(worker.get(key, "")) for key in told}
    machine = freeze.paths.machine(freeze.machine_name)
    # Of another node nothing is known.
    is_here = known["node"] == platform.node() != ""
    return {
        **_empty_record(),
        **known,
        "version": RECORD_VERSION,
        "identity": new_identity(label, moment, digest_of(about)),
        "outcome": "success",
        "name": name,
        "parameters": dict(job["wildcards"]),
        "machine": freeze.machine_name,
        "earlier_attempts": earlier_attempts(
            machine, known["queue"], known["job"], known["attempt"]
        ),
        "hardware": hardware() if is_here else None,
        "system": system(None) if is_here else None,
        "snapshot": {**asdict(freeze.snapshot), "diff": freeze.diff},
        "run": digest_of([name, job["command"], job["params_digest"], inputs]),
        "started": datetime.fromtimestamp(started, UTC).isoformat(),
        "ended": datetime.fromtimestamp(ended, UTC).isoformat(),
        "seconds": round(max(0.0, ended - started), 6),
        "exit_status": 0,
        "artifacts": artifacts,
        "rule": {
            "name": name,
            **{key: job[key] for key in ("command", "params", "params_digest", "log")},
            "inputs": inputs,
        },
    }


def _empty_record() -> dict[str, Any]:
    """The keys that every record has, without a value."""
    schema = record_schema()
    types: dict[str, str | Sequence[str]] = {
        key: schema["properties"][key].get("type", "null") for key in schema["required"]
    }
    return {
        key: None if "null" in each else _EMPTY.get(str(each), 0) for key, each in types.items()
    }
