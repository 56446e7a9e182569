"""The program that rules run:
`python -m snakemake_kochi.phases install | build | prepare | run`.

$KOCHI_FREEZE names the freeze of the run. People type `kochi` or `snakemake` instead.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from snakemake_kochi.errors import KochiError, PhaseError, told
from snakemake_kochi.files import is_there, note_use, to_json, write_file
from snakemake_kochi.paths import InstallPaths, WorkingPaths
from snakemake_kochi.phases.batch_freeze import load_batch_freeze
from snakemake_kochi.phases.launcher import placement_of
from snakemake_kochi.phases.outputs import Output, keep_result
from snakemake_kochi.phases.products import (
    CopyError,
    Install,
    forget_failure,
    merge,
    note_failure,
    read_build,
    read_manifest,
    write_build,
    write_manifest,
)
from snakemake_kochi.phases.run import Attempt, run_identity, run_task
from snakemake_kochi.phases.script import Environment, clean_up_on_sigterm
from snakemake_kochi.project.values import CODE, parse_assignment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one phase; exit status 1 and a message when it fails."""
    options = make_parser().parse_args(arguments)
    clean_up_on_sigterm()
    forget_failure(options.output)
    try:
        PHASES[options.phase](Path(os.environ["KOCHI_FREEZE"]), options)
    except (KochiError, OSError) as error:
        failure = error if isinstance(error, KochiError) else PhaseError(told(error))
        print(f"kochi: {failure}", file=sys.stderr)
        note_failure(options.output, failure)
        return 1
    return 0


# Imported where it is used: the runs, of which there are thousands, need neither YAML nor git.
def _install(file: Path, options: argparse.Namespace) -> None:
    from snakemake_kochi.phases.freeze import load_freeze
    from snakemake_kochi.phases.make import AGAIN_VARIABLE, install_recipe
    from snakemake_kochi.project.recipes import Requirement

    freeze = load_freeze(file)
    recipe = freeze.project.recipe(Requirement.parse(options.subject))
    remembered = WorkingPaths.remembered(options.output)
    before = read_manifest(remembered)[-1] if is_there(remembered) else None
    again = options.subject in os.environ.get(AGAIN_VARIABLE, "").split()
    installs = install_recipe(freeze, recipe, _installs(file, options.installs), again, before)
    for manifest in (remembered, options.output):
        write_manifest(manifest, freeze.machine_name, installs)
    preamble = Environment(freeze.machine.load_env_on_machine, installs, {}).preamble()
    options.activation.write_text(preamble, "utf-8", "surrogateescape")


def _build(file: Path, options: argparse.Namespace) -> None:
    from snakemake_kochi.phases.make import make

    freeze = load_batch_freeze(file, options.subject, options.batch, options.code)
    installs, parameters = _installs(file, options.installs), _parameters(options.parameters)
    step = freeze.build if options.phase == "build" else freeze.prepare
    assert step is not None
    write_build(options.output, make(freeze, step, parameters, installs, options.timeout))


def _run(file: Path, options: argparse.Namespace) -> None:
    parameters = _parameters(options.parameters)
    freeze = load_batch_freeze(file, options.subject, options.batch, parameters.get(CODE, ""))
    point = replace(freeze.point(parameters, options.duplicate), rerun_of=options.rerun_of)
    pairs = zip(point.artifacts, options.artifacts, strict=True)
    outputs = [Output(each.type, each.dest, each.src, path) for each, path in pairs]
    resources = {n: int(text) for n, text in _parameters(options.resource).items()}
    placement = placement_of(options.launcher, freeze.launchers, freeze.machine_name, resources)
    prepared = str(options.prepared) if options.prepared else None
    own = (freeze.run, freeze.load_environment, point, str(options.build))
    attempt = Attempt(
        freeze=freeze,
        point=point,
        build=read_build(options.build),
        installs=_installs(file, options.installs),
        outputs=outputs,
        prepared=read_build(options.prepared) if options.prepared else None,
        identity=run_identity(*own, prepared, placement.determines),
        timeout=options.timeout,
        placement=placement,
    )
    try:
        try:
            record = run_task(attempt)
        except CopyError:
            # Finished work needs none; this one was forced to run. Or it was deleted just now:
            # under its lock it is found or made again. `prepare` has the code of the working tree;
            # if points have recipes of their own, it sees these, too, and makes another name.
            from snakemake_kochi.phases.make import make

            here = load_batch_freeze(file, options.subject, options.batch)
            step, installs = freeze.prepare, attempt.installs
            build = make(freeze, freeze.build, point.parameters, installs)
            made = make(here, step, point.parameters, installs) if step else None
            record = run_task(replace(attempt, build=build, prepared=made))
    except PhaseError as error:
        if error.record is not None:
            keep_result(freeze, error.record)
        raise
    write_file(options.output, to_json(record))
    keep_result(freeze, record, outputs)


def _installs(freeze: Path, manifests: Sequence[Path]) -> tuple[Install, ...]:
    """The installations of some manifests; those that are gone are made again.

    Raises PhaseError when that is not possible.
    """
    installs = merge(read_manifest(path) for path in manifests)
    for install in installs:
        if is_there(install.prefix):
            note_use(InstallPaths(Path(install.prefix).parent).manifest)
        else:
            from snakemake_kochi.phases.freeze import load_freeze
            from snakemake_kochi.phases.make import install_again

            install_again(load_freeze(freeze), install, installs)
    return installs


def _parameters(assignments: Sequence[str]) -> dict[str, str]:
    return dict(parse_assignment(assignment) for assignment in assignments)


PHASES = {"install": _install, "build": _build, "prepare": _build, "run": _run}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m snakemake_kochi.phases", description=__doc__)
    add = parser.add_argument
    add("phase", choices=PHASES)
    add("subject", help="dependency:recipe, or the path of an experiment's file in the project")
    add("--installs", type=Path, nargs="*", default=[], help="manifests of what is used")
    add("--output", type=Path, required=True, help="the file that stands for what is made")
    add("--activation", type=Path, help="of an installation")
    add("--batch", default="")
    add("--parameters", nargs="*", default=[], metavar="NAME=VALUE")
    add("--code", default="", help="a value of code:, by default what is here")
    add("--timeout", type=float, help="seconds for the script")
    add("--duplicate", type=int)
    add("--build", type=Path, help="the file of the build that a run uses")
    add("--prepared", type=Path, help="what its batch has prepared")
    add("--artifacts", type=Path, nargs="*", default=[])
    add("--rerun-of", default="", help="identity of the record to repeat")
    add("--resource", action="append", default=[], metavar="NAME=NUMBER")
    add("--launcher", default="", help="its name in the experiment")
    return parser


if __name__ == "__main__":
    sys.exit(main())
