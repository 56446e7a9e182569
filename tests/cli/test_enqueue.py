"""`kochi enqueue`, with real workers: the lines of the tutorial, word for word."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from seen import FIRST, find_job
from support import git, wait_until

from snakemake_kochi.paths import Root
from snakemake_kochi.tickets.ticket import Resources

from .conftest import Outcome, install

Kochi = Callable[..., Outcome]
Work = Callable[..., str]


def outputs(shown: str) -> list[str]:
    """What each job printed, as a worker's terminal shows it."""
    parts = shown.split("-" * 80 + "\n")
    return parts[1::2]


def enqueue(kochi: Kochi, line: str) -> str:
    outcome = kochi("enqueue", *shlex.split(line))
    assert outcome.status == 0, outcome.err
    return outcome.out


def test_commands_run_on_a_worker_with_the_words_as_they_are(kochi: Kochi, work: Work) -> None:
    said = enqueue(kochi, "-q test -n test_job -- echo foo")
    assert said == f"Job {FIRST} was submitted to queue 'test' on machine 'local'.\n"
    words = ["a;b", "$(id)", "*", ">x", "`id`", "-n", "--json", "", "it's", "--", "ü", "a\nb"]
    assert kochi("enqueue", "-q", "test", "printf", r"<%s>", *words).status == 0
    # A shell has its effect if one asks for it.
    enqueue(kochi, "-q test -- bash -c 'echo $((1+1)) > two; cat t*'")
    shown = work()
    assert shown.startswith(f"Kochi worker {FIRST} started on machine local.\n" + "=" * 80)
    assert f"Kochi job test_job (ID={FIRST}) started.\n" in shown
    assert outputs(shown) == ["foo\n", "".join(f"<{word}>" for word in words) + "\n", "2\n"]
    assert Path("two").read_text() == "2\n"


def test_without_a_worker_one_is_told_how_to_start_it(
    kochi: Kochi, worker: Callable[..., object]
) -> None:
    assert "kochi work -q test" in kochi("enqueue", "-q", "test", "true").err
    worker("test")
    assert kochi("enqueue", "-q", "test", "true").err == ""


def test_where_there_is_a_scheduler_a_worker_is_not_started_on_the_login_node(
    kochi: Kochi, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "kochi.yaml").write_text("machines: {own: {scheduler: slurm}, vega: {}}")

    def said(*options: str) -> str:
        return kochi("enqueue", *options, "-q", "test", "true").err

    assert "type: kochi alloc -m own -q test" in said("-m", "own")
    assert "type: kochi work -m vega -q test" in said("-m", "vega")
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "own")
    assert "type: kochi alloc -m own -q test" in said()
    assert "start one with: kochi alloc -m own -q test" in kochi("show", "job", str(FIRST)).out


