"""Freezes and snapshots: what a run, a job, a build or a record may need stays, and stays whole."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cleaning.stage import DAY, Stage, make_old
from support import git, write

from snakemake_kochi.artifacts.code import CODE, publish_code
from snakemake_kochi.artifacts.promises import promise_to_commit
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.locks import find_lock_settings
from snakemake_kochi.own_rules.watch import begin_notes, note
from snakemake_kochi.paths import ProjectPaths
from snakemake_kochi.phases.freeze import Freeze, load_freeze, take_freeze
from snakemake_kochi.phases.outputs import alive
from snakemake_kochi.snapshot import has_tree, materialise, pruning, restore_code
from snakemake_kochi.snapshot.pruning import is_whole, snapshot_refs
from snakemake_kochi.tickets.ticket import Ticket


@dataclass
class Repository:
    stage: Stage
    directory: Path

    @property
    def paths(self) -> ProjectPaths:
        return self.stage.root.project(self.directory)

    def freeze(self, text: str) -> Freeze:
        (self.directory / "code.txt").write_text(text)
        return take_freeze(self.directory, "local")

    def age(self) -> None:
        make_old(self.paths.freeze_directory)
        make_old(self.paths.repositories)
        make_old(self.paths.store)

    def has(self, freeze: Freeze) -> bool:
        return freeze.snapshot.tree in snapshot_refs(self.paths.store)

    def is_usable(self, freeze: Freeze, into: Path) -> bool:
        materialise(self.paths.store, freeze.snapshot.tree, into)
        assert (into / "code.txt").exists()
        return Path(str(load_freeze(freeze.file).git_directory), "HEAD").exists()

    def objects(self) -> int:
        return len(list((self.paths.store / "objects").glob("??/*")))


@pytest.fixture
def repository(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("KOCHI_ROOT", str(stage.root.directory))
    directory = stage.directory / "project"
    write(directory / "kochi.yaml", "dependencies:\n")
    write(directory / "kept.txt", "kept\n")
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "work")
    find_lock_settings(stage.machine)
    return Repository(stage, directory)


def test_the_newest_freeze_stays_with_its_snapshot_and_the_objects_of_others_go(
    repository: Repository, tmp_path: Path
) -> None:
    old = [repository.freeze(f"{n}\n" * 1000) for n in range(3)]
    newest = repository.freeze("newest\n")
    repository.age()
    make_old(newest.file, 39)
    before = repository.objects()
    plan = repository.stage.clean(is_dry=True)
    report = repository.stage.clean()
    assert [repository.has(each) for each in old] == [False] * 3
    assert not any(each.file.exists() for each in old)
    with pytest.raises(KochiError, match="`kochi clean`"):
        load_freeze(old[0].file)
    # Of each: a blob, a tree and a commit, and the file of the ref.
    assert before - repository.objects() == 9
    assert report.freed["snapshots"].inodes >= 12
    assert plan.freed["snapshots"].count == report.freed["snapshots"].count == 3
    assert plan.freed["snapshots"].inodes == 12
    assert repository.is_usable(newest, tmp_path / "copy")
    assert is_whole(repository.paths.store, newest.snapshot.commit)
    # The stat cache knows files whose content was deleted.
    again = repository.freeze("0\n" * 1000)
    assert is_whole(repository.paths.store, again.snapshot.commit)
    assert repository.is_usable(again, tmp_path / "again")


def test_the_code_of_other_commits_stays_as_long_as_the_freeze_that_names_it(
    repository: Repository, tmp_path: Path
) -> None:
    experiment = "batches: {b: {code: [main, working-tree]}}\nrun: {script: x}\n"
    write(repository.directory / "e.yaml", experiment)
    first = repository.freeze("newest\n")
    git(repository.directory, "commit", "-q", "--allow-empty", "-m", "other")
    write(repository.directory / "kept.txt", "other\n")
    git(repository.directory, "commit", "-qam", "other")
    newest = repository.freeze("newest\n")
    repository.age()
    make_old(newest.file, 39)
    repository.stage.clean()
    refs = snapshot_refs(repository.paths.store)
    assert newest.at("main").snapshot.tree in refs
    assert Path(str(newest.at("main").git_directory), "HEAD").exists()
    assert first.at("main").snapshot.tree not in refs
    materialise(repository.paths.store, newest.at("main").snapshot.tree, tmp_path / "copy")
    assert (tmp_path / "copy/kept.txt").read_text() == "other\n"


def test_a_freeze_stays_while_a_job_names_it_or_a_run_that_began_with_it_is_alive(
    repository: Repository, tmp_path: Path
) -> None:
    named, other, newest = map(repository.freeze, ("named\n", "other\n", "newest\n"))
    repository.age()
    make_old(newest.file, 39)
    environment = {"KOCHI_FREEZE": str(named.file)}
    ticket = Ticket(name="job", command=("true",), directory="/", environment=environment)
    repository.stage.submit_tickets(ticket)
    with promise_to_commit(repository.paths, "local"):
        (promise,) = (
            find_lock_settings(repository.stage.machine)
            .paths.project(repository.paths.directory)
            .promises.iterdir()
        )
        make_old(promise)
        repository.stage.clean()
        assert repository.has(other)
    repository.stage.clean()
    assert not repository.has(other)
    assert repository.is_usable(named, tmp_path / "named")


def noted(repository: Repository, directory: Path, freeze: Freeze) -> Path:
    """Notes of a killed process about a job of a user's own rule."""
    notes = begin_notes(freeze, directory)
    note(notes, {"number": 0, "rule": "own", "artifacts": ["x.txt"], "begun": time.time()})
    return notes


