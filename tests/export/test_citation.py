"""The citation file and the artifact appendix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support import git, write

from snakemake_kochi.export.repository import browsable

from .conftest import HERE, Crate, Export, Projects, clone_with_branch, commit_to

OWN = """
    cff-version: 1.2.0
    title: The sum of all things
    message: Please cite.
    license: MIT
    authors:
      - {family-names: Lovelace, given-names: Ada, orcid: 'https://orcid.org/0000-0002-1825-0097'}
      - {name: The Engine Group}
    """


def cited(file: Path) -> dict[str, Any]:
    data = yaml.safe_load(file.read_text())
    schema = json.loads((HERE / "cff-1.2.0.schema.json").read_text())
    jsonschema.validate(data, schema, format_checker=jsonschema.FormatChecker())
    assert isinstance(data, dict)
    return data


def test_the_citation_names_the_authors_of_the_commits(crate: Crate, projects: Projects) -> None:
    data = cited(crate.directory / "CITATION.cff")
    assert data["authors"] == [{"family-names": "User", "given-names": "A"}]
    assert data["type"] == "dataset"
    assert data["commit"] == git(projects.original, "rev-parse", "main").strip()
    assert "sum failing, sum first, sum second" in data["title"]


def test_a_projects_own_citation_file_has_its_authors_title_and_license(
    projects: Projects, export: Export, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(projects.clone), "clone")
    git(clone, "fetch", "-q", "origin", "refs/remotes/origin/*:refs/remotes/origin/*")
    git(clone, "remote", "set-url", "origin", "git@example.org:ada/sum.git")
    write(clone / "CITATION.cff", OWN)
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "cite")
    outcome = export("--citation", tmp_path / "C.cff", "sum.yaml", "second", cwd=clone)
    assert outcome.status == 0, outcome.err
    data = cited(tmp_path / "C.cff")
    assert data["title"] == "The sum of all things: results of sum second"
    assert data["authors"][0]["orcid"].endswith("0097")
    assert data["authors"][1] == {"name": "The Engine Group"}
    assert (data["license"], data["repository-code"]) == ("MIT", "https://example.org/ada/sum")


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("git@github.com:ada/fib.git", "https://github.com/ada/fib"),
        ("https://ada:secret@example.org:8443/fib.git", "https://example.org:8443/fib"),
        ("ssh://git@example.org:22/ada/fib", "https://example.org/ada/fib"),
        ("/home/ada/fib", ""),
        ("../fib", ""),
        ("file:///home/ada/fib", ""),
        ("https://example.org:no-port/fib", ""),
    ],
)
def test_an_address_is_shown_without_user_and_password(address: str, url: str) -> None:
    assert browsable(address) == url


def test_the_appendix_tells_hardware_software_and_how_to_reproduce(
    projects: Projects, export: Export, crate: Crate, tmp_path: Path
) -> None:
    file = tmp_path / "appendix.md"
    outcome = export("--appendix", file, "sum.yaml", "first", cwd=projects.clone)
    assert outcome.status == 0, outcome.err
    text = file.read_text()
    record = json.loads(next((crate.directory / "records/local").iterdir()).read_text())
    hardware, system = record["hardware"], record["system"]
    assert f"| {record['machine']}     | {record['node']} " in text
    assert str(hardware["cpu_model"] or "not recorded") in text
    assert f"kernel {system['kernel']}" in text
    commit = record["recipes"][0]["source"]["commit"]
    assert f"| tool:release | in this artifact | {commit} |" in text
    tree = record["snapshot"]["tree"]
    assert f"    git worktree add --detach ../again refs/kochi/code/{tree}\n" in text
    # In a clone, recipes that are directories elsewhere cannot be installed.
    assert "kochi batch sum.yaml" not in text
    # The package is on no index.
    assert "    pip install ./snakemake_kochi\n" in text
    assert "    kochi reproduce --sample 10\n" in text
    assert "sum.yaml second" not in text
    assert "4 runs" in text
    # In a crate it has the tables, too.
    assert "|   n |   (runs) |" in (crate.directory / "README.md").read_text()


def test_the_appendix_has_no_output_of_failed_commands_and_no_facts_of_own_rules(
    projects: Projects, export: Export, crate: Crate, tmp_path: Path
) -> None:
    clone = clone_with_branch(projects, tmp_path)
    places = sorted((crate.directory / "records/local").iterdir())
    old = json.loads(places[0].read_text())
    at = {"at": "2026-01-01T00:00:00+00:00"}
    facts = {
        "compiler": {"command": "cc --version", "output": "cc 12\n", "exit_status": 0, **at},
        "mpi": {"command": "mpicc -v", "output": "mpicc: not here", "exit_status": 127, **at},
        "slow": {"command": "sleep 9", "output": "half", "exit_status": None, **at},
    }
    with_facts = {**old, "identity": "facts", "experiment": "facts.yaml", "facts": facts}
    own = {**old, "experiment": "", "batch": "", "recipes": [], "facts": {}}
    alone = {**own, "identity": "own", "artifacts": []}
    files: dict[str, str | None] = {
        f"local/.kochi/records/00/{each['identity']}.json": json.dumps(each)
        for each in (with_facts, alone)
    }
    commit_to(clone, files, "kochi_artifacts_local")
    outcome = export("--appendix", tmp_path / "facts.md", "facts.yaml", cwd=clone)
    assert outcome.status == 0, outcome.err
    text = (tmp_path / "facts.md").read_text()
    assert "compiler (`cc --version`):\n\n    cc 12\n" in text
    assert "Not found: mpi, slow." in text
    assert "not here" not in text and "half" not in text

    listed = git(clone, "ls-tree", "-r", "--name-only", "kochi_artifacts_local").splitlines()
    gone: dict[str, str | None] = {
        path: None for path in listed if "/.kochi/" in path and not path.endswith("/own.json")
    }
    commit_to(clone, gone, "kochi_artifacts_local")
    outcome = export("--appendix", tmp_path / "own.md", cwd=clone)
    assert outcome.status == 0, outcome.err
    text = (tmp_path / "own.md").read_text()
    assert "Compiler and libraries: not recorded." in text
    assert "facts:" not in text
