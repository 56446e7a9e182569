"""Random histories: from a number, a world, its users, and what befalls them."""

from __future__ import annotations

import random

from simulator.actors import Canceller, Controller, Hand, Story, Worker
from simulator.scenes import Scene, Telling, tell
from simulator.world import Process, World


def play(seed: int, is_traced: bool = False) -> Telling:
    """The same in every process, whatever its PYTHONHASHSEED: call by call."""
    chosen = random.Random(seed)
    cache = chosen.choice([0.0, 0.0, 3.0, 30.0])
    world = World(
        seed,
        latency=chosen.choice([0.01, 0.01, 0.3, 3.0]),
        cache=cache,
        chance=chosen.choice([0.0, 0.001, 0.01, 0.05]),
    )
    world.is_traced = is_traced
    jobs = chosen.randint(1, 6)
    sleeps = chosen.random() < 0.4
    users = Users(world, chosen, [f"j{number}" for number in range(jobs)], sleeps)
    seconds = chosen.choice([60.0, 300.0])
    return tell(Scene("", users.begin, jobs, seconds), world)


class Users:
    """They begin runs and workers, kill some, and their computers sleep or lose the server."""

    def __init__(self, world: World, chosen: random.Random, keys: list[str], sleeps: bool) -> None:
        self._world, self._chosen, self._keys, self._sleeps = world, chosen, keys, sleeps
        self._processes: list[Process] = []

    def begin(self, world: World, story: Story) -> None:
        self._story = story
        self._run()
        for _ in range(self._chosen.randint(1, 3)):
            self._worker()
        world.start("person", "desk", self._go_on)

    def _run(self) -> None:
        portion = self._chosen.randint(1, 4)
        controller = self._controller = Controller(self._world, self._story, self._keys, portion)
        node = self._chosen.choice(["login1", "login2", "n1"])  # or where a worker is, too
        self._processes.append(self._world.start("run", node, controller))

    def _worker(self) -> None:
        cores, seconds = self._chosen.randint(1, 3), self._chosen.choice([0.5, 2.0, 20.0])
        worker = Worker(self._world, self._story, "w", cores, seconds)
        node = self._chosen.choice(["n1", "n2", "n3"])
        self._processes.append(self._world.start("worker", node, worker))

    def _go_on(self) -> None:
        for _ in range(self._chosen.randint(0, 8)):
            self._world.wait(self._chosen.choice([0.5, 5.0, 30.0, 80.0]))
            number = self._chosen.random()
            if number < 0.4:
                victim = self._chosen.choice(self._processes)
                self._world.kill(victim)
                (self._run if victim.name.startswith("run") else self._worker)()
            elif number < 0.5:
                self._worker()
            elif number < 0.6:
                self._run()
            elif number < 0.65:
                key = f"hand{self._world.random.random()}"
                self._world.start("hand", "desk", Hand(self._story, key))
            elif number < 0.7:
                self._world.start("person", "desk", Canceller(self._story, self._controller))
            elif number < 0.75:
                self._world.is_full = not self._world.is_full
            elif self._sleeps:
                node = self._world.node(self._chosen.choice(["login1", "n1", "n2"]))
                until = self._world.time + self._chosen.choice([10.0, 70.0, 200.0])
                what = self._chosen.choice(("asleep", "away", "gone"))
                setattr(node, what, max(until, getattr(node, what)))
        self._world.is_full = False
