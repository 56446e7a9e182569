"""`kochi farm`."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snakemake_kochi.cli.options import COUNT, duration, json_option, machine_option
from snakemake_kochi.cli.output import print_json, print_table, remark, say
from snakemake_kochi.errors import KochiError

if TYPE_CHECKING:
    from snakemake_kochi.farm.tasks import Task

_NEEDS, _COLUMNS = ("cores", "mem", "gpus", "time"), ("Id", "Reason", "Seconds", "Text")

_EXPECTED = "one file of commands was expected, or -, or --from CMD, or --each FILE -- COMMAND"


def _ids(_context: click.Context, _option: click.Parameter, text: str | None) -> set[int] | None:
    if text is None or text == "failed":
        return None if text is None else set()
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        what = f"{text}: failed, or numbers as in 3,7 were expected"
        raise click.BadParameter(f"{what}. Type: kochi farm --retry failed TASKS")
    return set(map(int, text.split(",")))


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note the words after `--`: click gives them together with those before it."""
        ctx.meta["after"] = args[args.index("--") + 1 :] if "--" in args else []
        return super().parse_args(ctx, args)


@click.command(cls=_Command, context_settings={"allow_interspersed_args": True})
@machine_option
@click.option("-j", "-n", "--proc", type=COUNT, metavar="N", help="Tasks at a time, here.")
@click.option("--cores", metavar="N", help="Cores that each task uses; by default 1.")
@click.option("--mem", metavar="SIZE", help="Memory that each task uses, for example 2G.")
@click.option("--gpus", metavar="N", help="GPUs that each task uses.")
@click.option("--time", metavar="TIME", help="End a task after 90s, 2h, or so many minutes.")
@click.option("--timeout", type=duration, metavar="TIME", help="End it after 30m, or seconds.")
@click.option(
    "--retries", type=click.IntRange(0), default=0, metavar="N", help="Try failed tasks again."
)
@click.option("--longest-first", is_flag=True, help="By the times of former runs.")
@click.option("--prefer-order", is_flag=True, help="Tries again before it goes on with the list.")
@click.option("--watch", is_flag=True, help="Take lines that are appended, until Ctrl-C.")
@click.option("--from", "source", metavar="CMD", help="The list is what this command prints.")
@click.option(
    "--each", metavar="FILE", help="A task for each row, line or name, from the words after --."
)
@click.option("-w", "--workdir", metavar="DIRECTORY", help="In place of TASKS.farm.")
@click.option("-r", "--runner", metavar="NAME", help="Run tasks as PyTaskFarmer's INI files say.")
@click.option("-t", "--tasklist", metavar="NAME", help="The kind of list, from INI files too.")
@click.option("--status", is_flag=True, help="Print how many tasks finished and failed.")
@click.option("--failed", is_flag=True, help="List the tasks that failed, with the reasons.")
@click.option("--logs", is_flag=True, help="Write what all tasks have printed to logs.tar.")
@click.option(
    "--retry",
    is_flag=False,
    flag_value="failed",
    callback=_ids,
    metavar="[failed|ID,...]",
    help="Run tasks again: the failed ones, or those with these numbers, as in 3,7.",
)
@click.option("-v", "--verbose", is_flag=True, hidden=True, expose_value=False)  # PyTaskFarmer's
@json_option
@click.argument("words", nargs=-1, metavar="TASKS")
def command(machine: str | None, words: tuple[str, ...], **given: Any) -> int:
    """Run a file of commands, one per line; the same line again goes on.

    A task that has succeeded is not run again. TASKS may be -, standard input.
    """
    is_view = given["status"] or given["failed"] or given["logs"]
    if is_view:
        gc.disable()  # it makes many objects, and ends
    listed = _Listed(words, given, is_view)
    if not is_view:
        return _run(listed, machine, given)
    if not (directory := listed.state.directory).is_dir():
        raise KochiError(f"{listed.state.name} was not run yet: there is no {directory}")
    listed.state.read()
    return listed.show()


def _directory(path: Path, what: str | None) -> Path:
    """TASKS.farm beside a file; in this directory for a command or a pattern, with its digest."""
    from snakemake_kochi.files import safe_name

    name = safe_name(path.name).lstrip(".-")
    if what is None:
        return path.parent / f"{name}.farm"
    return Path(f"{name}-{hashlib.blake2b(os.fsencode(what), digest_size=4).hexdigest()}.farm")