def test_a_freeze_stays_while_notes_of_a_killed_process_name_it(
    repository: Repository, tmp_path: Path
) -> None:
    top, below, other, newest = map(repository.freeze, ("top\n", "below\n", "other\n", "newest\n"))
    repository.age()
    make_old(newest.file, 39)
    notes = [
        noted(repository, repository.directory, top),
        noted(repository, make_directory(tmp_path / "analysis"), below),
    ]
    # A process that was killed on a full disk.
    (notes[0].parent / "empty.jsonl").touch()
    assert repository.stage.clean().faults == ()
    assert not repository.has(other) and not other.file.exists()
    for freeze in (top, below):
        assert repository.has(freeze)
        assert repository.is_usable(freeze, tmp_path / freeze.file.stem)
    notes[1].unlink()
    header = notes[0].read_bytes()
    notes[0].write_text("not ours\n")
    (fault,) = repository.stage.clean().faults
    assert f"{notes[0]}: these are not notes of a run, so all freezes stay" in fault
    assert repository.has(top) and repository.has(below)
    notes[0].write_bytes(header)
    repository.age()
    make_old(newest.file, 39)
    repository.stage.clean()
    assert repository.has(top) and not repository.has(below)
    notes[0].unlink()
    repository.age()
    make_old(newest.file, 39)
    repository.stage.clean()
    assert not repository.has(top)


def test_a_snapshot_of_a_recorded_result_stays_until_its_code_is_published(
    repository: Repository,
) -> None:
    recorded, _, newest = map(repository.freeze, ("recorded\n", "other\n", "newest\n"))
    repository.age()
    make_old(newest.file, 39)
    record = {
        "snapshot": {"tree": recorded.snapshot.tree, "base": recorded.snapshot.base},
        "job": "0",
    }
    entry = make_directory(repository.paths.journal("local") / "sum.first.1")
    (entry / "entry.json").write_bytes(to_json({"version": 1, "record": record}))
    repository.stage.clean()
    assert set(snapshot_refs(repository.paths.store)) == {
        recorded.snapshot.tree,
        newest.snapshot.tree,
    }
    publish_code(repository.directory, repository.paths, [record])
    repository.stage.clean()
    assert set(snapshot_refs(repository.paths.store)) == {newest.snapshot.tree}


