"""A project with results, and a clone of it that fetched them."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from support import PYTHON_PATH, Outcome, git, run, write

from snakemake_kochi.artifacts.published import choose_name

HERE = Path(__file__).parent
CONTEXT = "https://w3id.org/ro/crate/1.1/context"
KOCHI_YAML = """
    dependencies:
      tool:
        git: ../tool
        script: cp tool.sh "$KOCHI_INSTALL_PREFIX/tool"
        recipes: [{name: release}]
    """
EXPERIMENT = """
    depends: [{name: tool, recipe: release}]
    default_params: {n: 1}
    default_name: sum
    default_duplicates: 2
    metrics: {total: 'total ([0-9]+)'}
    batches:
      first:
        params: {n: [1, 2]}
        artifacts:
          - {type: stdout, dest: 'sum/${n}_${duplicate}.log'}
          - {type: file, src: out.txt, dest: 'sum/${n}_${duplicate} ü.txt'}
          - {type: stats, dest: 'sum/${n}_${duplicate}.stats'}
      second:
        params: {n: 9}
        duplicates: 1
        artifacts: [{type: file, src: out.txt, dest: 'second/${n}_${duplicate}.txt'}]
      failing:
        params: {n: 13}
        duplicates: 1
        artifacts: [{type: stdout, dest: 'failing/${n}_${duplicate}.log'}]
    run:
      depend_params: [n]
      script: |
        echo "total $((KOCHI_PARAM_N * 10))"
        cat code.txt > out.txt
        exit $((KOCHI_PARAM_N == 13))
    """
SNAKEFILE = """
    from snakemake_kochi import snakefile

    module kochi:
        snakefile: snakefile()
        config: config

    use rule * from kochi
    """


@dataclass(frozen=True)
class Projects:
    """The repository in which the runs were, and a clone of only what was pushed."""

    original: Path
    clone: Path


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A directory of all processes of the tests; one after the other makes what is not there."""
    directory = tmp_path_factory.getbasetemp()
    directory = (directory if worker_id == "master" else directory.parent) / "export"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def projects(shared: Path) -> Projects:
    """Five runs, and one that fails, with an uncommitted file. Tests change nothing here."""
    base = shared / "projects"
    with FileLock(shared / "lock"):
        if not (base / "clone").exists():
            make_projects(base)
    return Projects(base / "proj", base / "clone")


def make_projects(base: Path) -> None:
    project = base / "proj"
    write(base / "tool" / "tool.sh", "echo the tool\n")
    write(project / "kochi.yaml", KOCHI_YAML)
    write(project / "sum.yaml", EXPERIMENT)
    write(project / "Snakefile", SNAKEFILE)
    write(project / "LICENSE", "Do what you like.\n")
    write(project / ".gitignore", "results/\n.snakemake/\n")
    for repository in (base / "tool", project):
        git(repository, "init", "-q", "-b", "main")
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", "first")
    choose_name(project, "local", "local")
    write(project / "code.txt", "not committed\r\n")
    write(project / ".gitattributes", "*.txt text eol=lf\n")
    git(base, "clone", "-q", "--bare", "proj", "bare")
    git(project, "remote", "add", "origin", str(base / "bare"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(base))
        environment.setenv("KOCHI_ROOT", str(base / "root"))
        environment.setenv("PYTHONPATH", PYTHON_PATH)
        snakemake = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "2")
        words = ("--keep-going", "sum_first", "sum_second", "sum_failing")
        assert run(*snakemake, *words, cwd=project).returncode == 1
        kochi = (sys.executable, "-P", "-m", "snakemake_kochi.cli", "artifact")
        assert run(*kochi, "push", cwd=project).returncode == 0
        environment.setenv("KOCHI_ROOT", str(base / "elsewhere"))
        git(base, "clone", "-q", "bare", "fetched")
        assert run(*kochi, "fetch", cwd=base / "fetched").returncode == 0
    (base / "fetched").rename(base / "clone")


Export = Callable[..., Outcome]


@pytest.fixture
def export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Export:
    """Type `kochi export` in a directory, in this process."""
    from snakemake_kochi.cli.main import run as kochi

    def call(*words: object, cwd: Path) -> Outcome:
        monkeypatch.chdir(cwd)
        capfd.readouterr()
        status = kochi(["export", *map(str, words)])
        return Outcome(status, *capfd.readouterr())

    return call


