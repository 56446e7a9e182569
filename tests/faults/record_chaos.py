"""A batch whose workers, runs, committers and controllers are killed, and its records afterwards.

Each run writes a random line to its artifact and to a list outside of the project. At the end, the
records and the files of the artifact branch are compared with these lists, point by point.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from faults.crowd import QUEUE, Chaos, Crowd
from support import git, write

from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.paths import Root
from snakemake_kochi.queue.views import find_job

PROGRAMS = {"snakemake_kochi.phases", "snakemake_kochi.worker.phase"}
BRANCH = "kochi_artifacts_local"
SNAKEFILE = """
    from snakemake_kochi import snakefile

    module kochi:
        snakefile: snakefile()
        config: config

    use rule * from kochi
    """
EXPERIMENT = """
    depends: []
    default_params: {n: 1}
    run:
      depend_params: [n]
      script: |
        echo "$KOCHI_PARAM_N $KOCHI_ATTEMPT_NONCE $(od -An -N8 -tx8 /dev/urandom)" > out.txt
        cat out.txt >> "LIST/$KOCHI_PARAM_N"
    batches:
      all:
        params: {n: POINTS}
        artifacts:
          - {type: file, src: out.txt, dest: "points/${n}.txt"}
    """


@dataclass(frozen=True)
class Outcome:
    """What happened. `problems` are sentences, none if each point has the record of one run."""

    seconds: float
    worker_deaths: int
    run_deaths: int
    controller_deaths: int
    executions: int
    problems: tuple[str, ...]


def run_record_chaos(
    directory: Path, points: int, kill_every: float, patience: float = 240.0
) -> Outcome:
    """Run the batch in an empty directory, kill one process each `kill_every` seconds, and compare.

    At most as many are killed as there are points: on a slow machine, no controller would live long
    enough to end. Raises TimeoutError.
    """
    project, environment = _project(directory, points)
    began = time.monotonic()
    crowd = Crowd(directory, Chaos(workers=2, cores=2))
    chance = random.Random(1)
    run_deaths, controller_deaths = 0, 0
    controller = _controller(project, environment)
    next_death = began + kill_every
    try:
        while controller.poll() != 0:
            now = time.monotonic()
            if now > began + patience:
                raise TimeoutError((directory / "said").read_text()[-4000:])
            if controller.poll() is not None:
                # Some jobs have failed as often as Snakemake retries, because their runs were
                # killed.
                controller = _controller(project, environment)
            elif now >= next_death and crowd.deaths + run_deaths + controller_deaths < points:
                victim = chance.choice(("worker", "run", "run", "run", "controller"))
                if victim == "worker":
                    crowd.kill_one()
                elif victim == "controller":
                    controller.kill()
                    controller.wait()
                    controller_deaths += 1
                elif run := _some_run(chance, directory):
                    run_deaths += _kill(run)
                next_death = time.monotonic() + kill_every
            time.sleep(0.02)
        crowd.stop()
    finally:
        crowd.end()
        if controller.poll() is None:
            controller.kill()
        controller.wait()
    with (directory / "said").open("ab") as said:
        subprocess.run(
            (sys.executable, "-m", "snakemake_kochi.cli", "artifact", "sync"),
            cwd=project,
            env=environment,
            check=False,  # there is no worktree of the results to merge into
            stdout=said,
            stderr=said,
        )
    paths = {number: directory / "ran" / str(number) for number in range(points)}
    lines = {n: path.read_text().splitlines() if path.exists() else [] for n, path in paths.items()}
    return Outcome(
        time.monotonic() - began,
        crowd.deaths,
        run_deaths,
        controller_deaths,
        sum(map(len, lines.values())),
        tuple(_problems(project, lines, controller_deaths)),
    )


def _project(directory: Path, points: int) -> tuple[Path, dict[str, str]]:
    project = directory / "project"
    write(project / "kochi.yaml", "{}\n")
    text = EXPERIMENT.replace("POINTS", str([*range(points)])).replace("LIST", f"{directory}/ran")
    write(project / "points.yaml", text)
    write(project / "Snakefile", SNAKEFILE)
    write(project / ".gitignore", "/results/\n/.snakemake/\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "points")
    choose_name(project, "local", "local")
    (directory / "ran").mkdir()
    return project, {**os.environ, "KOCHI_ROOT": str(directory / "root")}


def _controller(project: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    options = ("--executor", "kochi", "--kochi-queue", QUEUE, "--jobs", "100", "--retries", "3")
    options += ("--nolock", "--rerun-incomplete")  # as in the profiles
    command = (sys.executable, "-m", "snakemake", *options, "--keep-going", "points_all")
    with (project.parent / "said").open("ab") as said:
        return subprocess.Popen(
            command,
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )


def _some_run(chance: random.Random, directory: Path) -> psutil.Process | None:
    """A process that executes the run phase, which also commits results.

    It is a Python of its own, or a copy of one that has imported the phases. Only a copy works in
    the directory of the job.
    """
    runs = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = set(process.cmdline())
            if words & PROGRAMS and process.cwd().startswith(str(directory)):
                runs.append(process)
    return chance.choice(runs) if runs else None


def _kill(process: psutil.Process) -> int:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.Error:
        return 0  # it has ended
    return 1


def _problems(project: Path, lines: dict[int, list[str]], controller_deaths: int) -> Iterator[str]:
    """The points without the record and the file of the run that counts, or with records of others.

    A run that was killed while it committed has a record, too, though its job has failed. A job may
    succeed twice if its controller was killed when Snakemake had touched its outputs and had not
    yet recorded its end: one job for each killed controller at most.
    """
    again = 0
    records: dict[int, list[dict[str, Any]]] = defaultdict(list)
    listed = git(project, "ls-tree", "-r", "--name-only", BRANCH).splitlines()
    paths = [path for path in listed if path.startswith("local/.kochi/records/")]
    for path in paths:
        record = json.loads(git(project, "show", f"{BRANCH}:{path}"))
        records[int(record["parameters"]["n"])].append(record)
    yield from (f"there is a record of point {n}, which never ran" for n in records.keys() - lines)
    machine = Root(project.parent / "root").machine("local")
    for number, ran in lines.items():
        wrote = {line.split()[1]: line for line in ran}
        found = sorted(records[number], key=lambda record: str(record["ended"]))
        nonces = [record["nonce"] for record in found]
        if len(set(nonces)) != len(nonces) or not wrote.keys() >= set(nonces):
            yield f"point {number} has the records of {nonces} and was executed by {[*wrote]}"
        results = (find_job(machine, record["job"]).result for record in found)
        ends = zip(found, results, strict=True)
        counting = [record["nonce"] for record, end in ends if end is not None and end.ok]
        again += len(counting) > 1
        if counting[-1:] != nonces[-1:] or not counting or len(counting) > 2:
            yield f"of point {number}, {counting} succeeded, and the records are of {nonces}"
            continue
        file = f"local/points/{number}.txt"
        if file not in listed:
            yield f"the file of point {number} is not in the branch"
            continue
        text, result = git(project, "show", f"{BRANCH}:{file}"), project / "results" / file
        if not text.rstrip("\n") == wrote[counting[-1]] == result.read_text().rstrip("\n"):
            yield f"{file} is {text!r}, its run wrote {wrote[counting[-1]]!r}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        if found[-1]["artifacts"][0]["sha256"] != digest:
            yield f"the record of point {number} describes another file"
    if again > controller_deaths:
        yield f"{again} points succeeded twice, but {controller_deaths} controllers were killed"
