"""Packing: which jobs go into packs, what becomes of their files, and what is seen of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cleaning.stage import make_old
from packing.stage import Stage, inodes

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, to_json, write_atomically
from snakemake_kochi.files.together import Together, settle
from snakemake_kochi.locks import find_lock_settings
from snakemake_kochi.packing.candidates import Keeping, select
from snakemake_kochi.packing.writing import remove_packed, write_pack
from snakemake_kochi.packs import JobFilter
from snakemake_kochi.packs.pack import SUMMARIES, Pack
from snakemake_kochi.paths import SHARD, aside_path
from snakemake_kochi.queue import (
    Inbox,
    Queue,
    allocate_ids,
    cancel,
    find_job,
    has_ended,
    list_jobs,
    queue_lock,
)
from snakemake_kochi.queue.ending import end_ticket
from snakemake_kochi.worker.logs import Logs

NAMES = tuple(f"n{number % 3}" for number in range(SHARD))


def test_a_full_shard_becomes_one_file_and_shows_the_same_as_before(stage: Stage) -> None:
    stage.end(*NAMES)
    stage.submit(["later"])
    before = stage.seen()
    assert len(before) == SHARD + 1
    packing = stage.pack()
    assert (packing.jobs, packing.faults) == (SHARD, [])
    assert len(stage.packs()) == 1 and stage.directories() == []
    assert stage.seen() == before
    assert stage.files(3) == ["attempt-1.json", "log", "result.json", "ticket.json"]
    assert not (stage.machine.jobs / "00000000").exists()


def test_the_inodes_of_many_jobs_are_few(stage: Stage) -> None:
    before = inodes(stage.directory)
    for _ in range(3):
        stage.end(*NAMES)
    assert inodes(stage.directory) - before > 5 * 3 * SHARD
    stage.pack()
    assert inodes(stage.directory) - before < 40


def test_the_numbers_of_jobs_submitted_one_by_one_leave_no_file_each(stage: Stage) -> None:
    for name in NAMES[:40]:
        stage.end(name)
    assert len(list(stage.machine.number_ranges("job").rglob("*.json"))) == 40
    stage.pack()
    left = {path.name for path in stage.machine.number_ranges("job").rglob("*.json")}
    assert left == {"39.json", "floor.json"}
    (ticket,) = stage.submit(["next"])
    assert ticket.job == 40


def test_a_number_of_a_deleted_range_is_not_given_again_by_a_counter_that_is_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that holds no lock any more has read counter and floor before the deletion."""
    from snakemake_kochi.queue import entries

    for name in NAMES[:20]:
        stage.end(name)
    stage.pack()
    monkeypatch.setattr(entries, "_counted", lambda machine, kind, counters: 5)
    assert allocate_ids(stage.machine, "job", 2) == range(20, 22)
    assert not stage.machine.number_range("job", 5).exists()


def test_a_person_opens_a_pack_with_unzip(stage: Stage, tmp_path: Path) -> None:
    stage.end(*NAMES)
    stage.pack()
    (pack,) = stage.packs()
    shown = subprocess.run(
        ["unzip", "-p", str(pack), "17/log"], capture_output=True, check=True, text=True
    )
    assert shown.stdout == "n2 said so\n"
    subprocess.run(["unzip", "-q", str(pack), "-d", str(tmp_path / "out")], check=True)
    assert sorted(os.listdir(tmp_path / "out" / "9")) == stage.files(9)
    assert (tmp_path / "out" / SUMMARIES).read_text().count("\n") == 1 + 3
    with zipfile.ZipFile(pack) as archive:
        assert archive.namelist()[0] == SUMMARIES


def test_jobs_that_wait_run_or_are_awaited_stay(stage: Stage) -> None:
    inbox = Inbox.create(stage.machine)
    try:
        stage.submit(NAMES[:100], controller=inbox.identity)
        stage.finish(stage.begin(100))
        stage.end(*NAMES[:100])
        stage.submit(["runs", "waits"])
        (running,) = stage.begin(1)
        before = stage.seen()
        assert stage.pack().jobs == 100
        assert stage.directories() == [*range(100), 200]
        assert stage.seen() == before
    finally:
        inbox.close()
    assert stage.pack().jobs == 100
    assert stage.directories() == [200]
    stage.finish([running])
    assert find_job(stage.machine, 200).state == "ended"
    assert find_job(stage.machine, 201).state == "waiting"


