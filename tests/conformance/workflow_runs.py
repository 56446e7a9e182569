"""Runs of the workflows beside this file, by each executor and runner, each in a fresh copy.

All rules of one feature have its name, or that and a suffix after two underscores, and all their
files are below a directory of that name. So what a run left can be told apart by feature.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from observation import Record, files_of, left_behind, metadata_of
from support import PYTHON_PATH, run

from snakemake_kochi.paths import Root
from snakemake_kochi.queue.views import list_jobs
from snakemake_kochi.tickets import history

WORKFLOWS = Path(__file__).parent / "workflows"
LOCAL = "local"
RUNNERS = ("shell", "zygote", "command")
CORES = "4"
# Snakemake puts the names of modules in front of the names of their rules.
MODULE_RULES = {
    f"{module}_{rule}" for module in ("one", "two") for rule in ("out", "made", "changed")
}
# In options and environments of a workflow, and in what is observed: a directory of the run's own.
RUN_DIRECTORY = "%RUN%"

# Those of a group are indented.
_RULE = re.compile(r"^ *(?:local)?(?:rule|checkpoint) (\w+):$", re.MULTILINE)


@dataclass(frozen=True)
class Workflow:
    """How a workflow is run.

    `source` is the directory with it, which is copied; `directory` where in it Snakemake is called,
    and `results` where from there the files of its features are. `before` is done there before the
    first run, and `between` before a second one. The runner `command` makes `for_command` only, if
    that is given, and once: it starts a whole Snakemake for each job, and knows nothing of its kind
    or of what was there before. All others make `features` only, if these are given.
    """

    name: str
    source: str
    options: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = "."
    results: str = "."
    before: Callable[[Path], None] | None = None
    between: Callable[[Path], None] | None = None
    for_command: str = ""
    features: str = ""


_DEFINITION = re.compile(r"^(?:rule|checkpoint|use rule \w+ as) (\w+)(?::| with:)$", re.MULTILINE)


def feature_of(name: str) -> str:
    """The feature that a rule, or a file, belongs to; rules of modules have the module's name."""
    first = name.split("/", 1)[0].split("__", 1)[0]
    return "modules" if first in MODULE_RULES else first


def rules_of(workflow: Workflow) -> set[str]:
    """The names of all rules that are made, but `all`."""
    top = WORKFLOWS / workflow.source
    texts = [path.read_text() for path in (*top.rglob("Snakefile"), *top.rglob("*.smk"))]
    names = {name for text in texts for name in _DEFINITION.findall(text)}
    modules = MODULE_RULES if any("\nmodule " in text for text in texts) else set()
    rules = (names - {"all", "out", "made", "changed"}) | modules
    chosen = workflow.features.split()
    return {rule for rule in rules if not chosen or feature_of(rule) in chosen}


@dataclass(frozen=True)
class State:
    """After a run: its exit status, how often each rule was begun, what is there, and how often
    each rule would be run by the next (`snakemake -n`), with that one's exit status."""

    exit_status: int
    begun: Counter[str]
    files: Mapping[str, tuple[str, ...]]
    metadata: Mapping[str, Record]
    left_behind: Sequence[str]
    next_exit_status: int
    planned: Counter[str]
    output: str


@dataclass(frozen=True)
class Observed:
    """`states`: after each run; `runners`: those that executed jobs, by feature and rule; the rule
    is "" for a group of jobs. `root`: its KOCHI_ROOT."""

    states: Sequence[State]
    runners: Mapping[tuple[str, str], set[str]]
    root: Path


class WorkflowRuns:
    """Runs of all workflows, each made once; those of a workflow beside each other, as far as
    `runners` names them."""

    def __init__(self, directory: Path, runners: Collection[str] = RUNNERS) -> None:
        self._directory = directory
        self._runners = [name for name in reversed(RUNNERS) if name in runners]  # slowest first
        # More would be no faster on the two cores that tests can count on.
        self._pool = ThreadPoolExecutor(2)
        self._made: dict[tuple[str, str], Future[Observed]] = {}

    def of(self, workflow: Workflow, executor: str) -> Observed:
        """`executor`: "local", or a runner."""
        if (workflow.name, executor) not in self._made:
            for each in (*self._runners, LOCAL):
                future = self._pool.submit(self._make, workflow, each)
                self._made[workflow.name, each] = future
        return self._made[workflow.name, executor].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _make(self, workflow: Workflow, executor: str) -> Observed:
        # Names of one length: paths are in files whose length may be looked at.
        return _Run(workflow, executor, self._directory / workflow.name / executor[0]).observe()


