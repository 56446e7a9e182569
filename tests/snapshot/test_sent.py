"""A project travels to another computer, and is there as it is at home."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from git_helpers import commit_to_new_repository, files_of, git, state_of, write
from other_computer import MACHINE, OtherComputer

from snakemake_kochi.phases.freeze import take_freeze

FREEZE = """
import json, sys
from pathlib import Path
from snakemake_kochi.phases.freeze import take_freeze
frozen = take_freeze(Path.cwd(), "spica")
print(json.dumps({
    "tree": frozen.snapshot.tree, "base": frozen.snapshot.base, "dirty": frozen.snapshot.dirty,
    "sources": frozen.sources, "without": frozen.without_source, "diff": frozen.diff,
}))
"""


@pytest.fixture
def there(tmp_path: Path) -> OtherComputer:
    return OtherComputer(tmp_path / "there")


def frozen_there(there: OtherComputer) -> dict:
    sent = there.send()
    said = there.receive(sent, [*there.python, "-c", FREEZE])
    return json.loads(said)


def frozen_here(directory: Path) -> dict:
    frozen = take_freeze(directory, "spica")
    return {
        "tree": frozen.snapshot.tree,
        "base": frozen.snapshot.base,
        "dirty": frozen.snapshot.dirty,
    }


def test_everything_is_there_as_it_is_here(
    torture: tuple[Path, dict[str, tuple[str, bytes]]],
    there: OtherComputer,
    monkeypatch: pytest.MonkeyPatch,
    untouched: Callable[[Path], None],
) -> None:
    top, expected = torture
    write(top / "kochi.yaml", MACHINE)
    expected["kochi.yaml"] = ("file", MACHINE.encode())
    monkeypatch.chdir(top)
    untouched(top)
    files = files_of(top)
    found = frozen_there(there)
    here = frozen_here(top)
    assert {key: found[key] for key in here} == here
    project = Path(there.send().directory)
    assert {
        path: content
        for path, content in files_of(project).items()
        if ".git" not in Path(path).parts
    } == expected
    assert files_of(top) == files


def test_git_answers_there_as_here(
    torture: tuple[Path, dict[str, tuple[str, bytes]]],
    there: OtherComputer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    top, _ = torture
    write(top / "kochi.yaml", MACHINE)
    git(top, "-c", "core.hooksPath=/dev/null", "tag", "--annotate", "--message=one", "v1", "HEAD~1")
    git(top, "-c", "core.hooksPath=/dev/null", "tag", "light")
    monkeypatch.chdir(top)
    sent = there.send()
    there.receive(sent)
    project = Path(sent.directory)

    def answers(directory: Path) -> list[str]:
        asked = (
            ("status", "--porcelain=v2", "--branch", "--untracked-files=all"),
            ("describe", "--dirty"),
            ("log", "--oneline"),
            ("tag", "--list", "--format=%(objectname) %(refname)"),
            ("ls-files", "--stage", "--", ":!intended.c"),
        )
        found = [git(directory, "--no-optional-locks", *words) for words in asked]
        inside = ("rev-parse", "HEAD"), ("status", "--porcelain")
        found += [git(directory / "lib", "--no-optional-locks", *words) for words in inside]
        found += [git(directory / "nested", "--no-optional-locks", "status", "--porcelain")]
        return found

    # What was to be added later is staged there as an empty file.
    hidden = ("intended.c", "artifacts/")
    here, other = answers(top), answers(project)
    states = [
        [line for line in each.pop(0).splitlines() if not line.endswith(hidden)]
        for each in (here, other)
    ]
    assert states[0] == states[1]
    assert here == other
    assert git(project, "fsck", "--connectivity-only", "--no-dangling") == ""


def test_only_what_is_missing_travels(
    repository: Path, there: OtherComputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    for number in range(300):
        write(repository / "src" / f"{number}.c", os.urandom(2000).hex())
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=many files")
    write(repository / "untracked.bin", os.urandom(1 << 20))
    monkeypatch.chdir(repository)
    there.receive(there.send())
    assert there.taken() > 1 << 20
    there.receive(there.send())
    assert there.taken() == 0  # nothing is pushed
    write(repository / "main.c", "int main2;\n")
    sent = there.send()
    there.receive(sent)
    assert 0 < there.taken() < 8000
    assert Path(sent.directory, "main.c").read_text() == "int main2;\n"
    git(repository, "commit", "--quiet", "--all", "--message=second")
    there.receive(there.send())
    assert 0 < there.taken() < 8000


@pytest.mark.parametrize("form", ["relative", "absolute", "home"])
def test_local_sources_of_recipes_are_found_there(
    form: str,
    repository: Path,
    there: OtherComputer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = Path(os.environ["HOME"])
    place = {"relative": repository.parent, "absolute": tmp_path, "home": home}[form]
    begin = {"relative": "..", "absolute": str(tmp_path), "home": "~"}[form]
    library, plain, tool = (place / name for name in ("library", "plain", "tool"))
    commit_to_new_repository(library, "lib.c", "committed\n")
    git(library, "commit", "--quiet", "--allow-empty", "--message=the history stays here")
    write(library / "lib.c", "changed\n")
    write(library / "new.c", "new\n")
    write(library / ".gitignore", "*.o\n")
    write(library / "ignored.o", "ignored\n")
    write(plain / "a.txt", "no repository\n")
    write(plain / ".gitignore", "*\n")
    first = commit_to_new_repository(tool, "tool.c", "1\n")
    git(tool, "tag", "v1")
    git(tool, "checkout", "--quiet", "-b", "feature")
    write(tool / "tool.c", "2\n")
    git(tool, "commit", "--quiet", "--all", "--message=second")
    git(tool, "checkout", "--quiet", "-")
    write(
        repository / "kochi.yaml",
        f"""{MACHINE}
dependencies:
  library:
    recipes:
      - name: changed
        mirror: true
        mirror_dir: {begin}/library
        script: [make]
      - name: plain
        mirror: true
        mirror_dir: {begin}/plain
        script: [make]
  tool:
    recipes:
      - name: head
        git: {begin}/tool
        script: [make]
      - name: branch
        git: {begin}/tool
        branch: feature
        script: [make]
      - name: commit
        git: {begin}/tool
        commit_hash: {first[:10]}
        script: [make]
      - name: file
        git: file://{tool}
        script: [make]
""",
    )
    monkeypatch.chdir(repository)
    states = [state_of(each) for each in (library, tool)]
    here = take_freeze(repository, "spica")
    found = frozen_there(there)
    assert not here.without_source and not found["without"]
    said = [
        {name: {**source, "mirror": ""} for name, source in each.items()}
        for each in (here.sources, found["sources"])
    ]
    assert said[0] == said[1]
    assert [state_of(each) for each in (library, tool)] == states
    # A clone there has the history and the tags, and a mirror that is changed here changes there.
    assert (
        there.fetched(there.send(), "tool:branch", "describe", "--tags")
        == "v1-1-g" + git(tool, "rev-parse", "--short", "feature").strip()
    )
    (library / "new.c").unlink()
    write(library / "lib.c", "changed again\n")
    assert (
        frozen_there(there)["sources"]["library:changed"]["tree"]
        == take_freeze(repository, "spica").sources["library:changed"]["tree"]
    )