def test_few_jobs_are_packed_when_they_are_old(stage: Stage) -> None:
    stage.end(*NAMES[:20])
    assert stage.pack().jobs == 0
    make_old(stage.machine.jobs, days=2)
    assert stage.pack().jobs == 20
    assert stage.directories() == []


def test_failed_jobs_keep_their_directories_for_a_day(stage: Stage) -> None:
    stage.end(*NAMES, ok=lambda job: job not in (10, 20))
    before = stage.seen()
    stage.pack()
    assert stage.directories() == [10, 20]
    assert stage.seen() == before
    make_old(stage.machine.jobs, days=2)
    stage.pack()
    assert stage.directories() == [] and len(stage.packs()) == 1
    assert stage.seen() == before


def test_many_failed_jobs_are_packed_but_the_newest(stage: Stage) -> None:
    stage.end(*NAMES, ok=lambda job: False)
    stage.pack()
    assert stage.directories() == list(range(SHARD - 32, SHARD))


def test_a_job_with_a_large_log_stays_as_it_is(stage: Stage) -> None:
    stage.end(*NAMES)
    with stage.machine.job(5).log.open("ab") as stream:
        stream.truncate(5 << 20)
    stage.pack()
    assert stage.directories() == [5]
    assert len(stage.log(5)) == 5 << 20


def test_logs_of_any_content_come_out_as_they_went_in(stage: Stage) -> None:
    content = {3: b"", 4: bytes(range(256)) * 1000, 5: b"\r\n\x1b[1m\xff"}
    stage.end(*NAMES)
    for job, said in content.items():
        stage.machine.job(job).log.write_bytes(said)
    stage.pack()
    assert {job: stage.log(job) for job in content} == content


def test_a_late_result_beside_a_pack_is_shown_and_packed_next_time(stage: Stage) -> None:
    stage.submit(NAMES)
    claims = stage.begin(SHARD)
    stage.finish(claims)
    stage.pack()
    late = stage.result(claims[8], ok=False)
    assert stage.queue.finish(claims[8], late) is False
    (name,) = os.listdir(stage.machine.job(8).directory)
    assert name == f"late-{late.nonce}.json"
    before = stage.seen()
    assert before[8][0].result is not None and before[8][0].result.ok
    assert "too late" in " ".join(before[8][2])
    stage.pack()
    assert stage.directories() == [] and len(stage.packs()) == 1
    assert stage.seen() == before and name in stage.files(8)


def test_a_late_result_of_a_packed_job_stays_late_when_it_is_written_again(stage: Stage) -> None:
    """The disk was full at the first try, which has made the directory of the job."""
    stage.submit(NAMES)
    claims = stage.begin(SHARD)
    stage.finish(claims)
    stage.pack()
    make_directory(stage.machine.job(8).directory)
    assert stage.queue.finish(claims[8], stage.result(claims[8], ok=False)) is False
    result = stage.seen()[8][0].result
    assert result is not None and result.ok
    assert not stage.machine.job(8).result.exists()


def test_a_job_whose_ticket_is_on_its_way_is_packed_with_it(stage: Stage) -> None:
    stage.end(*NAMES)
    paths = stage.machine.job(8)
    ticket = paths.ticket.read_bytes()
    paths.ticket.unlink()  # between the result and the rename of the ticket
    stage.pack()
    assert stage.directories() == [8]
    paths.ticket.write_bytes(ticket)
    stage.pack()
    assert stage.directories() == []
    wanted = JobFilter(names=(NAMES[8],))
    assert 8 in {view.job for view in list_jobs(stage.machine, True, SHARD, wanted)}


def test_the_jobs_of_a_controller_that_is_moved_aside_stay(stage: Stage) -> None:
    inbox = Inbox.create(stage.machine)
    stage.submit(NAMES, controller=inbox.identity)
    stage.finish(stage.begin(SHARD))
    aside = aside_path(stage.machine.controller(inbox.identity).directory, "abc")
    stage.machine.controller(inbox.identity).directory.rename(aside)
    assert stage.pack().jobs == 0
    aside.rename(stage.machine.controller(inbox.identity).directory)
    inbox.close()


