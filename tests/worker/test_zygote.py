"""Snakemake jobs in copies of a process that has parsed their workflow."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from workers_site import QUEUE, Site, is_running, servers, until

from snakemake_kochi.processes import is_gone
from snakemake_kochi.tickets.hand import cancel
from snakemake_kochi.tickets.names import wake_workers
from snakemake_kochi.tickets.run import End, Run

# The arguments with which the executor of Snakemake 9 submits a job.
COMMON = shlex.split(
    "--force --target-files-omit-workdir-adjustment --max-inventory-time 0 --retries 0 --nocolor "
    "--no-hooks --nolock --ignore-incomplete --latency-wait 1 --max-jobs-per-timespan 100000/0s "
    "--shared-fs-usage input-output persistence software-deployment software-deployment-cache "
    "source-cache sources storage-local-copies --quiet host progress rules reason --mode remote"
)
SNAKEFILE = """
    rule shell:
        output: "shell/{i}.txt"
        shell: "echo {wildcards.i} >> {output}; echo $KOCHI_JOB_ID $KOCHI_RUNNER >> {output}"
    rule run:
        output: "run/{i}.txt"
        run:
            import os, random
            with open(output[0], "a") as stream:
                print(os.environ["KOCHI_JOB_ID"], random.random(), file=stream)
    rule slow:
        output: "slow/{i}.txt"
        shell: "echo $$ > pid{wildcards.i}; while [ ! -e go ]; do sleep 0.1; done; echo > {output}"
    rule fail:
        output: "fail/{i}.txt"
        run:
            raise ValueError("on purpose")
"""
SNAKEFILE_MADE = "rule made:\n    output: touch('{i}.txt')\n    run: pass\n"


class Workflow:
    """A Snakefile in `site.work`, and tickets for its jobs."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.write(SNAKEFILE)

    def write(self, snakefile: str) -> None:
        (self.site.work / "Snakefile").write_text(textwrap.dedent(snakefile))

    def submit(self, rule: str, *values: object, **options: Any) -> None:
        """Submit a job of the rule for each value of its wildcard `i`."""
        tickets = {}
        for value in values:
            own = ["--target-jobs", f"{rule}:i={value}", "--allowed-rules", rule]
            own += ["--cores", "all", "--attempt", "1", "--force-use-threads"]
            before = [sys.executable, "-m", "snakemake", "--snakefile", "Snakefile"]
            given = {"command": (*before, *own, *COMMON), "shell": None, "name": rule}
            given |= {"job_arguments": (len(before), len(before) + len(own)), **options}
            tickets[f"{rule} {value}"] = self.site.ticket("", **given)
        self.site.run.submit(QUEUE, tickets)
        wake_workers(self.site.layout, QUEUE)

    def runners(self, rule: str, *values: object, **options: Any) -> list[str]:
        """The runners that executed these jobs, after their success, and why no cheaper ones."""
        self.submit(rule, *values, **options)
        return [self.runner_of(end) for end in self.ends(len(values))]

    def ends(self, count: int) -> list[End]:
        return sorted(self.site.collect(count), key=lambda end: end.name.job)

    def runner_of(self, end: End) -> str:
        assert end.name.state == "success", self.site.log_of(end)
        details = end.line["details"]
        return f"{details['runner']} {details['skipped_runners']}".strip()

    def read(self, name: str) -> str:
        return (self.site.work / name).read_text()


@pytest.fixture
def workflow(site: Site) -> Workflow:
    return Workflow(site)


def descendants(pid: int) -> list[int]:
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(word) for word in words] + [
        each for word in words for each in descendants(int(word))
    ]


def test_one_process_reads_the_workflow_and_each_job_is_as_in_a_process_of_its_own(
    site: Site, workflow: Workflow
) -> None:
    site.worker(cores=2)
    workflow.submit("shell", 1, 2, 3)
    assert workflow.runners("run", 1, 2)[-2:] == ["zygote"] * 2
    until(lambda: len([p for p in site.work.glob("*/*.txt") if p.read_bytes()]) == 5)
    assert site.logs().count("is ready") == 1
    assert workflow.read("shell/2.txt") == "2\n1.2 zygote\n"
    (job, first), (other, second) = (workflow.read(f"run/{i}.txt").split() for i in (1, 2))
    assert (job, other) == ("1.4", "1.5")
    assert first != second  # random numbers


