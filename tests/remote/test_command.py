"""Every command with -m is executed on the machine's login host."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pexpect
import psutil
import pytest
from full_disk import mounted
from seen import FIRST
from ssh_host import SshHost
from support import git, run_apart, wait_until, write

from snakemake_kochi.remote.wheels import identity
from tests.terminal.conftest import Person

KOCHI = (sys.executable, "-m", "snakemake_kochi.cli")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    with SshHost("spica", tmp_path) as host:
        host.use(monkeypatch)
        yield host


@pytest.fixture
def project(host: SshHost, tmp_path: Path) -> Path:
    """A project on the laptop, that nobody has sent yet."""
    top = tmp_path / "fib"
    git(tmp_path, "init", "-q", str(top))
    write(top / "kochi.yaml", host.machine())
    write(top / "data.txt", "one\n")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    return top


def kochi(*words: str, cwd: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    done = run_apart(*KOCHI, *words, cwd=cwd, given=given)
    print(f"$ kochi {' '.join(words)}\n{done.stdout}{done.stderr}[{done.returncode}]")
    return done


def test_commands_run_there_in_the_project_as_it_is_here(
    host: SshHost, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project / "data.txt", "two\n")
    write(project / "sub" / "new.txt", "")
    done = kochi(
        *("run", "-m", "spica", "--", "sh", "-c", "pwd; cat ../data.txt; ls; echo $KOCHI_ROOT"),
        cwd=project / "sub",
    )
    where, *rest = done.stdout.splitlines()
    assert where.startswith(str(host.root)) and where.endswith("/fib/sub")
    assert rest == ["two", "new.txt", str(host.root)]
    # Words, input and status pass.
    words: Sequence[str] = ["", "a b", "'", '"$HOME"', "$(id)", "a\nb", "é", "*", "\\", ";", "-n"]
    script = "import json, sys; print(json.dumps([sys.argv[1:], sys.stdin.read()])); sys.exit(7)"
    done = kochi(
        *("run", "-m", "spica", "--", sys.executable, "-c", script, *words),
        cwd=project,
        given="given\n",
    )
    assert done.returncode == 7
    assert json.loads(done.stdout) == [list(words), "given\n"]
    # What reads no input leaves it for what comes next.
    show = f"{' '.join(KOCHI)} show queues -m spica > /dev/null"
    line = f"while read -r each; do {show}; echo $each; done"
    read = subprocess.run(
        ["sh", "-c", line], cwd=project, input="a\nb\n", capture_output=True, text=True
    )
    assert read.stdout.split() == ["a", "b"]
    # A mistake in the words needs no login, and all others needed one.
    done = kochi("show", "jobs", "-m", "spica", "--nosuch", cwd=project)
    assert done.returncode == 2 and "--nosuch" in done.stderr
    assert host.logins == 1
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "spica")
    assert kochi("run", "--", "pwd", cwd=project).stdout.startswith(str(host.root))


def test_a_job_is_submitted_there_and_messages_say_what_to_type_on_this_computer(
    host: SshHost, project: Path
) -> None:
    done = kochi("enqueue", "-m", "spica", "-q", "mine", "--json", "--", "true", cwd=project)
    assert json.loads(done.stdout)["machine"] == "spica"
    listed = json.loads(kochi("show", "jobs", "-m", "spica", "--json", cwd=project).stdout)
    assert [each["queue"] for each in listed] == ["mine"]
    assert not (Path(os.environ["KOCHI_ROOT"]) / "machines").exists()
    done = kochi("enqueue", "-m", "spica", "-q", "mine", "--", "true", cwd=project)
    assert "To start one, type: kochi work -m spica -q mine" in done.stderr
    shown = kochi("show", "job", "-m", "spica", str(FIRST), cwd=project)
    assert "start one with: kochi work -m spica -q mine -b" in shown.stdout
    done = kochi("show", "log", "job", "-m", "spica", "77", cwd=project)
    assert "List them with: kochi show jobs -m spica -t\n" in done.stderr
    # What is printed as it is: a user's own words.
    done = kochi("run", "-m", "spica", "--", "echo", "kochi work -q mine", cwd=project)
    assert done.stdout == "kochi work -q mine\n"
    assert host.logins == 1


def test_a_machine_for_all_projects_is_reached_without_a_project(
    host: SshHost, tmp_path: Path
) -> None:
    root = Path(os.environ["KOCHI_ROOT"])
    root.mkdir(mode=0o700)
    other = "  vega:\n    load_env_script: export TOKEN=kept-secret\n"
    write(root / "conf.yaml", host.machine() + other)
    done = kochi("enqueue", "-m", "spica", "-q", "mine", "--json", "--", "pwd", cwd=tmp_path)
    assert json.loads(done.stdout)["machine"] == "spica"
    listed = kochi("show", "queues", "-m", "spica", "--json", cwd=tmp_path)
    assert [each["queue"] for each in json.loads(listed.stdout)] == ["mine"]
    assert (host.root / "machines" / "spica").is_dir()
    assert not list(host.root.rglob("*.arriving"))
    # Of other machines nothing is in a process list. Processes of other tests may end meanwhile,
    # and their words may be no text.
    show = "cat /proc/[0-9]*/cmdline 2> /dev/null | tr -c 'A-Za-z0-9+/' '[\\n*]'"
    said = kochi("run", "-m", "spica", "--", "sh", "-c", show, cwd=tmp_path).stdout
    # The words of a script are in base64. Paths of others look like that, too.
    found = [base64.b64decode(each) for each in re.findall("(?:[A-Za-z0-9+/]{4}){10,}", said)]
    assert any(b"KOCHI_MACHINE" in text for text in found)
    assert not any(b"kept-secret" in text for text in found)


def test_kochi_root_is_expanded_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: SshHost
) -> None:
    monkeypatch.setenv("PLACE", "/nowhere")
    project = tmp_path / "fib"
    load = 'load_env_script: {on_login_node: "export PLACE=\\"$HOME/a place\\"; echo loaded"}'
    git(tmp_path, "init", "-q", str(project))
    for written, expected in {
        "~/my root/kochi": f"{host.home}/my root/kochi",
        "$PLACE/it's $(id)": f"{host.home}/a place/it's $(id)",
        "${PLACE}/r": f"{host.home}/a place/r",
    }.items():
        machine = host.machine(kochi_root=json.dumps(written))
        write(project / "kochi.yaml", f"{machine}    {load}\n")
        done = kochi("show", "path", "root", "-m", "spica", cwd=project)
        assert done.stdout.strip() == expected
        assert "loaded" in done.stderr
    write(project / "kochi.yaml", host.machine(kochi_root="$NOWHERE/x"))
    for words in (("run", "-m", "spica", "--", "true"), ("show", "jobs", "-m", "spica")):
        done = kochi(*words, cwd=project)
        assert done.returncode == 1
        assert "kochi_root in kochi.yaml has $NOWHERE, which is not set" in done.stderr


def test_outside_of_a_project_a_command_works_in_the_work_dir(
    host: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACE", "/nowhere")
    root = Path(os.environ["KOCHI_ROOT"])
    root.mkdir(mode=0o700)
    load = '    load_env_script: {on_login_node: "export PLACE=\\"$HOME/a place\\""}\n'
    write(root / "conf.yaml", host.machine(work_dir="$PLACE/work") + load)
    words = ("run", "-m", "spica", "--", "pwd")
    done = kochi(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "kochi: machines: spica: work_dir: $PLACE/work is no directory on the login host\n"
    )
    (host.home / "a place" / "work").mkdir(parents=True)
    assert kochi(*words, cwd=tmp_path).stdout == f"{host.home}/a place/work\n"


def test_nothing_is_executed_in_a_kochi_root_that_others_own_or_may_write(
    host: SshHost, project: Path
) -> None:
    python = write(host.root / "remote" / f"python-{identity()}" / "bin" / "python", "#!/bin/sh\n")
    write(python.with_name("kochi"), "#!/bin/sh\ntouch ~/trap\n").chmod(0o755)
    python.chmod(0o755)
    for trap in (host.root, host.root / "remote"):
        os.chown(trap, 4711, 4711)
        for words in (("run", "-m", "spica", "--", "true"), ("show", "jobs", "-m", "spica")):
            done = kochi(*words, cwd=project)
            assert (done.returncode, done.stdout) == (1, "")
            assert "KOCHI_ROOT of machine 'spica' belongs to another user" in done.stderr
        os.chown(trap, os.geteuid(), os.getegid())
        mode = trap.stat().st_mode
        trap.chmod(0o777)
        done = kochi("run", "-m", "spica", "--", "true", cwd=project)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"of machine 'spica' cannot be used: everybody may write to {trap}" in done.stderr
        trap.chmod(mode)
    # Nothing is sent to what would be refused afterwards; the message says where it is set.
    os.chown(host.root, -1, 4711)
    for trap, mode, who in ((host.root, 0o770, "its group"), (host.home, 0o777, "everybody")):
        before = trap.stat().st_mode
        trap.chmod(mode)
        done = kochi("run", "-m", "spica", "--", "true", cwd=project)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"cannot be used: {who} may write to {trap}\n" in done.stderr
        assert done.stderr.endswith(": machines: spica: kochi_root in kochi.yaml\n")
        trap.chmod(before)
    assert [each.name for each in host.root.iterdir()] == ["remote"]
    assert not (host.home / "trap").exists()


def test_an_experiment_may_be_named_by_its_path_here(host: SshHost, project: Path) -> None:
    text = "batches: {all: {params: {n: 1}}}\nrun: {script: 'true'}\n"
    file = write(project / "sub" / "one.yaml", text)
    for words in (("batch", "-n"), ("show", "batch"), ("show", "pipeline")):
        done = kochi(*words, "-m", "spica", str(file), "all", cwd=project)
        assert done.returncode == 0, done.stderr


def test_a_configuration_elsewhere_is_known_to_every_command(
    host: SshHost, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(project, "rm", "--quiet", "--cached", "kochi.yaml")
    (project / "kochi.yaml").rename(tmp_path / "own.yaml")
    monkeypatch.setenv("KOCHI_CONF", str(tmp_path / "own.yaml"))
    for _ in range(2):  # the project is not there, and is
        done = kochi("show", "path", "project", "-m", "spica", cwd=project)
        assert done.stdout.startswith(f"{host.root}/projects/fib-"), done.stderr
    assert kochi("artifact", "init", "../collected", cwd=project).returncode == 0
    done = kochi("artifact", "sync", "-m", "spica", cwd=project)
    assert done.returncode == 0
    assert "There is nothing new in kochi_artifacts_spica" in done.stdout


def test_every_command_acts_by_the_kochi_yaml_of_here(host: SshHost, project: Path) -> None:
    root, written = Path(os.environ["KOCHI_ROOT"]), host.machine()
    sent = host.root / "remote" / "projects"

    def alloc(text: str) -> str:
        write(project / "kochi.yaml", f"{written}    alloc_script: 'echo {text} >&2; exit 3'\n")
        return kochi("alloc", "-m", "spica", "-q", "mine", cwd=project).stderr

    assert "first" in alloc("first")
    write(project / "data.txt", "two\n")
    assert "second" in alloc("second") and "first" not in alloc("third")
    [data] = sent.glob("*/fib/data.txt")
    assert data.read_text() == "two\n"
    # The same kochi.yaml: nothing is sent.
    write(project / "data.txt", "three\n")
    shown = kochi("show", "workers", "-m", "spica", "-q", "mine", cwd=project)
    # Not `kochi work`, which would be on the login node.
    assert shown.stderr.endswith("To start one, type: kochi alloc -m spica -q mine\n")
    assert data.read_text() == "two\n"
    # A new machine, in kochi.yaml and in the file for all projects. What frees something sends
    # nothing.
    login = f"{{login_host: {host.name}}}"
    write(project / "kochi.yaml", f"{written}  vega: {login}\n")
    assert kochi("clean", "-m", "spica", "-n", cwd=project).returncode == 0
    assert data.read_text() == "two\n"
    assert kochi("show", "queues", "-m", "vega", cwd=project).returncode == 0
    root.mkdir(exist_ok=True, mode=0o700)
    write(root / "conf.yaml", f"machines: {{deneb: {login}}}\n")
    assert kochi("show", "queues", "-m", "deneb", cwd=project).returncode == 0


def test_untracked_files_that_may_be_secrets_stay_here_and_large_ones_are_told(
    host: SshHost, project: Path
) -> None:
    for name in (".env", "keys/id_rsa", "sub/my.pem", "tracked.key"):
        write(project / name, "kept-secret\n")
    git(project, "add", "tracked.key")
    with write(project / "a b.bin", "").open("ab") as file:
        file.truncate(50_000_001)
    show = ("show", "installs", "-m", "spica")
    said = kochi(*show, cwd=project).stderr
    [there] = (host.root / "remote" / "projects").glob("*/fib")

    def sent() -> set[str]:
        listed = git(there, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
        return {path for path in listed if (there / path).exists()}

    whole = {"data.txt", "kochi.yaml", "tracked.key"}
    assert sent() == {*whole, "a b.bin"}
    assert (
        "not sent, because the names of these untracked files suggest secrets: .env, keys/id_rsa "
        "and sub/my.pem. To send them, too, add: --with-secrets\n"
    ) in said
    line = re.search(r"a b.bin \(50 MB\) is untracked, and is sent.* type: (.*)\n", said)
    assert line is not None
    subprocess.run(["sh", "-c", line[1]], cwd=project, check=True)
    assert "secret" not in kochi(*show, "--with-secrets", cwd=project).stderr
    whole.add(".gitignore")
    assert sent() == {*whole, ".env", "keys/id_rsa", "sub/my.pem"}
    # Without it, the next command has them there no more.
    kochi(*show, cwd=project)
    assert sent() == whole


def test_results_of_here_are_reproduced_there(host: SshHost, project: Path) -> None:
    write(
        project / "one.yaml",
        """
        batches: {all: {params: {n: 1}, artifacts: [{type: stdout, dest: one.txt}]}}
        run: {script: echo always the same}
        """,
    )
    write(project / ".gitignore", "/results/\n/.snakemake/\n")
    assert kochi("batch", "one.yaml", "all", cwd=project).returncode == 0
    write(project / "data.txt", "since then\n")
    refs = git(project, "for-each-ref")
    done = kochi("reproduce", "-m", "spica", "--sample", "1", cwd=project)
    assert done.returncode == 0
    assert "identical" in done.stdout
    assert git(project, "for-each-ref") == refs
    # Only the output that was made there comes home as a result of that machine.
    assert kochi("artifact", "init", "../collected", cwd=project).returncode == 0
    synced = kochi("artifact", "sync", "-m", "spica", cwd=project)
    assert "Merged 1 commit of kochi_artifacts_spica" in synced.stdout
    files = git(project, "ls-tree", "-r", "--name-only", "kochi_artifacts_spica").splitlines()
    assert [name for name in files if ".kochi" not in name] == [
        next(name for name in files if re.fullmatch(r"spica/reruns/[^/]+/one\.txt", name))
    ]


def test_a_machine_with_another_version_or_none_says_what_to_type(
    host: SshHost, project: Path
) -> None:
    host.program("kochi", 'touch "$HOME/ran-$1"; echo "kochi, version 0.0.9"')
    done = kochi("run", "-m", "spica", "--", "true", cwd=project)
    assert done.returncode == 1
    assert "0.0.9" in done.stderr and "kochi machine setup spica" in done.stderr
    assert not (host.home / "ran-run").exists()
    (host.bin / "kochi").unlink()
    for words in (("run", "-m", "spica", "--", "true"), ("show", "jobs", "-m", "spica")):
        done = kochi(*words, cwd=project)
        assert (done.returncode, done.stdout) == (1, "")
        there = f"does not have this package in its KOCHI_ROOT {host.root} or on PATH\n"
        assert done.stderr.startswith(f"kochi: machine 'spica' {there}")
        assert "kochi machine setup spica" in done.stderr


def test_output_is_pure_whatever_is_printed_around_it(host: SshHost, project: Path) -> None:
    trap = "trap 'echo goodbye' EXIT"
    bash = write(host.home / "every_bash", f"{trap}\n")
    host.banner(f"echo '*** welcome ***'; export BASH_ENV={bash}")
    load = f'    load_env_script: {{on_login_node: "echo loading modules; cat; {trap}"}}\n'
    write(project / "kochi.yaml", f"{host.machine()}{load}")
    done = kochi("enqueue", "-m", "spica", "-q", "q", "--json", "--", "true", cwd=project)
    assert json.loads(done.stdout)["queue"] == "q"
    assert "welcome" not in done.stderr
    listed = kochi("show", "queues", "-m", "spica", "--json", cwd=project)
    assert [each["queue"] for each in json.loads(listed.stdout)] == ["q"]


def test_a_refusing_login_is_one_message(host: SshHost, project: Path) -> None:
    host.stop()
    done = kochi("show", "jobs", "-m", "spica", cwd=project)
    assert done.returncode == 75
    assert done.stderr.startswith("kochi: no connection to spica: no ssh server answers there")
    assert "Traceback" not in done.stderr


def test_a_full_disk_there_is_one_message_and_the_next_call_goes_on(
    host: SshHost, project: Path, tmp_path: Path
) -> None:
    line = ("enqueue", "-m", "spica", "-q", "mine", "--json", "-c", "--", "true")
    with mounted(tmp_path / "disk") as disk:
        write(project / "kochi.yaml", host.machine(kochi_root=str(disk.directory / "root")))
        for text in ("one\n", os.urandom(200_000).hex()):  # the first time, and later
            write(project / "data.txt", text)
            disk.fill()
            done = kochi(*line, cwd=project)
            assert (done.returncode, done.stdout) == (1, "")
            assert "No space left on device" in done.stderr
            assert "Free some space there, and type the same line again." in done.stderr
            assert "Traceback" not in done.stderr
            disk.empty()
            assert json.loads(kochi(*line, cwd=project).stdout)["queue"] == "mine"
        # Nothing is to be sent, and only the command itself finds no space.
        disk.fill()
        done = kochi(*line, cwd=project)
        assert (done.returncode, done.stdout) == (1, "")
        assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
        listed = json.loads(kochi("show", "jobs", "-m", "spica", "--json", cwd=project).stdout)
        assert len(listed) == 2
        disk.empty()
        assert kochi(*line, cwd=project).returncode == 0


# ---- ends


def started(host: SshHost, project: Path, text: str, first: str = "true") -> subprocess.Popen[str]:
    """`kochi run` of a shell script that has begun, and done `first`."""
    script = f"{first}; echo $$ > ~/pid; {text}"
    words = [*KOCHI, "run", "-m", "spica", "--", "bash", "-c", script]
    process = subprocess.Popen(
        words, cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: (host.home / "pid").exists() and (host.home / "pid").read_text())
    return process


def pid_there(host: SshHost) -> int:
    return int((host.home / "pid").read_text())


def test_a_command_ends_there_with_its_end_here(host: SshHost, project: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
        process = started(host, project, "sleep 1000 & wait")
        process.send_signal(number)
        assert process.wait() == -number
        wait_until(lambda: not psutil.pid_exists(pid_there(host)), "it ends there")
        assert process.stdout is not None
        process.stdout.close()
        (host.home / "pid").unlink()
    # Its reader leaves.
    process = started(host, project, "while :; do echo line; sleep 0.1; done")
    assert process.stdout is not None
    process.stdout.close()
    process.wait()
    wait_until(lambda: not psutil.pid_exists(pid_there(host)), "it ends there")
    (host.home / "pid").unlink()
    # Ctrl-C reaches it.
    trap = 'trap "echo cleaned; exit 5" INT'
    process = started(host, project, "while :; do sleep 0.1; done", trap)
    process.send_signal(signal.SIGINT)
    assert process.communicate()[0] == "cleaned\n"
    assert process.returncode == 5


def test_the_users_terminal_is_that_of_the_command(host: SshHost, project: Path) -> None:
    script = (
        "import os, signal, sys, time\n"
        # Not print: the signal may come while another one writes.
        'say = lambda *_: os.write(1, b"now %d %d\\n" % os.get_terminal_size())\n'
        "signal.signal(signal.SIGWINCH, say)\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(9))\n"
        'print("is", *os.get_terminal_size(), input("asks: "), flush=True)\n'
        "while True: time.sleep(0.1)"
    )
    words = ["run", "-m", "spica", "--", sys.executable, "-c", script]
    child = pexpect.spawn(
        *(KOCHI[0], [*KOCHI[1:], *words]),
        cwd=str(project),
        dimensions=(30, 70),
        timeout=60,
        encoding="utf-8",
    )
    child.expect("asks: ")
    child.sendline("é")
    child.expect("is 70 30 é")
    child.setwinsize(40, 90)
    child.expect("now 90 40")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 9


def test_a_terminal_whose_ssh_is_killed_is_restored(host: SshHost, project: Path) -> None:
    line = r"printf '\033[?1049hfull screen'; sleep 1000"
    someone = Person("run", "-m", "spica", "--", "bash", "-c", line, cwd=str(project))
    someone.sees("full screen")
    wait_until(someone.is_in_raw_mode)
    for process in psutil.Process(someone.child.pid).children():
        if process.name() == "ssh":
            process.kill()
    assert "\x1b[?1049l" in someone.sees("the connection to spica was lost")
    assert not someone.is_in_raw_mode()
    assert someone.leaves()[0] == 75


def test_a_terminal_that_is_closed_ends_the_command_there(host: SshHost, project: Path) -> None:
    words = ["run", "-m", "spica", "--", "bash", "-c", "echo $$ > ~/pid; sleep 1000"]
    child = pexpect.spawn(KOCHI[0], [*KOCHI[1:], *words], cwd=str(project))
    wait_until(lambda: (host.home / "pid").exists() and (host.home / "pid").read_text())
    child.close()
    wait_until(lambda: not psutil.pid_exists(pid_there(host)), "it ends there")
