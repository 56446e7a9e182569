"""A small Kochi project whose phases say on a list outside of it that they ran."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import support
from seen import list_jobs
from support import PYTHON_PATH, git, run, write

from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.paths import Root

KOCHI = """
    dependencies:
      base:
        script: mkdir -p $KOCHI_INSTALL_PREFIX && echo "install base $CFLAGS" >> "$RAN"
        recipes:
          - {name: one, envs: {CFLAGS: -O1}}
          - {name: other, envs: {CFLAGS: -O9}}
      tool:
        depends: [{name: base, recipe: one}]
        script: |
          echo "install tool with $KOCHI_INSTALL_PREFIX_BASE" >> "$RAN"
          echo "$LEVEL" > $KOCHI_INSTALL_PREFIX/level
        recipes:
          - {name: fast, envs: {LEVEL: fast}}
          - {name: slow, envs: {LEVEL: slow}}
    """
EXPERIMENT = """
    depends: [{name: tool, recipe: fast}]
    default_params: {n: 1, debug: 0}
    default_name: sum
    metrics: {total: 'total ([0-9]+)'}
    batches:
      first:
        params: {n: [1, 2]}
        artifacts:
          - type: stdout
            dest: sum/${batch_name}/${n}_${duplicate}.log
          - type: file
            src: out.txt
            dest: sum/${batch_name}/${n}_${duplicate}.txt
          - type: stats
            dest: sum/${batch_name}/${n}_${duplicate}.json
    build:
      depend_params: [debug]
      script: |
        echo "build sum $KOCHI_PARAM_DEBUG" >> "$RAN"
        cp code.txt built.txt
    run:
      depend_params: [n]
      script: |
        echo "run sum $KOCHI_PARAM_N" >> "$RAN"
        echo "total $((KOCHI_PARAM_N * 10))"
        cat built.txt $KOCHI_INSTALL_PREFIX_TOOL/level > out.txt
    """
SNAKEFILE = """
    from snakemake_kochi import snakefile

    module kochi:
        snakefile: snakefile()
        config: config

    use rule * from kochi
    """


@dataclass(frozen=True)
class ExampleProject:
    """`directory` is the repository, `ran` the list that its scripts write to."""

    directory: Path
    ran: Path

    def snakemake(self, *arguments: str, executor: str = "") -> str:
        """Run snakemake, which must succeed; return its output. By default the executor is that of
        the option --executor."""
        done = self.try_snakemake(*arguments, executor=executor)
        assert done.returncode == 0
        return done.stdout

    def try_snakemake(
        self, *arguments: str, executor: str = ""
    ) -> subprocess.CompletedProcess[str]:
        executor = executor or support.default_executor
        cores = ["--cores", "2"] if executor == "local" else ["--jobs", "20"]
        command = (sys.executable, "-m", "snakemake", "--executor", executor, *cores, *arguments)
        return run(*command, cwd=self.directory)

    def logs(self) -> str:
        """What the jobs printed that the executor kochi ran, of which Snakemake shows nothing."""
        ended = list_jobs(Root.find().machine("local"), ended=True, limit=10_000)
        return "".join(view.output.decode() for view in ended)

    def planned_rules(self, *targets: str) -> list[str]:
        """The rules that a dry run lists, sorted."""
        return sorted(re.findall(r"^rule (\w+):$", self.snakemake("-n", *targets), re.MULTILINE))

    def take_ran(self) -> list[str]:
        """What ran since this was asked last, sorted."""
        lines = sorted(self.ran.read_text().splitlines()) if self.ran.exists() else []
        self.ran.unlink(missing_ok=True)
        return lines

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.directory / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def commit(self, message: str = "work") -> None:
        git(self.directory, "add", "-A")
        git(self.directory, "commit", "--allow-empty", "-qm", message)


def begin_project(directory: Path, ran: Path, files: Mapping[str, str]) -> ExampleProject:
    """A new repository with these files, the rules of the library and one commit."""
    for name, text in {
        "Snakefile": SNAKEFILE,
        ".gitignore": "results/\n.snakemake/\n",
        **files,
    }.items():
        write(directory / name, text)
    git(directory, "init", "-q", "-b", "main")
    choose_name(directory, "local", "local")
    made = ExampleProject(directory, ran)
    made.commit()
    return made


def make_project(base: Path) -> ExampleProject:
    return begin_project(
        base / "sum project",
        base / "ran",
        {
            "kochi.yaml": KOCHI,
            "sum.yaml": EXPERIMENT,
            "code.txt": "code\n",
            "README.md": "About\n",
        },
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExampleProject:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    return make_project(tmp_path)


@pytest.fixture(scope="session")
def finished_template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A project and a KOCHI_ROOT after the batch was run once, and a copy of both."""
    base = tmp_path_factory.mktemp("finished")
    live, saved = base / "live", base / "saved"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(base))
        environment.setenv("KOCHI_ROOT", str(live / "kochi-root"))
        environment.setenv("RAN", str(live / "ran"))
        environment.setenv("PYTHONPATH", PYTHON_PATH)
        project = make_project(live)
        project.snakemake("sum_first")
        assert project.take_ran() == [
            "build sum 0",
            "install base -O1",
            f"install tool with {base_prefix(project)}",
            "run sum 1",
            "run sum 2",
        ]
    subprocess.run(["cp", "-a", live, saved], check=True)
    return live, saved


@pytest.fixture
def finished_project(
    finished_template: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> ExampleProject:
    """The project after its batch was run once, in the place where that was done: prefixes and
    records hold absolute paths."""
    live, saved = finished_template
    shutil.rmtree(live)
    subprocess.run(["cp", "-a", saved, live], check=True)
    monkeypatch.setenv("KOCHI_ROOT", str(live / "kochi-root"))
    monkeypatch.setenv("RAN", str(live / "ran"))
    return ExampleProject(live / "sum project", live / "ran")


def results(*runs: object) -> list[str]:
    """The results of some runs, each its `n`, as targets: unlike the whole batch's, they need no
    table and no plot."""
    return [f"results/local/sum/first/{n}_0.txt" for n in runs]


# The rules of the batch when its runs are finished, but not its table and its plot.
TABLE_RULES = ["collect_sum_first", "sum_first"]


def base_prefix(project: ExampleProject) -> str:
    root = Path(os.environ["KOCHI_ROOT"])
    (current,) = root.glob("projects/*/installs/local/base/one/current")
    return str(current.with_name(current.read_text()) / "prefix")
