"""The example, and an unrelated Snakefile: with `cluster` as with `local`."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from seen import list_jobs, list_workers
from slurm_cluster import SlurmCluster
from support import REPOSITORY, git, printed, run, write

from snakemake_kochi.paths import MachinePaths, Root

PROFILES = REPOSITORY / "profiles"
MACHINE = "machines: {own: {scheduler: slurm, allocation: {max_workers: 2}}}\n"
Call = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Side:
    """One of the two ways to run the same; `machine`: the files of its jobs and workers."""

    name: str
    directory: Path
    environment: Mapping[str, str]
    machine: MachinePaths

    def at(self, directory: Path) -> Side:
        return replace(self, directory=directory)

    def __call__(self, command: Call, *arguments: str) -> str:
        """Run it in the directory; returns its output."""
        done = command(*arguments, cwd=self.directory, env=self.environment)
        assert done.returncode == 0
        assert "Traceback" not in done.stdout
        return done.stdout

    def snakemake(self, call: Call, *arguments: str) -> str:
        return self(call, "--profile", str(PROFILES / self.name), *arguments)

    def succeeded_in_allocations(self) -> int:
        """The number of successful jobs, if all workers were in allocations."""
        workers = list_workers(self.machine)
        assert all(worker.allocation is not None for worker in workers)
        results = [view.result for view in list_jobs(self.machine, ended=True, limit=10_000)]
        return sum(result is not None and result.reason == "success" for result in results)


@pytest.fixture
def sides(tmp_path: Path, isolated_environment: Path, cluster: SlurmCluster) -> tuple[Side, Side]:
    """With `local`, and with `cluster`; their directories are empty."""
    root = Root(isolated_environment)
    there = {**cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
    here = {"KOCHI_DEFAULT_MACHINE": "local"}
    return (
        Side("local", tmp_path / "local", here, root.machine("local")),
        Side("cluster", tmp_path / "cluster", there, root.machine("own")),
    )


SNAKEFILE = """
    configfile: "config.yaml"

    localrules: all, overview

    wildcard_constraints:
        sample="[a-z]+",

    def parts_of(wildcards):
        count = config["samples"][wildcards.sample]
        return [f"parts/{wildcards.sample}.{n + 1}" for n in range(count)]

    def memory_of(wildcards, attempt):
        return 40 * attempt

    rule all:
        input:
            "overview.txt",
            expand("plain/{sample}.{letter}", sample=config["samples"], letter=["x", "y"]),

    rule part:
        input: "data/{sample}.txt"
        output: temp("parts/{sample}.{n}")
        log: "logs/part/{sample}.{n}.log"
        resources: mem_mb=memory_of, runtime=2
        shell: "(sed -n {wildcards.n}p {input}; echo {wildcards.n}) > {output} 2> {log}"

    rule count:
        input: parts_of
        output: "counts/{sample}.json"
        params: title=lambda wildcards: wildcards.sample.upper()
        threads: 2
        resources: mem_mb=80
        script: "scripts/count.py"

    rule sort:
        input: "counts/{sample}.json"
        output: temp("sorted/{sample}")
        group: "sorting"
        shell: "tr ',' '\\\\n' < {input} | sort > {output}"

    rule reverse:
        input: "sorted/{sample}"
        output: "reversed/{sample}"
        group: "sorting"
        shell: "tac {input} > {output}"

    rule plain:
        output: "plain/{sample}.{letter}"
        retries: 1
        resources: tries=lambda wildcards, attempt: attempt
        shell:
            "[ {resources.tries} = 2 ] && "
            "echo {wildcards.sample} {wildcards.letter} {threads} > {output}"

    rule merge:
        input: expand("reversed/{sample}", sample=config["samples"])
        output: directory("merged")
        run:
            from pathlib import Path

            Path(output[0]).mkdir()
            for each in input:
                text = Path(each).read_text()
                Path(output[0], Path(each).name).write_text(f"{threads} {text}")

    rule overview:
        input: "merged"
        output: "overview.txt"
        shell: "cat {input}/* > {output}; echo ${{SLURM_JOB_ID-none}} >> {output}"
"""
SCRIPT = """
    import json

    lines = [line for path in snakemake.input for line in open(path).read().split()]
    with open(snakemake.output[0], "w") as output:
        said = {"title": snakemake.params.title, "lines": lines, "threads": snakemake.threads}
        json.dump({**said, "memory": snakemake.resources.mem_mb}, output)