def test_a_job_that_fails_says_why_in_its_own_log(site: Site, workflow: Workflow) -> None:
    site.worker()
    workflow.submit("fail", 1)
    (end,) = workflow.ends(1)
    assert (end.name.state, end.line["details"]["exit_status"]) == ("failed", 1)
    assert end.line["details"]["runner"] == "zygote"
    assert "ValueError" in site.log_of(end)
    assert "on purpose" in site.log_of(end)


def test_variables_and_seeds_of_the_workflow_hold_for_each_job(
    site: Site, workflow: Workflow
) -> None:
    workflow.write("""
        import os, random
        os.environ["SET"] = "by the workflow"
        os.environ["KOCHI_JOB_NAME"] = "renamed"
        del os.environ["TAKEN_AWAY"]
        random.seed(5)
        rule seen:
            output: "seen/{i}.txt"
            run:
                names = ("SET", "KOCHI_JOB_NAME", "TAKEN_AWAY", "GIVEN")
                with open(output[0], "w") as stream:
                    print([os.environ.get(name) for name in names], random.random(), file=stream)
        """)
    site.worker()
    environment = {"TAKEN_AWAY": "x", "GIVEN": "y"}
    assert workflow.runners("seen", 1, 2, environment=environment) == ["zygote"] * 2
    expected = f"['by the workflow', 'renamed', None, 'y'] {random.Random(5).random()}\n"
    assert [workflow.read(f"seen/{i}.txt") for i in (1, 2)] == [expected] * 2


STATE = """
    rule state:
        output: "state/{i}.txt"
        run:
            import os, resource, signal
            own = {"KOCHI_JOB_ID", "KOCHI_RUNNER", "KOCHI_ATTEMPT_NONCE"}
            with open(output[0], "w") as stream:
                for name, value in sorted(os.environ.items()):
                    if name not in own:
                        print(name, value, file=stream)
                print(os.umask(0), os.getcwd(), os.getsid(0) == os.getpid(), file=stream)
                handlers = map(signal.getsignal, sorted(signal.valid_signals()))
                print(*(getattr(each, "__name__", each) for each in handlers), file=stream)
                print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), file=stream)
                print(resource.getrlimit(resource.RLIMIT_NOFILE), file=stream)
                print(*(os.readlink(f"/proc/self/fd/{n}")[:40] for n in range(2)), file=stream)
                print(open("/proc/self/oom_score_adj").read(), file=stream)
                print(sorted(os.sched_getaffinity(0)), file=stream)
                stream.flush()
                print(len(os.listdir("/proc/self/fd")), file=stream)
"""


def test_a_job_has_the_environment_signals_limits_and_files_of_a_process_of_its_own(
    site: Site, workflow: Workflow
) -> None:
    workflow.write(STATE)
    site.worker(cores=2)
    options: dict[str, Any] = {"resources": {"pinned": False}, "environment": {"LC_ALL": "C"}}
    assert workflow.runners("state", 1, **options) == ["zygote"]
    (runner,) = workflow.runners("state", 2, **options, job_arguments=None)
    assert runner == "command"
    assert workflow.read("state/1.txt") == workflow.read("state/2.txt")
    assert "LC_ALL C\n" in workflow.read("state/1.txt")


def test_a_changed_workflow_is_read_again(site: Site, workflow: Workflow) -> None:
    site.worker()
    assert workflow.runners("shell", 1, 2, 3) == ["zygote"] * 3
    workflow.write('rule shell:\n    output: "shell/{i}.txt"\n    shell: "echo new > {output}"\n')
    assert workflow.runners("shell", 4) == ["zygote"]
    assert workflow.read("shell/4.txt") == "new\n"
    assert site.logs().count("Snakefile has changed since it was read") == 1


def test_a_changed_script_is_executed_as_it_is_now(site: Site, workflow: Workflow) -> None:
    workflow.write('rule made:\n    output: "made/{i}.txt"\n    script: "made.py"\n')
    site.worker()
    for word in ("first", "second"):
        text = f"open(snakemake.output[0], 'w').write('{word}')\n"
        (site.work / "made.py").write_text(text)
        assert workflow.runners("made", word) == ["zygote"]
        assert workflow.read(f"made/{word}.txt") == word


