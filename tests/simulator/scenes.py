"""Small stories that are told with every kill, and how each goes on until all is well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simulator.actors import (
    DEADLY,
    LAYOUT,
    QUEUE,
    Canceller,
    Controller,
    Hand,
    Story,
    Worker,
    fold_all,
)
from simulator.oracle import names, problems
from simulator.world import Fault, Process, World
from snakemake_kochi.tickets.watching import INTERVAL, LOST


@dataclass(frozen=True)
class Scene:
    """`play` starts the processes in a world. `loses`: workers may be found dead in it."""

    name: str
    play: Callable[[World, Story], None]
    jobs: int = 2
    seconds: float = 60.0
    loses: bool = True


def keys_of(scene: Scene) -> list[str]:
    return [f"j{number}" for number in range(scene.jobs)] or [DEADLY] * (scene.play is _deadly)


_QUEUE = LAYOUT.queue(QUEUE)
_PATIENCE = 600.0  # virtual seconds until all must be well
_AWAKE = 3 * INTERVAL


class Telling(NamedTuple):
    """`trace`: every call, if the world was traced."""

    problems: list[str]
    processes: list[Process]
    trace: list[str]


def tell(scene: Scene, world: World, faults: Mapping[tuple[str, int], Fault] = {}) -> Telling:
    """The scene with these faults, and then, without any, a new run and a new worker."""
    story = Story()
    world.faults.update(faults)
    world.tree.make(LAYOUT.directory)
    with world.in_place():
        scene.play(world, story)
        world.run(scene.seconds)
        world.chance = 0.0
        last = Controller(world, story, keys_of(scene))
        run = world.start("after", "login2", last)
        worker = world.start("helper", "n9", Worker(world, story, "h", cores=2))
        until = world.time + _PATIENCE
        while world.time < until:
            world.run(5.0)
            fold_all(world)
            if last.is_over and _is_settled(world):
                break
            if not run.is_alive or last.is_over:
                last = Controller(world, story, keys_of(scene))
                run = world.start("after", "login2", last)
            if not worker.is_alive:
                worker = world.start("helper", "n9", Worker(world, story, "h", cores=2))
    found = [] if last.is_over else [f"the last run did not end: {world.trace[-5:]}"]
    found += problems(world, story, keys_of(scene))
    if not (scene.loses or faults):
        names_of_ends = [name for reports in story.reports.values() for _, name in reports]
        found += [f"{name} was lost, and nobody died" for name in names_of_ends if name.losses]
    return Telling(found, world.processes, world.trace)


def _is_settled(world: World) -> bool:
    """Whether nobody begins a run any more, and no dead run waits for the next one."""
    if any(p.is_alive for p in world.processes if p.name.startswith(("person", "run"))):
        return False
    if any(p.is_alive and p.node.until + _AWAKE > world.time for p in world.processes):
        return False  # one that wakes up may still do what others have done
    runs = [text for text in names(world, LAYOUT.runs) if text.isdecimal()]
    paths = [LAYOUT.run(int(number)) for number in runs]
    # A job by hand without an end was never submitted: the queue is empty.
    are_over = [
        {"ended", "" if names(world, path.inbox) else "hand"} & {*names(world, path.directory)}
        for path in paths
    ]
    is_left = names(world, _QUEUE.waiting) or names(world, _QUEUE.running)
    return not is_left and all(are_over)


def _begin(
    world: World, story: Story, jobs: int = 1, seconds: float = 2.0, puts_back: bool = False
) -> tuple[Controller, Process]:
    """A run and a worker for so many jobs, and the run's process. The rest is as of `Worker`."""
    controller = Controller(world, story, [f"j{number}" for number in range(jobs)])
    run = world.start("run", "login", controller)
    worker = Worker(world, story, "w", seconds=seconds, puts_back=puts_back)
    world.start("worker", "n1", worker)
    return controller, run


def _one_worker(world: World, story: Story) -> None:
    _begin(world, story)


def _two_runs(world: World, story: Story) -> None:
    """The run is killed early, and the next one begins at once."""
    _, first = _begin(world, story, jobs=2, seconds=30.0)

    def next_run() -> None:
        world.wait(8.0)
        world.kill(first)
        world.start("run2", "login2", Controller(world, story, ["j0", "j1"]))

    world.start("person", "login", next_run)


def _cancel(world: World, story: Story) -> None:
    """One that waits, and one that is executed."""
    controller, _ = _begin(world, story, jobs=2, seconds=12.0)

    def person() -> None:
        world.wait(3.0)
        Canceller(story, controller)()

    world.start("person", "login", person)


def _by_hand(world: World, story: Story) -> None:
    world.start("hand", "login", Hand(story, "h0"))
    world.start("worker", "n1", Worker(world, story, "w"))


def _drain(world: World, story: Story) -> None:
    """In the middle of two jobs."""
    world.start("run", "login", Controller(world, story, ["j0", "j1"]))
    leaving = Worker(world, story, "w1", cores=2, seconds=6.0)
    world.start("worker1", "n1", leaving)

    def person() -> None:
        world.wait(5.0)
        leaving.leave()
        world.start("worker2", "n2", Worker(world, story, "w2"))

    world.start("person", "login", person)


def _one_worker_dies(world: World, story: Story) -> None:
    world.start("run", "login", Controller(world, story, ["j0", "j1"]))
    world.start("worker1", "n1", Worker(world, story, "w1", seconds=3.0))
    victim = world.start("worker2", "n2", Worker(world, story, "w2", seconds=3.0))

    def person() -> None:
        world.wait(2.0)
        world.kill(victim)

    world.start("person", "login", person)


