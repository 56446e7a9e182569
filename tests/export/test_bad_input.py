"""Exports that cannot be complete: nothing is overwritten, nothing half-written, all is named."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from pathlib import Path

import full_disk
import pytest
from support import git, start, wait_until, write

from snakemake_kochi.artifacts.branch_content import record_path
from snakemake_kochi.artifacts.large import Pointer, Store

from .conftest import Crate, Export, Projects, Validate, clone_with_branch, commit_to

BRANCH = "kochi_artifacts_local"


@pytest.fixture
def clone(projects: Projects, tmp_path: Path) -> Path:
    """A clone of one's own, with a branch that may be changed."""
    return clone_with_branch(projects, tmp_path)


def a_record(crate: Crate) -> tuple[str, dict[str, object]]:
    file = sorted((crate.directory / "records/local").iterdir())[0]
    record = json.loads(file.read_text())
    assert isinstance(record, dict)
    return file.stem, record


def test_changed_and_missing_files_are_named_and_left_out(
    clone: Path, export: Export, tmp_path: Path
) -> None:
    before = commit_to(clone, {}, BRANCH)
    changed = {"local/sum/1_0.log": "by hand\n", "local/sum/2_1 ü.txt": None}
    commit_to(clone, dict(changed), BRANCH)
    outcome = export("--ro-crate", tmp_path / "crate", cwd=clone)
    assert outcome.status == 1
    assert "local/sum/1_0.log: it has changed since its run, and was left out" in outcome.err
    assert "local/sum/2_1 ü.txt: it is not in the branch" in outcome.err
    for path in changed:
        assert not (tmp_path / "crate/results" / path).exists()
        assert path in (tmp_path / "crate/README.md").read_text()
    assert "3 of 4" not in outcome.out
    table = (tmp_path / "crate/tables/local/sum.yaml/first.csv").read_text()
    assert len(table.splitlines()) == 1 + 3  # without the run whose output was changed
    # An earlier commit has them all.
    outcome = export("--ro-crate", tmp_path / "earlier", "--at", before, cwd=clone)
    assert outcome.status == 0, outcome.err
    assert (tmp_path / "earlier/results/local/sum/1_0.log").exists()


def test_a_record_that_a_later_commit_changed_is_named_and_left_out(
    clone: Path, export: Export, crate: Crate, tmp_path: Path
) -> None:
    identity, record = a_record(crate)
    path = record_path("local", identity, record["outcome"] == "failed")
    written = git(clone, "show", f"{BRANCH}:{path}")
    commit_to(clone, {path: json.dumps({**record, "seconds": 0.1})}, BRANCH)
    outcome = export("--ro-crate", tmp_path / "crate", "--json", cwd=clone)
    assert outcome.status == 1
    data = json.loads(outcome.out)
    assert f"record {identity} of local was edited after its run" in data["problems"]
    assert data["runs"] == 5
    # Taken back, it is what the run wrote.
    commit_to(clone, {path: written}, BRANCH)
    outcome = export("--ro-crate", tmp_path / "again", "--json", cwd=clone)
    assert json.loads(outcome.out)["runs"] == 6
    assert outcome.status == 0, outcome.err


def test_records_that_lead_elsewhere_are_named_and_write_nothing(
    clone: Path, export: Export, crate: Crate, tmp_path: Path
) -> None:
    _, record = a_record(crate)
    artifact = {"type": "file", "src": "x", "size": 1, "sha256": "0" * 64}
    wrong = {
        "up": {"artifacts": [{**artifact, "dest": "../../../../up"}]},
        "git": {"artifacts": [{**artifact, "dest": "a/.GIT/hooks/pre-commit"}]},
        "absolute": {"artifacts": [{**artifact, "dest": "/tmp/absolute"}]},
        "option": {"snapshot": {"tree": "--output=x", "base": None}},
        "newer": {"version": 999},
        "time": {"started": "yesterday"},
        "surrogate": {"node": "\ud800"},
        "type": {"parameters": {"n": 1}},
        "recipe": {"recipes": ["a"]},
        "place": {"snapshot": "x"},
        "file": {"artifacts": [1]},
        "long": {"seconds": 1e300},
        "rule": {"rule": {"name": 1, "command": None, "params": [], "inputs": [1]}},
        "node": {"hardware": "x", "facts": "x", "usage": 3, "environment": 5},
    }
    files: dict[str, str | None] = {
        f"local/.kochi/records/00/{name}.json": json.dumps({**record, "identity": name, **other})
        for name, other in wrong.items()
    }
    files["local/.kochi/records/00/json.json"] = "{"
    files["local/.kochi/records/00/list.json"] = "[]"
    commit_to(clone, files, BRANCH)
    outcome = export("--ro-crate", tmp_path / "crate", "--json", cwd=clone)
    assert outcome.status == 1
    data = json.loads(outcome.out)
    assert data["runs"] == 6
    for name in (*wrong, "json", "list"):
        (told,) = [each for each in data["problems"] if each.startswith(f"record {name} of local")]
        assert ("newer" in told) == (name == "newer")
    assert not (tmp_path / "up").exists()