@dataclass(frozen=True)
class Crate:
    directory: Path

    @property
    def entities(self) -> dict[str, Any]:
        text = (self.directory / "ro-crate-metadata.json").read_text()
        return {each["@id"]: each for each in json.loads(text)["@graph"]}

    def of_type(self, wanted: str) -> list[dict[str, Any]]:
        return [each for each in self.entities.values() if wanted in each["@type"]]


@pytest.fixture(scope="session")
def crate(projects: Projects, shared: Path) -> Crate:
    """The crate of everything, exported in the clone."""
    directory = shared / "crate"
    command = (sys.executable, "-P", "-m", "snakemake_kochi.cli", "export")
    environment = {"PYTHONPATH": PYTHON_PATH, "KOCHI_ROOT": str(shared / "root")}
    with FileLock(shared / "lock"):
        if not directory.exists():
            done = run(*command, "--ro-crate", str(directory), cwd=projects.clone, env=environment)
            assert done.returncode == 0, done.stdout
    return Crate(directory)


Validate = Callable[[Path, str], list[str]]


@pytest.fixture
def validate(tmp_path: Path) -> Iterator[Validate]:
    """The community's validator, without a network: what it finds in a crate."""
    import requests
    from rocrate_validator import services
    from rocrate_validator.models import ValidationSettings
    from rocrate_validator.utils.http import HttpRequester
    from urllib3 import HTTPResponse

    # It finds everything but the JSON-LD context in its own package, and that in its cache.
    cache = tmp_path / "cache"
    requester = HttpRequester.initialize_cache(cache_path=str(cache), offline=True)
    content = (HERE / "ro-crate-1.1-context.jsonld").read_bytes()
    answer = requests.Response()
    answer.status_code, answer.url, answer._content = 200, CONTEXT, content
    answer.headers["Content-Type"] = "application/ld+json"
    answer.raw = HTTPResponse(
        io.BytesIO(content), dict(answer.headers), 200, preload_content=False, request_url=CONTEXT
    )
    accept = {"Accept": "application/ld+json, application/json, */*;q=0.1"}
    answer.request = requests.Request("GET", CONTEXT, headers=accept).prepare()
    requester.session.cache.save_response(answer)
    assert requester.has_cached(CONTEXT)

    def call(directory: Path, profile: str) -> list[str]:
        settings = ValidationSettings(
            rocrate_uri=str(directory),
            profile_identifier=profile,
            requirement_severity="REQUIRED",
            offline=True,
            cache_path=cache,
        )
        found = services.validate(settings)
        problems = [f"{each.violatingEntity}: {each.message}" for each in found.get_issues()]
        assert found.passed() == (not problems)
        return problems

    yield call
    requester.session.close()


def clone_with_branch(projects: Projects, directory: Path) -> Path:
    """A clone of one's own, with a branch of results that may be changed."""
    git(directory, "clone", "-q", str(projects.clone), "clone")
    branch = "refs/{}/kochi_artifacts_local"
    refs = f"{branch.format('remotes/origin')}:{branch.format('heads')}"
    git(directory / "clone", "fetch", "-q", "origin", refs, "refs/kochi/code/*:refs/kochi/code/*")
    return directory / "clone"


def commit_to(repository: Path, files: dict[str, str | None], branch: str) -> str:
    """Change files in a branch that is not checked out; None removes one."""
    index = {"GIT_INDEX_FILE": str(repository / ".git" / "test-index")}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in index.items():
            environment.setenv(name, value)
        git(repository, "read-tree", branch)
        for path, text in files.items():
            if text is None:
                git(repository, "update-index", "--force-remove", path)
                continue
            beside = repository / ".git" / "test-content"
            beside.write_bytes(os.fsencode(text))
            blob = git(repository, "hash-object", "-w", str(beside)).strip()
            git(repository, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
        tree = git(repository, "write-tree").strip()
    commit = git(repository, "commit-tree", tree, "-p", branch, "-m", "by hand").strip()
    git(repository, "update-ref", f"refs/heads/{branch}", commit)
    return commit