def _put_back(world: World, story: Story) -> None:
    """And executed then for longer than a listing may be old."""
    _begin(world, story, seconds=100.0, puts_back=True)


def _late_worker(world: World, story: Story) -> None:
    """It comes to two submissions at once."""
    world.start("run", "login", Controller(world, story, ["j0", "j1"], portion=1))

    def person() -> None:
        world.wait(8.0)
        world.start("worker", "n1", Worker(world, story, "w", cores=2))

    world.start("person", "login", person)


def _deadly(world: World, story: Story) -> None:
    world.start("run", "login", Controller(world, story, [DEADLY]))
    for number in range(LOST):
        world.start(f"worker{number}", "n1", Worker(world, story, "w"))


def _run_sleeps(world: World, story: Story) -> None:
    """On a laptop, say, and somebody begins the run again elsewhere."""
    world.start("run", "laptop", Controller(world, story, ["j0", "j1"]))
    world.start("worker", "n1", Worker(world, story, "w", seconds=120.0))

    def person() -> None:
        world.wait(8.0)
        world.node("laptop").asleep = world.time + 130.0
        world.start("run2", "login2", Controller(world, story, ["j0", "j1"]))

    world.start("person", "login", person)


def _all_sleep(world: World, story: Story) -> None:
    _begin(world, story, seconds=30.0)

    def person() -> None:
        world.wait(8.0)
        world.node("login").asleep = world.time + 300.0
        world.node("n1").asleep = world.time + 303.0  # the observer wakes up first

    world.start("person", "login9", person)


def _node_sleeps(world: World, story: Story) -> None:
    world.start("run", "login", Controller(world, story, ["j0"]))
    world.start("worker1", "n1", Worker(world, story, "w1", seconds=10.0))

    def person() -> None:
        world.wait(5.0)
        world.node("n1").asleep = world.time + 100.0
        world.start("worker2", "n2", Worker(world, story, "w2"))

    world.start("person", "login", person)


def _server_away(world: World, story: Story) -> None:
    _begin(world, story, jobs=2, seconds=5.0)

    def person() -> None:
        world.wait(4.0)
        for name in ("login", "n1"):
            world.node(name).away = world.time + 60.0

    world.start("person", "login9", person)


def _full_disk(world: World, story: Story) -> None:
    world.start("run", "login", Controller(world, story, ["j0", "j1"], portion=1))
    world.start("worker", "n1", Worker(world, story, "w"))

    def person() -> None:
        world.wait(2.5)
        world.is_full = True
        world.wait(40.0)
        world.is_full = False

    world.start("person", "login", person)


def _runs_die_one_after_the_other(world: World, story: Story) -> None:
    """The second one knows the end of a job of the first one."""
    run = world.start("run", "login", Controller(world, story, ["j0", "j1"]))
    world.start("worker1", "n1", Worker(world, story, "w1", seconds=15.0))
    world.start("worker2", "n2", Worker(world, story, "w2", seconds=150.0))

    def person() -> None:
        last = run
        for seconds in (8.0, 22.0, 15.0):
            world.wait(seconds)
            world.kill(last)
            last = world.start("run", "login", Controller(world, story, ["j0", "j1"]))
        world.wait(2.0)
        world.kill(last)

    world.start("person", "login9", person)


def _full_for_long(world: World, story: Story) -> None:
    """So long that a worker is found dead that lives, and has not slept."""
    world.start("run", "login", Controller(world, story, ["j0"]))
    world.start("worker1", "n1", Worker(world, story, "w1", seconds=150.0))

    def person() -> None:
        world.wait(3.0)
        world.start("worker2", "n2", Worker(world, story, "w2"))
        world.wait(2.0)
        world.is_full = True
        world.wait(102.0)  # the observer may write again just before the worker does
        world.is_full = False

    world.start("person", "login9", person)


def _two_runs_at_once(world: World, story: Story) -> None:
    _begin(world, story, seconds=10.0)
    world.start("run2", "login2", Controller(world, story, ["j0"]))


SCENES = {
    scene.name: scene
    for scene in (
        Scene("submit, run, finish", _one_worker, jobs=1),
        Scene("two workers, one dies", _one_worker_dies),
        Scene("a run dies and is adopted", _two_runs, seconds=200.0),
        Scene("cancel against finish", _cancel),
        Scene("drain", _drain),
        Scene("a late worker", _late_worker, seconds=30.0),
        Scene("put back", _put_back, jobs=1, seconds=120.0),
        Scene("requeued three times", _deadly, jobs=0, seconds=400.0),
        Scene("full disk", _full_disk),
        Scene("server away for a minute", _server_away, seconds=120.0),
        Scene("node asleep", _node_sleeps, jobs=1, seconds=200.0),
        Scene("run asleep", _run_sleeps, seconds=300.0),
        Scene("all asleep", _all_sleep, jobs=1, seconds=400.0, loses=False),
        Scene("two runs at once", _two_runs_at_once, jobs=1),
        Scene("runs die one after the other", _runs_die_one_after_the_other, seconds=50.0),
        Scene("full disk for long", _full_for_long, jobs=1, seconds=200.0),
        Scene("by hand", _by_hand, jobs=0, seconds=30.0),
    )
}
