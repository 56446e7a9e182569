"""What the phases of one batch need of a freeze, in a small file for each value of `code:`.

A freeze contains the texts of all experiments. If each run read them, a run would take longer the
larger the grid, and a batch the square of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_kochi.confidential import is_secret_variable
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.paths import ProjectPaths, Root
from snakemake_kochi.phases.products import digest_of
from snakemake_kochi.project.grid import Artifact, Isolation, Phase, Point, PointTexts, Step
from snakemake_kochi.project.launchers import Launchers

if TYPE_CHECKING:
    from snakemake_kochi.phases.freeze import Freeze
    from snakemake_kochi.project.experiment import Experiment

BATCH_FREEZE_VERSION = 12


@dataclass(frozen=True)
class BatchFreeze:
    """`experiment` is the name of the experiment, `file` its path in the project; `batch` is empty
    for a job outside of any batch, and for what batches share. `job_name` and `artifacts` are
    templates, `snapshot` is JSON, with the `diff` of the freeze. `sources` has the digest of the
    code of each script `build` and `prepare`. `recipes` has what made the installation of each
    recipe, by `dependency:recipe`: "script" and "envs". `facts` are commands by name, and
    `recorded_variables` names, see `project/recipes.py`. `large_files`: see `Project`.
    `machine_isolation` and `launchers` are those of the machine, `quiet` are thresholds, see
    `QUIET`. `seed`: see `Freeze.seed`.

    With a value of `code:` other than the working tree, `snapshot`, `git_directory` and the sources
    of the build are those of that code, and `configuration` is the snapshot with the experiment.
    """

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
    prepare: Step | None
    sources: Mapping[str, str]
    recipes: Mapping[str, Mapping[str, Any]]
    job_name: str
    artifacts: tuple[Artifact, ...]
    facts: Mapping[str, str]
    recorded_variables: tuple[str, ...]
    git_directory: str | None = None
    large_files: int | None = None
    machine_isolation: Mapping[str, Sequence[str]] = field(default_factory=FrozenDict)
    launchers: Launchers = field(default_factory=Launchers)
    configuration: Mapping[str, Any] | None = None
    quiet: Mapping[str, float | str] = field(default_factory=FrozenDict)
    seed: int | None = None

    @classmethod
    def of(
        cls, freeze: Freeze, experiment: Experiment, batch_name: str = "", code: str = ""
    ) -> BatchFreeze:
        """Raises NameNotFoundError for an unknown batch."""
        from snakemake_kochi.phases.make import code_digest  # loads git

        batch = experiment.batch(batch_name) if batch_name else None
        build, prepare = (batch or experiment).build, (batch or experiment).prepare
        prepared = {"prepare": code_digest(freeze, experiment, prepare)} if prepare else {}
        own, here = freeze.at(code), {**asdict(freeze.snapshot), "diff": freeze.diff}
        recording = freeze.project.recording.and_those_of(experiment.recording)
        return cls(
            root=str(freeze.root.directory),
            directory=str(freeze.directory),
            machine_name=freeze.machine_name,
            load_environment=freeze.machine.load_env_on_machine,
            snapshot={**asdict(own.snapshot), "diff": own.diff},
            experiment=experiment.name,
            file=experiment.file,
            batch=batch_name,
            build=build,
            run=(batch or experiment).run,
            prepare=prepare,
            sources={"build": code_digest(own, experiment, build), **prepared},
            recipes={
                str(recipe): {"script": recipe.install_script, "envs": shown_variables(recipe.envs)}
                for recipe in freeze.all_recipes
            },
            job_name=(batch or experiment).job_name,
            artifacts=batch.artifacts if batch else (),
            facts={name: command for name, command in recording.facts.items() if command.strip()},
            recorded_variables=recording.variables,
            git_directory=own.git_directory,
            large_files=freeze.project.large_files,
            machine_isolation=freeze.machine.isolation,
            launchers=freeze.machine.launchers,
            quiet={**freeze.project.quiet, **freeze.machine.quiet},
            seed=freeze.seed(batch) if batch else None,
            configuration=None if own is freeze else here,
        )

    @property
    def repository(self) -> Path:
        return Path(self.directory)

    @property
    def kochi_root(self) -> Root:
        return Root(Path(self.root))

    @cached_property
    def paths(self) -> ProjectPaths:
        return self.kochi_root.project(self.repository)

    @property
    def workspaces(self) -> Path:
        return self.paths.workspaces(self.machine_name)

    @cached_property
    def _texts(self) -> PointTexts:
        return PointTexts(self.job_name, None, self.artifacts)

    def point(self, parameters: Mapping[str, str], duplicate: int) -> Point:
        """One point from its resolved parameters, without the whole grid."""
        return self._texts.point(FrozenDict(parameters), self.batch, duplicate)


def load_batch_freeze(freeze: Path, experiment: str, batch: str, code: str = "") -> BatchFreeze:
    """The part of a freeze for a batch and a value of `code:`; `freeze` and `experiment` name their
    files.

    The first phase of a batch writes it. Raises DamagedFileError; and, as `load_freeze`,
    NameNotFoundError and ConfigError when it does not exist yet.
    """
    key = digest_of([BATCH_FREEZE_VERSION, experiment, batch, code])
    file = ProjectPaths.batch_freeze(freeze, key)
    with suppress(FileNotFoundError):
        data = read_json(file, BATCH_FREEZE_VERSION)
        data.pop("version", None)
        try:
            for key in ("build", "run"):
                isolation = data[key]["isolation"]
                own = None if isolation is None else Isolation.from_dict(isolation)
                data[key] = Phase(**{**data[key], "isolation": own})
            data["prepare"] = data["prepare"] and Step(**data["prepare"])
            data["artifacts"] = tuple(Artifact(**artifact) for artifact in data["artifacts"])
            return BatchFreeze(**{**data, "launchers": Launchers(**data["launchers"])})
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{file}: not what a batch was frozen to ({error})") from error
    # Imported here: it loads YAML, its schemas and git, which takes longer than most runs.
    from snakemake_kochi.phases.freeze import load_freeze

    whole = load_freeze(freeze)
    made = BatchFreeze.of(whole, whole.experiment(experiment), batch, code)
    make_directory(file.parent)
    write_atomically(file, to_json({"version": BATCH_FREEZE_VERSION, **asdict(made)}))
    return made


def shown_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables as a record has them: without the values of secrets."""
    return {
        name: "(not told)" if is_secret_variable(name, value) else value
        for name, value in variables.items()
    }