class _Run:
    def __init__(self, workflow: Workflow, executor: str, base: Path) -> None:
        self._workflow = workflow
        self._executor = executor
        self._base = base
        shutil.copytree(WORKFLOWS / workflow.source, base / "top", symlinks=True)
        (base / "link").symlink_to("top")  # a way to the same directory
        targets = workflow.for_command if executor == "command" else workflow.features
        self._targets = targets.split()
        self._directory = base / "top" / workflow.directory
        self._results = self._directory / workflow.results
        self._rules = rules_of(workflow)
        for name in ("home", "tmp", "output-cache"):
            (base / name).mkdir()
        self._environment = {
            # Notebooks are executed by programs that are beside Python.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": PYTHON_PATH,
            "HOME": str(base / "home"),
            "KOCHI_ROOT": str(base / "kochi-root"),
            **{name: self._filled(value) for name, value in workflow.environment.items()},
        }

    def observe(self) -> Observed:
        if self._workflow.before:
            self._workflow.before(self._results)
        states = [self._state()]
        if self._workflow.between and self._executor != "command":
            self._workflow.between(self._results)
            states.append(self._state())
        return Observed(states, self._runners(), self._base / "kochi-root")

    def _filled(self, text: str) -> str:
        return text.replace(RUN_DIRECTORY, str(self._base))

    def _normalised(self, text: str) -> str:
        # Where Snakemake puts copies of sources for the time of a run.
        text = re.sub(r"(?<=runtime-cache/)tmp\w+", "tmp", text)
        return text.replace(str(self._base), RUN_DIRECTORY)

    def _snakemake(self, *arguments: str) -> tuple[int, str]:
        chosen = ("--executor", "local")
        if self._executor != LOCAL:
            chosen = ("--executor", "kochi", "--kochi-runner", self._executor)
        options = map(self._filled, self._workflow.options.split())
        command = (sys.executable, "-m", "snakemake", *self._targets, *chosen)
        command += ("--cores", CORES, "--jobs", CORES)
        done = run(*command, *options, *arguments, cwd=self._directory, env=self._environment)
        return done.returncode, done.stdout

    def _state(self) -> State:
        exit_status, output = self._snakemake()
        files = files_of(self._base / "top", self._results, self._normalised)
        kept = files_of(self._base / "output-cache", self._base, self._normalised)
        metadata = metadata_of(self._results, self._normalised)
        behind = left_behind(self._results)
        next_exit_status, planned = self._snakemake("-n")
        return State(
            exit_status=exit_status,
            begun=Counter(_RULE.findall(output)),
            files={**files, **kept},
            metadata=metadata,
            left_behind=behind,
            next_exit_status=next_exit_status,
            planned=Counter(_RULE.findall(planned)),
            output=output,
        )

    def _runners(self) -> dict[tuple[str, str], set[str]]:
        machine = Root(self._base / "kochi-root").machine("local")
        found = defaultdict(set)
        layout = machine.layout
        if self._executor != LOCAL:
            for ended in history.ended(layout):
                rule = ended.ticket["labels"]["rule"]
                if rule not in self._rules:  # a group, whose name begins with its first feature
                    features = sorted(map(feature_of, self._rules), key=len, reverse=True)
                    feature, rule = next(name for name in features if name in rule), ""
                else:
                    feature = feature_of(rule)
                found[feature, rule].add(ended.line["details"]["runner"])
            return dict(found)
        for view in list_jobs(machine, ended=True, limit=1000):
            ticket, result = view.ticket, view.result
            assert ticket is not None
            assert result is not None, f"{ticket.name} is {view.state} after the run"
            rule = ticket.labels["rule"]
            if rule in self._rules:
                feature = feature_of(rule)
            else:  # a group, whose name is made differently by different versions of Snakemake
                (feature,) = set(map(feature_of, ticket.outputs))
                rule = ""
            found[feature, rule].add(result.runner)
        return dict(found)
