"""The part of a freeze that the runs of one batch need, in a small file of its own.

A freeze contains the texts of all experiments. If each run read them, a run would take longer the
larger the grid, and a batch the square of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.confidential import is_secret_variable
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.paths import ProjectPaths, Root
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.project.grid import Artifact, Phase, Point, PointTexts
from snakemake_kochi.project.values import encode_component

if TYPE_CHECKING:
    from snakemake_kochi.phases.freeze import Freeze
    from snakemake_kochi.project.experiment import Experiment

BATCH_FREEZE_VERSION = 4


@dataclass(frozen=True)
class BatchFreeze:
    """`experiment` is the name of the experiment, `file` its path in the project; `batch` is empty
    for a job outside of any batch. `job_name` and `artifacts` are templates, `snapshot` is JSON,
    with the `diff` of the freeze. `recipes` has for each recipe in use, by `dependency:recipe`,
    what made its installation: "script" and "envs". `facts` are commands by name, and
    `recorded_variables` names, see `project/recording.py`. `large_files`: see `Project`."""

    root: str
    directory: str
    machine_name: str
    load_environment: str
    snapshot: Mapping[str, Any]
    experiment: str
    file: str
    batch: str
    build: Phase
    run: Phase
    recipes: Mapping[str, Mapping[str, Any]]
    job_name: str
    artifacts: tuple[Artifact, ...]
    facts: Mapping[str, str]
    recorded_variables: tuple[str, ...]
    git_directory: str | None = None
    large_files: int | None = None

    @classmethod
    def of(cls, freeze: Freeze, experiment: Experiment, batch_name: str = "") -> BatchFreeze:
        """Raises NameNotFoundError for an unknown batch."""
        batch = experiment.batch(batch_name) if batch_name else None
        recording = freeze.project.recording.and_those_of(experiment.recording)
        return cls(
            root=str(freeze.root.directory),
            directory=str(freeze.directory),
            machine_name=freeze.machine_name,
            load_environment=freeze.machine.load_env_on_machine,
            snapshot={**asdict(freeze.snapshot), "diff": freeze.diff},
            experiment=experiment.name,
            file=experiment.file,
            batch=batch_name,
            build=batch.build if batch else experiment.build,
            run=batch.run if batch else experiment.run,
            recipes={
                str(recipe): {
                    "script": recipe.install_script,
                    "envs": {name: _shown(name, value) for name, value in recipe.envs.items()},
                }
                for recipe in freeze.recipes(
                    experiment.requirements_on(
                        freeze.machine_name, batch.requirements if batch else ()
                    ),
                    experiment.file,
                )
            },
            job_name=batch.job_name if batch else experiment.default_name,
            artifacts=batch.artifacts if batch else (),
            facts={name: command for name, command in recording.facts.items() if command.strip()},
            recorded_variables=recording.variables,
            git_directory=freeze.git_directory,
            large_files=freeze.project.large_files,
        )

    @property
    def repository(self) -> Path:
        return Path(self.directory)

    @cached_property
    def paths(self) -> ProjectPaths:
        return Root(Path(self.root)).project(self.repository)

    @property
    def workspaces(self) -> Path:
        return self.paths.workspaces(self.machine_name)

    def point(self, parameters: Mapping[str, str], duplicate: int) -> Point:
        """One point from its resolved parameters, without the whole grid."""
        texts = PointTexts.parse(self.job_name, None, self.artifacts)
        encoded = {name: encode_component(value) for name, value in parameters.items()}
        encoded["batch_name"] = encode_component(self.batch)
        return texts.point(FrozenDict(parameters), self.batch, duplicate, encoded)


def load_batch_freeze(freeze: Path, experiment: str, batch: str) -> BatchFreeze:
    """The part of a freeze for a batch; `freeze` and `experiment` name their files.

    The first run of a batch writes it. Raises DamagedFileError; and, as `load_freeze`,
    NameNotFoundError and ConfigError when it does not exist yet.
    """
    digest = digest_of([BATCH_FREEZE_VERSION, experiment, batch])
    file = ProjectPaths.batch_freeze(freeze, digest)
    try:
        return _from_json(file, read_json(file, BATCH_FREEZE_VERSION))
    except FileNotFoundError:
        pass
    # Imported here: it loads YAML, its schemas and git, which takes longer than most runs.
    from snakemake_kochi.phases.freeze import load_freeze

    whole = load_freeze(freeze)
    made = BatchFreeze.of(whole, whole.experiment(experiment), batch)
    make_directory(file.parent)
    write_atomically(file, to_json({"version": BATCH_FREEZE_VERSION, **asdict(made)}))
    return made


def _from_json(file: Path, data: dict[str, Any]) -> BatchFreeze:
    fields = {key: value for key, value in data.items() if key != "version"}
    try:
        return BatchFreeze(
            build=_phase(fields.pop("build")),
            run=_phase(fields.pop("run")),
            artifacts=tuple(Artifact(**artifact) for artifact in fields.pop("artifacts")),
            recorded_variables=tuple(fields.pop("recorded_variables")),
            **fields,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{file}: not what a batch was frozen to ({error})") from error


def _phase(data: Mapping[str, Any]) -> Phase:
    return Phase(**{**data, "depend_params": tuple(data["depend_params"])})


def _shown(name: str, value: str) -> str:
    return "(not told)" if is_secret_variable(name, value) else value
