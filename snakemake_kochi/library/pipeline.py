"""What one run of a batch goes through on its node, as the texts that would be executed.

Nothing is executed or written, except in a private directory that is deleted. What is known only
when the job runs is in angle brackets: `<private>` is the job's private directory.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError, PhaseError
from snakemake_kochi.library.batch import RUN_COMMAND, BatchRules
from snakemake_kochi.library.restorable import Place
from snakemake_kochi.library.variants import Variant
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.launcher import line_of, shape_of
from snakemake_kochi.phases.products import Install, merge, read_build, read_manifest
from snakemake_kochi.phases.script import Environment, mode_of, source_variables, starting
from snakemake_kochi.project.grid import Phase, Point
from snakemake_kochi.project.recipes import Recipe

CONTROLLER, NODE = "controller", "node"
_PRIVATE = Path("<private>")
_WORKSPACE = _PRIVATE / "workspace"
# What each task of a launcher runs first: it binds the task, and notes where it is.
_UNKNOWN = "<known when the job runs>"
_PLACEHOLDER = re.compile(r"<[a-z :]+>[\w./-]*")
# Variables that tell a run of its job.
_OF_JOB = ("WORKER_ID", "QUEUE", "JOB_ID", "ATTEMPT", "ATTEMPT_NONCE", "RUNNER")


@dataclass(frozen=True)
class Stage:
    """A step of the way from `snakemake` to the command of a run.

    `where`: CONTROLLER, the host of the process `snakemake`, or NODE. `text` is for bash. `note`:
    how often it is executed, or what is not known, for people.
    """

    name: str
    where: str
    text: str
    note: str = ""


def stages_on_node(freeze: Freeze, place: Place) -> Iterator[Stage]:
    """The stages of one point on its node, in the order in which they are executed."""
    batch, point = place.batch, place.point
    whole = BatchFreeze.of(freeze, batch.experiment, batch.grid.batch)
    known = whole.at(point.parameters)
    variant = place.variant
    installs, missing = _installs(variant)
    for recipe in variant.recipes:
        yield _install(freeze, recipe)
    yield from _build(known, batch, place, installs)
    yield Stage("job", NODE, _job(place), "Executed by a worker.")
    tree = _tree(place)
    variables = _variables(known, place)
    launcher = _launcher(batch, point)
    isolation = known.machine_isolation
    words, line, problem = _isolated(known.run, isolation, installs, tree, launcher)
    copy = ["cp", "-a", "--reflink=auto", "--", tree, str(_WORKSPACE)]
    yield Stage("workspace", NODE, f"{_shown(copy)}\ncd {_WORKSPACE}\n")
    yield _isolation(known, words, problem, Environment(known.load_environment, installs, {}))
    yield Stage(
        "environment",
        NODE,
        "".join(f"export {n}={_quoted(v)}\n" for n, v in variables.items())
        + Environment(known.load_environment, installs, {}).preamble(),
        missing,
    )
    note = "" if line else "No launcher."
    yield Stage("launcher", NODE, f'export KOCHI_LAUNCH="{line}"\n', note)
    yield Stage("script", NODE, _ended(known.run.script))


# ---- before the job


def _installs(variant: Variant) -> tuple[tuple[Install, ...], str]:
    """The installations that a point uses, and a note if one is not there yet."""
    try:
        return merge(read_manifest(Path(file)) for file in variant.installs), ""
    except (FileNotFoundError, DamagedFileError, PhaseError):
        return (
            tuple(
                Install(r.dependency, r.name, "", f"<prefix of {r}>", {}, r.activate_script)
                for r in variant.recipes
            ),
            "Recipes are not installed yet.",
        )


def _install(freeze: Freeze, recipe: Recipe) -> Stage:
    lines = [f"export {name}={_quoted(value)}" for name, value in recipe.envs.items()]
    text = "\n".join([*lines, _ended(recipe.install_script)])
    is_here = freeze.machine.installs_on_login_node(recipe.on_machine)
    where = CONTROLLER if is_here else NODE
    return Stage(f"install {recipe}", where, text, "Once, for all that depend on it.")


def _build(
    known: BatchFreeze, batch: BatchRules, place: Place, installs: Sequence[Install]
) -> Iterator[Stage]:
    if known.prepare is not None:
        yield Stage("prepare", NODE, _ended(known.prepare.script), "Once per batch.")
    phase = known.build
    if not phase.script.strip():
        return
    parameters = place.point.parameters
    exports = [f"export {n}={_quoted(v)}" for n, v in phase.environment(parameters).items()]
    environment = Environment(known.load_environment, installs, {}).preamble()
    words, _, _ = _isolated(phase, known.machine_isolation, installs, "")
    isolated = f"# {_shown([*words, 'bash', '...'])}\n" if words else ""
    mode = f"{mode_of(phase.strict)}\n"
    text = isolated + "\n".join([*exports, environment + mode + _ended(phase.script)])
    yield Stage("build", NODE, text, "Once, for all runs with the same sources and parameters.")


def _tree(place: Place) -> str:
    try:
        return str(read_build(Path(place.build_file)).tree)
    except (FileNotFoundError, DamagedFileError, KeyError):
        return "<build>"


# ---- the job


class _Words(list[str]):
    """Words that a command formats as Snakemake does, quoted for bash."""

    def __format__(self, spec: str) -> str:
        return _shown(self) if spec == "q" else " ".join(self)


def _job(place: Place) -> str:
    """The shell command of the rule, as Snakemake formats it."""
    batch, point = place.batch, place.point
    group, values = next(
        (group, values)
        for group in batch.files.groups
        for values, each in group.points.items()
        if each is point
    )
    wildcards = dict(zip(group.keys, values, strict=True))
    prepared = batch.prepared_for(point)
    given = SimpleNamespace(prepared=[] if prepared is None else [prepared])
    words: Any = batch.words(group)
    arguments = (wildcards, given, None)
    options = (
        words(*arguments, point.request.of_rule) if words.reads_resources else words(*arguments)
    )
    text = RUN_COMMAND.format(
        params=SimpleNamespace(
            experiment=_Words([batch.experiment.file]),
            batch=_Words([batch.grid.batch]),
            parameters=_Words(options),
            duplicate=point.duplicate,
        ),
        input=SimpleNamespace(
            build=_Words([place.build_file]), installs=_Words(place.variant.installs)
        ),
        output=SimpleNamespace(
            record=_Words([str(place.record)]), artifacts=_Words(map(str, place.files.values()))
        ),
    )
    return f"{text}\n"


def _variables(known: BatchFreeze, place: Place) -> dict[str, str]:
    """What Kochi adds to the environment of the script."""
    point = place.point
    prepared = place.batch.prepared_for(point)
    return {
        "KOCHI_MACHINE": known.machine_name,
        "KOCHI_JOB_NAME": point.name,
        **source_variables(known.snapshot["base"], known.snapshot["dirty"]),
        **{f"KOCHI_{name}": _UNKNOWN for name in _OF_JOB},
        **({"KOCHI_PREPARED": "<what prepare made>"} if prepared else {}),
        "KOCHI_NODELIST": "<nodes of the job>",
        "KOCHI_HOSTFILE": str(_PRIVATE / "hosts"),
        **point.environment(known.run),
    }


def _launcher(batch: BatchRules, point: Point) -> str:
    """The line of the launcher, "" without one."""
    placement = batch.placement(point)
    shape, _ = shape_of(placement.resources, placement.resources.get("nodes", 1))
    return line_of(placement.launcher, shape)


# ---- isolation


def _isolated(
    phase: Phase,
    machine: Mapping[str, Sequence[str]],
    installs: Sequence[Install],
    tree: str,
    launcher: str = "",
) -> tuple[Sequence[str], str, str]:
    """How a script is isolated: the words before `bash`, the line of its launcher, and why they are
    not known, for people."""
    if phase.isolation is None:
        return (), launcher, ""
    # Imported here: few scripts are isolated.
    from snakemake_kochi.phases.isolation import Container

    with tempfile.TemporaryDirectory(prefix="kochi-pipeline-") as name:
        trees = [Path(tree)] if tree.startswith("/") else []
        around = (Path(name, "workspace"), Path(name), installs, trees, "run")
        given = {"KOCHI_LAUNCH": launcher.replace(str(_PRIVATE), name)} if launcher else {}
        try:
            container = Container(phase.isolation, machine, *around)
            inside, words = container.around(Environment("", installs, given))
        except KochiError as error:
            return (), launcher, f"Not known on this host: {error.message}"
        line = inside.variables.get("KOCHI_LAUNCH", "").replace(name, str(_PRIVATE))
        return [word.replace(name, str(_PRIVATE)) for word in words], line, ""


def _isolation(
    known: BatchFreeze, inside: Sequence[str], problem: str, environment: Environment
) -> Stage:
    """The command that starts the script, within its isolation if it has one."""
    isolation = known.run.isolation
    place = Path("/private")  # needs no quotes, and is replaced
    body = place / f"run_{known.experiment}.sh"
    words = starting(environment.sourced(place), body, known.run.strict)
    shown = [word.replace(str(place), str(_PRIVATE)) for word in words]
    text = f"{_shown([*inside, *shown])}\n"
    if isolation is None:
        return Stage("isolation", NODE, text, "Not isolated.")
    said = ", ".join(isolation.words) or "container"
    return Stage("isolation", NODE, text, f"Isolated: {said}. {problem}".rstrip())


def _shown(words: Sequence[str]) -> str:
    """As `shlex.join`, with what is not known yet unquoted."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    return (
        word if word.startswith("<") and word.replace("/", "").isprintable() else shlex.quote(word)
    )


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"