def test_experiments_of_one_file_name_have_a_table_each(
    clone: Path, export: Export, crate: Crate, tmp_path: Path
) -> None:
    files = sorted((crate.directory / "records/local").iterdir())
    records = [json.loads(file.read_text()) for file in files]
    record = next(each for each in records if each["batch"] == "first")
    other = {**record, "identity": "other", "experiment": "old/sum.yaml"}
    commit_to(clone, {"local/.kochi/records/00/other.json": json.dumps(other)}, BRANCH)
    outcome = export("--ro-crate", tmp_path / "crate", cwd=clone)
    assert "has no table" not in outcome.err
    tables = tmp_path / "crate/tables/local"
    found = {file.parent.name: file.read_text() for file in tables.glob("*/first.csv")}
    lines = {name: len(text.splitlines()) for name, text in found.items()}
    assert lines == {"sum.yaml": 1 + 4, "old%2Fsum.yaml": 1 + 1}
    readme = (tmp_path / "crate/README.md").read_text()
    assert "(tables/local/old%252Fsum.yaml/first.csv)" in readme


def test_large_files_are_exported_as_a_whole_or_named(
    clone: Path, export: Export, crate: Crate, tmp_path: Path
) -> None:
    paths = ("local/sum/1_0.log", "local/sum/2_0.log")
    contents = [(crate.directory / "results" / path).read_bytes() for path in paths]
    pointers = [Pointer(hashlib.sha256(each).hexdigest(), len(each)) for each in contents]
    texts = [pointer.text.decode() for pointer in pointers]
    commit_to(clone, dict(zip(paths, texts, strict=True)), BRANCH)
    outcome = export("--ro-crate", tmp_path / "crate", cwd=clone)
    assert outcome.status == 1
    said = f"{paths[0]} and 1 more: large files, of which this clone has only pointers"
    assert said in outcome.err
    assert "\\n" not in outcome.err
    readme = (tmp_path / "crate/README.md").read_text()
    (item,) = [line for line in readme.splitlines() if line.startswith(f"- {said}")]
    for told in (outcome.err, item):
        assert "). To fetch them, type: kochi artifact fetch --large" in told
    assert not any((tmp_path / "crate/results" / path).exists() for path in paths)
    assert (tmp_path / "crate/results/local/sum/1_1.log").exists()
    for content in contents:
        Store.of(clone).put(io.BytesIO(content))
    outcome = export("--ro-crate", tmp_path / "whole", cwd=clone)
    assert outcome.status == 0, outcome.err
    for path, content in zip(paths, contents, strict=True):
        assert (tmp_path / "whole/results" / path).read_bytes() == content


