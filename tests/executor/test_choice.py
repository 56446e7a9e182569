"""The runner of a job and its reason; a plain command is the one that Snakemake would make."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import snakemake.cli
from run_helpers import background, waiting_tickets
from support import wait_until, write

from snakemake_kochi.executor.internals import UnclearError, resources_taken
from snakemake_kochi.tickets.ticket import Benchmark, ShellJob, Ticket

pytestmark = pytest.mark.compatibility

# Takes parts from a Snakemake that has read the workflow, so that only the executor misses them.
WITHOUT = """
import sys

class Without:
    def find_spec(self, name, *_):
        if name in ("snakemake_kochi.executor.executor", "snakemake_kochi.executor.executor"):
            del sys.modules["snakemake.shell"].shell._get_process_prefix
            del sys.modules["snakemake.shell"].MAX_ARG_LEN
            del sys.modules["snakemake.rules"].Rule.is_shell

sys.meta_path.insert(0, Without())
from snakemake.cli import main
main(sys.argv[1:])
"""


def tickets(
    directory: Path, *options: str, command: Sequence[str] = ("-m", "snakemake")
) -> tuple[dict[str, Ticket], str]:
    """The tickets of all ready jobs, by rule, in a queue that no worker serves; and what the
    run says until they are there."""
    where = ("--kochi-queue", "q", "--jobs", "100", "--cores", "8")
    arguments = (*command, "--executor", "kochi", *where, *options)
    said = []
    with background(sys.executable, *arguments, cwd=directory) as run:
        assert run.stdout is not None
        while " in queue q, log" not in (line := run.stdout.readline()):
            said.append(line)
            assert line, f"it ended: {''.join(said)}"
        (ready,) = re.findall(r"^Execute (\d+) jobs?\b", "".join(said), re.MULTILINE)
        # Many jobs are submitted in several batches.
        wait_until(lambda: len(waiting_tickets("q")) == int(ready), f"{ready} tickets")
        found = waiting_tickets("q")
    return {each.labels["rule"]: each for each in found}, "".join(said)


def choices(
    directory: Path, snakefile: str, *options: str
) -> dict[str, tuple[str, str, ShellJob | None]]:
    """Runner, why, and the job for a shell of each rule that is ready."""
    write(directory / "Snakefile", snakefile)
    found, _ = tickets(directory, *options)
    return {rule: choice_of(ticket) for rule, ticket in found.items()}


def choice_of(ticket: Ticket) -> tuple[str, str, ShellJob | None]:
    return ticket.labels["runner"], ticket.labels.get("runner_reason", ""), ticket.shell


def whys(directory: Path, snakefile: str, *options: str) -> dict[str, str]:
    """The reason why a job is not a shell job; "" for a shell job."""
    found = choices(directory, snakefile, *options)
    assert all((runner == "shell") == (why == "") for runner, why, _ in found.values())
    return {name: why for name, (_, why, _) in found.items()}


# All kinds of placeholders, without the values that depend on the run.
TEMPLATES = r'''
import os
import re
rule all:
    input:
        expand("touched/{n}", n=range(24)), "other/a"

NAME = "of the module"
LIST = ["x", "y z"]
DATA = {"key": "value"}
class Thing:
    part = "part"
config["here"] = "set in the Snakefile"
shell.executable(os.environ["CAPTURING_SHELL"])
def double(wildcards, threads): return threads * 2
def heap(wildcards, resources): return f"-Xmx{int(resources.mem_mb * 0.8)}m"

module other:
    snakefile: "other.smk"
    config: {"here": "given to the module"}
use rule * from other as other_*

rule files:
    input: first="in/a.txt", rest=["in/b.txt", "in/c d.txt"]
    output: touch("touched/0"), extra=touch("extra/one file.txt")
    log: "logs/{rule}.log".format(rule="files"), err="logs/err.log"
    shell: "cat {input} {input.first} {input.rest} {input[1]} {input.rest[1]:q} "
        "> {output[0]} {output.extra:q} {log} {log.err}"
rule wildcards_of:
    output: touch("touched/{n,1}")
    shell: "{wildcards.n} {wildcards} {wildcards[0]} {{n}} ${{HOME}} '{{}}' {rule}"
rule params_of:
    output: touch("touched/2")
    params: 5, a=1, b="two words", c=[1, "x y"], d={"k": [1, 2]}, e=None, f=double, g=1.25, h=heap
    resources: mem_mb=lambda wildcards, attempt: 1000 * attempt
    threads: 2
    shell: "{params} {params[0]} {params.a:>4} {params.b:q} {params.c} {params.c:q} {params.d[k]} "
        "{params.d[k][1]} {params.e} {params.f} {params.g:.1f} {params.h} {params.b!r}"
rule threads_of:
    output: touch("touched/3")
    threads: 2
    shell: "{threads} {threads:03d}"
rule resources_of:
    output: touch("touched/4")
    resources: mem_mb=2000, runtime="2h", slots=3, words="a b"
    shell: "{resources.mem_mb} {resources.runtime} {resources.slots} {resources.words:q} "
        "{resources.mem_mib} {resources.words}"
rule temporary_directory:
    output: touch("touched/5")
    shell: "{resources.tmpdir} {resources.tmpdir:q} {resources.tmpdir:u} {resources.tmpdir!s}/x"
rule globals_of:
    output: touch("touched/6")
    shell: "{NAME} {LIST} {LIST:q} {LIST[1]} {DATA[key]} {config[here]} {Thing.part}"
rule many_lines:
    output: touch("touched/7")
    shell:
        """
        first {output}
          second "$(echo \"quoted\" '\''single'\'')"
        \ttab \\n {{ {rule} }}
        """
rule joined:
    output: touch("touched/8")
    shell: "one "
        "two " 'three {output}'
rule expression:
    output: touch("touched/9")
    shell: f"{NAME} {{output}} " + " ".join(LIST) + " %s" % DATA["key"]
rule raw:
    output: touch("touched/10")
    shell: r"sed 's/\(a\)/\1/g' {output} \t \{{"
for number in (11, 12):
    rule:
        name: f"loop{number}"
        output: touch(f"touched/{number}")
        params: number=number
        shell: "{params.number} {output}"
rule inherited_base:
    output: touch("touched/13")
    params: which="base"
    shell: "{params.which} {output} {rule}"
use rule inherited_base as inherited with:
    output: touch("touched/14")
    params: which="inherited"
rule another_shell:
    output: touch("touched/15")
    resources: shell_exec=os.environ["CAPTURING_SHELL"].replace("bash", "capture")
    shell: "by another shell {resources.shell_exec}"
rule measured:
    output: touch("touched/16")
    benchmark: "bm/one.tsv"
    shell: "iteration {bench_iteration} {output}"
rule not_measured:
    output: touch("touched/17")
    shell: "iteration {bench_iteration}"
rule unicode:
    output: touch("touched/18")
    shell: "äöü {output} 漢字 $'\\x41'"
rule nested_format:
    output: touch("touched/19")
    params: width=8
    shell: "{threads:{params.width}d}|{params.width:<{params.width}}|"
rule input_functions:
    input: lambda wildcards: ["in/b.txt", "in/a.txt"]
    output: touch("touched/20")
    shell: "{input}"
rule nothing_to_format:
    output: touch("touched/21")
    shell: "true; # {{}}"
rule lookups:
    output: touch("touched/22")
    params: found=lookup(dpath="here", within=config), sub=subpath(output[0], basename=True)
    shell: "{params.found} {params.sub}"
rule of_rules:
    output: touch("touched/23")
    shell: "{rules.files.output.extra} {output}   "
'''
OTHER = """
    NAME = "of the other module"
    rule a:
        output: touch("other/a")
        shell: "{NAME} {config[here]} {rule}"
    """
CAPTURING = """\
    #!/bin/sh
    printf '%s' "$2" > "$CAPTURED/$(printf '%s' "$2" | cksum | tr ' ' -)"
    """


def test_plain_commands_are_the_commands_that_snakemake_would_execute(
    tmp_path: Path, snakemake: Any
) -> None:
    # `bash` is the name of a shell that gets Snakemake's prefix.
    for shell_name in ("bash", "capture"):
        write(tmp_path / shell_name, CAPTURING).chmod(0o755)
    texts = {}
    for executor in ("local", "kochi"):
        directory = tmp_path / executor
        write(directory / "Snakefile", TEMPLATES)
        write(directory / "other.smk", OTHER)
        for name in ("a.txt", "b.txt", "c d.txt"):
            write(directory / "in" / name, "")
        captured = tmp_path / f"captured-by-{executor}"
        captured.mkdir()
        done = snakemake(
            *("--executor", executor, "--cores", "4", "--jobs", "50", "--config", "given=1"),
            cwd=directory,
            env={"CAPTURED": str(captured), "CAPTURING_SHELL": str(tmp_path / "bash")},
        )
        assert done.returncode == 0
        if executor == "kochi":
            assert "kochi ran 25 jobs: 25 by shell" in done.stdout
        texts[executor] = {path.read_text() for path in captured.iterdir()}
    assert len(texts["local"]) == 25
    assert texts["kochi"] == texts["local"]
    (bare,) = (text for text in texts["kochi"] if not text.startswith("set -euo"))
    assert bare.startswith("by another shell")


def test_a_plain_command_has_the_prefix_and_the_suffix_of_the_snakefile(
    tmp_path: Path, snakemake: Any
) -> None:
    text = """
        shell.prefix("PLACE=here; set -e; ")
        shell.suffix("; echo $PLACE ended >> {output}".replace("{output}", "a.txt"))
        rule a:
            output: "a.txt"
            shell: "echo $PLACE > {output}"
        """
    write(tmp_path / "Snakefile", text)
    done = snakemake("--executor", "kochi", "--jobs", "1", cwd=tmp_path)
    assert "1 by shell" in done.stdout
    assert (tmp_path / "a.txt").read_text() == "here\nhere ended\n"


def test_other_jobs_get_another_runner_and_the_reason(tmp_path: Path) -> None:
    write(tmp_path / "x.py", "")
    found = whys(
        tmp_path,
        """
        import os, sys
        counted = 0
        def count():
            global counted
            counted += 1
            return counted
        def of_all(wildcards, resources): return str(resources)
        def of_tmpdir(wildcards, resources): return len(resources.tmpdir)
        LATE = "first"
        rule all:
            input: expand("{n}", n=[*range(17), 19, "copy"]), "x/../18"
        rule a_run:
            output: "0"
            run: shell("touch {output}")
        rule a_script:
            output: "1"
            script: "x.py"
        checkpoint a_checkpoint:
            output: "2"
            shell: "touch {output}"
        rule a_shadow:
            output: "3"
            shadow: "minimal"
            shell: "touch {output}"
        rule in_a_group:
            output: "4"
            group: "together"
            shell: "touch {output}"
        rule an_update:
            output: update("5")
            shell: "touch {output}"
        rule a_tmpdir_of_its_own:
            output: "6"
            resources: tmpdir="/var/tmp"
            shell: "touch {output}"
        rule repeated:
            output: "7"
            benchmark: repeat("7.tsv", 2)
            shell: "touch {output} {bench_iteration}"
        rule long:
            output: "8"
            params: "x" * 70000
            shell: "touch {output} # {params}"
        rule an_id:
            output: "9"
            shell: "touch {output} {jobid}"
        rule the_environment:
            output: "10"
            shell: "touch {output} {os.environ[HOME]}"
        rule all_resources:
            output: "11"
            shell: "touch {output} {resources}"
        rule params_of_all_resources:
            output: "12"
            params: of_all
            shell: "touch {output} {params}"
        rule params_of_tmpdir:
            output: "13"
            params: of_tmpdir
            shell: "touch {output} {params}"
        rule aligned_tmpdir:
            output: "14"
            shell: "touch {output} {resources.tmpdir:>30}"
        rule late:
            output: "15"
            shell: "touch {output} " + LATE
        rule counting:
            output: "16"
            shell: f"touch {{output}} {count()}"
        rule above:
            output: "x/../18"
            shell: "touch {output}"
        rule the_workflow:
            output: "19"
            shell: "touch {output} {workflow.cores}"
        rule plain:
            output: "copy"
            shell: "touch {output}"
        LATE = "second"
        """,
    )
    assert found == {
        "a_run": "run",
        "a_script": "script",
        "a_checkpoint": "checkpoint",
        "a_shadow": "shadow",
        "together_in_a_group": "group",
        "an_update": "update",
        "a_tmpdir_of_its_own": "tmpdir",
        "repeated": "bench_iteration in {}",
        "long": "long",
        "an_id": "jobid in {}",
        "the_environment": "os in {}",
        "all_resources": "all resources in {}",
        "params_of_all_resources": "params of resources",
        "params_of_tmpdir": "params of tmpdir",
        "aligned_tmpdir": "tmpdir",
        "late": "changed since it was read",
        "counting": "changed since it was read",
        "above": "path",
        "the_workflow": "workflow in {}",
        "plain": "",
    }


def test_a_command_that_snakemake_cannot_format_gets_its_message(
    tmp_path: Path, snakemake: Any
) -> None:
    text = """
        rule unknown:
            output: "a"
            shell: "touch {output} {no_such_name}"
        """
    write(tmp_path / "Snakefile", text)
    done = snakemake("--executor", "kochi", "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "NameError: The name 'no_such_name' is unknown in this context." in done.stdout


ONE_RULE = """
    rule one:
        output: "a"
        shell: "touch {output}"
    """
# A directive of a rule, what its command reads, and why Snakemake has to run its job with IN_USE.
RULES = {
    "contained": ('container: "here.sif"', "", "container"),
    "with_modules": ('envmodules: "gcc"', "", "envmodules"),
    "kept": ("cache: True", "", "cache"),
    "limited": ("resources: mem_mb=500", "{resources.mem_mb}", "limited resource"),
    "limit_not_read": ("resources: mem_mb=500", "", ""),
    "placed": ("threads: 1", "", "tmpdir"),
    "measured": ('benchmark: "b.tsv"', "", ""),
}
IN_USE = (
    *("--sdm", "apptainer", "env-modules", "--cache", "--resources", "mem_mb=100"),
    *("--default-resources", "mem_mb=50", "--set-resources", "placed:tmpdir='/var/tmp'"),
)


@pytest.mark.parametrize("options", [(), IN_USE], ids=["not in use", "in use"])
def test_features_that_are_not_in_use_do_not_prevent_a_plain_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    # Snakemake asks for its version before it uses it, by either name.
    for name in ("apptainer", "singularity"):
        program = write(tmp_path / "bin" / name, f"#!/bin/sh\necho {name} version 3.11.0")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SNAKEMAKE_OUTPUT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    snakefile = f"rule all:\n    input: {list(RULES)}\n"
    for name, (directive, text, _) in RULES.items():
        snakefile += f"rule {name}:\n    output: '{name}'\n    {directive}\n"
        snakefile += f"    shell: 'touch {{output}} {text}'\n"
    expected = {name: why if options else "" for name, (*_, why) in RULES.items()}
    assert whys(tmp_path, snakefile, *options) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--default-resources", "tmpdir='/var/tmp'"), ("zygote", "tmpdir")),
        (("--benchmark-extended",), ("zygote", "extended benchmark")),
        (("--kochi-runner", "zygote"), ("zygote", "")),
    ],
)
def test_an_option_prevents_every_plain_command(
    tmp_path: Path, options: tuple[str, ...], expected: tuple[str, str]
) -> None:
    assert choices(tmp_path, ONE_RULE, *options)["one"] == (*expected, None)


def test_only_the_runner_command_executes_a_precommand(tmp_path: Path) -> None:
    # Older versions of Snakemake accept the option and ignore it.
    is_taken = "precommand=args.precommand" in inspect.getsource(snakemake.cli)
    expected = ("command", "precommand") if is_taken else ("shell", "")
    assert choices(tmp_path, ONE_RULE, "--precommand", "true")["one"][:2] == expected


def test_a_shell_job_has_all_data_that_a_worker_needs(tmp_path: Path) -> None:
    write(tmp_path / "in.txt", "")
    snakefile = """
        rule one:
            input: "in.txt"
            output: "out/file", directory("out/many")
            log: "logs/one.log"
            benchmark: repeat("bm/one.tsv", 3)
            threads: 2
            shell: "touch {output[0]} {resources.tmpdir}"
        """
    write(tmp_path / "Snakefile", snakefile)
    ticket = tickets(tmp_path, "--latency-wait", "7")[0]["one"]
    _, _, shell = choice_of(ticket)
    assert shell is not None
    token = shell.temporary_directory
    assert token.isidentifier()
    assert shell.script == f"set -euo pipefail;  touch out/file {token}"
    assert shell.inputs == ("in.txt",)
    assert ticket.logs == ("logs/one.log",)
    assert shell.directories == ("out/many",)
    assert shell.benchmark == Benchmark("bm/one.tsv", 3)
    assert (shell.threads, shell.latency_wait) == (2, 7)
    # The same work, whatever the runner: Snakemake itself gives the command of the second one.
    by_command = tickets(tmp_path, "--nolock", "--kochi-runner", "command")[0]["one"]
    assert choice_of(by_command) == ("command", "", None)
    assert ticket.identity is not None
    assert by_command.identity == ticket.identity


def test_without_private_parts_of_snakemake_the_next_runner_serves(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", ONE_RULE)
    found, said = tickets(tmp_path, command=("-c", WITHOUT))
    assert said.count("Each shell command is executed by a Snakemake of its own") == 1
    parts = ("shell.shell._get_process_prefix", "shell.MAX_ARG_LEN", "rules.Rule.is_shell")
    assert f"has no {', '.join(f'snakemake.{part}' for part in parts)}." in said
    assert choice_of(found["one"]) == ("zygote", "another Snakemake", None)


@pytest.mark.parametrize(
    ("function", "taken"),
    [
        (lambda wildcards: 1, set()),
        (lambda wildcards, resources: 1, set()),
        (lambda wildcards, resources: resources.mem_mb * 2 + resources.slots, {"mem_mb", "slots"}),
        (lambda wildcards, resources: resources.get("mem_mb"), None),
        (lambda wildcards, resources: resources["mem_mb"], None),
        (lambda wildcards, resources: str(resources), None),
        (lambda wildcards, resources: [resources.mem_mb for _ in "a" if resources], None),
        (lambda wildcards, resources: (lambda: resources.tmpdir)(), None),
        (lambda wildcards, **given: given["resources"].tmpdir, None),
    ],
)
def test_the_resources_that_a_function_reads_are_known_or_unclear(
    function: Any, taken: set[str] | None
) -> None:
    def find() -> frozenset[str]:
        return resources_taken([1, function], lambda one: inspect.signature(one).parameters)

    if taken is None:
        with pytest.raises(UnclearError, match="params of resources"):
            find()
    else:
        assert find() == taken


def test_each_retry_has_only_the_resources_of_its_attempt(tmp_path: Path, snakemake: Any) -> None:
    text = """
        rule a:
            output: "a.txt", directory("many")
            retries: 2
            resources: mem_mb=lambda wildcards, attempt: 100 * attempt
            shell:
                "echo {resources.mem_mb} >> seen; mkdir {output[1]}; echo {resources.mem_mb} "
                ">> {output[0]}; [ {resources.mem_mb} = 200 ] || exit 3"
        """
    write(tmp_path / "Snakefile", text)
    done = snakemake("--executor", "kochi", "--jobs", "1", cwd=tmp_path)
    assert "kochi ran 2 jobs: 2 by shell" in done.stdout
    assert (tmp_path / "seen").read_text() == "100\n200\n"
    assert (tmp_path / "a.txt").read_text() == "200\n"


# Variables that belong to a job and not to its rule.
OF_THE_JOB = ("KOCHI_JOB_ID=", "KOCHI_ATTEMPT_NONCE=", "KOCHI_QUEUE=", "KOCHI_WORKER_ID=")


def test_a_command_has_the_environment_that_the_inner_snakemake_gives_it(
    tmp_path: Path, snakemake: Any
) -> None:
    text = """
        envvars: "SECRET"
        rule a:
            output: "a.txt"
            threads: 1
            shell: "env --null | sort --zero-terminated > {output}"
        """
    environments = {}
    for runner in ("shell", "command"):
        directory = tmp_path / runner
        write(directory / "Snakefile", text)
        done = snakemake(
            *("--executor", "kochi", "--jobs", "1", "--kochi-runner", runner),
            cwd=directory,
            env={"SECRET": "word", "OMP_NUM_THREADS": "9", "TEMPDIR": "/nowhere"},
        )
        assert f"1 by {runner}" in done.stdout
        found = (directory / "a.txt").read_text().replace(f"/{runner}", "/RUNNER").split("\0")
        own = (*OF_THE_JOB, "KOCHI_RUNNER=", "KOCHI_WORKER_NONCE=")
        environments[runner] = [line for line in found if not line.startswith(own)]
    assert environments["shell"] == environments["command"]
    assert "SECRET=word" in environments["shell"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('workdir: "elsewhere"', "workdir"),
        ('workdir: "."; os.environ["NEW"] = "word"', ""),
        ('os.environ["GIVEN"] += ":more"', "GIVEN changed"),
        ('del os.environ["GIVEN"]', "GIVEN changed"),
        # The first one in this order is told: each is noticed.
        (
            "seen = [changed_state()]; "
            "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); seen.append(changed_state()); "
            "os.nice(1); seen.append(changed_state()); "
            "os.umask(0o077); assert seen == ['', 'limits', 'niceness'], seen",
            "umask changed",
        ),
    ],
    ids=["directory", "none", "changed", "deleted", "process"],
)
def test_a_plain_command_gets_the_variables_of_the_snakefile_or_another_runner_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, why: str
) -> None:
    monkeypatch.setenv("GIVEN", "one")
    snakefile = "\n".join(
        (
            "import os, resource",
            "from snakemake_kochi.executor.plugin import changed_state",
            *lines.split("; "),
            ONE_RULE.replace("\n    ", "\n"),
        )
    )
    (tmp_path / "elsewhere").mkdir()
    runner, said, shell = choices(tmp_path, snakefile)["one"]
    assert (runner, said) == ("zygote" if why else "shell", why)
    assert shell is None or shell.environment["NEW"] == "word"