def test_a_job_with_c_runs_in_a_copy_of_what_there_was(
    project: Path, kochi: Kochi, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(kochi, '-q test -n test_job -c -- bash -c "pwd && ls"')
    # What was uncommitted is in it, and no later edit.
    (project / "foo").write_text("hello\n")
    enqueue(kochi, '-q test -c -- bash -c "echo world >> foo && cat foo"')
    # Git says what it says in the working tree.
    script = "git rev-parse HEAD; git status --porcelain; echo $KOCHI_COMMIT $KOCHI_DIRTY"
    kochi("enqueue", "-q", "test", "-c", "--", "bash", "-c", script)
    (project / "foo").write_text("edited\n")
    # A script needs no dashes.
    file = project / "run_fib.bash"
    file.write_text("#!/bin/sh\necho running $1\n")
    file.chmod(0o755)
    enqueue(kochi, "-q test -c ./run_fib.bash -c")
    # The command does not see the freeze of its job.
    enqueue(kochi, "-q test -c -- sh -c 'echo ${KOCHI_FREEZE-none} $KOCHI_QUEUE $KOCHI_JOB_ID'")
    # The copy is entered where one was.
    monkeypatch.chdir(project / "sub")
    enqueue(kochi, "-q test -c -- cat data")
    listed, *others = outputs(work())
    place, *files = listed.split()
    assert Path(place).name == project.name
    assert Path(place) != project
    assert files == ["code", "fib.yaml", "kochi.yaml", "sub"]
    assert not Path(place).parent.exists()
    head = git(project, "rev-parse", "HEAD").strip()
    assert others == [
        "hello\nworld\n",
        f"{head}\n?? foo\n{head} true\n",
        "running -c\n",
        f"none test {FIRST + 4}\n",
        "1\n",
    ]
    assert (project / "foo").read_text() == "edited\n"


def test_a_directory_that_would_not_be_in_the_copy_is_refused(
    project: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "ignored").mkdir()
    (project / "ignored" / "file").write_text("")
    monkeypatch.chdir(project / "ignored")
    outcome = kochi("enqueue", "-q", "test", "-c", "ls")
    assert outcome.status == 1
    assert "would not be in the copy" in outcome.err


def test_a_recipe_that_is_not_installed_is_told_with_the_line_to_type(
    installed: Path, kochi: Kochi
) -> None:
    outcome = kochi("enqueue", "-q", "test", "-d", "tool:debug", "-c", "ls")
    assert outcome.status == 1
    assert "tool:debug" in outcome.err
    assert outcome.err.endswith("Type: kochi install -d tool:debug\n")


def test_what_was_built_on_an_older_installation_is_refused(installed: Path, kochi: Kochi) -> None:
    install("user:plain")
    assert kochi("enqueue", "-q", "test", "-d", "user:plain", "true").status == 0
    install("tool:release", again=True)
    outcome = kochi("enqueue", "-q", "test", "-d", "user:plain", "true")
    assert outcome.status == 1
    assert "Type: kochi install -d user:plain" in outcome.err


def test_two_recipes_of_one_dependency_are_refused(installed: Path, kochi: Kochi) -> None:
    outcome = kochi("enqueue", "-q", "x", "-d", "tool:release", "-d", "tool:debug", "true")
    assert outcome.status == 1
    assert "two recipes of 'tool'" in outcome.err


def test_an_experiment_runs_with_its_defaults_and_with_parameters(
    installed: Path, kochi: Kochi, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(kochi, "-q test fib.yaml")
    enqueue(kochi, "-q test fib.yaml n=38")
    # The build is skipped the second time, and done again for another of its parameters.
    enqueue(kochi, "-q test fib.yaml debug=1")
    # A parameter that nothing knows is said, and the job runs as in Kochi.
    outcome = kochi("enqueue", "-q", "test", "fib.yaml", "n=4", "debgu=1")
    assert outcome.status == 0
    assert "fib.yaml: nothing uses the parameter 'debgu', did you mean 'debug'?\n" in outcome.err
    # An experiment that is only built is built.
    text = "depends: [{name: tool, recipe: release}]\nbuild: {script: echo Compiling}\n"
    (installed / "only.yaml").write_text(text)
    enqueue(kochi, "-q test only.yaml")
    # A value is text with everything after the first equals sign; options may follow.
    install("tool:debug")
    own = 'echo "$TOOL_IS <$KOCHI_PARAM_N>"; KOCHI_PARAM_N=1'
    text = (installed / "fib.yaml").read_text().replace("sh program $KOCHI_PARAM_N", own)
    (installed / "value.yaml").write_text(text)
    enqueue(kochi, "-q test value.yaml 'n=a=b $(id) ${debug} `1+1`' -d tool:debug -n other")
    # An experiment may lie anywhere in the project.
    (installed / "fib.yaml").rename(installed / "sub" / "[fib].yaml")
    monkeypatch.chdir(installed / "sub")
    enqueue(kochi, "-q test [fib].yaml n=5")
    # The modules of the project do not hide those of Python.
    for name in ("git", "yaml", "queue", "snakemake_kochi"):
        (installed / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    enqueue(kochi, "-q test [fib].yaml n=6")
    # It is frozen when it is enqueued.
    (installed / "code").write_text("echo uncommitted $1\n")
    enqueue(kochi, "-q test [fib].yaml n=7")
    (installed / "code").write_text("echo later $1\n")
    (installed / "sub" / "[fib].yaml").write_text("run: {script: 'false'}\n")
    shown = work()
    assert f"Kochi job fib (ID={FIRST}) started.\n" in shown
    assert f"Kochi job other (ID={FIRST + 5}) started.\n" in shown
    compiling = "Compiling with debug=0\n"
    assert outputs(shown) == [
        f"{compiling}fib of 1\n",
        "fib of 38\n",
        "Compiling with debug=1\nfib of 1\n",
        "fib of 4\n",
        "Compiling\n",
        f"{compiling}debug <a=b $(id) ${{debug}} `1+1`>\n",
        f"{compiling}fib of 5\n",
        f"{compiling}fib of 6\n",
        f"{compiling}uncommitted 7\n",
    ]


def test_the_queue_and_the_name_come_from_the_experiment(installed: Path, kochi: Kochi) -> None:
    assert enqueue(kochi, "fib.yaml").startswith(f"Job {FIRST} was submitted to queue 'fib-queue'")
    assert kochi("show", "jobs", "--json").data[0]["name"] == "fib"


def test_a_job_with_d_has_the_environment_of_the_installation_it_was_enqueued_with(
    installed: Path, kochi: Kochi, work: Work
) -> None:
    command = "bash -c 'sh $KOCHI_INSTALL_PREFIX_TOOL/tool; echo $TOOL_IS; pwd'"
    enqueue(kochi, f"-q test -d tool:release -- {command}")
    enqueue(kochi, "-q test -d tool:release -- bash -c 'echo $KOCHI_INSTALL_PREFIX_TOOL'")
    before = kochi("show", "path", "install", "tool:release").out
    install("tool:release", again=True)
    assert kochi("show", "path", "install", "tool:release").out != before
    assert outputs(work()) == [f"the tool\nrelease\n{installed}\n", before]


def test_the_exit_status_of_command_copy_and_experiment_is_the_jobs(
    installed: Path, kochi: Kochi, work: Work
) -> None:
    enqueue(kochi, "-q test -- sh -c 'exit 3'")
    enqueue(kochi, "-q test -c -- sh -c 'exit 4'")
    enqueue(kochi, "-q test -d tool:release -- sh -c 'exit 5'")
    enqueue(kochi, "-q test fib.yaml n=13")
    enqueue(kochi, "-q test -c -- sh -c 'kill -9 $$'")
    enqueue(kochi, "-q test -c -- ./nothing")
    work()
    jobs = kochi("show", "jobs", "-t", "--json").data
    assert [job["exit_status"] for job in reversed(jobs)] == [3, 4, 5, 1, 137, 127]


def test_with_g_a_job_runs_in_a_copy_and_tells_the_address(
    installed: Path, tmp_path: Path, kochi: Kochi, work: Work
) -> None:
    git(installed, "commit", "--quiet", "--allow-empty", "--message", "not pushed")
    (installed / "code").write_text("echo changed $1\n")
    enqueue(kochi, "-q test -g ../other -- cat code")
    enqueue(kochi, f"-q test --git-remote file://{tmp_path} fib.yaml")
    (installed / "code").write_text("echo later $1\n")
    assert outputs(work()) == [
        "echo changed $1\n",
        "Compiling with debug=0\nchanged 1\n",
    ]
    commit = git(installed, "rev-parse", "HEAD")[:12]
    source = kochi("show", "job", str(FIRST), "--json").data["labels"]["source"]
    assert source == f"{commit} (../other, changed)"


def test_a_program_gets_json_or_only_the_number(kochi: Kochi) -> None:
    assert kochi("enqueue", "--json", "-q", "test", "-n", "x", "true").data == {
        "job": FIRST,
        "name": "x",
        "queue": "test",
        "machine": "local",
    }
    quiet = kochi("enqueue", "--quiet", "-q", "test", "true")
    assert (quiet.out, quiet.err) == (f"{FIRST + 1}\n", "")


def test_what_cannot_be_is_refused_before_anything_is_written(
    installed: Path, tmp_path: Path, kochi: Kochi
) -> None:
    (tmp_path / "outside.yaml").write_text("run: {script: ls}\n")
    for line, status, message in (
        ("-q ../../x true", 1, "queue name '../../x' cannot be used"),
        ("-q '' true", 1, "queue name '' cannot be used"),
        ("-q test -n 'a\nb' true", 1, "name 'a\\nb' cannot be used"),
        ("true", 2, "a queue was expected: -q QUEUE"),
        ("-q test", 2, "Missing argument"),
        ("-q test -d tool true", 1, "DEPENDENCY:RECIPE was expected"),
        (
            "-q test -d tool true",
            1,
            "The recipes of 'tool' are: tool:release, tool:debug, tool:broken",
        ),
        ("-q test -d tool:relaese true", 1, "did you mean 'release'?"),
        ("-q test fob.yaml", 1, "there is no file fob.yaml, did you mean 'fib.yaml'?"),
        ("-q test fib.yaml n", 1, "'n': NAME=VALUE was expected"),
        ("-q test fib.yaml --nmae x", 2, "--name"),
        ("-q test kochi.yaml", 1, "kochi.yaml"),
        ("-q test ../outside.yaml", 1, "outside of the project"),
    ):
        outcome = kochi("enqueue", *shlex.split(line))
        assert (outcome.status, outcome.out) == (status, ""), line
        assert message in outcome.err, line
        assert "Traceback" not in outcome.err, line
        assert not (tmp_path / "root" / "machines" / "local" / "queues").exists(), line


def test_a_job_has_its_worker_for_itself_unless_it_is_to_be_shared(
    installed: Path, kochi: Kochi
) -> None:
    text = (installed / "fib.yaml").read_text()
    (installed / "both.yaml").write_text(text + "  exclusive: false\n")
    asked = "  resources: {nodes: 2, cpus_per_task: 3, mem_mb: 50}\n  timeout: 2m\n"
    (installed / "asked.yaml").write_text(text + asked)
    enqueue(kochi, "-q test true")
    enqueue(kochi, "-q test --shared -- true")
    enqueue(kochi, "-q test -d tool:release --cores 2 --memory 1G -- true")
    enqueue(kochi, "-q test fib.yaml")
    enqueue(kochi, "-q test fib.yaml --cores 3")
    enqueue(kochi, "-q test both.yaml")
    enqueue(kochi, "-q test --gpus 2 -- true")
    enqueue(kochi, "-q test asked.yaml")
    machine = Root.find().machine("local")
    tickets = [find_job(machine, FIRST + job).ticket for job in range(8)]
    assert [ticket.resources if ticket else None for ticket in tickets] == [
        Resources(exclusive=True),
        Resources(),
        Resources(cores=2, memory_mb=1024),
        Resources(exclusive=True),
        Resources(cores=3),
        Resources(),
        Resources(gpus=2),
        Resources(cores=3, exclusive=True, memory_mb=50, runtime_seconds=180, nodes=2),
    ]
    told = [kochi("show", "job", FIRST + job).out.partition("Takes: ")[2] for job in range(3)]
    assert [each.splitlines()[0] for each in told] == [
        *("the whole worker", "1 core", "2 cores, 1024 MiB")
    ]
    assert kochi("show", "job", FIRST + 4, "--json").data["resources"]["cores"] == 3
    text = kochi("enqueue", "--help").out
    assert "By default a job is exclusive" in " ".join(text.split())
    assert kochi("enqueue", "-q", "test", "--cores", "0", "true").status == 2


def test_a_copy_of_nothing_is_refused(own_surroundings: Path, kochi: Kochi) -> None:
    outcome = kochi("enqueue", "-q", "test", "-c", "ls")
    assert outcome.status == 1
    assert "git init" in outcome.err


def test_a_cancelled_command_gets_the_time_to_clean_up(
    project: Path, kochi: Kochi, worker: Callable[..., object]
) -> None:
    worker()
    script = "trap 'sleep 0.2; echo cleaned up; exit 0' TERM; echo ready; sleep 300 & wait"
    kochi("enqueue", "-q", "test", "-c", "sh", "-c", script)
    wait_until(lambda: "ready" in kochi("show", "log", "job", str(FIRST)).out)
    kochi("cancel", FIRST)
    wait_until(lambda: kochi("show", "job", str(FIRST), "--json").data["state"] == "cancelled")
    assert kochi("show", "log", "job", str(FIRST)).out == "ready\ncleaned up\n"


def test_a_cancelled_job_leaves_no_copy_behind(
    project: Path, kochi: Kochi, worker: Callable[..., object]
) -> None:
    worker()
    ready = project.parent / "ready"
    enqueue(kochi, f"-q test -c -- sh -c 'pwd > {ready}.tmp; mv {ready}.tmp {ready}; sleep 300'")
    wait_until(ready.exists)
    place = Path(ready.read_text().strip())
    assert place.exists()
    kochi("cancel", FIRST)
    wait_until(lambda: kochi("show", "job", str(FIRST), "--json").data["state"] == "cancelled")
    assert not place.exists()


def test_a_mirror_in_which_kochi_root_lies_is_refused_before_it_is_read(
    project: Path, tmp_path: Path, kochi: Callable[..., Outcome]
) -> None:
    recipe = "{name: own, mirror: true, mirror_dir: '..', script: make}"
    (project / "kochi.yaml").write_text(f"dependencies: {{tool: {{recipes: [{recipe}]}}}}\n")
    done = kochi("enqueue", "-q", "q", "-c", "true")
    assert done.status == 1
    assert done.err.startswith(f"kochi: mirror_dir of tool:own: {tmp_path} contains KOCHI_ROOT")
    assert not list((tmp_path / "root" / "projects").glob("*/freezes"))
