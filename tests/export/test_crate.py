"""`kochi export --ro-crate`: what a crate has, and that the community's validator accepts it."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from pathlib import Path
from urllib.parse import unquote

from support import git

from .conftest import Crate, Projects, Validate

BRANCH = "origin/kochi_artifacts_local"


# That it accepts a crate of experiments and own rules is in test_bad_input.py.
def test_the_validator_refuses_a_crate_whose_runs_name_no_workflow(
    crate: Crate, validate: Validate, tmp_path: Path
) -> None:
    broken = shutil.copytree(crate.directory, tmp_path / "broken")
    file = broken / "ro-crate-metadata.json"
    metadata = json.loads(file.read_text())
    for entity in metadata["@graph"]:
        entity.pop("instrument", None)
    file.write_text(json.dumps(metadata))
    assert any("instrument" in each for each in validate(broken, "workflow-run-crate"))


def test_the_results_and_records_are_those_of_the_branch_byte_for_byte(
    crate: Crate, projects: Projects
) -> None:
    listed = git(projects.clone, "ls-tree", "-r", "--name-only", "-z", BRANCH).split("\0")
    artifacts = {each for each in listed if each and "/.kochi/" not in each}
    top = crate.directory / "results"
    files = {file.relative_to(top).as_posix(): file for file in top.rglob("*") if file.is_file()}
    assert files.keys() == artifacts
    assert len(artifacts) == 4 * 3 + 1
    for path, file in files.items():
        dest = path.removeprefix("local/")
        assert file.read_bytes() == (projects.original / "results/local" / dest).read_bytes()
    places = ("/.kochi/records/", "/.kochi/failed/")
    records = {Path(each).name: each for each in listed if any(p in each for p in places)}
    assert len(records) == 6
    exported = {file.name: file for file in (crate.directory / "records/local").iterdir()}
    assert exported.keys() == records.keys()
    for name, file in exported.items():
        assert file.read_text() == git(projects.clone, "show", f"{BRANCH}:{records[name]}")


def test_the_code_is_that_of_the_snapshot_and_of_its_recipes(
    crate: Crate, projects: Projects
) -> None:
    record = json.loads(next((crate.directory / "records/local").iterdir()).read_text())
    tree, tool = record["snapshot"]["tree"], record["recipes"][0]["source"]["commit"]
    code = crate.directory / "code" / tree[:12]
    # Uncommitted, and with its own line ends, whatever attributes say.
    assert (code / "code.txt").read_bytes() == b"not committed\r\n"
    names = git(projects.original, "ls-files", "--cached", "--others", "--exclude-standard")
    assert {file.name for file in code.iterdir()} == set(names.split())
    assert (crate.directory / "code" / tool[:12] / "tool.sh").read_text() == "echo the tool\n"


def test_each_run_is_an_action_with_parameters_results_code_recipe_and_node(crate: Crate) -> None:
    entities = crate.entities
    root = entities["./"]
    workflow = entities[root["mainEntity"]["@id"]]
    assert workflow["@id"].endswith("/sum.yaml")
    assert (crate.directory / unquote(workflow["@id"])).is_file()
    runs = [each for each in crate.of_type("CreateAction") if each["@id"].startswith("#run/")]
    assert {each["@id"] for each in runs} <= {each["@id"] for each in root["mentions"]}
    seen = set()
    for run in runs:
        values = {entities[each["@id"]]["name"]: entities[each["@id"]] for each in run["object"]}
        listed = run["result"] if isinstance(run["result"], list) else [run["result"]]
        results = [entities[each["@id"]] for each in listed]
        files = {file["name"]: file for file in results if file["@id"].startswith("results/")}
        for file in files.values():
            content = (crate.directory / unquote(file["@id"])).read_bytes()
            assert file["sha256"] == hashlib.sha256(content).hexdigest()
            assert file["contentSize"] == str(len(content))
        (record_file,) = [file for file in results if file["@id"].startswith("records/")]
        record = json.loads((crate.directory / unquote(record_file["@id"])).read_text())
        assert {each["dest"] for each in record["artifacts"]} == set(files)
        assert values["n"]["value"] == record["parameters"]["n"]
        assert values["n"]["exampleOfWork"] in workflow["input"]
        assert record["started"].startswith(run["startTime"][:19])
        is_failed = record["batch"] == "failing"
        status = "Failed" if is_failed else "Completed"
        assert run["actionStatus"] == f"http://schema.org/{status}ActionStatus"
        assert ("exit status 1" in run.get("error", "")) == is_failed
        instrument, recipe = (entities[each["@id"]] for each in run["instrument"])
        assert instrument == workflow
        source = record["recipes"][0]["source"]["commit"]
        assert (recipe["name"], recipe["softwareVersion"]) == ("tool:release", source)
        node = entities[run["location"]["@id"]]
        facts = {entities[each["@id"]]["name"] for each in node["additionalProperty"]}
        assert node["name"] == record["node"]
        assert {"machine", "architecture", "kernel"} <= facts
        seen.add((record["batch"], values["n"]["value"], values["duplicate"]["value"]))
    points = {("first", n, duplicate) for n in "12" for duplicate in "01"}
    assert seen == points | {("second", "9", "0"), ("failing", "13", "0")}


def test_tables_have_the_numbers_of_the_projects_own(crate: Crate, projects: Projects) -> None:
    def rows(file: Path) -> list[dict[str, str]]:
        with file.open(newline="") as lines:
            return sorted(csv.DictReader(lines), key=lambda row: (row["n"], row["duplicate"]))

    for batch, metrics in (("first", {"total"}), ("second", set())):
        table = crate.directory / "tables/local/sum.yaml" / batch
        made = rows(table.with_suffix(".csv"))
        assert made == rows(projects.original / f"results/local/sum/{batch}.csv")
        assert metrics == made[0].keys() & {"total"}
        assert table.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"


def test_the_license_file_of_the_project_is_the_license(crate: Crate) -> None:
    name = crate.entities["./"]["license"]["@id"]
    assert (crate.directory / name).read_text() == "Do what you like.\n"


def test_every_file_of_the_crate_is_described_or_in_a_described_directory(crate: Crate) -> None:
    described = {unquote(each) for each in crate.entities}
    for file in crate.directory.rglob("*"):
        path = file.relative_to(crate.directory)
        above = {f"{parent.as_posix()}/" for parent in path.parents[:-1]}
        if file.is_file():
            assert path.as_posix() in described or above & described, path


def test_no_address_of_a_person_is_exported(crate: Crate) -> None:
    text = (crate.directory / "ro-crate-metadata.json").read_text()
    text += (crate.directory / "CITATION.cff").read_text()
    assert "A User" in text
    assert "user@example.org" not in text
