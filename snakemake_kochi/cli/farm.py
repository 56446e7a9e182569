"""`kochi farm`."""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snakemake_kochi.cli.options import COUNT, Number, duration, json_option, machine_option
from snakemake_kochi.cli.output import print_json, print_table, remark, say
from snakemake_kochi.errors import KochiError

if TYPE_CHECKING:
    from snakemake_kochi.farm.state import Standing
    from snakemake_kochi.farm.tasks import Task

_FROM_0 = Number(0, 2**31 - 1, "a whole number of 0 or more")


@click.command(context_settings={"allow_interspersed_args": True})
@machine_option
@click.option("-j", "-n", "--proc", type=COUNT, metavar="N", help="Tasks at a time, here.")
@click.option("--cores", metavar="N", help="Cores that each task uses; by default 1.")
@click.option("--mem", metavar="SIZE", help="Memory that each task uses, for example 2G.")
@click.option("--gpus", metavar="N", help="GPUs that each task uses.")
@click.option("--time", metavar="TIME", help="End a task after 90s, 2h, or so many minutes.")
@click.option("--timeout", type=duration, metavar="TIME", help="End the run after 30m or 2h.")
@click.option(
    "--retries", type=_FROM_0, default=0, metavar="N", help="Try a failed task N times again."
)
@click.option("--longest-first", is_flag=True, help="By the times of former runs.")
@click.option(
    "--prefer-order", is_flag=True, help="Tasks that are tried again come before later lines."
)
@click.option("--watch", is_flag=True, help="Take lines that are appended, until Ctrl-C.")
@click.option("--from", "source", metavar="CMD", help="The list is what this command prints.")
@click.option(
    "--each",
    metavar="FILE",
    help="The tasks are the words after --, for each row of a CSV file, line of a file, or file "
    "of a pattern; {name}, {2} and {} stand for columns and the line.",
)
@click.option(
    *("-w", "--workdir"),
    metavar="DIRECTORY",
    help="Where it is written what became of the tasks; by default TASKS.farm.",
)
@click.option("-r", "--runner", metavar="NAME", help="Run tasks as PyTaskFarmer's INI files say.")
@click.option("-t", "--tasklist", metavar="NAME", help="The kind of list, from INI files too.")
@click.option("--status", is_flag=True, help="Print how many tasks finished and failed.")
@click.option("--failed", is_flag=True, help="List the tasks that failed, with the reasons.")
@click.option("--log", type=COUNT, metavar="ID", help="Print what a task has printed.")
@click.option("--logs", is_flag=True, help="Write what all tasks have printed to logs.tar.")
@click.option(
    "--retry",
    is_flag=False,
    flag_value="failed",
    metavar="[failed|ID,...]",
    help="Run tasks again: the failed ones, or those with these numbers, as in 3,7-9.",
)
@json_option
@click.argument("words", nargs=-1, metavar="TASKS")
def command(machine: str | None, words: tuple[str, ...], **given: Any) -> int:
    """Run a file of commands, one per line; the same line again goes on.

    A task that has succeeded is not run again. TASKS may be -, standard input.
    """
    listed = _Listed(words, given)
    if given["status"] or given["failed"] or given["log"] or given["logs"]:
        return _show(listed, given)
    return _run(listed, machine, given)


