"""A job in a copy of a zygote finds the same as in a process of its own, or falls back."""

from __future__ import annotations

import json

import pytest

from tests.worker.test_zygote import Workflow, worker_log


def run_one(site, rule_body, before=""):
    """The runner, the result and the output of a job of a rule with this `run:`."""
    lines = [*before.splitlines(), "rule made:", '    output: "made/{i}.txt"', "    run:"]
    lines += [f"        {line}" for line in rule_body.splitlines()]
    workflow = Workflow(site, "\n".join(lines))
    (job,) = workflow.submit("made", 1)
    site.start()
    (runner,) = workflow.runners_of(job)
    return runner, workflow.read("made/1.txt")


def test_a_job_has_its_directory_in_the_environment_and_no_files_of_the_zygote(site):
    code = """\
import json, os
files = [os.path.realpath(f"/proc/self/fd/{n}") for n in range(3, 64)]
found = [file for file in files if "pipe:" in file or file.endswith("/log")]
with open(output[0], "w") as stream:
    json.dump([os.environ["PWD"], found], stream)"""
    runner, written = run_one(site, code)
    assert runner == "zygote"
    assert json.loads(written) == [str(site.directory / "workflow"), []]


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
def test_a_job_ends_as_python_does(site, code):
    assert run_one(site, code) == ("zygote", "written")


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
    ],
    ids=["random", "numpy", "process", "file", "socket", "variable", "default of a variable"],
)
def test_state_that_each_job_must_have_of_its_own_makes_the_workflow_fall_back(site, before, why):
    runner, _ = run_one(site, "open(output[0], 'w').close()", before)
    assert runner == "command"
    assert why in worker_log(site)


def test_scientific_libraries_do_not_make_the_workflow_fall_back(site):
    before = "import numpy, pandas, random, tempfile, logging, multiprocessing\nrandom.random()"
    assert run_one(site, "open(output[0], 'w').close()", before)[0] == "zygote"


def test_a_changed_script_is_executed_as_it_is_now(site):
    workflow = Workflow(site, 'rule made:\n    output: "made/{i}.txt"\n    script: "made.py"\n')
    site.start(stay=True)
    for word in ("first", "second"):
        text = f"open(snakemake.output[0], 'w').write('{word}')\n"
        (workflow.directory / "made.py").write_text(text)
        assert workflow.runners_of(*workflow.submit("made", word)) == ["zygote"]
        assert workflow.read(f"made/{word}.txt") == word


def test_the_output_of_a_program_is_read_again_in_the_next_run(site):
    workflow = Workflow(
        site,
        """
        import subprocess
        seen = subprocess.run(["cat", "word"], capture_output=True, text=True).stdout
        rule made:
            output: "made/{i}.txt"
            run:
                with open(output[0], "w") as stream:
                    stream.write(seen)
        """,
    )
    site.start(stay=True)
    for word in ("first", "second"):
        (workflow.directory / "word").write_text(word)
        jobs = workflow.submit("made", word, controller=word)
        assert workflow.runners_of(*jobs) == ["zygote"]
        assert workflow.read(f"made/{word}.txt") == word