def test_a_job_of_an_own_rule_names_its_inputs_and_its_snakefile(
    clone: Path, export: Export, crate: Crate, validate: Validate, tmp_path: Path
) -> None:
    _, record = a_record(crate)
    # Not all names are UTF-8, and URIs have characters of their own.
    made, log = (
        "counted/21 \udcff%20#.txt",
        (crate.directory / "results/local/sum/1_0.log").read_bytes(),
    )
    digest = hashlib.sha256(b"42\n").hexdigest()
    inputs = [
        {"path": "sum/1_0.log", "size": len(log), "sha256": hashlib.sha256(log).hexdigest()},
        {"path": "code.txt", "size": 15},
        {"path": "/data/elsewhere", "size": 1, "sha256": "0" * 64},
    ]
    rule = {"name": "count", "command": "seq", "params": {"last": "42"}, "inputs": inputs}
    own = {
        **record,
        "identity": "count.20260101T000000.abc",
        "name": "count",
        "experiment": "",
        "batch": "",
        "parameters": {"n": "21"},
        "recipes": [],
        "rule": {**rule, "params_digest": "0", "log": []},
        "artifacts": [{"type": "file", "src": made, "dest": made, "size": 3, "sha256": digest}],
    }
    place = "local/.kochi/records/00/count.20260101T000000.abc.json"
    text = json.dumps(own, ensure_ascii=False)  # as Kochi writes it
    commit_to(clone, {place: text, f"local/{made}": "42\n"}, BRANCH)
    outcome = export("--ro-crate", tmp_path / "crate", cwd=clone)
    assert outcome.status == 0, outcome.err
    assert "rule count" in outcome.out
    exported = tmp_path / "crate/results/local/counted/21 \\xff%20#.txt"
    assert exported.read_text() == "42\n"
    # This profile includes those on which it builds.
    assert validate(tmp_path / "crate", "workflow-run-crate") == []
    entities = Crate(tmp_path / "crate").entities
    action = entities["#run/count.20260101T000000.abc"]
    assert action["instrument"]["@id"].endswith("/Snakefile")
    named = [entities[each["@id"]] for each in action["object"]]
    values = {each["name"]: each.get("value") for each in named}
    assert (values["n"], values["last"]) == ("21", "42")
    assert values["/data/elsewhere"] == f"SHA-256 {'0' * 64}"
    ids = [each["@id"] for each in named]
    assert "results/local/sum/1_0.log" in ids
    assert any(each.endswith("/code.txt") for each in ids)
    assert "exampleOfWork" in entities["results/local/sum/1_0.log"]


def test_links_that_lead_out_of_the_code_are_left_out(
    clone: Path, export: Export, crate: Crate, tmp_path: Path
) -> None:
    _, record = a_record(crate)
    ref = f"refs/kochi/code/{record['snapshot']['tree']}"  # type: ignore[index]
    git(clone, "worktree", "add", "-q", "--detach", str(tmp_path / "code"), ref)
    (tmp_path / "code" / "secret").symlink_to(Path.home() / ".ssh")
    (tmp_path / "code" / "inside").symlink_to("code.txt")
    git(tmp_path / "code", "add", "-A")
    git(tmp_path / "code", "commit", "-qm", "links")
    git(clone, "update-ref", ref, git(tmp_path / "code", "rev-parse", "HEAD").strip())
    outcome = export("--ro-crate", tmp_path / "crate", cwd=clone)
    assert outcome.status == 1
    (code,) = (tmp_path / "crate/code").glob("*/code.txt")
    assert f"{code.parent.name}/secret: a link that leads out of the code" in outcome.err
    assert not os.path.lexists(code.with_name("secret"))
    assert code.with_name("inside").is_symlink()