def test_a_snapshot_stays_while_a_record_of_a_branch_needs_it_or_cannot_be_read(
    repository: Repository,
) -> None:
    recorded, other, newest = map(repository.freeze, ("recorded\n", "other\n", "newest\n"))
    place, top = "ada/.kochi/records/00/sum.first.json", repository.directory
    git(top, "checkout", "-q", "-b", "kochi_artifacts_ada")
    write(top / place, json.dumps({"version": 2, "snapshot": {"tree": recorded.snapshot.tree}}))
    git(top, "add", "-A")
    git(top, "commit", "-qm", "results")
    git(top, "checkout", "-q", "main")
    repository.age()
    make_old(newest.file, 39)
    repository.stage.clean()
    assert repository.has(recorded) and not repository.has(other)
    blob = git(top, "rev-parse", f"kochi_artifacts_ada:{place}").strip()
    (top / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    repository.stage.clean()
    assert repository.has(recorded)


def test_the_snapshot_of_a_build_stays_because_later_runs_compare_with_it(
    repository: Repository,
) -> None:
    old, newest = map(repository.freeze, ("old\n", "newest\n"))
    repository.age()
    make_old(newest.file, 39)
    place = repository.paths.build("local", "digest")
    make_directory(place.tree)
    place.manifest.write_bytes(to_json({"version": 1, "snapshot": old.snapshot.tree}))
    repository.stage.clean()
    assert repository.has(old)
    make_old(place.directory)
    # The plan knows that the build goes, too.
    plan = repository.stage.clean(is_dry=True)
    assert (plan.freed["builds"].count, plan.freed["snapshots"].count) == (1, 1)
    repository.stage.clean()
    assert not repository.has(old)


@pytest.mark.parametrize("moment", ["before the objects are listed", "before refs are read again"])
def test_a_run_that_freezes_old_files_while_they_are_deleted_has_a_whole_snapshot(
    repository: Repository, moment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, newest = map(repository.freeze, ("old\n", "newest\n"))
    repository.age()
    make_old(newest.file, 39)
    step = {
        "before the objects are listed": "write_atomically",
        "before refs are read again": "_missing",
    }[moment]
    original, taken = getattr(pruning, step), []

    def freeze_and_go_on(*arguments: object) -> object:
        if not taken:
            taken.append(repository.freeze("old\n"))
            assert taken[0].snapshot == old.snapshot
        return original(*arguments)

    monkeypatch.setattr(pruning, step, freeze_and_go_on)
    repository.stage.clean()
    assert taken
    assert is_whole(repository.paths.store, old.snapshot.commit)
    assert repository.is_usable(taken[0], tmp_path / "copy")


def test_a_run_that_freezes_old_files_after_they_were_deleted_writes_them_again(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The worst moment: git has said that the objects are there, and then they are moved aside."""
    from snakemake_kochi.snapshot import snapshot

    old, newest = map(repository.freeze, ("old\n", "newest\n"))
    repository.age()
    make_old(newest.file, 39)
    write_tree, cleaned = snapshot.write_tree, []

    def write_and_lose(*arguments: object, **options: object) -> str:
        tree = write_tree(*arguments, **options)  # type: ignore[arg-type]
        if not cleaned:
            make_old(repository.paths.store / "objects")
            cleaned.append(repository.stage.clean())
            assert not is_whole(repository.paths.store, old.snapshot.commit)
        return tree

    monkeypatch.setattr(snapshot, "write_tree", write_and_lose)
    again = repository.freeze("old\n")
    assert cleaned and again.snapshot == old.snapshot
    assert is_whole(repository.paths.store, old.snapshot.commit)
    assert repository.is_usable(again, tmp_path / "copy")


def test_objects_that_a_killed_clean_up_has_moved_aside_come_back(repository: Repository) -> None:
    newest = repository.freeze("newest\n")
    store = repository.paths.store
    aside = make_directory(store / "unused-0123")
    for file in (store / "objects").glob("??/*"):
        file.rename(aside / f"{file.parent.name}{file.name}")
    assert not is_whole(store, newest.snapshot.commit)
    repository.stage.clean()
    assert is_whole(store, newest.snapshot.commit)
    assert not aside.exists()


def test_what_a_rerun_needs_stays_and_its_old_note_goes(repository: Repository) -> None:
    sources, rerun = map(repository.freeze, ("sources\n", "rerun\n"))
    data = json.loads(rerun.file.read_text())
    data["source_trees"] = {"tool:fast": sources.snapshot.tree}
    rerun.file.write_bytes(to_json(data))
    note = repository.paths.rerun("local-0123")
    make_directory(note.parent)
    note.write_text("{}")
    make_old(note)
    repository.age()
    make_old(rerun.file, 39)
    repository.stage.clean()
    assert repository.has(sources)
    assert not sources.file.exists() and not note.exists()


def test_the_freezes_and_notes_of_a_living_rerun_stay_until_it_ends(
    repository: Repository,
) -> None:
    later, newest = map(repository.freeze, ("later\n", "newest\n"))
    note = repository.paths.rerun("local-0123")
    make_directory(note.parent)
    note.write_text("{}")
    make_old(note)
    repository.age()
    with alive(repository.directory, repository.paths, "local"):
        # Longer ago than any freeze stays; the rerun still runs another group of records.
        make_old(later.file, 800 / DAY)
        make_old(newest.file, 700 / DAY)
        repository.stage.clean(snapshots=0.0)
        assert later.file.exists() and note.exists()
        assert repository.has(later)
    repository.stage.clean(snapshots=0.0)
    assert not later.file.exists() and not note.exists()
    assert newest.file.exists()


def test_code_that_was_just_deleted_counts_as_missing_and_comes_back_whole(
    repository: Repository,
) -> None:
    old, newest = map(repository.freeze, ("old\n", "newest\n"))
    tree, store = old.snapshot.tree, repository.paths.store
    base = old.snapshot.base
    publish_code(
        repository.directory, repository.paths, [{"snapshot": {"tree": tree, "base": base}}]
    )
    repository.age()
    make_old(newest.file, 39)
    assert has_tree(store, tree)  # which is a use of it
    repository.stage.clean()
    assert repository.has(old)
    repository.age()
    make_old(newest.file, 39)
    repository.stage.clean()
    assert not has_tree(store, tree)
    assert restore_code(repository.directory, f"{CODE}/{tree}", store) == (tree, [])
    assert has_tree(store, tree) and is_whole(store, old.snapshot.commit)