class _Listed:
    """The list that a person has typed, and its state. Raises KochiError."""

    def __init__(self, words: Sequence[str], given: dict[str, Any]) -> None:
        from snakemake_kochi.farm.state import State
        from snakemake_kochi.farm.tasks import TaskList, needs_of
        from snakemake_kochi.files import safe_name
        from snakemake_kochi.tickets.ticket import Resources

        source, each = given["source"], given["each"]
        self.path: Path | None = None  # of a file of commands
        if each is not None and words and source is None:
            name, self.typed = each, shlex.join(["--each", each, "--", *words])
        elif source is not None and each is None and not words:
            name, self.typed = "from", shlex.join(["--from", source])
        elif len(words) == 1 and each is None and source is None:
            name, self.typed = words[0], shlex.join(words)
            if name == "-":
                name = "stdin"
            else:
                self.path = Path(name)
        else:
            raise click.UsageError(
                "one file of commands was expected, or -, or --from CMD, or --each FILE -- COMMAND"
            )
        for key in ("runner", "tasklist", "workdir"):
            if given[key]:
                self.typed = f"--{key} {shlex.quote(given[key])} {self.typed}"
        self.name = Path(name).name
        place = self.path.parent if self.path else Path()
        place = place / f"{safe_name(self.name).lstrip('.-')}.farm"
        self.state = State(Path(os.path.abspath(given["workdir"] or place)))
        try:
            needs = {key: given[key] for key in ("cores", "mem", "gpus", "time")}
            self.list = TaskList(self.name, needs_of(needs, Resources()))
        except ValueError as error:
            raise click.UsageError(f"--{error}") from error
        self._data = self._read(words, source, each)
        if given["watch"]:
            if self.path is None:
                raise click.UsageError("--watch needs a file, to which lines are appended")
            self._data = self._data[: self._data.rfind(b"\n") + 1]
        self.list.add(self._data)
        if self.list.had_returns:
            remark(f"kochi: {self.name} has Windows line ends, which are left out.")

    def _read(self, words: Sequence[str], source: str | None, each: str | None) -> bytes:
        from snakemake_kochi.farm.tasks import from_rows, printed, read_list

        if each is not None:
            return from_rows(each, words)
        if source is not None:
            return printed(source)
        return sys.stdin.buffer.read() if self.path is None else read_list(self.path)

    def _now(self) -> bytes | None:
        assert self.path is not None
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def appended(self) -> Sequence[Task]:
        """The whole lines that came since; none while the file cannot be read."""
        data, count = self._now() or b"", len(self.list.tasks)
        data = data[len(self._data) : data.rfind(b"\n") + 1]
        self._data += data
        self.list.add(data)
        return self.list.tasks[count:]

    def tell_changed(self) -> None:
        if self.path is None or (now := self._now()) == self._data:
            return
        if now is None:
            remark(f"kochi: {self.path} is gone; its tasks were those of the beginning.")
        else:
            remark(
                f"kochi: {self.path} was changed meanwhile. To run its new and changed lines, "
                f"type: kochi farm {self.typed}"
            )


def _run(listed: _Listed, machine: str | None, given: dict[str, Any]) -> int:
    from snakemake_kochi.allocation.workers import HERE, check_where, location_of_run
    from snakemake_kochi.farm.run import Farm, Wishes
    from snakemake_kochi.farm.screen import Screen
    from snakemake_kochi.location import find_location
    from snakemake_kochi.schedulers.environment import own_allocation

    if not listed.list.tasks and not given["watch"]:
        raise KochiError(f"{listed.name}: there is no command in it")
    again = _again(given["retry"])
    around: Callable[[str], str] = str
    if given["runner"] or given["tasklist"]:
        from snakemake_kochi.farm.runners import around_tasks

        around = around_tasks(given["runner"], given["tasklist"])
    screen = Screen()
    if machine is None:
        location = location_of_run(None, screen)
    else:
        location = find_location(machine, asks=True)
    location.require_here()
    is_inside = own_allocation(os.environ) is not None and "KOCHI_MACHINE" not in os.environ
    is_here = is_inside or check_where(None, location) == HERE
    cores = listed.list.needs.cores
    wishes = Wishes(
        slots=given["proc"] and given["proc"] * cores,
        retries=given["retries"],
        timeout=given["timeout"],
        longest_first=given["longest_first"],
        prefer_order=given["prefer_order"],
        retry=again,
        around=around,
        fresh=listed.appended if given["watch"] else None,
    )
    listed.state.prepare()
    with location.root.explaining():
        farm = Farm(location, is_here, listed.list, listed.state, wishes, screen)
        status = farm.run()
    if not given["watch"]:
        listed.tell_changed()
    _tell(listed, given["as_json"], farm.why_stopped)
    return status