def test_the_output_of_a_program_is_read_again_in_the_next_run(
    site: Site, workflow: Workflow
) -> None:
    workflow.write("""
        import subprocess
        seen = subprocess.run(["cat", "word"], capture_output=True, text=True).stdout
        rule made:
            output: "made/{i}.txt"
            run:
                with open(output[0], "w") as stream:
                    stream.write(seen)
        """)
    site.worker()
    for word in ("first", "second"):
        (site.work / "word").write_text(word)
        assert workflow.runners("made", word) == ["zygote"]
        assert workflow.read(f"made/{word}.txt") == word
        site.run = Run.begin(site.layout, str(site.work), is_gone=is_gone)


def test_an_unreadable_workflow_is_left_to_the_command_which_says_why(
    site: Site, workflow: Workflow
) -> None:
    workflow.write("rule shell\n")
    site.worker()
    workflow.submit("shell", 1, 2)
    for end in workflow.ends(2):
        details = end.line["details"]
        assert (end.name.state, details["runner"]) == ("failed", "command")
        log = f"{site.layout.worker('1').directory}/zygote-0.log"
        assert details["skipped_runners"] == f"no zygote: its parse failed (see {log})"
        assert "Syntax" in site.log_of(end)
    assert site.logs().count("WARNING: no zygote any more") == 1


def test_files_that_jobs_write_where_the_workflow_looks_make_it_fall_back(
    site: Site, workflow: Workflow
) -> None:
    workflow.write("""
        import os
        os.makedirs("seen", exist_ok=True)
        there = sorted(os.listdir("seen"))
        rule seen:
            output: "seen/{i}.txt"
            run:
                with open(output[0], "w") as stream:
                    print(*there, file=stream)
        """)
    site.worker()
    for i in range(5):
        (runner,) = workflow.runners("seen", i)
        assert workflow.read(f"seen/{i}.txt").split() == [f"{n}.txt" for n in range(i)]
    assert runner.startswith("command no zygote: 3 in a row were of little use; the last one: ")


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("import random\nkept = random.Random()", "makes a generator of random numbers"),
        ("import numpy\nkept = numpy.random.default_rng()", "makes a generator of random numbers"),
        ("import subprocess\nkept = subprocess.Popen(['sleep', '60'])", "starts processes"),
        ("kept = open('Snakefile')", "does not close it"),
        ("import socket\nkept = socket.socket()", "does not close it"),
        ("import os\nkept = os.environ.get('KOCHI_JOB_ID')", "the variable KOCHI_JOB_ID"),
        ("import os\nos.environ.setdefault('KOCHI_JOB_NAME', 'x')", "the variable KOCHI_JOB_NAME"),
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "starts threads",
        ),
    ],
)
def test_state_that_each_job_must_have_of_its_own_makes_the_workflow_fall_back(
    site: Site, workflow: Workflow, before: str, why: str
) -> None:
    workflow.write(f"{before}\n{SNAKEFILE_MADE}")
    site.worker()
    runners = workflow.runners("made", 1, 2)
    assert all(each.startswith("command no zygote: its parse ") for each in runners)
    assert why in runners[0]
    assert site.logs().count("WARNING: no zygote any more") == 1


def test_a_process_that_a_parse_left_behind_does_not_hide_the_end_of_its_zygote(
    site: Site, workflow: Workflow
) -> None:
    workflow.write(f"import os, time\nif os.fork() == 0:\n    time.sleep(600)\n{SNAKEFILE_MADE}")
    site.worker()
    (runner,) = workflow.runners("made", 1)
    assert runner.startswith("command no zygote: its parse starts processes")
    workflow.write(SNAKEFILE_MADE)
    assert workflow.runners("made", 2, environment={"OTHER": "workflow"}) == ["zygote"]
    assert site.logs().count("zygote-0 is process") == 2


def test_scientific_libraries_do_not_make_the_workflow_fall_back(
    site: Site, workflow: Workflow
) -> None:
    before = "import numpy, pandas, random, tempfile, logging, multiprocessing\nrandom.random()"
    product = "numpy.ones((300, 300)) @ numpy.ones((300, 300))"
    workflow.write(f"{before}\nrule made:\n    output: touch('{{i}}.txt')\n    run: {product}\n")
    site.worker()
    assert workflow.runners("made", 1, 2) == ["zygote"] * 2


