"""Every runner does what Snakemake's local executor does with every feature a rule can have.

A workflow is run by the local executor, and by each runner as the fastest one allowed; each with a
`snakemake -n` after it, and some once more after an input changed. Then what they left is compared,
feature by feature. All differences there are, are in the tables below.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from run_helpers import nothing_is_left
from workflow_runs import (
    LOCAL,
    RUN_DIRECTORY,
    RUNNERS,
    State,
    Workflow,
    WorkflowRuns,
    feature_of,
    rules_of,
)

pytestmark = pytest.mark.compatibility


def before_outputs(directory: Path) -> None:
    """What is there before the first run: of all but what `update` is for jobs must see nothing."""
    for name in ("directory_old/made/old.txt", "old_output/out.txt", "old_log/job.log"):
        (directory / name).parent.mkdir(parents=True)
        (directory / name).write_text("old\n")
    (directory / "update").mkdir()
    (directory / "update/out.txt").write_text("old\n")
    os.utime(directory / "update/out.txt", (1, 1))
    (directory / "old_link").mkdir()
    (directory / "old_link/target.txt").write_text("not to be changed\n")
    (directory / "old_link/out.txt").symlink_to("target.txt")


def change_source(directory: Path) -> None:
    with (directory / "source.txt").open("a") as stream:
        stream.write("another line\n")


def change_source_and_lose_cached(directory: Path) -> None:
    change_source(directory)
    for name in ("made.txt", "out.txt"):
        (directory / "cache" / name).unlink()


WORKFLOWS = (
    Workflow(
        "outputs",
        "outputs",
        before=before_outputs,
        between=change_source,
        for_command="old_output benchmark_repeated protected temp environment",
    ),
    Workflow(
        "commands",
        "commands",
        # No job with more threads than there are CPUs anywhere: these are not for `shell`.
        "--configfile config.yaml --default-resources mem_mb=50 disk_mb=60 lab='ours' "
        "--max-threads 2 --set-threads set_threads=2 --set-resources set_resources:mem_mb=99",
        {
            "FROM_OUTSIDE": 'it\'s "set" $HOME',
            "TMPDIR": f"{RUN_DIRECTORY}/tmp",
            "PWD": f"{RUN_DIRECTORY}/link",
        },
        for_command="declared_variable environment limits tmpdir umask own_pipeline "
        "working_directory jobid resources_of_late_input set_resources",
    ),
    Workflow(
        "graph",
        "graph",
        "--cache cache__made --groups group_by_option__first=some --group-components some=2",
        {"SNAKEMAKE_OUTPUT_CACHE": f"{RUN_DIRECTORY}/output-cache"},
        between=change_source_and_lose_cached,
        for_command="shadow_minimal pipe service group cache retried_attempt",
    ),
    Workflow("checkpoints", "checkpoints", between=change_source, for_command="checkpoint_file"),
    Workflow(
        "languages",
        "languages",
        # By itself Snakemake has more of them for executors that are not local.
        "--default-resources mem_mb=50 disk_mb=60",
        for_command="script comma run wrapper",
    ),
    Workflow(
        "failures",
        "failures",
        "--keep-going --latency-wait 1",
        for_command="fails_among_several fails_in_group always_with_resources fails_with_log "
        "fails_in_benchmark fails_in_run output_missing",
    ),
    Workflow(
        "kept",
        "failures",
        "--keep-going --latency-wait 1 --keep-incomplete --directory elsewhere "
        f"--snakefile {RUN_DIRECTORY}/top/Snakefile",
        results="elsewhere",
        for_command="fails fails_in_shadow",
        # What else fails, fails as without the option.
        features="works fails fails_among_several fails_with_directory fails_with_protected "
        "fails_with_temp fails_with_log fails_in_shadow fails_in_group fails_in_run needs_failing "
        "always output_missing not_ensured",
    ),
    Workflow(
        "settings",
        "settings",
        "--snakefile ../flow/Snakefile --notemp --benchmark-extended --max-threads 2 "
        "--config of_option=option of_both=option --default-resources mem_mb=50 disk_mb=60 "
        f"--shadow-prefix {RUN_DIRECTORY}/tmp --set-resources resource_option:mem_mb=5",
        directory="work",
        results="deeper",
        for_command="prefix benchmark_extended config shadow_elsewhere environment tmpdir",
    ),
)
FEATURES = [
    pytest.param(workflow, feature, id=f"{workflow.name}-{feature}")
    for workflow in WORKFLOWS
    for feature in sorted({feature_of(rule) for rule in rules_of(workflow)})
]

# ---- who executes what

# The controller itself: jobs without a command, and those a user wants there.
NOT_HANDED_OVER = {
    *("local_rule", "touch", "no_command", "no_output__first", "jinja2", "yte", "handover"),
    "no_output",  # not asked for
    "needs_failing",  # never begun
}
# Rules whose jobs are not what `shell` is for; neither are groups.
NOT_FOR_SHELL = {
    # a flag that means something for the command
    "update",
    "fails_with_update",
    # values that only a job's own process has, or that depend on the node
    *("benchmark_repeated", "jobid", "tmpdir_in_params", "tmpdir_own"),
    # a path that is a copy for the time of a run
    "source_path",
    # longer than a command line may be, with quotes around it; nothing to be executed
    *("long", "nothing_in_it"),
    # more than a process of one command
    *("shadow_minimal", "shadow_shallow", "shadow_full", "shadow_copy_minimal"),
    *("fails_in_shadow", "shadow_elsewhere"),
    *("checkpoint__decide", "checkpoint_file__decide", "cache__made"),
    # no shell
    *(
        "script",
        "script_bash",
        "comma__made",
        "script_in_shadow",
        "run",
        "run_with_shell",
        "run_in_shadow",
    ),
    *("notebook", "wrapper", "fails_in_run", "fails_in_script", "run_shell"),
}
# With --benchmark-extended nothing is.
WITHOUT_SHELL = {"settings"}

# ---- what may differ

# Variables that tell where a job runs, and by whom it was started.
ENVIRONMENT_MAY_DIFFER = ("KOCHI_", "SHLVL=", "_=", "OLDPWD=", "PYTHONPATH=")
# A job's own Snakemake numbers its jobs anew.
NUMBER_IN_OWN_SNAKEMAKE = {"jobid/out.txt": "0\n"}
# The rule's own `retries:` (here one) is honoured by a job's own Snakemake, and by the controller
# again, whose second attempt is the last one for the job's Snakemake, too.
TRIES_OF_OWN_SNAKEMAKE = {
    "always/tries": "tried\n" * 3,
    "always_with_resources/tries": "10\n20\n20\n",
}
# The controller does not see how often a job's own Snakemake tried.
TRIED_UNSEEN = {"retried", "retried_attempt", "always", "always_with_resources"}
# It shows jobs of these groups more than once. (They append to a file when they are executed.)
SHOWN_REPEATEDLY = {"group_by_option", "fails_in_group"}
# A group is one job: when it fails, all its outputs are removed, and all of it is planned again.
FAILING_GROUPS = {("failures", "fails_in_group")}
# What cannot be told from the controller: a temporary directory; checksums of inputs that are gone
# when a group has ended.
RECORDS_MAY_DIFFER = {
    "jobid": {"shellcmd"},  # numbers depend on how many jobs there are
    "tmpdir": {"shellcmd"},
    "tmpdir_in_params": {"shellcmd"},
    "tmpdir_own": {"shellcmd"},  # of older versions of Snakemake
    "group": {"input_checksums"},
    "fails_in_group": {"input_checksums"},
    "service": {"input_checksums"},
    "retried_attempt": {"shellcmd"},
}


def expected_runner(workflow: Workflow, rule: str, fastest: str) -> str:
    """The runner that a rule's jobs must have, when `fastest` is the fastest allowed; the rule of
    a group is ""."""
    if fastest != "shell":
        return fastest
    is_other = workflow.name in WITHOUT_SHELL or not rule or rule in NOT_FOR_SHELL
    return "zygote" if is_other else "shell"


def is_made(workflow: Workflow, feature: str, runner: str) -> bool:
    return (
        runner != "command" or not workflow.for_command or feature in workflow.for_command.split()
    )


COMPARED = [
    pytest.param(*parameters.values, runner, id=f"{parameters.id}-{runner}")
    for parameters in FEATURES
    for runner in RUNNERS
    if is_made(*parameters.values, runner)
]


@pytest.mark.parametrize(("workflow", "feature", "runner"), COMPARED)
def test_a_runner_does_what_local_execution_does(
    workflow_runs: WorkflowRuns, workflow: Workflow, feature: str, runner: str
) -> None:
    states = compared(workflow_runs, workflow, runner)
    has_own_snakemake = expected_runner(workflow, feature, runner) != "shell"
    is_failing_group = (workflow.name, feature) in FAILING_GROUPS
    differences = []
    for number, (one, other) in enumerate(states, 1):
        expected = {} if is_failing_group else expected_files(one, feature, has_own_snakemake)
        found = differing(expected, files_of_feature(other, feature))
        if not is_failing_group:
            found += differing(records_of(one, feature), records_of(other, feature))
            found += differing(planned_of(one, feature), planned_of(other, feature))
            unseen = SHOWN_REPEATEDLY | (TRIED_UNSEEN if has_own_snakemake else set())
            if feature not in unseen:
                found += differing(begun_of(one, feature), begun_of(other, feature))
        differences += [f"after run {number}: {line}" for line in found]
    assert not differences, f"{feature}, local and {runner}:\n" + "\n".join(differences)


def compared(
    workflow_runs: WorkflowRuns, workflow: Workflow, runner: str
) -> list[tuple[State, State]]:
    """Of each run: the state after it with the local executor, and with the runner."""
    local = workflow_runs.of(workflow, LOCAL).states
    ours = workflow_runs.of(workflow, runner).states
    assert len(ours) == (1 if runner == "command" else len(local))
    return list(zip(local, ours, strict=False))


def begun_of(state: State, feature: str) -> dict[str, str]:
    return {f"{name} begun": str(n) for name, n in of_feature(state.begun, feature).items()}


def planned_of(state: State, feature: str) -> dict[str, str]:
    return {f"{name} planned": str(n) for name, n in of_feature(state.planned, feature).items()}


def of_feature(by_name: Mapping[str, Any], feature: str) -> dict[str, Any]:
    return {name: value for name, value in by_name.items() if feature_of(name) == feature}


def files_of_feature(state: State, feature: str) -> dict[str, Any]:
    names = {feature} | ({"output-cache"} if feature == "cache" else set())
    return {
        name: _without_variables(name, value)
        for name, value in state.files.items()
        if feature_of(name) in names
    }


def _without_variables(name: str, value: tuple[str, ...]) -> tuple[str, ...]:
    if name != "environment/out.txt":
        return value
    kind, mode, text = value
    lines = [line for line in text.splitlines() if not line.startswith(ENVIRONMENT_MAY_DIFFER)]
    return kind, mode, "\n".join(lines)


def expected_files(local: State, feature: str, has_own_snakemake: bool) -> dict[str, Any]:
    """What local execution left, but for what is different for a reason."""
    files = files_of_feature(local, feature)
    if has_own_snakemake:
        for name, text in {**NUMBER_IN_OWN_SNAKEMAKE, **TRIES_OF_OWN_SNAKEMAKE}.items():
            if name in files:
                files[name] = (*files[name][:2], text)
    return files


def records_of(state: State, feature: str) -> dict[str, Any]:
    ignored = RECORDS_MAY_DIFFER.get(feature, set())
    return {
        f"record of {name}": {key: record[key] for key in record if key not in ignored}
        for name, record in of_feature(state.metadata, feature).items()
    }


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    names = sorted({*one, *other})
    return [
        f"{name}: {one.get(name)!r} / {other.get(name)!r}"
        for name in names
        if one.get(name) != other.get(name)
    ]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
def test_every_feature_is_run_by_the_local_executor(
    workflow_runs: WorkflowRuns, workflow: Workflow
) -> None:
    """Or there would be nothing to compare with."""
    first, *_ = workflow_runs.of(workflow, LOCAL).states
    begun = set(first.begun)
    assert rules_of(workflow) - begun <= {"no_output", "needs_failing", "inherited__base"}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
def test_a_run_ends_as_with_local_execution_and_leaves_nothing_else(
    workflow_runs: WorkflowRuns,
    workflow: Workflow,
    runner: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KOCHI_ROOT", str(workflow_runs.of(workflow, runner).root))
    assert nothing_is_left()
    for one, other in compared(workflow_runs, workflow, runner):
        assert (other.exit_status, other.next_exit_status) == (
            one.exit_status,
            one.next_exit_status,
        )
        features = {feature_of(rule) for rule in rules_of(workflow)} | {"output-cache"}
        others = {name for name in {*one.files, *other.files} if feature_of(name) not in features}
        assert [
            name for name in sorted(others) if one.files.get(name) != other.files.get(name)
        ] == []
        kept = ["fails_in_shadow/out.txt"] if workflow.name == "kept" else []
        assert [name.split("/", 3)[3] for name in other.left_behind] == kept


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
def test_every_job_is_executed_by_the_fastest_runner_that_is_right_for_it(
    workflow_runs: WorkflowRuns, workflow: Workflow, runner: str
) -> None:
    observed = workflow_runs.of(workflow, runner).runners
    expected = {
        (feature, rule): {expected_runner(workflow, rule, runner)} for feature, rule in observed
    }
    assert observed == expected
    handed_over = {rule for _, rule in observed}
    groups = {feature for feature, rule in observed if not rule}
    if is_all_made := not workflow.for_command or runner != "command":
        missing = rules_of(workflow) - handed_over - NOT_HANDED_OVER
        assert {feature_of(rule) for rule in missing} <= groups
    made = set(workflow.for_command.split())
    assert is_all_made or {feature for feature, _ in observed} >= made
