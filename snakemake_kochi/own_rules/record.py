"""The record of a job of a user's own rule, and its artifacts in the journal. All paths are
relative to the working directory, or absolute."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from snakemake.io import IOFile

from snakemake_kochi.artifacts.attempts import earlier_attempts
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.artifacts.record import RECORD_VERSION, new_identity, record_schema
from snakemake_kochi.confidential import (
    LEFT_OUT,
    is_secret_path,
    is_secret_variable,
    without_secrets,
)
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    answered,
    is_name,
    make_directory,
    read_json,
    safe_name,
    to_json,
    write_atomically,
)
from snakemake_kochi.own_rules.watch import Job, artifacts_of
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.node import hardware, system
from snakemake_kochi.phases.products import digest_of

# Bytes; of a larger input the record has only the size: reading it would take longer than many
# jobs.
LARGEST_HASHED = 100 << 20
_LONGEST = 4000  # characters of one of a rule's params in a record
_CLOCKS = 2.0  # seconds by which the clock of the filesystem may be behind ours
_EMPTY: Mapping[str, Any] = {"string": "", "integer": 0, "object": {}, "array": []}


# ---- when a job begins


def described(job: Any, directory: Path) -> dict[str, Any]:
    """One of Snakemake's jobs, without what suggests secrets: rule, command (the shell command, or
    "script: count.py", "run: Snakefile"), wildcards, params (texts; those without a name under
    their position), params_digest (of the whole values), inputs, log, artifacts (the outputs to
    keep), begun (seconds since 1970)."""
    named = {str(index): value for index, value in enumerate(job.params)}
    for name, (first, end) in job.params._get_names():
        for index in range(first, first + 1 if end is None else end):
            named.pop(str(index), None)
        named[name] = getattr(job.params, name)
    texts = {name: str(value) for name, value in named.items()}
    public = {name: text for name, text in texts.items() if not is_secret_variable(name, text)}
    shown = {name: LEFT_OUT if name not in public else _cut(text) for name, text in texts.items()}
    return {
        "rule": job.rule.name,
        "command": "\n".join(without_secrets(_command(job, directory).strip().split("\n"))),
        "wildcards": {name: str(value) for name, value in job.wildcards_dict.items()},
        "params": shown,
        "params_digest": digest_of(public),
        "inputs": list(_inputs(job)),
        "log": list(map(str, job.log)),
        "artifacts": artifacts_of(job.output),
        "begun": time.time(),
    }


def _cut(text: str) -> str:
    rest = len(text) - _LONGEST
    return text if rest <= 0 else f"{text[:_LONGEST]} [and {rest} more characters]"


def _command(job: Any, directory: Path) -> str:
    rule = job.rule
    if rule.shellcmd is not None:
        return str(job.shellcmd)
    for kind in ("script", "notebook", "wrapper", "template_engine", "cwl"):
        if (file := getattr(rule, kind, None)) is not None:
            return f"{kind}: {file}"
    file = str(rule.snakefile)
    return f"run: {os.path.relpath(file, directory)}" if os.path.isabs(file) else f"run: {file}"


def _inputs(job: Any) -> Iterator[str]:
    for file in job.input:
        flags = getattr(file, "flags", {})
        if flags.get("storage_object"):
            yield str(flags["storage_object"].query)
        elif not flags.get("pipe") and not flags.get("service"):
            yield str(flags.get("sourcecache_entry") or file)


# ---- when it has ended


def keep(freeze: Freeze, directory: Path, noted: Job, workflow: Any, job: Any) -> None:
    """Journal the artifacts of a job that was `noted`, and write its record, unless it did not
    succeed, or that was done.

    `job`: Snakemake's, if it is one of this process. Raises KochiError for artifacts that are not
    what the job wrote, and OSError and GitError if they cannot be read or journaled now.
    """
    # When outputs were written, and the checksums of inputs, as far as Snakemake's metadata says
    # so, which the user may have turned off.
    ended, checksums = dict[str, float](), dict[str, str]()
    workflow.persistence.deactivate_cache()  # it remembers that there was none before the job
    for output in noted["artifacts"]:
        if known := workflow.persistence.metadata(IOFile(output, rule=None)):
            if (when := known.get("endtime")) is not None:
                ended[output] = float(when)
            checksums.update(known.get("input_checksums") or {})
    # An earlier job may have metadata, too.
    recent = [when for when in ended.values() if when > noted["begun"] - _CLOCKS]
    if not (len(recent) == len(noted["artifacts"]) if job is None else workflow.dag.finished(job)):
        return
    files = {path: directory / path for path in noted["artifacts"]}
    allowed = [d.resolve() for d in (directory, freeze.directory, freeze.root.directory)]
    for path, file in files.items():
        # A link may lead to any file of this computer.
        if not any(file.resolve().is_relative_to(place) for place in allowed):
            raise KochiError(
                f"{path} (rule {noted['rule']}) is a link to {file.resolve()}, which is neither "
                "in the project nor in KOCHI_ROOT",
                "If its content is the result, let the rule copy it.",
            )
    worker = dict(getattr(job, "kochi_result", None) or {})  # of our executor
    if not worker and job is not None:  # or of one on this node
        is_here = job.is_local or workflow.executor_plugin.common_settings.local_exec
        worker = {"node": platform.node()} if is_here else {}
    record = make_record(freeze, directory, noted, ended, checksums, worker)
    place = WorkingPaths(directory, freeze.machine_name).own_record(digest_of(list(files)))
    with suppress(OSError, DamagedFileError):
        if read_json(place).get("identity") == record["identity"]:
            return
    result, large = Result(record["identity"], files, record), freeze.project.large_files
    journal(freeze.paths, freeze.machine_name, result, freeze.directory, large)
    make_directory(place.parent)
    write_atomically(place, to_json(record))


def make_record(
    freeze: Freeze,
    directory: Path,
    job: Job,
    written: Mapping[str, float],
    checksums: Mapping[str, str],
    worker: Mapping[str, Any],
) -> dict[str, Any]:
    """The record (JSON) of a job that has succeeded in a working directory.

    It has the keys of the record of a run, those of a batch empty, and "rule":
    `workflow/schemas/record.schema.yaml` describes them. Its identity depends only on what
    happened, so that a job has one record, whichever process makes it. `worker`: keys of the record
    that the executor of the job knows. Raises KochiError for an artifact that is not any more what
    its job wrote, and OSError.
    """
    name = str(job["rule"])
    artifacts, newest = _artifacts(directory, job, written)
    inputs = [_input(directory, path, checksums) for path in job["inputs"]]
    # Not the beginning in the metadata: with executors for clusters it may be after the end.
    known_times = {"started": job["begun"], "ended": max([newest / 1e9, *written.values()])}
    started, ended = (float(worker.get(key) or when) for key, when in known_times.items())
    # Not the executor's time: the main process may have been killed, and another one asks.
    moment = datetime.fromtimestamp(newest // 10**9, UTC)
    about = [str(directory), name, list(job["artifacts"]), newest]
    label = name if is_name(name) else safe_name(f"rule_{name}")
    told = ("node", "worker", "queue", "job", "attempt", "nonce", "runner")
    known = {key: str(worker.get(key, "")) for key in told}
    attempt = (known["queue"], known["job"], known["attempt"])
    # Of another node nothing is known.
    is_here = known["node"] == platform.node() != ""
    schema = record_schema()
    types = {key: schema["properties"][key].get("type", "null") for key in schema["required"]}
    return {
        # The keys that every record has, without a value.
        **{k: None if "null" in each else _EMPTY.get(str(each), 0) for k, each in types.items()},
        **known,
        "version": RECORD_VERSION,
        "identity": new_identity(label, moment, digest_of(about)),
        "outcome": "success",
        "name": name,
        "parameters": dict(job["wildcards"]),
        "machine": freeze.machine_name,
        "earlier_attempts": earlier_attempts(freeze.paths.machine(freeze.machine_name), *attempt),
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


@lru_cache(10_000)
def _sha256(file: Path, size: int, modified: int) -> str:
    """A file that many jobs read is read once, as long as it is the same."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _read(file: Path, largest: float) -> tuple[os.stat_result, str]:
    """The status of a file, and the SHA-256 of a regular one that is not too large. Raises
    OSError."""
    status = answered(partial(os.stat, file))
    if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
        return status, ""
    return status, _sha256(file, status.st_size, status.st_mtime_ns)