def test_a_workflow_that_reads_its_number_of_cores_gets_that_of_the_job(
    site: Site, workflow: Workflow
) -> None:
    workflow.write("""
        count = workflow.cores
        rule counted:
            output: "counted/{i}.txt"
            run:
                import os
                with open(output[0], "w") as stream:
                    print(count, len(os.sched_getaffinity(0)), file=stream)
        """)
    cpus = len(os.sched_getaffinity(0))
    site.worker(cores=cpus)
    for i, cores in enumerate((1, cpus, 1)):
        assert workflow.runners("counted", i, resources={"cores": cores}) == ["zygote"]
        assert workflow.read(f"counted/{i}.txt") == f"{cores} {cores}\n"
    assert site.logs().count("is ready") == min(cpus, 2), site.logs()


@pytest.mark.parametrize(
    "code",
    [
        # An exit function, as that of a library that writes at the end.
        "import atexit\n"
        "atexit.register(lambda name=output[0]: open(name, 'a').write('written'))\n"
        "open(output[0], 'w').close()",
        # A file that is never closed.
        "globals()['kept'] = open(output[0], 'w')\nkept.write('written')",
        # A pool whose idle threads wait for the order to end.
        "from concurrent.futures import ThreadPoolExecutor\n"
        "globals()['pool'] = ThreadPoolExecutor(1)\n"
        "pool.submit(lambda name=output[0]: open(name, 'w').write('written')).result()",
        # A thread and a process that the job does not join.
        "import threading, time\n"
        "def late(name=output[0]):\n"
        "    time.sleep(0.3)\n"
        "    open(name, 'w').write('written')\n"
        "open(output[0], 'w').close()\n"
        "threading.Thread(target=late).start()",
        "import multiprocessing, time\n"
        "def late(name=output[0]):\n"
        "    time.sleep(0.3)\n"
        "    open(name, 'w').write('written')\n"
        "open(output[0], 'w').close()\n"
        "multiprocessing.get_context('fork').Process(target=late).start()",
    ],
    ids=["exit function", "open file", "pool", "thread", "process"],
)
def test_a_job_ends_as_python_does(site: Site, workflow: Workflow, code: str) -> None:
    body = textwrap.indent(code, " " * 8)
    workflow.write(f"rule made:\n    output: 'made/{{i}}.txt'\n    run:\n{body}\n")
    site.worker()
    assert workflow.runners("made", 1) == ["zygote"]
    assert workflow.read("made/1.txt") == "written"


# ---- ends and failures


def test_a_cancelled_job_leaves_no_process_and_its_neighbours_alone(
    site: Site, workflow: Workflow
) -> None:
    site.worker(cores=2, grace=0.5)
    workflow.submit("slow", 1, 2)
    until(lambda: all((site.work / f"pid{i}").exists() for i in (1, 2)))
    until(lambda: workflow.read("pid1") and workflow.read("pid2"))
    shell = int(workflow.read("pid1"))
    cancel(site.layout, QUEUE, 1, 1)
    (end,) = workflow.ends(1)
    assert (end.key, end.name.state) == ("slow 1", "cancelled")
    assert not is_running(shell)
    (site.work / "go").touch()
    assert workflow.runner_of(workflow.ends(1)[0]) == "zygote"


READS = """
    import os, time
    if not os.path.exists("killed"):
        open("reading", "w").close()
        time.sleep(60)
    rule made:
        output: "made/{i}.txt"
        shell: "echo >> {output}"
    """


def test_a_job_that_waits_for_its_zygote_can_be_cancelled(site: Site, workflow: Workflow) -> None:
    workflow.write(READS)
    site.worker()
    workflow.submit("made", 1)
    until((site.work / "reading").exists)
    cancel(site.layout, QUEUE, 1, 1)
    assert workflow.ends(1)[0].name.state == "cancelled"


