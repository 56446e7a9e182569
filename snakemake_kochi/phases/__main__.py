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
from snakemake_kochi.phases.batch_freeze import BatchFreeze, load_batch_freeze
from snakemake_kochi.phases.keep import keep_result
from snakemake_kochi.phases.launcher import placement_of
from snakemake_kochi.phases.outputs import Output
from snakemake_kochi.phases.products import (
    Install,
    forget_failure,
    merge,
    note_failure,
    read_build,
    read_manifest,
    write_build,
    write_manifest,
)
from snakemake_kochi.phases.record import Attempt
from snakemake_kochi.phases.run import run_identity, run_task
from snakemake_kochi.phases.script import Environment, clean_up_on_sigterm
from snakemake_kochi.phases.workspace import CopyError
from snakemake_kochi.project.values import CODE, parse_assignment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one phase; exit status 1 and a message when it fails."""
    options = make_parser().parse_args(arguments)
    clean_up_on_sigterm()
    output = options.output_of(options)
    forget_failure(output)
    try:
        options.phase(Path(os.environ["KOCHI_FREEZE"]), options)
    except (KochiError, OSError) as error:
        failure = error if isinstance(error, KochiError) else PhaseError(told(error))
        print(f"kochi: {failure}", file=sys.stderr)
        note_failure(output, failure)
        return 1
    return 0


# Imported where it is used: the runs, of which there are thousands, need neither YAML nor git.
def _install(file: Path, options: argparse.Namespace) -> None:
    from snakemake_kochi.phases.freeze import load_freeze
    from snakemake_kochi.phases.install import AGAIN_VARIABLE, install_recipe
    from snakemake_kochi.project.recipes import Requirement

    freeze = load_freeze(file)
    recipe = freeze.project.recipe(Requirement.parse(options.requirement))
    remembered = WorkingPaths.remembered(options.manifest)
    before = read_manifest(remembered)[-1] if is_there(remembered) else None
    again = options.requirement in os.environ.get(AGAIN_VARIABLE, "").split()
    installs = install_recipe(freeze, recipe, _installs(file, options.depends), again, before)
    for manifest in (remembered, options.manifest):
        write_manifest(manifest, freeze.machine_name, installs)
    preamble = Environment(freeze.machine.load_env_on_machine, installs, {}).preamble()
    options.activation.write_text(preamble, "utf-8", "surrogateescape")


def _build(file: Path, options: argparse.Namespace) -> None:
    from snakemake_kochi.phases.build import make

    freeze = load_batch_freeze(file, options.experiment, options.batch).at({CODE: options.code})
    installs, parameters = _installs(file, options.installs), _parameters(options.parameters)
    write_build(options.output, make(freeze, options.kind, parameters, installs, options.timeout))


def _run(file: Path, options: argparse.Namespace) -> None:
    parameters = _parameters(options.parameters)
    of_batch = load_batch_freeze(file, options.experiment, options.batch)
    freeze = of_batch.at(parameters)
    point = replace(freeze.point(parameters, options.duplicate), rerun_of=options.rerun_of)
    outputs = [
        Output(artifact.type, artifact.dest, artifact.src, file)
        for artifact, file in zip(point.artifacts, options.artifacts, strict=True)
    ]
    build_file = options.build.with_name("build.json")
    resources = {n: int(text) for n, text in _parameters(options.resource).items()}
    placement = placement_of(options.launcher, freeze.launchers, freeze.machine_name, resources)
    prepared_file = options.prepared and str(options.prepared.with_name("prepared.json"))
    attempt = Attempt(
        freeze=freeze,
        point=point,
        build=read_build(options.build),
        installs=_installs(file, options.installs),
        outputs=outputs,
        prepared=read_build(options.prepared) if options.prepared else None,
        identity=run_identity(
            *(freeze.run, freeze.load_environment, point, str(build_file), prepared_file),
            placement.determines,
        ),
        timeout=options.timeout,
        placement=placement,
    )
    try:
        try:
            record = run_task(attempt)
        except CopyError:
            # Finished work needs none; this one was forced to run. Or it was deleted just now:
            # under its lock it is found or made again.
            record = run_task(_made_again(attempt, of_batch))
    except PhaseError as error:
        if error.record is not None:
            keep_result(freeze, error.record)
        raise
    write_file(options.record, to_json(record))
    keep_result(freeze, record, outputs)


def _made_again(attempt: Attempt, freeze: BatchFreeze) -> Attempt:
    """An attempt with its build, and what was prepared, which are made unless they exist.

    `freeze`: that of the working tree, whose code `prepare` has. If points have recipes of their
    own, `prepare` sees these, too, and what it makes has another name.
    """
    from snakemake_kochi.phases.build import make

    parameters, installs = attempt.point.parameters, attempt.installs
    build, prepared = make(attempt.freeze, "build", parameters, installs), attempt.prepared
    if prepared is not None:
        prepared = make(freeze, "prepare", parameters, installs)
    return replace(attempt, build=build, prepared=prepared)


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
            from snakemake_kochi.phases.install import install_again

            install_again(load_freeze(freeze), install, installs)
    return installs


def _parameters(assignments: Sequence[str]) -> dict[str, str]:
    return dict(parse_assignment(assignment) for assignment in assignments)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m snakemake_kochi.phases", description=__doc__)
    phases = parser.add_subparsers(required=True)
    install = phases.add_parser("install")
    install.set_defaults(phase=_install, output_of=lambda options: options.manifest)
    install.add_argument("requirement", help="dependency:recipe")
    install.add_argument("--depends", type=Path, nargs="*", default=[])
    install.add_argument("--manifest", type=Path, required=True)
    install.add_argument("--activation", type=Path, required=True)
    build, prepare = phases.add_parser("build"), phases.add_parser("prepare")
    for each, kind in ((build, "build"), (prepare, "prepare")):
        each.set_defaults(phase=_build, kind=kind, output_of=lambda options: options.output)
        each.add_argument("--output", type=Path, required=True)
    run = phases.add_parser("run")
    run.set_defaults(phase=_run, output_of=lambda options: options.record)
    run.add_argument("--duplicate", type=int, required=True)
    run.add_argument("--rerun-of", default="", help="identity of the record to repeat")
    run.add_argument("--resource", action="append", default=[], metavar="NAME=NUMBER")
    run.add_argument("--launcher", default="", help="its name in the experiment")
    run.add_argument("--build", type=Path, required=True)
    run.add_argument("--prepared", type=Path, help="what its batch has prepared")
    run.add_argument("--record", type=Path, required=True)
    run.add_argument("--artifacts", type=Path, nargs="*", default=[])
    for phase in (build, prepare, run):
        phase.add_argument("experiment", help="path of the experiment's file in the project")
        phase.add_argument("--batch", default="")
        phase.add_argument("--parameters", nargs="*", default=[], metavar="NAME=VALUE")
        phase.add_argument("--timeout", type=float, help="seconds for the script")
        phase.add_argument("--code", default="", help="a value of code:, by default what is here")
        phase.add_argument("--installs", type=Path, nargs="*", default=[])
    return parser


if __name__ == "__main__":
    sys.exit(main())
