"""What must hold at the end of every story, whatever happened meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from simulator.actors import LAYOUT, QUEUE, Execution, Story
from simulator.world import World
from snakemake_kochi.tickets.history import journal
from snakemake_kochi.tickets.names import Name, Shard
from snakemake_kochi.tickets.watching import INTERVAL


def problems(world: World, story: Story, keys: Sequence[str]) -> list[str]:
    """Sentences, none if the guarantees held."""
    return [
        *world.crashes,
        *story.faults,
        *_of_ends(story, keys),
        *_of_executions(world, story),
        *_of_hand(world, story),
        *_of_files(world, story),
    ]


def _of_ends(story: Story, keys: Sequence[str]) -> Iterator[str]:
    if "" in story.reports:
        yield f"jobs ended that no run knows: {story.reports['']}"
    for key in keys:
        reports = story.reports.get(key, [])
        tickets = {name for _, name in reports}
        if not story.is_done(key):
            yield f"{key} was lost: {reports}"
        if len({name.key for name in tickets}) != len(tickets):
            yield f"{key}: a job has several ends: {sorted(tickets)}"
        if len([name for name in tickets if name.state == "success"]) > 1:
            yield f"{key} succeeded twice, one success was lost: {sorted(tickets)}"
        cancelled = [name for name in tickets if name.state == "cancelled"]
        if cancelled and key not in story.cancelled:
            yield f"{key} was cancelled by nobody: {cancelled}"
        of_run = Counter((run, name.key) for run, name in reports)
        for (run, job), count in of_run.items():
            if count > 1:
                yield f"run {run} reported {job} {count} times"
    for number, count in story.numbers.items():
        if count > 1:
            yield f"{count} runs have the number {number}"


def _of_executions(world: World, story: Story) -> Iterator[str]:
    started = Counter(e.ticket for e in story.executions)
    yield from (f"{ticket} began {n} times" for ticket, n in started.items() if n > 1)
    by_key: dict[str, list[Execution]] = {}
    for execution in story.executions:
        by_key.setdefault(execution.key, []).append(execution)
    for key, executions in by_key.items():
        executions.sort(key=lambda e: e.start)
        for first, second in pairwise(executions):
            # A node that slept or was cut off for more than a minute learns it with its next sign
            # of life.
            node = first.process.node
            away = node.until
            is_late = away and first.last(world.time) <= away + 3 * INTERVAL + world.cache
            if second.start < first.last(world.time) and not is_late:
                yield f"{key} was executed twice at a time: {first}, {second}"
    for worker, cores in story.cores.items():
        own = [e for e in story.executions if e.process is worker]
        events = [(e.start, 1) for e in own] + [(e.last(world.time), -1) for e in own]
        if max(accumulate(change for _, change in sorted(events)), default=0) > cores:
            yield f"{worker.name} of {cores} cores executed more at a time"


def _of_hand(world: World, story: Story) -> Iterator[str]:
    lines = [
        line
        for file in names(world, LAYOUT.history)
        for line in journal(world.tree.read(f"{LAYOUT.history}/{file}"))
    ]
    ends = {name for line in lines if (name := Name.parse(line["ended"])) is not None}
    for key, number in story.by_hand.items():
        own = [name.state for name in ends if name.run == number]
        if own != ["success"]:
            yield f"{key}, job {number} by hand, ended as {own}"
    for key in story.refused:
        if any(execution.key == key for execution in story.executions):
            yield f"{key} was refused, and executed"


def names(world: World, directory: str) -> list[str]:
    """What is in a directory, nothing if it is not there."""
    try:
        return world.tree.names(directory)
    except FileNotFoundError:
        return []


def _of_files(world: World, story: Story) -> Iterator[str]:
    queue = LAYOUT.queue(QUEUE)
    for directory in (queue.waiting, queue.running):
        for name in names(world, directory):
            if Shard.parse(name) and not names(world, f"{directory}/{name}"):
                continue  # an empty shard
            yield f"{name} is left in {directory}"
    for number in names(world, LAYOUT.runs):
        if number.isdecimal():
            paths = LAYOUT.run(int(number))
            # Killed between its journal and the unlink, a run leaves what it knew already.
            if "hand" in names(world, paths.directory):
                continue
            tickets = {str(name) for reports in story.reports.values() for _, name in reports}
            if left := set(names(world, paths.inbox)) - tickets:
                yield f"{sorted(left)} is left in the inbox of run {number}"
            if "ended" not in names(world, paths.directory):
                yield f"run {number} has not ended: {names(world, paths.directory)}"
