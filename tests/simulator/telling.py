"""All variants of a scene: with every kill, every pair of kills, every fault, sleep and outage.

`of`: only those that befall processes with such a name. `share`: which places of a scene.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from simulator.world import (
    A_LITTLE_LATE,
    AWAY,
    DONE,
    GONE,
    KILL,
    LATE,
    LONG_AWAY,
    MISSING,
    NOT_DONE,
    SLEEP,
    SLOW,
    World,
)

ALL = slice(None)


def kills(told: Any, of: str = "") -> list[tuple[str, int]]:
    """Where to kill: at each process's first call, and after each call that changed something.

    Between two changes of its process, a kill has the same effect wherever it comes.
    """
    return [
        (process.name, call + 1)
        for process in told.processes
        if process.name != "person" and process.name.startswith(of)
        for call in (0, *process.changes)
    ]


def single_kills(scenes: Any, scene: Any, of: str = "") -> Iterator[tuple[str, list[str]]]:
    for place in kills(scenes.tell(scene, World()), of):
        told = scenes.tell(scene, World(), {place: KILL})
        yield f"killed: {place}", told.problems


def other_orders(scenes: Any, scene: Any, of: str = "") -> Iterator[tuple[str, list[str]]]:
    """Single kills again, where calls overtake each other in other ways."""
    for seed in range(1, 11):
        for place in kills(scenes.tell(scene, World(seed)), of):
            told = scenes.tell(scene, World(seed), {place: KILL})
            yield f"seed {seed}, killed: {place}", told.problems


def pairs_of_kills(scenes: Any, scene: Any, share: slice = ALL) -> Iterator[tuple[str, list[str]]]:
    """Each second kill in what happens after the first one."""
    for first in kills(scenes.tell(scene, World()))[share]:
        told = scenes.tell(scene, World(), {first: KILL})
        for second in kills(told):
            if second[0] != first[0]:
                both = scenes.tell(scene, World(), {first: KILL, second: KILL})
                yield f"killed: {first}, {second}", both.problems


def _calls(told: Any, of: str, share: slice) -> Iterator[tuple[tuple[str, int], bool]]:
    """The calls of the scene's own processes, and whether each does more than look."""
    places = [
        ((process.name, call), call in effects)
        for process in told.processes
        if process.name.startswith(of) and not process.name.startswith(("after", "helper"))
        for effects in [set(process.effects)]
        for call in range(1, process.calls + 1)
    ]
    yield from places[share]


def single_faults(
    scenes: Any, scene: Any, of: str = "", share: slice = ALL
) -> Iterator[tuple[str, list[str]]]:
    """An error at each call: before it is done, after it, or long before it."""
    for place, is_effect in _calls(scenes.tell(scene, World()), of, share):
        for fault in (NOT_DONE, DONE, LATE, A_LITTLE_LATE) if is_effect else (NOT_DONE, MISSING):
            yield f"{place}: {fault}", scenes.tell(scene, World(), {place: fault}).problems


def sleeps(
    scenes: Any, scene: Any, of: str = "", share: slice = ALL
) -> Iterator[tuple[str, list[str]]]:
    """Each node falls asleep at each call, until others have given it up."""
    for place, _ in _calls(scenes.tell(scene, World()), of, share):
        told = scenes.tell(scene, World(), {place: SLEEP})
        yield f"asleep at {place}", told.problems


def outages(
    scenes: Any, scene: Any, of: str = "", share: slice = ALL
) -> Iterator[tuple[str, list[str]]]:
    """From each call on, the server does not answer a node for 40 s or for minutes, or its mount is
    missing."""
    for place, is_effect in _calls(scenes.tell(scene, World()), of, share):
        for fault in (AWAY, LONG_AWAY, GONE) if is_effect else ():
            told = scenes.tell(scene, World(), {place: fault})
            yield f"alone from {place}: {fault}", told.problems


def slow_calls(
    scenes: Any, scene: Any, of: str = "", share: slice = ALL
) -> Iterator[tuple[str, list[str]]]:
    """Each call takes 20 s, while the other threads of its process go on."""
    for place, _ in _calls(scenes.tell(scene, World()), of, share):
        told = scenes.tell(scene, World(), {place: SLOW})
        yield f"slow: {place}", told.problems


def calm(scenes: Any, scene: Any, of: str = "") -> Iterator[tuple[str, list[str]]]:
    """Nothing befalls it but what the scene has."""
    for seed in range(10):
        yield f"seed {seed}", scenes.tell(scene, World(seed)).problems


def histories(scenes: Any, scene: Any, of: str = "") -> Iterator[tuple[str, list[str]]]:
    """Random ones. What is broken is imported anew."""
    play = importlib.import_module("simulator.histories").play
    for seed in range(2000):
        yield f"seed {seed}", play(seed).problems


VARIANTS = {
    "histories": histories,
    "calm": calm,
    "slow": slow_calls,
    "kills": single_kills,
    "orders": other_orders,
    "faults": single_faults,
    "sleeps": sleeps,
    "outages": outages,
}