def _again(text: str | None) -> Callable[[Standing], Sequence[bytes]]:
    """Which tasks `--retry` means. Raises click.UsageError."""
    numbers: set[int] = set()
    for part in text.split(",") if text not in (None, "failed") else ():
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise click.UsageError(f"--retry {text}: failed, or numbers as in 3,7-9, were expected")
        numbers.update(range(int(first), int(last or first) + 1))

    def chosen(standing: Standing) -> Sequence[bytes]:
        if text is None:
            return ()
        if not numbers:
            return [end for _, end in standing.failed]
        ended = [*standing.failed, *standing.finished]
        if unknown := numbers - {*(t.id for t, _ in ended), *(t.id for t in standing.left)}:
            raise KochiError(f"--retry: there is no task {min(unknown)}")
        return [end for task, end in ended if task.id in numbers]

    return chosen


# ---- views


def _tell(listed: _Listed, as_json: bool, why: str = "") -> None:
    standing = listed.state.standing(listed.list.tasks)
    listed.state.write_lists(standing)
    total = len(listed.list.tasks)
    numbers = {"finished": len(standing.finished), "failed": len(standing.failed)}
    numbers |= {"left": len(standing.left), "gone": standing.gone}
    if as_json:
        print_json({"tasks": total, **numbers, "failures": _failures(standing)})
        return
    if why:
        remark(f"kochi: {why}: running tasks were put back.")
    text = f"{numbers.pop('finished')} of {total} tasks finished"
    say(text + "".join(f", {number} {word}" for word, number in numbers.items() if number))
    if standing.failed:
        say(
            f"Logs of failed tasks: {listed.state.directory}/logs\n"
            f"To run the failed ones again, type: kochi farm {listed.typed} --retry"
        )
    if standing.left:
        say(f"To go on, type: kochi farm {listed.typed}")


def _failures(standing: Standing) -> list[dict[str, Any]]:
    from snakemake_kochi.farm.state import Ended

    ended = ((task, Ended.parse(line)) for task, line in standing.failed)
    return [{**asdict(end), "id": task.id, "text": task.text} for task, end in ended]


def _show(listed: _Listed, given: dict[str, Any]) -> int:
    state = listed.state.read()
    if not state.directory.is_dir():
        raise KochiError(f"{listed.name} was not run yet: there is no {state.directory}")
    standing = state.standing(listed.list.tasks)
    if given["log"] or given["logs"]:
        return _show_logs(standing, given["log"], state.directory / "logs.tar")
    if given["status"] or given["as_json"]:
        _tell(listed, given["as_json"])
        return 0
    names = ("id", "reason", "seconds", "text")
    rows = [[failure[name] for name in names] for failure in _failures(standing)]
    print_table([name.capitalize() for name in names], rows, "No task has failed.")
    return 0


def _show_logs(standing: Standing, task: int | None, path: Path) -> int:
    """From the history of the runs: what one task printed, or an archive of all."""
    import tarfile

    from snakemake_kochi.farm.state import Ended
    from snakemake_kochi.location import find_location
    from snakemake_kochi.queue.views import layout_of
    from snakemake_kochi.tickets.history import log_of, logs_of
    from snakemake_kochi.tickets.names import Name

    layout = layout_of(find_location().machine_paths)
    wanted: dict[int, dict[str, int]] = {}  # the task of each log, by run
    for each, line in (*standing.finished, *standing.failed):
        name = Name.parse(Ended.parse(line).job)
        if name is None or task not in (None, each.id):
            continue
        if task is not None and (content := log_of(layout.run(name.run), name)) is not None:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
            return 0
        wanted.setdefault(name.run, {})[f"{name.job}.a{name.attempt}"] = each.id
    if task is not None:
        why = "its log was cleaned up" if wanted else "it has not ended"
        raise KochiError(f"task {task}: {why}")
    with tarfile.open(path, "w") as archive:
        for run, tasks in wanted.items():
            for text, content in logs_of(layout.run(run)):
                if text in tasks:
                    member = tarfile.TarInfo(f"logs/log_{tasks[text]}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    say(f"Wrote {path}")
    return 0
