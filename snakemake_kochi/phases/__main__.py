"""What the rules run: `python -m snakemake_kochi.phases install | build | run`.

$KOCHI_FREEZE names the freeze of the run. Not for people: they type `kochi` or `snakemake`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import to_json
from snakemake_kochi.phases.batch_freeze import load_batch_freeze
from snakemake_kochi.phases.build_file import read_build, write_build
from snakemake_kochi.phases.failure import forget_failure, note_failure
from snakemake_kochi.phases.install_set import Install, merge, read_manifest, write_manifest
from snakemake_kochi.phases.keep import keep_result
from snakemake_kochi.phases.run import Output, Task, run_task
from snakemake_kochi.phases.script import Environment, clean_up_on_sigterm
from snakemake_kochi.project.values import parse_assignment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one phase; exit status 1 and a message when it fails."""
    options = _parser().parse_args(arguments)
    clean_up_on_sigterm()
    output = options.output_of(options)
    forget_failure(output)
    try:
        options.phase(Path(os.environ["KOCHI_FREEZE"]), options)
    except KochiError as error:
        print(f"kochi: {error}", file=sys.stderr)
        note_failure(output, error)
        return 1
    return 0


# Imported where it is used: a run, of which there are thousands, needs neither YAML nor git.
def _install(file: Path, options: argparse.Namespace) -> None:
    from snakemake_kochi.phases.freeze import load_freeze
    from snakemake_kochi.phases.install import install_recipe
    from snakemake_kochi.project.recipes import Requirement

    freeze = load_freeze(file)
    recipe = freeze.project.recipe(Requirement.parse(options.requirement))
    again = options.requirement in os.environ.get("KOCHI_INSTALL_AGAIN", "").split()
    installs = install_recipe(freeze, recipe, _installs(options.depends), again)
    write_manifest(options.manifest, freeze.machine_name, installs)
    preamble = Environment(freeze.machine.load_env_on_machine, installs, {}).preamble()
    options.activation.write_text(preamble, "utf-8", "surrogateescape")


def _build(file: Path, options: argparse.Namespace) -> None:
    from snakemake_kochi.phases.build import build_experiment
    from snakemake_kochi.phases.freeze import load_freeze

    freeze = load_freeze(file)
    experiment = freeze.experiment(options.experiment)
    phase = experiment.batch(options.batch).build if options.batch else experiment.build
    variables = phase.environment(_parameters(options.parameters))
    build = build_experiment(freeze, experiment, phase, variables, _installs(options.installs))
    write_build(options.output, build)


def _run(file: Path, options: argparse.Namespace) -> None:
    freeze = load_batch_freeze(file, options.experiment, options.batch)
    point = freeze.point(_parameters(options.parameters), options.duplicate)
    outputs = [
        Output(artifact.type, artifact.dest, artifact.src, file)
        for artifact, file in zip(point.artifacts, options.artifacts, strict=True)
    ]
    task = Task(
        name=point.name,
        batch=options.batch,
        parameters=point.parameters,
        duplicate=point.duplicate,
        variables=point.environment(freeze.run),
    )
    installs = _installs(options.installs)
    build = read_build(options.build)
    record = run_task(freeze, task, build, installs, outputs)
    options.record.write_bytes(to_json(record))
    keep_result(freeze, record, outputs)


def _installs(manifests: Sequence[Path]) -> tuple[Install, ...]:
    return merge(read_manifest(path) for path in manifests)


def _parameters(assignments: Sequence[str]) -> dict[str, str]:
    return dict(parse_assignment(assignment) for assignment in assignments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m snakemake_kochi.phases", description=__doc__)
    phases = parser.add_subparsers(required=True)
    install = phases.add_parser("install")
    install.set_defaults(phase=_install, output_of=lambda options: options.manifest)
    install.add_argument("requirement", help="dependency:recipe")
    install.add_argument("--depends", type=Path, nargs="*", default=[])
    install.add_argument("--manifest", type=Path, required=True)
    install.add_argument("--activation", type=Path, required=True)
    build = phases.add_parser("build")
    build.set_defaults(phase=_build, output_of=lambda options: options.output)
    build.add_argument("--output", type=Path, required=True)
    run = phases.add_parser("run")
    run.set_defaults(phase=_run, output_of=lambda options: options.record)
    run.add_argument("--duplicate", type=int, required=True)
    run.add_argument("--build", type=Path, required=True)
    run.add_argument("--record", type=Path, required=True)
    run.add_argument("--artifacts", type=Path, nargs="*", default=[])
    for phase in (build, run):
        phase.add_argument("experiment", help="path of the experiment's file in the project")
        phase.add_argument("--batch", default="")
        phase.add_argument("--parameters", nargs="*", default=[], metavar="NAME=VALUE")
        phase.add_argument("--installs", type=Path, nargs="*", default=[])
    return parser


if __name__ == "__main__":
    sys.exit(main())