def test_a_zygote_killed_while_it_reads_the_workflow_is_replaced(
    site: Site, workflow: Workflow
) -> None:
    workflow.write(READS)
    site.worker()
    workflow.submit("made", 1)
    until((site.work / "reading").exists)
    (zygote,) = servers(site)
    (site.work / "killed").touch()
    os.kill(zygote, signal.SIGKILL)
    assert workflow.runner_of(workflow.ends(1)[0]) == "zygote"
    assert workflow.read("made/1.txt") == "\n"


def test_a_killed_zygote_takes_no_job_with_it_and_is_replaced(
    site: Site, workflow: Workflow
) -> None:
    site.worker(cores=2)
    workflow.submit("slow", 1)
    until((site.work / "pid1").exists)
    (zygote,) = servers(site)
    os.kill(zygote, signal.SIGKILL)
    assert workflow.runners("shell", 1) == ["zygote"]
    assert len(site.running()) == 1
    (site.work / "go").touch()
    assert workflow.runner_of(workflow.ends(1)[0]) == "zygote"


def test_a_zygote_that_does_not_answer_is_killed_and_its_job_executed_once(
    site: Site, workflow: Workflow
) -> None:
    site.worker()
    assert workflow.runners("shell", 1) == ["zygote"]
    (zygote,) = servers(site)
    os.kill(zygote, signal.SIGSTOP)
    assert workflow.runners("shell", 2) == ["zygote"]
    assert workflow.read("shell/2.txt") == "2\n1.2 zygote\n"
    assert servers(site) != [zygote]


def test_zygotes_killed_at_any_moment_lose_no_job_and_double_none(
    site: Site, workflow: Workflow
) -> None:
    # The job appends and is long enough to show a second execution.
    workflow.write("""
        rule once:
            output: touch("done/{i}.txt")
            shell: "echo begin >> log{wildcards.i}; sleep 0.05; echo end >> log{wildcards.i}"
        """)
    site.worker(cores=2)
    workflow.submit("once", *range(10))
    chance = random.Random(11)
    ends: list[End] = []
    ready = kills = 0
    while len(ends) < 10:
        ends += site.run.collect()
        found = site.logs().count("is ready")
        if found > ready:
            ready = found
            time.sleep(chance.uniform(0.0, 0.6))
            for zygote in servers(site):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(zygote, signal.SIGKILL)
                    kills += 1
        time.sleep(0.01)
    assert kills, site.logs()
    runners = {workflow.runner_of(end).split()[0] for end in ends}
    assert "zygote" in runners
    assert {workflow.read(f"log{i}") for i in range(10)} == {"begin\nend\n"}
    assert {end.name.attempt for end in ends} == {1}


def test_nothing_of_a_zygote_outlives_its_worker(site: Site, workflow: Workflow) -> None:
    supervisor = site.worker()
    workflow.submit("slow", 1)
    until((site.work / "pid1").exists)
    everything = descendants(supervisor.pid)
    (zygote,) = servers(site)
    assert zygote in everything
    is_worker = b"\0snakemake_kochi.worker\0"
    os.kill(next(pid for pid in everything if is_worker in command_of(pid)), signal.SIGKILL)
    supervisor.wait(30)
    assert not any(map(is_running, everything))


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("moment", ["reading", "ready"])
@pytest.mark.parametrize("who", ["the worker", "everybody"])
def test_a_zygote_that_is_told_to_end_leaves_nothing_in_the_temporary_directory(
    site: Site,
    workflow: Workflow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    who: str,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    if moment == "reading":
        workflow.write(READS)
    supervisor = site.worker(grace=1)
    if moment == "reading":
        workflow.submit("made", 1)
        until((site.work / "reading").exists)
    else:
        assert workflow.runners("run", 1) == ["zygote"]
    assert list(temporary.iterdir())
    # A scheduler signals all processes of an allocation.
    for pid in [*(descendants(supervisor.pid) if who == "everybody" else ()), supervisor.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert supervisor.wait(60) == 0
    assert list(temporary.iterdir()) == []


def test_a_log_that_cannot_be_made_leaves_one_job_to_the_command(
    site: Site, workflow: Workflow
) -> None:
    site.worker()
    log = Path(site.layout.worker("1").directory) / "zygote-0.log"
    log.mkdir()
    (runner,) = workflow.runners("run", 1)
    assert runner == f"command no zygote: [Errno 21] Is a directory: '{log}'"
    log.rmdir()
    assert workflow.runners("run", 2) == ["zygote"]