def test_a_partial_clone_says_how_to_complete_it(
    projects: Projects, export: Export, tmp_path: Path
) -> None:
    bare = projects.original.parent / "bare"
    git(bare, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{bare}", "clone")
    outcome = export("--ro-crate", tmp_path / "crate", cwd=tmp_path / "clone")
    assert outcome.status == 1
    assert "is not in this clone (and 5 more)" in outcome.err
    assert "git fetch --refetch --no-filter" in outcome.err


def test_in_a_worktree_of_the_results_the_authors_are_those_of_the_code(
    clone: Path, export: Export, tmp_path: Path
) -> None:
    git(clone, "worktree", "add", "-q", str(tmp_path / "results"), BRANCH)
    outcome = export("--citation", tmp_path / "C.cff", cwd=tmp_path / "results")
    assert outcome.status == 0, outcome.err
    assert "family-names: User" in (tmp_path / "C.cff").read_text()


def test_nothing_is_overwritten(clone: Path, export: Export, tmp_path: Path) -> None:
    full = write(tmp_path / "full" / "file", "mine\n").parent
    (tmp_path / "link").symlink_to(full)
    new = tmp_path / "new"
    for words, said in (
        (("--ro-crate", full), "not empty"),
        (("--ro-crate", full / "file"), "a new or an empty directory was expected"),
        (("--ro-crate", tmp_path / "link"), "a new or an empty directory was expected"),
        (("--ro-crate", tmp_path / "no" / "crate"), "mkdir -p"),
        (("--citation", full / "file"), "Nothing is overwritten"),
        (("--appendix", tmp_path / "no" / "file"), "there is no such directory"),
        (("--citation", new, "--appendix", tmp_path / "clone" / ".." / "new"), "the same file"),
        (("--ro-crate", new, "--citation", new), "in the directory of --ro-crate"),
        (("--ro-crate", new, "--appendix", new / "a.md"), "in the directory of --ro-crate"),
    ):
        outcome = export(*words, cwd=clone)
        assert (outcome.status, said in outcome.err) == (1, True), outcome.err
    assert (full / "file").read_text() == "mine\n"
    assert sorted(os.listdir(tmp_path)) == ["clone", "full", "link"]
    outcome = export(cwd=clone)
    assert outcome.status == 2
    assert "--ro-crate DIR, --citation FILE or --appendix FILE was expected" in outcome.err


def test_a_killed_export_leaves_no_crate_and_the_next_one_names_the_rest(
    clone: Path, export: Export, tmp_path: Path
) -> None:
    command = (sys.executable, "-P", "-m", "snakemake_kochi.cli", "export", "--ro-crate")
    process = start(*command, str(tmp_path / "crate"), cwd=clone)
    (rest,) = wait_until(lambda: list(tmp_path.glob(".crate.*")))
    process.kill()
    process.communicate()
    assert not (tmp_path / "crate").exists()
    outcome = export("--ro-crate", tmp_path / "crate", cwd=clone)
    assert outcome.status == 0
    assert f"{rest} is of an export that was killed" in outcome.err
    assert (tmp_path / "crate/ro-crate-metadata.json").exists()


def test_misspelt_names_get_the_nearest_one(clone: Path, export: Export, tmp_path: Path) -> None:
    for words, said in (
        (("sum.yml",), "did you mean 'sum.yaml'"),
        (("sum.yaml", "frist"), "did you mean 'first'"),
        (("--name", "locale"), "did you mean 'local'"),
        (("--at", "kochi_artifacts_locl"), "did you mean 'kochi_artifacts_local'"),
        (("../sum.yaml",), "outside of the project"),
        (("--at", "main"), "commit main has no results"),
    ):
        outcome = export("--citation", tmp_path / "C.cff", *words, cwd=clone)
        assert (outcome.status, said in outcome.err) == (1, True), outcome.err
    assert not (tmp_path / "C.cff").exists()


def test_without_results_or_their_code_it_says_what_to_type(
    clone: Path, export: Export, tmp_path: Path
) -> None:
    for ref in git(clone, "for-each-ref", "--format=%(refname)", "refs/kochi/code").split():
        git(clone, "update-ref", "-d", ref)
    outcome = export("--ro-crate", tmp_path / "crate", cwd=clone)
    assert outcome.status == 1
    assert "kochi artifact push; then here: kochi artifact fetch" in outcome.err
    git(clone, "branch", "-qD", BRANCH)
    outcome = export("--ro-crate", tmp_path / "crate", cwd=clone)
    assert outcome.status == 1
    assert "kochi artifact fetch" in outcome.err
    assert not (tmp_path / "crate").exists()


def test_a_full_disk_leaves_nothing(clone: Path, export: Export, tmp_path: Path) -> None:
    with full_disk.mounted(tmp_path / "small") as disk:
        (disk.directory / "crate").mkdir()
        disk.fill()
        outcome = export("--ro-crate", disk.directory / "crate", "sum.yaml", "second", cwd=clone)
        assert outcome.status == 1
        assert "full" in outcome.err or "No space left" in outcome.err, outcome.err
        disk.empty()
        assert os.listdir(disk.directory) == ["crate"]
        assert os.listdir(disk.directory / "crate") == []
        outcome = export("--ro-crate", disk.directory / "crate", "sum.yaml", "second", cwd=clone)
        assert outcome.status == 0, outcome.err
        assert (disk.directory / "crate/ro-crate-metadata.json").exists()