"""
# Parts of each sample; for each a script, a group and two plain ones; and a `run:`.
SAMPLES = {"a": 3, "c": 1}
FINISHED = sum(SAMPLES.values()) + len(SAMPLES) * (1 + 1 + 2) + 1


def write_plain(directory: Path) -> None:
    write(directory / "Snakefile", SNAKEFILE)
    write(directory / "scripts" / "count.py", SCRIPT)
    (directory / "config.yaml").write_text(json.dumps({"samples": SAMPLES}))
    for sample in SAMPLES:
        write(directory / "data" / f"{sample}.txt", f"{sample} one\n{sample} two\n")


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".snakemake" not in path.parts
    }


def test_an_unrelated_snakefile_makes_the_same_files_in_allocations(
    sides: tuple[Side, Side], isolated_environment: Path, cluster: SlurmCluster, snakemake: Call
) -> None:
    write(isolated_environment / "conf.yaml", MACHINE)
    for side in sides:
        write_plain(side.directory)
        side.snakemake(snakemake)
        assert "Nothing to be done" in side.snakemake(snakemake, "-n")
    local, there = sides
    expected = files_of(local.directory)
    assert files_of(there.directory) == expected
    assert expected["overview.txt"].endswith(b"none\n")
    assert expected["plain/a.x"] == b"a x 1\n"
    assert not [name for name in expected if name.startswith(("parts", "sorted"))]
    # Neither finds work in the other's directory.
    for side in sides:
        assert "Nothing to be done" in side.at(there.directory).snakemake(snakemake, "-n")
    assert there.succeeded_in_allocations() == FINISHED
    assert cluster.jobs() == {}


def prepare_example(side: Side, kochi: Call) -> Path:
    """As `make demo` does, with fewer and shorter runs; returns the project's directory."""
    run(str(REPOSITORY / "examples" / "prepare.sh"), str(side.directory), cwd=side.directory.parent)
    project = side.directory / "fib"
    with open(project / "kochi.yaml", "a") as configuration:
        configuration.write(MACHINE)
    change(project, "default_duplicates: 3", "default_duplicates: 1")
    change(project, "n_input: [34, 36]", "n_input: [20]")
    side.at(project)(kochi, "init")
    return project


def change(project: Path, old: str, new: str) -> None:
    experiment = project / "fib.yaml"
    text = experiment.read_text()
    assert old in text
    experiment.write_text(text.replace(old, new))


def read_batch(project: Path, machine: str) -> tuple[dict[str, list[str]], list[list[str]]]:
    """The parts that do not depend on the time and place of the run: the first line of each result,
    by its name, and the parameters and duplicates of the table."""
    top = project / "results" / machine / "fib"
    firsts = {
        path.name: (
            printed(path.read_text()) if path.suffix == ".log" else path.read_text()
        ).splitlines()[:1]
        for path in (top / "batch_test").iterdir()
        if path.suffix != ".stats"
    }
    rows = list(csv.DictReader(io.StringIO((top / "batch_test.csv").read_text())))
    return firsts, [[row[name] for name in ("n_input", "n_workers", "duplicate")] for row in rows]


def records(project: Path, branch: str) -> dict[str, dict[str, object]]:
    """The records of a branch, by the names of their files."""
    names = git(project, "ls-tree", "-r", "--name-only", branch).splitlines()
    return {
        name: json.loads(git(project, "show", f"{branch}:{name}"))
        for name in names
        if name.endswith(".json")
    }


def test_the_example_gives_the_same_batch_in_allocations_and_goes_on_with_kochi_batch(
    sides: tuple[Side, Side], cluster: SlurmCluster, snakemake: Call, kochi: Call
) -> None:
    batches = {}
    for side in sides:
        project = prepare_example(side, kochi)
        side.at(project).snakemake(snakemake, "fib_batch_test")
        batches[side.name] = read_batch(project, side.machine.name)
    assert batches["cluster"] == batches["local"]
    firsts, rows = batches["cluster"]
    assert firsts["n_20_w_4_0.log"] == ["fib(20) = 6765"]
    assert len(rows) == 3

    there = sides[1].at(project)
    change(project, "n_input: [20]", "n_input: [20, 22]")
    there(kochi, "batch", "fib.yaml", "batch_test")
    firsts, rows = read_batch(project, "own")
    assert firsts["n_22_w_1_0.log"] == ["fib(22) = 17711"]
    assert len(rows) == 6
    assert "Nothing to be done" in there.snakemake(snakemake, "-n", "fib_batch_test")
    # A build and runs, without an installation; the new runs. The tables are made here.
    assert there.succeeded_in_allocations() == (1 + 3) + 3
    workers = {worker.worker: worker for worker in list_workers(there.machine)}
    found = records(project, "kochi_artifacts_own")
    assert len(found) == 6
    for record in found.values():
        worker = workers[int(str(record["worker"]))]
        assert (record["machine"], record["node"]) == ("own", worker.node.host)
        environment = record["environment"]
        assert isinstance(environment, dict) and environment["SLURM_CPUS_ON_NODE"]
        allocation = {"scheduler": "slurm", "id": environment["SLURM_JOB_ID"]}
        assert record["allocation"] == allocation
    assert cluster.jobs() == {}