def test_a_log_that_grows_while_it_is_packed_keeps_what_came(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.end(*NAMES)

    def write(*arguments: object, **options: object) -> Path:
        path = write_pack(*arguments, **options)  # type: ignore[arg-type]
        with stage.machine.job(4).log.open("ab") as stream:
            stream.write(b"and more\n")
        return path

    monkeypatch.setattr("snakemake_kochi.packing.packer.write_pack", write)
    stage.pack()
    monkeypatch.undo()
    assert stage.directories() == [4]
    assert stage.log(4) == b"n1 said so\nand more\n"
    stage.pack()
    assert stage.directories() == []
    assert stage.log(4) == b"n1 said so\nand more\n"


@pytest.mark.parametrize("said", ["", "-- attempt 2: worker 1 on node --\n", "what it p"])
def test_a_log_that_is_made_too_late_takes_nothing_from_a_pack(stage: Stage, said: str) -> None:
    """By a worker that hung, and has lost its claim."""
    stage.end(*NAMES)
    paths = stage.machine.job(8)
    paths.log.write_text("what it printed\n")
    stage.pack()
    for _ in range(2):  # the second time, as after a packer that was killed
        make_directory(paths.directory)
        paths.log.write_text(said)
        stage.pack()
        assert stage.directories() == [] and len(stage.packs()) == 1
        assert stage.log(8) == f"what it printed\n{said}".encode()


def test_the_log_of_a_claim_that_was_lost_while_it_was_made_takes_nothing_from_a_pack(
    stage: Stage,
) -> None:
    stage.submit(NAMES)
    claims = stage.begin(SHARD)
    stage.finish(claims)
    stage.pack()
    logs = Logs(stage.machine, Together(), slow=0.0)
    logs.prepare([claims[8]])  # its call was already under way when the claim was lost
    settle()
    logs.prepare([])
    assert stage.machine.job(8).log.read_bytes() == b""
    stage.pack()
    assert stage.directories() == []
    assert stage.log(8) == b"n2 said so\n"


def test_a_ticket_that_is_in_its_queue_in_spite_of_a_result_is_not_packed(stage: Stage) -> None:
    """Its worker was killed between the result and the rename of the ticket."""
    stage.submit(NAMES)
    claims = stage.begin(SHARD)
    stage.finish(claims[1:])
    copy = claims[0].path.read_bytes()
    with queue_lock(stage.machine, "q"):
        end_ticket(stage.machine, claims[0].path, claims[0].ticket, stage.result(claims[0]))
    claims[0].path.write_bytes(copy)
    stage.machine.job(0).ticket.unlink()
    stage.pack()
    assert 0 in stage.directories()
    assert stage.machine.job(0).result.exists()


def test_what_a_killed_worker_left_beside_a_result_does_not_keep_the_job_from_a_pack(
    stage: Stage,
) -> None:
    stage.end(*NAMES)
    paths = stage.machine.job(5)
    draft = paths.draft("abc")
    os.link(paths.result, draft)  # as between the publication and the delivery
    stage.pack()
    assert stage.directories() == [5], "a worker may be about to rename it"
    make_old(paths.directory)
    stage.pack()
    assert stage.directories() == [] and "result.json" in stage.files(5)


def test_a_result_that_this_node_does_not_see_yet_is_not_packed_without_it(stage: Stage) -> None:
    stage.end(*NAMES)
    paths = stage.machine.job(5)
    complete = paths.result.read_bytes()
    # As a client shows it that has read the file as that of the attempt.
    paths.result.write_bytes(paths.attempt(1).read_bytes())
    stage.pack()
    assert stage.directories() == [5]
    paths.result.write_bytes(complete)
    make_old(paths.directory)
    stage.pack()
    assert stage.directories() == [] and stage.seen_of(5)


def test_a_result_that_a_power_failure_has_damaged_is_packed_after_a_while(stage: Stage) -> None:
    stage.end(*NAMES)
    paths = stage.machine.job(5)
    paths.result.write_bytes(paths.attempt(1).read_bytes())
    make_old(paths.directory)
    stage.pack()
    assert stage.directories() == [] and "result.json" in stage.files(5)


def test_two_packers_lose_nothing(stage: Stage, tmp_path: Path) -> None:
    """Also where the lock does not exclude: two packers that have looked at the same moment."""
    stage.end(*NAMES)
    stage.submit(["next"])
    before = stage.seen()
    directory = stage.machine.job(0).directory.parent
    group = stage.machine.pack_group(0)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as executor:
        keeping = Keeping(0.0)
        one = select(stage.machine, directory, (), keeping, executor).chosen
        other = select(stage.machine, directory, (), keeping, executor).chosen
        write_pack(group, 0, one[:200])
        write_pack(group, 0, other)
        for candidate in one[:200]:
            remove_packed(candidate)
        assert stage.seen() == before
        for candidate in other:
            remove_packed(candidate)
    assert len(stage.packs()) == 2 and stage.seen() == before
    # The next one makes one of them.
    stage.end(*NAMES[:31])
    make_directory(stage.machine.job(0).directory)
    stage.machine.job(0).late_result("x").write_bytes(b"{}")
    stage.pack()
    assert len([path for path in stage.packs() if path.name.startswith("00000000-")]) == 1
    assert before.keys() <= stage.seen().keys()


def test_a_packer_leaves_the_work_to_the_one_that_has_the_lock(stage: Stage) -> None:
    stage.end(*NAMES)
    settings = find_lock_settings(stage.machine)
    with settings.hold(settings.paths.packing):
        assert stage.pack().jobs == 0
    assert stage.pack().jobs == SHARD


def test_no_moment_shows_a_job_as_missing(stage: Stage) -> None:
    """Readers, while packs are made and replaced in a loop."""
    stage.end(*NAMES)
    stage.submit(["waits"])
    expected = set(range(SHARD + 1))
    done = threading.Event()
    faults: list[object] = []

    def read() -> None:
        try:
            while not done.is_set():
                listed = {view.job for view in stage.list()}
                assert listed == expected, expected - listed
                named = list_jobs(stage.machine, True, 1000, JobFilter(names=("n1",)))
                assert len(named) == NAMES.count("n1"), len(named)
                for job in range(0, SHARD, 5):
                    assert stage.seen_of(job)[1] == f"{NAMES[job]} said so\n".encode()
        except BaseException as error:
            faults.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    program = (
        "import sys; from packing.test_packing import pack_again_and_again as a; a(sys.argv[1])"
    )
    try:
        subprocess.run(
            [sys.executable, "-c", program, str(stage.directory)],
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    finally:
        done.set()
        reader.join()
    assert faults == []


def pack_again_and_again(directory: str) -> None:
    """Pack, unpack as by hand into the directories, and pack again."""
    stage = Stage(Path(directory))
    for number in range(6):
        assert stage.pack().jobs
        (pack,) = stage.packs()
        if number < 5:
            with zipfile.ZipFile(pack) as archive:
                for member in archive.namelist()[1 : 400 + number]:
                    path = stage.machine.jobs / "00000000" / member
                    make_directory(path.parent)
                    write_atomically(path, archive.read(member))
    assert stage.directories() == []


# ---- damage and refusals


def _damaged(pack: Path, how: Callable[[bytes], bytes]) -> None:
    content = pack.read_bytes()
    pack.unlink()
    pack.write_bytes(how(content))


@pytest.mark.parametrize(
    "how",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"no archive at all" * 100,
    ],
    ids=["cut", "empty", "other"],
)
def test_a_damaged_pack_gives_one_clear_message_and_loses_nothing_else(
    stage: Stage, how: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    stage.end(*NAMES)
    stage.end(*NAMES)
    stage.pack()
    first, second = stage.packs()
    before = stage.seen()
    _damaged(first, how)
    shutil.rmtree(stage.machine.packs / "none", ignore_errors=True)
    for index in stage.machine.packs.glob("*/index-*"):
        index.unlink()
    caplog.clear()
    shown = stage.seen()
    assert shown == {job: seen for job, seen in before.items() if job >= SHARD}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and str(first) in said[0] and "unzip -t" in said[0]
    with pytest.raises(DamagedFileError, match=r"damaged.*\n.*unzip -t"):
        find_job(stage.machine, 3)
    # A job that waits has nothing to do with it.
    (ticket,) = stage.submit(["waits"])
    assert find_job(stage.machine, ticket.job).state == "waiting"
    packing = stage.pack()
    assert first.exists() and second.exists()
    assert any(str(first) in fault for fault in packing.faults) or not packing.jobs


def test_a_damaged_member_costs_that_file_and_stays_for_a_person(stage: Stage) -> None:
    stage.end(*NAMES)
    stage.pack()
    (pack,) = stage.packs()
    with Pack(pack) as opened:
        member = opened.archive.getinfo("7/log")
        place = member.header_offset + 30 + len("7/log")
    _damaged(pack, lambda content: content[:place] + b"\xff\xff\xff" + content[place + 3 :])
    assert find_job(stage.machine, 7).state == "ended"
    with pytest.raises(DamagedFileError, match="unzip -t"):
        stage.log(7)
    assert stage.log(8) == b"n2 said so\n"
    # What comes beside it is packed all the same.
    make_directory(stage.machine.job(8).directory)
    stage.machine.job(8).late_result("x").write_bytes(to_json({"version": 2}))
    packing = stage.pack()
    assert packing.jobs == 1 and str(pack) in " ".join(packing.faults)
    assert len(stage.packs()) == 2 and stage.log(8) == b"n2 said so\n"


def test_a_directory_without_permission_loses_nothing(stage: Stage) -> None:
    stage.end(*NAMES)
    before = stage.seen()
    make_directory(stage.machine.packs).chmod(0o500)
    try:
        if os.geteuid() == 0:
            stage.machine.packs.chmod(0o700)
            stage.machine.packs.rmdir()
            stage.machine.packs.write_bytes(b"in the way")
        packing = stage.pack()
        assert packing.jobs == 0 and len(packing.faults) == 1
        assert str(stage.machine.jobs / "00000000") in packing.faults[0]
    finally:
        if stage.machine.packs.is_file():
            stage.machine.packs.unlink()
        else:
            stage.machine.packs.chmod(0o700)
    assert stage.seen() == before
    assert stage.pack().jobs == SHARD and stage.seen() == before


# ---- what others see


def test_a_packed_job_has_ended_for_all_who_ask(stage: Stage) -> None:
    tickets = stage.submit(NAMES)
    stage.finish(stage.begin(SHARD))
    stage.pack()
    assert has_ended(stage.machine, 9)
    assert cancel(stage.machine, 9) == "ended"
    assert not has_ended(stage.machine, SHARD + 5)
    assert Queue(stage.machine, "q").find_missing([tickets[9]]) == []


def test_a_filter_without_a_match_opens_a_file_for_thousands_of_jobs(
    stage: Stage,
) -> None:
    for _ in range(3):
        stage.end(*NAMES)
    stage.pack()
    from file_calls import note_calls

    with note_calls() as found:
        assert list_jobs(stage.machine, True, 30, JobFilter(names=("nothing",))) == []
        assert list_jobs(stage.machine, True, 30, JobFilter(queues=("nothing",))) == []
    opened = [path for path in found.opened if str(stage.directory) in path]
    assert len(opened) == 2 and all("index-" in path for path in opened)


def test_filters_find_the_same_packed_or_not(stage: Stage) -> None:
    stage.end(*NAMES, ok=lambda job: job % 50 != 0)
    stage.end("other", "ünï 'quoted\"")
    filters = [
        JobFilter(names=("n1",)),
        JobFilter(names=("n1", "other")),
        JobFilter(names=("ünï 'quoted\"",)),
        JobFilter(states=("failed",)),
        JobFilter(queues=("q",), names=("n2",)),
        JobFilter(project=Path("/")),
        JobFilter(project=Path("/elsewhere")),
    ]
    before = [list_jobs(stage.machine, True, 1000, wanted) for wanted in filters]
    assert before[0] and before[3] and not before[6]
    make_old(stage.machine.jobs, days=2)
    stage.pack()
    assert stage.directories() == []
    assert [list_jobs(stage.machine, True, 1000, wanted) for wanted in filters] == before
