"""A project travels to another computer, and is there as it is at home."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cleaning.stage import make_old
from full_disk import mounted
from git_helpers import commit_to_new_repository, files_of, git, state_of, visible, write
from other_computer import MACHINE, OtherComputer
from support import run_apart, wait_until

from snakemake_kochi.detached.__main__ import hand_over
from snakemake_kochi.paths import SentPaths
from snakemake_kochi.phases.freeze import take_freeze
from snakemake_kochi.remote import receive
from snakemake_kochi.remote.refusal import RemoteError

FREEZE = """
import json, sys
from pathlib import Path
from snakemake_kochi.paths import SentPaths
from snakemake_kochi.phases.freeze import take_freeze
from snakemake_kochi.remote import receive
from snakemake_kochi.phases.freeze import have_read
frozen = take_freeze(Path.cwd(), "spica")
have_read()
print(json.dumps({
    "tree": frozen.snapshot.tree, "base": frozen.snapshot.base, "dirty": frozen.snapshot.dirty,
    "sources": frozen.sources, "without": frozen.without_source, "diff": frozen.diff,
    "project": str(Path.cwd()),
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


def test_everything_is_there_as_it_is_here_and_git_answers_alike(
    torture: tuple[Path, dict[str, tuple[str, bytes]]],
    there: OtherComputer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    top, expected = torture
    write(top / "kochi.yaml", MACHINE)
    expected["kochi.yaml"] = ("file", MACHINE.encode())
    git(top, "-c", "core.hooksPath=/dev/null", "tag", "--annotate", "--message=one", "v1", "HEAD~1")
    git(top, "-c", "core.hooksPath=/dev/null", "tag", "light")
    monkeypatch.chdir(top)
    files, state = files_of(top), state_of(top)
    found = frozen_there(there)
    here = frozen_here(top)
    assert {key: found[key] for key in here} == here
    project = Path(found["project"])
    assert {
        path: content
        for path, content in files_of(project).items()
        if ".git" not in Path(path).parts
    } == expected
    assert (files_of(top), state_of(top)) == (files, state)

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
    repository: Path,
    there: OtherComputer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    for number in range(300):
        write(repository / "src" / f"{number}.c", os.urandom(2000).hex())
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=many files")
    write(repository / "untracked.bin", os.urandom(1 << 20))
    monkeypatch.chdir(repository)
    with monkeypatch.context() as slow:
        slow.setattr("snakemake_kochi.remote.project._TELLS_AFTER", 0.0)
        there.receive(there.send())
    assert re.search(r"^kochi: sending .*: +\d+% \(\d+/\d+\)", capsys.readouterr().err, re.M)
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
    # It came with many others, so in a pack, and a run there had it, too. Once git ignores it here,
    # a clean-up frees it here and there.
    frozen_there(there)
    write(repository / ".gitignore", "untracked.bin\n")
    there.receive(there.send())
    home = Path(os.environ["KOCHI_ROOT"])
    for root in (home, there.root):
        make_old(root)
    frozen_there(there)
    words = (sys.executable, "-m", "snakemake_kochi.cli", "clean", "-m")
    for root, environment, least in ((home, {}, 1), (there.root, there.environment, 2)):
        line = (*words, "local" if root == home else "spica", "--json")
        for option in ("-n", "-y"):
            done = run_apart(*line, option, cwd=repository, env=environment)
            said = json.loads(done.stdout)
            assert said["freed"]["snapshots"]["bytes"] > least << 20, said
        files = [each for each in root.rglob("*") if each.is_file()]
        assert not [each for each in files if each.stat().st_size > 1 << 20]
    there.receive(there.send())
    assert frozen_there(there)["tree"] == frozen_here(repository)["tree"]


def test_local_sources_of_recipes_are_found_there(
    repository: Path, there: OtherComputer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    library, plain, tool = (tmp_path / name for name in ("library", "plain", "tool"))
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
    mirrors, clones = "", f"{{name: file, git: 'file://{tool}', script: [make]}}, "
    for form, begin in (("relative", ".."), ("absolute", tmp_path), ("home", "~")):
        for name, directory in (("changed", library), ("plain", plain)):
            place = f"mirror: true, mirror_dir: {begin}/{directory.name}"
            mirrors += f"{{name: {name}-{form}, {place}, script: [make]}}, "
        for name, which in (
            ("head", ""),
            ("branch", "branch: feature, "),
            ("commit", f"commit_hash: {first[:10]}, "),
        ):
            words = f"git: {begin}/tool, {which}script: [make]"
            clones += f"{{name: {name}-{form}, {words}}}, "
    recipes = (
        f"dependencies: {{library: {{recipes: [{mirrors}]}}, tool: {{recipes: [{clones}]}}}}\n"
    )
    write(repository / "kochi.yaml", f"{MACHINE}{recipes}")
    monkeypatch.chdir(repository)
    states = [state_of(each) for each in (library, tool)]
    here = take_freeze(repository, "spica")
    found = frozen_there(there)
    assert not here.without_source and not found["without"]
    assert len(here.sources) == 16
    said = [
        {name: {**source, "mirror": ""} for name, source in each.items()}
        for each in (here.sources, found["sources"])
    ]
    assert said[0] == said[1]
    assert [state_of(each) for each in (library, tool)] == states
    # A clone there has the history and the tags, and a mirror that is changed here changes there.
    assert (
        there.fetched(there.send(), "tool:branch-home", "describe", "--tags")
        == "v1-1-g" + git(tool, "rev-parse", "--short", "feature").strip()
    )
    (library / "new.c").unlink()
    write(library / "lib.c", "changed again\n")
    here, found = take_freeze(repository, "spica"), frozen_there(there)
    for form in ("relative", "absolute", "home"):
        name = f"library:changed-{form}"
        assert found["sources"][name]["tree"] == here.sources[name]["tree"], form


def test_a_commit_a_branch_and_a_removed_file_follow(
    repository: Path, there: OtherComputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--amend", "--no-edit")
    write(repository / "untracked" / "x.c", "x\n")
    git(repository, "branch", "topic")
    git(repository, "tag", "gone")
    monkeypatch.chdir(repository)
    sent = there.send()
    there.receive(sent)
    project = Path(sent.directory)
    write(project / "results" / "a.txt", "a result\n")
    write(project / ".snakemake" / "log", "a log\n")
    write(project / "made_there.txt", "by a rule\n")
    write(project / "main.c", "edited there\n")
    git(project, "branch", "kochi_artifacts_spica")
    # All that can change at home, at once: a branch that has the name of a directory of branches.
    git(repository, "tag", "--delete", "gone")
    git(repository, "branch", "--delete", "topic")
    git(repository, "checkout", "--quiet", "-b", "topic/deeper")
    (repository / "untracked" / "x.c").unlink()
    (repository / "src" / "a.c").unlink()
    write(repository / "src" / "a.c" / "now_a_directory.c", "x\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=second")
    here, found = frozen_here(repository), frozen_there(there)
    assert {key: found[key] for key in here} == here
    assert git(project, "symbolic-ref", "HEAD") == "refs/heads/topic/deeper\n"
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "tag", "--list") == ""
    refs = git(project, "for-each-ref", "--format=%(refname)", "refs/heads").split()
    assert refs == ["refs/heads/kochi_artifacts_spica", "refs/heads/topic/deeper"]
    assert (project / "results" / "a.txt").read_text() == "a result\n"
    assert (project / ".snakemake" / "log").exists()
    assert (project / "made_there.txt").exists()
    assert not (project / "untracked").exists()
    assert (project / "main.c").read_text() == "int main;\n"
    git(repository, "checkout", "--quiet", "--detach", "HEAD~1")
    found = frozen_there(there)
    assert found["base"] == git(repository, "rev-parse", "HEAD").strip() and not found["dirty"]


def test_clones_have_places_of_their_own(
    repository: Path, there: OtherComputer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=second")
    other = tmp_path / "other" / "project"
    git(tmp_path, "clone", "--quiet", str(repository), str(other))
    places = []
    for directory in (repository, other):
        monkeypatch.chdir(directory)
        write(directory / "main.c", f"{directory}\n")
        places.append(there.send())
        there.receive(places[-1])
    assert [Path(each.directory, "main.c").read_text() for each in places] == [
        f"{repository}\n",
        f"{other}\n",
    ]
    monkeypatch.setattr("snakemake_kochi.remote.project.owner", lambda: "another laptop")
    assert there.send().directory not in [each.directory for each in places]


@pytest.mark.parametrize(
    "name", ["sent", "sources", "-n", '.a b\'s "x" ü $(touch here)' + "x" * 200]
)
def test_a_project_may_have_any_name(
    name: str,
    repository: Path,
    there: OtherComputer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = tmp_path / "library"
    write(library / "lib.c", "lib\n")
    write(repository / "sources" / "a.c", "a\n")
    write(
        repository / "kochi.yaml",
        f"{MACHINE}dependencies: {{library: {{recipes: [{{name: r, mirror: true, "
        f"mirror_dir: {library}, script: [make]}}]}}}}\n",
    )
    top = repository.rename(tmp_path / name)
    monkeypatch.chdir(top)
    # Whatever is the default there.
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    there.receive(there.send())
    write(top / "main.c", "changed\n")
    here, found = frozen_here(top), frozen_there(there)
    assert {key: found[key] for key in here} == here
    assert not found["without"]
    project = Path(found["project"])
    assert git(project, "status", "--porcelain") == git(top, "status", "--porcelain")
    assert not list(tmp_path.rglob("here"))


@pytest.mark.parametrize("state", ["unborn", "worktree", "conflict"])
def test_a_repository_may_be_in_any_state(
    state: str,
    repository: Path,
    there: OtherComputer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    untouched: Callable[[Path], None],
) -> None:
    top = repository
    write(top / "kochi.yaml", MACHINE)
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message=second")
    if state == "unborn":
        git(top, "checkout", "--quiet", "--orphan", "new")
    elif state == "worktree":
        top = tmp_path / "linked"
        git(repository, "worktree", "add", "--quiet", "-b", "linked", str(top))
    else:
        git(top, "checkout", "--quiet", "-b", "other", "HEAD~1")
        write(top / "kochi.yaml", f"{MACHINE}# other\n")
        git(top, "add", "--all")
        git(top, "commit", "--quiet", "--message=other")
        with pytest.raises(subprocess.CalledProcessError):
            git(top, "merge", "--quiet", "main")
        write(top / "kochi.yaml", MACHINE)
        assert git(top, "ls-files", "--unmerged")
    write(top / "-n", "a file\n")
    write(top / "main.c", "changed\n")
    monkeypatch.chdir(top)
    untouched(top)
    here, found = frozen_here(top), frozen_there(there)
    assert {key: found[key] for key in here} == here
    project = Path(found["project"])
    there.receive(there.send())  # once more, where it is already
    assert visible(project) == visible(top)
    for words in (("symbolic-ref", "-q", "HEAD"), ("rev-parse", "-q", "--verify", "HEAD")):
        said = [
            subprocess.run(["git", "-C", each, *words], capture_output=True).stdout
            for each in (top, project)
        ]
        assert said[0] == said[1]


def test_a_shallow_and_a_partial_clone_know_their_commit_there(
    repository: Path, there: OtherComputer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=second")
    git(repository, "config", "uploadpack.allowFilter", "true")
    for name, option in (("shallow", "--depth=1"), ("partial", "--filter=blob:none")):
        clone = tmp_path / name
        git(tmp_path, "clone", "--quiet", option, f"file://{repository}", str(clone))
        write(clone / "main.c", "changed\n")
        monkeypatch.chdir(clone)
        here, found = frozen_here(clone), frozen_there(there)
        assert {key: found[key] for key in here} == here
        assert here["base"] == git(repository, "rev-parse", "HEAD").strip()
        assert "-int main;\n+changed\n" in found["diff"]
        assert git(Path(found["project"]), "status", "--porcelain") == " M main.c\n"


def test_files_that_git_ignores_are_named_if_something_names_them(
    repository: Path,
    there: OtherComputer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    write(repository / ".gitignore", "*.bin\n/data/\n/own.yaml\n*.o\n")
    write(repository / "input.bin", "needed")
    write(repository / "other.bin", "not needed")
    write(repository / "main.o", "not needed")
    write(repository / "data" / "deep" / "a.txt", "needed")
    write(repository / "own.yaml", "run:\n  script: ./a.out < input.bin\n")
    write(repository / "fib.yaml", "run:\n  script: ./a.out < data/deep/a.txt\n")
    monkeypatch.chdir(repository)
    there.send()
    said = sorted(record.getMessage() for record in caplog.records)
    assert said == [
        "data stays here, because git ignores it, and fib.yaml names it",
        "input.bin stays here, because git ignores it, and own.yaml names it",
        "own.yaml stays here, because git ignores it",
    ]


def test_machines_and_a_configuration_from_elsewhere_travel(
    repository: Path, there: OtherComputer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = write(tmp_path / "site.yaml", "machines:\n  vega:\n    login_host: vega.example\n")
    root = Path(os.environ["KOCHI_ROOT"])
    write(root / "conf.yaml", f"{MACHINE}    facts: {{colour: blue}}\n")
    write(tmp_path / "kochi.yaml", "dependencies: {}\n")
    root.chmod(0o700)
    monkeypatch.setenv("KOCHI_SITE_CONF", str(site))
    monkeypatch.setenv("KOCHI_CONF", str(tmp_path / "kochi.yaml"))
    monkeypatch.chdir(repository)
    sent = there.send()
    monkeypatch.setenv("KOCHI_SITE_CONF", "")
    monkeypatch.delenv("KOCHI_CONF")
    asked = "from snakemake_kochi.location import find_location as f\n"
    asked += "found = f('spica')\nprint(sorted(found.machines), dict(found.machine.facts))\n"
    said = there.receive(sent, [*there.python, "-c", asked]).decode()
    assert said == "['local', 'spica', 'vega'] {'colour': 'blue'}\n"


def test_two_commands_at_once_do_not_mix_their_files(
    repository: Path, there: OtherComputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    monkeypatch.chdir(repository)
    there.receive(there.send())
    write(repository / "main.c", "first\n")
    write(repository / "second.c", "of the first\n")
    read = "import time, sys; time.sleep(float(sys.argv[1]))\n" + FREEZE
    first = there.start(there.script(there.send(), [*there.python, "-c", read, "3"]))
    tree = take_freeze(repository, "spica").snapshot.tree
    wait_until(lambda: list(there.home.glob("root/remote/projects/*/sent/uses/*")))
    write(repository / "main.c", "second\n")
    (repository / "second.c").unlink()
    sent = there.send()
    same = there.start(there.script(sent, [*there.python, "-c", read, "0"]))
    other = there.start(there.script(sent, [*there.python, "-c", read, "0"]))
    now = take_freeze(repository, "spica").snapshot.tree
    said = [json.loads(each.communicate()[0])["tree"] for each in (first, same, other)]
    assert said == [tree, now, now]
    assert not list(there.home.glob("root/remote/projects/*/sent/uses/*"))


def test_a_command_killed_at_any_step_is_gone_on_with(
    repository: Path, there: OtherComputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    library = repository / "library"
    commit_to_new_repository(library, "lib.c", "1\n")
    monkeypatch.chdir(repository)
    killed = 0
    for step in range(8, 100, 7):
        write(repository / "main.c", f"{step}\n")
        write(repository / f"{step}.c", "new\n")
        (repository / f"{step - 7}.c").unlink(missing_ok=True)
        git(repository, "commit", "--quiet", "--allow-empty", "--message=next")
        git(library, "branch", "--move", "--force", f"branch-{step}")
        sent = there.send()
        there.kill_at(step, when="before" if step % 2 else "after")
        done = there.run(there.script(sent, ["true"]))
        if done.returncode == 0:
            break
        killed += 1
        # The next call may have other files, or the same.
        if killed % 2 == 0:
            write(repository / "main.c", f"again {step}\n")
        here, found = frozen_here(repository), frozen_there(there)
        assert {key: found[key] for key in here} == here
        project = Path(sent.directory)
        assert git(project, "status", "--porcelain") == git(repository, "status", "--porcelain")
        branches = git(project / "library", "branch", "--format=%(refname:short)")
        assert branches.strip() == f"branch-{step}"
    assert killed > 1


def test_a_dropped_connection_and_a_full_disk_leave_nothing_half_done(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    monkeypatch.chdir(repository)
    with mounted(tmp_path / "there") as disk:
        there = OtherComputer(disk.directory / "home")
        there.receive(there.send())
        write(repository / "large.bin", os.urandom(400_000))
        there.break_after(100_000)
        with pytest.raises(RemoteError, match="was not sent"):
            there.send()
        there.break_after(0)
        found = frozen_there(there)
        assert found["tree"] == frozen_here(repository)["tree"]
        disk.fill()
        write(repository / "other.bin", os.urandom(400_000))
        with pytest.raises(RemoteError) as caught:
            there.send()
        assert "Free some space there" in str(caught.value)
        disk.empty()
        sent = there.send()
        disk.fill()
        assert there.run(there.script(sent, ["true"])).returncode != 0
        disk.empty()
        found = frozen_there(there)
        assert found["tree"] == frozen_here(repository)["tree"]


def test_files_behind_a_filter_are_there_as_they_are_here_and_not_changed(
    repository: Path, there: OtherComputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with git-lfs, which is installed here and not there."""
    for key, words in (("clean", "s/content/pointer/"), ("smudge", "s/pointer/content/")):
        git(repository, "config", "--global", f"filter.lfs.{key}", f"sed {words}")
    write(repository / "kochi.yaml", MACHINE)
    write(repository / ".gitattributes", "*.bin filter=lfs -text\n")
    write(repository / "large.bin", "content\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=with a filter")
    assert git(repository, "show", "HEAD:large.bin") == "pointer\n"
    write(repository / "never-fetched.bin", "pointer\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=a pointer")
    monkeypatch.chdir(repository)
    here, found = frozen_here(repository), frozen_there(there)
    assert {key: found[key] for key in here} == here
    assert not here["dirty"]
    project = Path(found["project"])
    assert (project / "large.bin").read_text() == "content\n"
    assert (project / "never-fetched.bin").read_text() == "pointer\n"


def test_a_command_has_read_the_files_when_it_has_its_freeze(
    repository: Path, there: OtherComputer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository / "kochi.yaml", MACHINE)
    write(repository / "one.yaml", "batches: {all: {params: {n: 1}}}\nrun: {script: 'true'}\n")
    monkeypatch.chdir(repository)
    uses = "$KOCHI_SENT/sent/uses"
    words = ("enqueue -q any -c true", "show batch one.yaml all", "enqueue -q any one.yaml")
    # The first one reads what has just been received; for each of the others that is so again.
    script = f"cp -a {uses} kept\n"
    for each in words:
        script += f"cp -a kept/. {uses}; ls {uses} | wc -l; kochi {each} > /dev/null\n"
        script += f"ls {uses} | wc -l\n"
    said = there.receive(there.send(), ["sh", "-c", script]).decode().split()
    before_and_after = zip(words, said[::2], said[1::2], strict=True)
    assert list(before_and_after) == [(each, "1", "0") for each in words]


def test_a_command_that_still_reads_is_waited_for_however_long_it_takes(tmp_path: Path) -> None:
    place = SentPaths(tmp_path)
    with subprocess.Popen(["sleep", "1000"]) as reader:
        receive._note_use(place, "one", "token", reader.pid)
        os.utime(place.use("token"), (1, 1))
        assert receive._is_awaited(place.use("token"), "other")
        assert not receive._is_awaited(place.use("token"), "one")
        reader.kill()
    assert not receive._is_awaited(place.use("token"), "other")
    assert not place.use("token").exists()


def test_a_launched_run_is_waited_for_instead_of_the_command_that_launched_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = SentPaths(tmp_path)
    monkeypatch.setenv("KOCHI_SENT", str(tmp_path))
    monkeypatch.setenv("KOCHI_SENT_USE", "token")
    with subprocess.Popen(["true"]) as command:
        receive._note_use(place, "one", "token", command.pid)
    with subprocess.Popen(["sleep", "1000"]) as run:
        hand_over(run.pid)
        os.utime(place.use("token"), (time.time() - 60, time.time() - 60))
        assert receive._is_awaited(place.use("token"), "other")
        os.utime(place.use("token"), (1, 1))  # it reads nothing, or has not said so
        assert not receive._is_awaited(place.use("token"), "other")
        run.kill()