class _Listed:
    """The list that a person has typed, and its state. Raises KochiError."""

    def __init__(self, words: Sequence[str], given: dict[str, Any], is_view: bool) -> None:
        from snakemake_kochi.farm.state import State
        from snakemake_kochi.farm.tasks import from_rows, needs_of, printed, tasks_in
        from snakemake_kochi.tickets.ticket import Resources

        source, each, self._given = given["source"], given["each"], given
        after = click.get_current_context().meta["after"]
        if each is not None and words and list(words) != after:
            raise click.UsageError("--each FILE -- COMMAND was expected; put a pattern in quotes")
        if None not in (source, each) or (not words if each else len(words) != (source is None)):
            raise click.UsageError(_EXPECTED)
        self._file: Path | None = None
        if each is not None:
            name, typed, data = each, ["--each", each, "--", *words], from_rows(each, words)
        elif source is not None:
            name, typed, data = "from", ["--from", source], printed(source)
        elif words[0] != "-":
            name, self._file = words[0], Path(words[0])
            typed = [f"./{name}" if name.startswith("-") else name]
            data = self._file.read_bytes()
        elif is_view:
            raise click.UsageError("- cannot be read again. See the files in stdin.farm")
        else:
            name, typed, data = "stdin", ["-"], sys.stdin.buffer.read()
        if given["watch"] and self._file is None:
            raise click.UsageError("--watch needs a file, to which lines are appended")
        for key in ("runner", "tasklist", "workdir"):
            if given[key]:
                typed = [f"--{key}", given[key], *typed]
        self._typed, base = shlex.join(typed), Path(name).name
        what = each if each and not Path(each).is_file() else source  # of this, here
        try:
            words = tuple(f"{key}={given[key]}" for key in _NEEDS if given[key] is not None)
            self.needs = needs_of(words, Resources())
        except ValueError as error:
            raise click.UsageError(f"--{error}") from error
        self._data = self._told = data[: data.rfind(b"\n") + 1] if given["watch"] else data
        tasks = tasks_in(self._data, base, self.needs)
        self.state = State(Path(given["workdir"] or _directory(Path(name), what)), base, tasks)
        if b"\r\n" in data:
            remark(f"kochi: {base} has Windows line ends, which are left out.")

    def appended(self) -> Sequence[Task]:
        """The tasks in whole lines that came since; none while the file cannot be read, and none
        any more once it was changed before them."""
        from snakemake_kochi.farm.tasks import tasks_in

        if not (data := self._now()).startswith(self._data):
            self._tell_change(data)
            return ()
        tasks = []
        data = data[len(self._data) : data.rfind(b"\n") + 1]
        for number, line in enumerate(data.split(b"\n"), self._data.count(b"\n")):
            try:
                tasks += tasks_in(line, self.state.name, self.needs, number)
            except KochiError as error:  # the next farm refuses it
                remark(f"kochi: {error}; it is left out")
        self._data += data
        self.state.tasks += tasks
        return tasks

    def _now(self) -> bytes:
        try:
            return self._file.read_bytes() if self._file else self._data
        except OSError:
            return b""

    def _tell_change(self, data: bytes) -> None:
        if data != self._told:
            self._told = data
            stop = "stop this farm, and " if self._given["watch"] else ""
            to_run = f"To run its new and changed lines, {stop}type: kochi farm {self._typed}"
            remark(f"kochi: {self._file} was changed or removed meanwhile. {to_run}")

    def show(self, why: str = "") -> int:
        """Tell what became of the tasks, and write it into the files of TASKS.farm."""
        from snakemake_kochi.farm.state import parsed

        standing, given = self.state.standing(), self._given
        self.state.write_lists(standing)
        ended = [(task, parsed(line)._asdict()) for task, line in standing.failed]
        failures = [{**end, "id": task.id, "text": task.text} for task, end in ended]
        numbers = {"finished": len(standing.finished), "failed": len(standing.failed)}
        numbers |= {"left": len(standing.left), "gone": standing.gone}
        running = self.state.running()
        if given["logs"]:
            say(f"Wrote {self.state.write_archive(standing)}")
        elif given["as_json"]:
            numbers |= {"tasks": len(self.state.tasks)}
            print_json({**numbers, "running": running, "failures": failures})
        elif given["failed"]:
            rows = [[each[name.lower()] for name in _COLUMNS] for each in failures]
            print_table(_COLUMNS, rows, "No task has failed.")
        else:
            if why:
                remark(f"kochi: {why}: running tasks were put back.")
            text = f"{numbers.pop('finished')} of {len(self.state.tasks)} tasks finished"
            say(text + "".join(f", {number} {word}" for word, number in numbers.items() if number))
            if failures:
                say(f"Logs of failed tasks: {self.state.directory}/logs")
                say(f"To run the failed ones again, type: kochi farm --retry failed {self._typed}")
            if running:
                say(f"A farm works on it: {running}")
            elif standing.left:
                say(f"To go on, type: kochi farm {self._typed}")
            now = self._now()
            if now != self._data and not (given["watch"] and now.startswith(self._data)):
                self._tell_change(now)
        return 0


def _run(listed: _Listed, machine: str | None, given: dict[str, Any]) -> int:
    from snakemake_kochi.allocation.workers import HERE, check_where, location_of_run
    from snakemake_kochi.farm.run import Farm, Screen, Wishes
    from snakemake_kochi.location import find_location
    from snakemake_kochi.schedulers.environment import own_allocation

    if not listed.state.tasks and not given["watch"]:
        raise KochiError(f"{listed.state.name}: there is no command in it")
    around: Callable[[str], str] = str
    if given["runner"] or given["tasklist"]:
        from snakemake_kochi.farm.runners import around_tasks

        around = around_tasks(given["runner"], given["tasklist"])
    screen = Screen()
    location = find_location(machine, asks=True) if machine else location_of_run(None, screen)
    location.require_here()
    is_inside = own_allocation(os.environ) is not None and "KOCHI_MACHINE" not in os.environ
    is_here = is_inside or check_where(None, location) == HERE
    wishes = {name: given[name] for name in ("retries", "timeout", "retry")}
    wishes |= {name: given[name] for name in ("longest_first", "prefer_order")}
    if given["proc"] and not is_here:
        remark("kochi: -j has no effect in allocations: their max_workers limits how many run.")
    slots = given["proc"] and given["proc"] * listed.needs.cores
    fresh = listed.appended if given["watch"] else None
    with location.root.explaining():
        farm = Farm(location, is_here, listed.state, Wishes(slots, fresh, around, **wishes), screen)
        status = farm.run()
    if farm.stop:
        listed.state.read()  # one that only helped has not
    listed.show(farm.stop[0] if farm.stop else "")
    return status