def _input(directory: Path, path: str, checksums: Mapping[str, str]) -> dict[str, Any]:
    """An input as its record describes it: "path", and where they are known "size" (bytes) and
    "sha256"."""
    described: dict[str, Any] = {"path": path}
    try:
        status, digest = _read(directory / path, 0 if is_secret_path(path) else LARGEST_HASHED)
        if stat.S_ISREG(status.st_mode):
            described["size"] = status.st_size
    except OSError:
        # A temporary file is gone already. Snakemake has read it in time, if it is small.
        digest = checksums.get(path, "").removeprefix("sha256:")
    return described | ({"sha256": digest} if digest and not is_secret_path(path) else {})


def _artifacts(
    directory: Path, job: Job, ended: Mapping[str, float]
) -> tuple[list[dict[str, Any]], int]:
    """The artifacts of a job as its record describes them, and when the last was written, in
    nanoseconds. Raises KochiError for one that has changed since, and OSError."""
    found, newest = [], 0
    for path in job["artifacts"]:
        try:
            status, digest = _read(directory / path, math.inf)
            written = max(status.st_mtime, os.lstat(directory / path).st_mtime)
        except FileNotFoundError:
            raise KochiError(f"{path} is gone since its job (rule {job['rule']})") from None
        if written != ended.get(path, written):
            raise KochiError(f"{path} was changed after its job (rule {job['rule']})")
        own = {"type": "file", "dest": path, "src": path, "size": status.st_size}
        found.append({**own, "sha256": digest or None})
        newest = max(newest, status.st_mtime_ns)
    return found, newest
