"""The protocol with one rule taken out: a copy of its modules, with one text replaced."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import snakemake_kochi

_PACKAGES = (
    *("snakemake_kochi.tickets", "snakemake_kochi.worker"),
    *("simulator.actors", "simulator.oracle", "simulator.scenes", "simulator.histories"),
)


@dataclass(frozen=True)
class Rule:
    """`instead` of `text` in a module (of `tickets` if it has no dot; `.m` is m) breaks the rule.

    `where`: what finds it, in which scene, and of whose calls; or the name of a test. `was`: the
    commit that mended this fault, if the project had it.
    """

    name: str
    module: str
    text: str
    instead: str
    where: str
    scene: str = ""
    of: str = ""
    was: str = ""

    @property
    def path(self) -> Path:
        """Of the module, in the package."""
        where = self.module if "." in self.module else f"tickets.{self.module}"
        return Path(f"{where.strip('.').replace('.', '/')}.py")

    def break_in(self, package: Path) -> None:
        file = package / self.path
        before = file.read_text()
        assert before.count(self.text) == 1, f"{self.name}: the text has changed"
        file.write_text(before.replace(self.text, self.instead))


RULES = [
    Rule(
        "after an error, the directories tell whether a rename was done",
        "moving",
        "            if not is_listed(source):\n                return is_listed(target)\n",
        "            pass\n",
        "faults",
        "submit, run, finish",
        "run",
        was="e97ac20c",
    ),
    Rule(
        "a number that is taken is not mine",
        "run",
        "        if reason.errno in (errno.EEXIST, errno.ENOTEMPTY):\n            number += 1\n",
        "        if reason.errno in (errno.EEXIST, errno.ENOTEMPTY):\n            return number\n",
        "kills",
        "two runs at once",
    ),
    Rule(
        "the journal has a submission before it is made",
        "run",
        "        self._note([note])\n",
        "",
        "kills",
        "submit, run, finish",
        "run",
    ),
    Rule(
        "who dies before a submission is made has not submitted",
        "run",
        'if "submitted" in line and not self._withdraw(paths, part.token, line["aside"]):',
        'if "submitted" in line:',
        "kills",
        "submit, run, finish",
        "run",
    ),
    Rule(
        "a worker looks for claims whose answer was lost",
        "claims",
        "            del self._let_go[name]\n        return missed",
        "            del self._let_go[name]\n        return []",
        "faults",
        "submit, run, finish",
        "worker",
    ),
    Rule(
        "a ticket that a worker has held is not begun again",
        "claims",
        "mine - self._held - let_go.keys()",
        "mine - let_go.keys()",
        "kills",
        "a run dies and is adopted",
        "run",
    ),
    Rule(
        "an error after a claim leaves the claim",
        "claims",
        "            if not claimed:\n                raise\n",
        "            raise\n",
        "faults",
        "a late worker",
        "worker",
    ),
    Rule(
        "the tickets of a dead worker go back",
        "watching",
        "        if is_over or self._is_gone(self._facts.get(worker)):",
        "        if False:",
        "kills",
        "submit, run, finish",
        "worker",
    ),
    Rule(
        "a job that loses three workers has ended",
        "watching",
        "    if losses >= LOST:",
        "    if losses > 1000:",
        "kills",
        "requeued three times",
    ),
    Rule(
        "one end a job, although a listing shows a name twice",
        "run",
        "                if name.key not in self._ended:\n                    if (end",
        "                if True:\n                    if (end",
        "faults",
        "cancel against finish",
        "run",
    ),
    Rule(
        "an end is in the journal before its file goes",
        "run",
        "            self._note([{**e.line",
        "            (lambda lines: None)([{**e.line",
        "kills",
        "submit, run, finish",
        "run",
    ),
    Rule(
        "a run whose token is gone stops",
        "run",
        "            if part.token not in tokens and not is_ending:",
        "            if False:",
        "kills",
        "run asleep",
    ),
    Rule(
        "nobody takes over from a run that lives",
        "run",
        "return still >= REQUEUED",
        "return still >= 0",
        "kills",
        "two runs at once",
    ),
    Rule(
        "a cancelled ticket ends by one rename",
        "hand",
        'moved(path, f"{layout.run(name.run).inbox}/{ended}", _PATIENCE)',
        "files.unlink(path) is None",
        "kills",
        "cancel against finish",
    ),
    Rule(
        "a number stays the same while nobody knows whose it is",
        "run",
        "            if not number:\n",
        "            if True:\n",
        "faults",
        "submit, run, finish",
        "run",
    ),
    Rule(
        "a rename that is under way may know the directory by another name",
        "run",
        'moved(f"{own}/{aside}", f"{own}/{withdrawn}", _PATIENCE)',
        "True",
        "sleeps",
        "submit, run, finish",
        "run",
    ),
    Rule(
        "a name is used once",
        "names",
        "return replace(self, attempt=self.attempt + 1, losses",
        "return replace(self, losses",
        "calm",
        "put back",
        was="4867097e",
    ),
    Rule(
        "a directory aside is abandoned after an error",
        "run",
        'first + len(contents) - 1}.{nonce()}"\n        try:\n            files.make(aside)\n',
        'first + len(contents) - 1}.x"\n        try:\n'
        "            with suppress(FileExistsError):\n                files.make(aside)\n",
        "faults",
        "a run dies and is adopted",
        "run",
    ),
    Rule(
        "a process that was away looks before it goes on",
        "watching",
        "        if clock.now() - self._checked > most * INTERVAL:",
        "        if False:",
        "sleeps",
        "submit, run, finish",
        "worker",
    ),
    Rule(
        "a worker has given a sign of life before it claims",
        "claims",
        "        files.write_new(self.paths.alive, FIRST)\n",
        "",
        "slow",
        "requeued three times",
        "worker",
    ),
    Rule(
        "a directory is missing only if the one above says so",
        "moving",
        "            if name not in files.names(above):\n",
        "            if True:\n",
        "outages",
        "submit, run, finish",
        "run",
    ),
    Rule(
        "the oldest run is closed first",
        "run",
        "part.number == self.number:\n                return\n",
        "part.number == self.number:\n                continue\n",
        "calm",
        "runs die one after the other",
    ),
    Rule(
        "a worker looks for its claims although no error came",
        "claims",
        "sorted(mine - self._held - let_go.keys())",
        "sorted(mine - self._held - let_go.keys()) if self._is_unsure else []",
        "faults",
        "a run dies and is adopted",
        "worker",
    ),
    Rule(
        "an observer that slept has seen nothing",
        "watching",
        "min(passed, _AT_MOST * INTERVAL)",
        "passed",
        "calm",
        "all asleep",
    ),
    Rule(
        "who is found dead has time to learn it",
        "watching",
        "still >= self._dead[worker] + REQUEUED - SILENT",
        "still >= self._dead[worker]",
        "calm",
        "full disk for long",
    ),
    Rule(
        "an end is collected when its file has it, too",
        "run",
        'is_whole = "details" in line or name.state in _WITHOUT_DETAILS',
        "is_whole = True",
        "histories",
        was="70ed1704",
    ),
    Rule(
        "a ticket whose mount is missing for a moment is not gone",
        "claims",
        "        if is_listed(path):\n            raise OSError(errno.ESTALE",
        "        if False:\n            raise OSError(errno.ESTALE",
        "outages",
        "a late worker",
        "worker",
    ),
]


@contextmanager
def without(rule: Rule, directory: Path) -> Iterator[Any]:
    """The scenes, played with the protocol that lacks a rule."""
    package = rule.path.parent
    shutil.copytree(Path(snakemake_kochi.__file__).parent / package, directory / package)
    rule.break_in(directory)
    hidden = {n: sys.modules.pop(n) for n in list(sys.modules) if n.startswith(_PACKAGES)}
    snakemake_kochi.__path__.insert(0, str(directory))
    try:
        yield importlib.import_module("simulator.scenes")
    finally:
        snakemake_kochi.__path__.remove(str(directory))
        for name in [n for n in sys.modules if n.startswith(_PACKAGES)]:
            del sys.modules[name]
        sys.modules.update(hidden)
        snakemake_kochi.tickets = hidden["snakemake_kochi.tickets"]
        snakemake_kochi.worker = hidden["snakemake_kochi.worker"]
