"""`kochi rerun` and `kochi reproduce`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
from humanfriendly.text import pluralize

from snakemake_kochi.cli.options import COUNT, json_option, machine_option
from snakemake_kochi.cli.output import local_time, print_json, print_table, remark, say, shown
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.reproduction.rerun import Reproduced, Rerun
from snakemake_kochi.reproduction.restoration import Group, groups_of
from snakemake_kochi.reproduction.subject import Subject

_MOST_TOLD = 10  # records that are described before they run
_SHORT = 12  # digits of an id

_words = click.argument("words", nargs=-1, metavar="FILE|RECORD|BATCH@COMMIT...")
_dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Show what would run and where it differs; run nothing."
)
_jobs_option = click.option(
    "-j", "--jobs", type=COUNT, default=100, help="How many jobs run at a time, at most."
)


@click.command("rerun")
@machine_option
@_words
@_dry_run_option
@_jobs_option
@json_option
def rerun_command(
    machine: str | None, words: tuple[str, ...], dry_run: bool, jobs: int, as_json: bool
) -> int:
    """Run recorded results again, with their code, recipes and parameters.

    FILE is a result, as for `kochi why`; RECORD the identity of a record; BATCH@COMMIT the newest
    result of each point of a batch in a commit of an artifact branch. The new results are in
    results/MACHINE/reruns/, beside the old ones. The exit status is 1 if a run failed.
    """
    found = _reproduce(machine, words, None, None, dry_run, jobs, as_json)
    return int(any(each.state == "failed" for each in found))


@click.command("reproduce")
@machine_option
@_words
@click.option(
    "--sample", type=COUNT, metavar="N", help="N records of the artifact branches, at random."
)
@click.option("--seed", type=int, metavar="NUMBER", help="Draw the same sample each time.")
@_dry_run_option
@_jobs_option
@json_option
def reproduce_command(
    machine: str | None,
    words: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    dry_run: bool,
    jobs: int,
    as_json: bool,
) -> int:
    """Run recorded results again, and compare the outputs with the recorded ones.

    The arguments are those of `kochi rerun`. The exit status is 0 if all outputs are identical, or
    differ only in the values of metrics, and each record has an output to compare.
    """
    found = _reproduce(machine, words, sample, seed, dry_run, jobs, as_json)
    return int(not all(each.is_reproduced for each in found))


def _reproduce(
    machine: str | None,
    words: Sequence[str],
    count: int | None,
    seed: int | None,
    dry_run: bool,
    jobs: int,
    as_json: bool,
) -> list[Reproduced]:
    from snakemake_kochi.cli.snakemake_calls import require_writable
    from snakemake_kochi.phases.outputs import alive

    location = find_location(machine, asks=True)
    location.require_here()
    subjects = _subjects(location, words, count, seed)
    if not dry_run:
        require_writable(location)
    groups = groups_of(subjects)
    _tell_subjects([subject for group in groups for subject in group.subjects])
    location.prepare_machine()
    repository = location.require_project().directory
    # The code of the last group must stay while those before it run.
    with alive(repository, location.project_paths, location.machine.name):
        return _reproduce_groups(location, groups, dry_run, jobs, as_json)


def _reproduce_groups(
    location: Location, groups: Iterable[Group], dry_run: bool, jobs: int, as_json: bool
) -> list[Reproduced]:
    reruns = [Rerun.prepare(location, group) for group in groups]
    told = _tell_environment(reruns)
    if dry_run:
        remark("Nothing was run.")
        if as_json:
            print_json([])
        return []
    found: list[Reproduced] = []
    for number, rerun in enumerate(reruns, 1):
        if len(reruns) > 1:
            remark(f"Code {number} of {len(reruns)}: snapshot {rerun.group.code.tree[:_SHORT]}")
        _run(location, rerun, jobs)
        found += rerun.outcomes()
    if as_json:
        print_json([_as_data(each) for each in found])
    else:
        _tell_outcomes(found, told, reruns)
    return found


def _subjects(
    location: Location, words: Sequence[str], count: int | None, seed: int | None
) -> list[Subject]:
    from snakemake_kochi.reproduction.selection import choose, sample

    if not words and count is None:
        raise click.UsageError("what to run again? FILE, RECORD or BATCH@COMMIT was expected")
    repository = location.require_project().directory
    subjects = [subject for word in words for subject in choose(repository, word)]
    if count is not None:
        drawn, passed_over = sample(repository, count, seed)
        if passed_over:
            records = pluralize(passed_over, "record")
            remark(f"Passed over: {records} of a newer snakemake_kochi, or edited by hand.")
        if len(drawn) < count:
            remark(f"There are only {pluralize(len(drawn), 'record')} to draw from.")
        subjects += drawn
    if not subjects:
        raise KochiError("there is no record to run again")
    return subjects


def _tell_subjects(subjects: Sequence[Subject]) -> None:
    """Say whose records these are, before anything of their code runs."""
    remark(f"To run again: {pluralize(len(subjects), 'record')}")
    for each in subjects[:_MOST_TOLD]:
        record = each.record
        base = f"commit {each.code.base[:_SHORT]}" if each.code.base else "no commit"
        changed = " with changes" if each.code.dirty else ""
        point = " ".join(f"{name}={value}" for name, value in each.parameters.items())
        text = f"{each.identity}: {each.experiment}, batch {each.batch}, {point or 'no parameters'}"
        text += f", duplicate {each.duplicate}; of {each.name or 'here'}, on {record['node']}, "
        text += f"{local_time(record['started'])}; {base}{changed}, "
        text += f"snapshot {each.code.tree[:_SHORT]}"
        if each.configuration != each.code:
            text += f", with the scripts of snapshot {each.configuration.tree[:_SHORT]}"
        remark(f"  {shown(text)}")
    if rest := subjects[_MOST_TOLD:]:
        whose = ", ".join(sorted({each.name or "here" for each in rest}))
        remark(f"  and {len(rest)} more, of {whose}")


def _tell_environment(reruns: Iterable[Rerun]) -> set[str]:
    lines: Counter[str] = Counter()
    count = 0
    for rerun in reruns:
        for found in rerun.differences_here():
            count += 1
            lines.update(map(str, found))
        for sentence in rerun.remarks:
            remark(f"Note: {shown(sentence)}.")
    if lines:
        remark("The environment differs (record -> this host):")
    else:
        remark("The environment is that of the records, as far as they and this host tell.")
    _tell_counted(lines, count)
    return set(lines)


def _tell_counted(lines: Counter[str], count: int) -> None:
    for line, times in lines.items():
        of = f" ({times} of {count} records)" if times < count else ""
        remark(f"  {shown(line)}{of}")


def _run(location: Location, rerun: Rerun, jobs: int) -> None:
    from snakemake_kochi.cli.snakemake_calls import run_snakemake
    from snakemake_kochi.cli.unlock import unlock_dead_run
    from snakemake_kochi.library.library import RERUN_VARIABLE
    from snakemake_kochi.resources import workflow_directory

    if rerun.goes_on_since:
        remark(
            f"Going on with the rerun of {local_time(rerun.goes_on_since)}, which did not end. To "
            f"start over, delete {rerun.directory} first."
        )
        first = next(iter(rerun.records.values()))
        unlock_dead_run(location.machine_paths, rerun.freeze.directory, first, True, "kochi rerun")
    words = ["rerun", "--snakefile", str(workflow_directory() / "Snakefile")]
    words += ["--executor", "kochi", "--jobs", str(jobs), "--rerun-incomplete", "--keep-going"]
    words += ["--logger", "kochi"]
    if location.machine.has_allocations:
        words += ["--latency-wait", "60"]
    records = pluralize(len(rerun.group.subjects), "record")
    remark(f"Running {records} of snapshot {rerun.group.code.tree[:_SHORT]} with Snakemake")
    rerun.begin()
    run_snakemake(location, words, {RERUN_VARIABLE: str(rerun.freeze.file)})
    rerun.end()


# ---- what came out


def _tell_outcomes(found: Sequence[Reproduced], told: set[str], reruns: Sequence[Rerun]) -> None:
    rows = [row for each in found for row in _rows(each)]
    print_table(("Record", "Point", "Output", "State", "Metrics"), rows, "Nothing was run.")
    for each in found:
        if each.reason:
            remark(f"{each.subject.identity} failed: {each.reason}")
        if each.state == "uncompared":
            remark(f"{each.subject.identity} has no output to compare; its run succeeded")
        for output in each.outputs:
            if output.why:
                remark(f"{output.dest}: {output.why}")
    lines = Counter(str(line) for each in found for line in each.environment)
    new = Counter({line: times for line, times in lines.items() if line not in told})
    if new:
        remark("The environment of the runs also differed (record -> rerun):")
        _tell_counted(new, len(found))
    states = Counter(each.state for each in found)
    say(", ".join(f"{count} {state}" for state, count in states.items()))
    there = (each for each in reruns if is_there(each.freeze.directory / each.directory))
    if where := " ".join(shlex.quote(rerun.directory) for rerun in there):
        say(f"New results: {where}")


def _rows(each: Reproduced) -> Iterator[tuple[object, ...]]:
    subject = each.subject
    values = [f"{name}={value}" for name, value in subject.parameters.items()]
    point = " ".join([*values, f"#{subject.duplicate}"])
    if not each.outputs:
        yield subject.identity, point, "", each.state, ""
    for output in each.outputs:
        changes = []
        for metric in output.metrics:
            if metric.relative is not None:
                changes.append(f"{metric.name} {metric.relative:+.1%}")
            else:
                changes.append(f"{metric.name} {metric.recorded} -> {metric.now}")
        yield subject.identity, point, output.dest, output.state, ", ".join(changes)


def _as_data(each: Reproduced) -> dict[str, Any]:
    subject = each.subject
    return {
        "record": subject.identity,
        "name": subject.name,
        "experiment": subject.experiment,
        "batch": subject.batch,
        "parameters": dict(subject.parameters),
        "duplicate": subject.duplicate,
        "state": each.state,
        "rerun": each.rerun,
        "reason": each.reason,
        "outputs": [asdict(output) for output in each.outputs],
        "environment": [asdict(line) for line in each.environment],
        "files": list(each.files),
    }
