"""`kochi inspect`: on this computer, and on another node through a worker's ssh server."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pexpect
import psutil
import pytest
from hosts import Host, Started
from seen import FIRST, find_job, list_workers
from support import git, interruptible, run_apart, until_size, wait_until, write

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.terminal.login import packed, quoted

JOB = WORKER = str(FIRST)  # the first ones
COMMAND = [sys.executable, "-P", "-m", "snakemake_kochi.cli"]
# A user who needs no entry in /etc/passwd.
STRANGER = 54321


class Node:
    """A worker for queue q on a node of its own, and what a person types on this one."""

    def __init__(self, host: Host, directory: Path) -> None:
        self.host = host
        self.directory = directory
        self.machine: MachinePaths = Root.find().machine("local")
        self.work = host.start(*COMMAND, "work", "-q", "q", "-b", cwd=directory)
        wait_until(lambda: list_workers(self.machine), "the worker")

    def type(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = run_apart(*COMMAND, *words, given=stdin, cwd=self.directory)
        print(f"$ kochi {shlex.join(words)}\n{done.stdout}{done.stderr}[{done.returncode}]")
        return done

    def submit(self, script: str) -> int:
        said = self.type("enqueue", "-q", "q", "--shared", "--", "bash", "-c", script).stdout
        return int(said.split()[1])

    def begin(self, script: str) -> int:
        job = self.submit(script)
        # It counts as running from its claim on, before it has a process.
        wait_until(lambda: find_job(self.machine, job).started is not None, "the job runs")
        return job

    def open(self, *words: str) -> pexpect.spawn[str]:
        """A command of kochi in a terminal."""
        return self.terminal(*COMMAND, *words)

    def terminal(self, program: str, *words: str) -> pexpect.spawn[str]:
        environment = {**os.environ, "TERM": "xterm", "PS1": "$ "}
        return pexpect.spawn(
            *(program, list(words)),
            encoding="utf-8",
            timeout=60,
            dimensions=(33, 99),
            env=environment,
            cwd=str(self.directory),
        )

    @property
    def login(self) -> Path:
        return Path(self.machine.directory, "workers", WORKER, "login")


@pytest.fixture(autouse=True)
def separation() -> None:
    """For an sshd of root, which Debian's service makes when it starts."""
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)


@pytest.fixture
def there(tmp_path: Path, own_surroundings: Path) -> Iterator[Node]:
    """A node to which only ssh leads."""
    with Host("node7", tmp_path) as host:
        yield Node(host, own_surroundings)


class OrdinaryUser:
    """An account with a home, on hosts that are entered by `start`: there sshd and ssh do not have
    the rights of root."""

    NAME, NUMBER = "ada", 54322

    def __init__(self) -> None:
        # Not below pytest's directories, which only root may enter.
        self.directory = Path(tempfile.mkdtemp(prefix="kochi-user-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.home = self.directory / "home"
        self.home.mkdir(mode=0o700)
        os.chown(self.home, self.NUMBER, self.NUMBER)
        line = f"{self.NAME}:x:{self.NUMBER}:{self.NUMBER}::{self.home}:/bin/bash\n"
        (self.directory / "passwd").write_text(line + Path("/etc/passwd").read_text())
        # The interpreter may be in the home of root.
        self.hidden = self.directory / "root"
        self.hidden.mkdir()
        self.environment = {
            "HOME": str(self.home),
            "KOCHI_ROOT": str(self.home / "kochi"),
            "KOCHI_NODE_LOCK": str(self.home),
        }

    def mounts(self) -> Iterator[str]:
        yield f"mount --bind {self.directory}/passwd /etc/passwd"
        home = Path("/root")
        interpreter = Path(sys.executable).resolve()
        if interpreter.is_relative_to(home):
            top = home / interpreter.relative_to(home).parts[0]
            (self.hidden / top.name).mkdir(exist_ok=True)
            yield f"mount --bind {top} {self.hidden / top.name}"
            yield f"mount --rbind {self.hidden} {home}"

    def start(self, host: Host, *command: str) -> Started:
        script = "; ".join(["set -e", *self.mounts(), 'exec "$@"'])
        as_user = ("setpriv", f"--reuid={self.NUMBER}", f"--regid={self.NUMBER}", "--clear-groups")
        words = ("unshare", "--mount", "bash", "-c", script, "-", *as_user, *command)
        return host.start(*words, cwd=self.directory, environment=self.environment)


class Here:
    """No host of its own."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, cwd: Path) -> None:
        self.started.append(subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL))


@pytest.fixture
def here(own_surroundings: Path) -> Iterator[Node]:
    host = Here()
    yield Node(host, own_surroundings)  # type: ignore[arg-type]
    for each in host.started:
        each.terminate()
        each.wait()


# What it exports is seen of its last program, which then has the rest, too.
SCRIPT = "taskset -cp 0 $$; cd /usr; export FOUND=it; sleep 300; true"
SHOW = 'echo "$FOUND $KOCHI_JOB_ID"; pwd; taskset -cp $$; exit 7'


def test_a_command_beside_a_job_has_its_environment_directory_and_cpus(here: Node) -> None:
    job = here.begin(SCRIPT)
    # The job is the script until its program runs.
    words = ("inspect", "job", str(job), "--", "printenv", "FOUND")
    wait_until(lambda: here.type(*words).stdout == "it\n")
    done = here.type("inspect", "job", str(job), "--", "bash", "-c", SHOW)
    assert done.returncode == 7
    *said, cpus = done.stdout.splitlines()
    assert said == [f"it {job}", "/usr"]
    assert cpus.endswith("list: 0")
    assert done.stderr == ""
    # As a pipe, for a shell.
    assert here.type("inspect", "job", str(job), stdin="echo $FOUND; exit 3").returncode == 3
    # A worker stands for its jobs' common environment.
    said = here.type("inspect", WORKER, "--", "env").stdout.splitlines()
    assert {f"KOCHI_WORKER_ID={WORKER}", "KOCHI_MACHINE=local"} <= {*said}
    # On this node, nothing else is needed.
    assert not here.login.exists()


EXPERIMENT = """
    depends: [{name: tool, recipe: plain}]
    default_params: {n: 5}
    build: {script: touch built}
    run: {depend_params: [n], script: "export IN_SCRIPT=1; touch begun; sleep 300; true"}
"""
RECIPE = """
    dependencies:
      tool: {script: "true", activate_script: export ACTIVE=yes, recipes: [{name: plain}]}
"""


def test_beside_an_experiment_are_its_workspace_parameters_and_recipes(here: Node) -> None:
    git(here.directory, "init", "--quiet")
    write(here.directory / "kochi.yaml", RECIPE)
    write(here.directory / "sum.yaml", EXPERIMENT)
    git(here.directory, "add", "kochi.yaml", "sum.yaml")
    git(here.directory, "commit", "--quiet", "--message", "first")
    assert here.type("install", "-d", "tool:plain").returncode == 0
    assert here.type("enqueue", "-q", "q", "sum.yaml", "n=7").returncode == 0
    words = ("inspect", "job", JOB, "--", "bash", "-c")
    show = "ls; echo $KOCHI_PARAM_N $ACTIVE $IN_SCRIPT"
    files = "begun\nbuilt\nkochi.yaml\nsum.yaml\n"
    wait_until(lambda: here.type(*words, show).stdout == f"{files}7 yes 1\n")


def test_a_login_is_in_the_cgroup_of_its_job_where_that_is_permitted(here: Node) -> None:
    top = Path("/sys/fs/cgroup")
    hierarchy = top if (top / "cgroup.controllers").exists() else top / "pids"
    group = hierarchy / f"kochi-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        job = here.begin(f"echo $$ > {group}/cgroup.procs; sleep 300; true")
        wait_until(lambda: (group / "cgroup.procs").read_text())
        words = ("inspect", "job", str(job), "--", "cat", "/proc/self/cgroup")
        wait_until(lambda: f":/{group.name}\n" in here.type(*words).stdout)
        # And in no other one's.
        assert f":/{group.name}\n" not in here.type(*words[:1], WORKER, *words[3:]).stdout
        here.type("cancel", str(job))
        wait_until(lambda: not (group / "cgroup.procs").read_text())
    finally:
        group.rmdir()


def test_what_an_isolated_program_has_is_found(here: Node) -> None:
    inner = "export DEEP=found; sleep 300; true"
    job = here.begin(f"bwrap --dev-bind / / --unshare-pid bash -c '{inner}'; true")
    words = ("inspect", "job", str(job), "--", "printenv", "DEEP")
    wait_until(lambda: here.type(*words).stdout == "found\n")


# What only an isolated program sees, and the exit status.
SEE = "cat /opt/mark; cat <(echo $$); tail -n +3 /proc/net/dev | wc -l; kill -0 1; exit 5"


def isolated(mark: str, shell: str = "/bin/bash", program: str = "sleep 300") -> str:
    """A script whose program has its own files, processes and network."""
    apart = "--tmpfs /opt --unshare-pid --as-pid-1 --unshare-net --proc /proc"
    script = f"echo {mark} > /opt/mark; export SHELL={shell}; {program}; true"
    return f"bwrap --dev-bind / / {apart} bash -c '{script}'; true"


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/dash"])
def test_a_login_is_in_the_isolation_of_its_job(here: Node, shell: str) -> None:
    job = here.begin(isolated("inside", shell))
    words = ("inspect", "job", str(job))
    see = (*words, "--", "bash", "-c", SEE)
    wait_until(lambda: here.type(*see).stdout.startswith("inside\n"), "the program has begun")
    done = here.type(*see)
    assert done.returncode == 5
    mark, number, interfaces = done.stdout.splitlines()
    assert mark == "inside" and int(number) < 100 and interfaces == "1"
    # Keys are for the program, and not for what waits for it.
    login = here.open(*words)
    login.sendline("cat /opt/mark; trap 'echo hand''led' INT; echo rea''dy")
    login.expect("inside\r\n")
    login.expect("ready\r\n")
    login.sendline(interruptible("waiting"))
    login.expect("waiting\r\n")
    login.sendintr()
    login.expect("interrupted\r\n")
    login.sendline("exit 6")
    login.expect(pexpect.EOF)
    login.close()
    assert login.exitstatus == 6


# Whoever looks at a process finds that it ends just then: so many times when it was chosen, and
# again before it is joined.
ENDING = """
import sys, time
import psutil
from snakemake_kochi.terminal import beside

def end(process):
    found = psutil.Process(process.pid)
    if found.name() == "sleep":
        shell = found.parent()
        found.kill()
        while not [each for each in shell.children() if each != found and each.name() == "sleep"]:
            time.sleep(0.01)

def choose(*given):
    chosen.append(original(*given))
    if len(chosen) <= int(sys.argv[1]):
        end(chosen[-1])
    return chosen[-1]

def enter(found):
    end(chosen[-1])
    original_enter(found)

chosen, original, original_enter = [], beside.choose_process, beside._enter
beside.choose_process, beside._enter = choose, enter
sys.exit(beside.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("times", "found"), [(2, "it"), (1000, "")])
def test_a_program_that_ends_while_it_is_looked_at_is_followed_by_the_next(
    here: Node, times: int, found: str
) -> None:
    job = here.begin(isolated("inside", program="export FOUND=it; while :; do sleep 300; done"))
    words = ("inspect", "job", str(job), "--", "printenv", "FOUND")
    wait_until(lambda: here.type(*words).stdout == "it\n", "the program has begun")
    given = [str(Root.find().directory), "local", "job", str(job), "--"]
    show = ["bash", "-c", "cat /opt/mark; echo $KOCHI_JOB_ID $FOUND"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", ENDING, str(times), *given, *show],
        capture_output=True,
        text=True,
    )
    # In the end the script stands for its programs, without what it has exported for them.
    assert (done.stdout, done.stderr) == (f"inside\n{job} {found}".rstrip() + "\n", "")


def test_a_program_in_an_isolation_is_stopped_and_goes_on(here: Node) -> None:
    job = here.begin(isolated("inside"))
    words = shlex.join([*COMMAND, "inspect", "job", str(job), "--"])
    wait_until(lambda: here.type("inspect", "job", str(job), "--", "test", "-e", "/opt/mark"))
    shell = here.terminal("bash", "--norc")
    shell.sendline(f'{words} python3 -c \'print("rea" "dy"); print(input()[::-1])\'; true')
    shell.expect("ready\r\n")
    shell.send("\x1a")
    shell.expect("Stopped")
    shell.sendline("echo out''side; fg")
    shell.expect("outside\r\n")
    shell.sendline("abc")
    shell.expect("cba\r\n")
    shell.sendline("exit 4")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 4


def test_an_ordinary_user_is_in_the_isolation_of_a_job(tmp_path: Path) -> None:
    user = OrdinaryUser()
    try:
        with Host("node9", tmp_path) as node:
            work = user.start(node, *COMMAND, "work", "-q", "q", "-b")
            work.wait_for(f"Kochi worker {FIRST} started")
            script = isolated("of ada")
            user.start(node, *COMMAND, "enqueue", "-q", "q", "--", "bash", "-c", script).wait()

            def seen() -> str:
                words = ("inspect", "job", JOB, "--", "bash", "-c", "id -u; cat /opt/mark")
                typed = user.start(node, *COMMAND, *words)
                typed.wait()
                return typed.said

            wait_until(lambda: seen() == f"{user.NUMBER}\nof ada\n", "the program has begun")
    finally:
        shutil.rmtree(user.directory)


def test_a_login_is_no_part_of_the_job(here: Node) -> None:
    job = here.begin("sleep 300")
    login = here.open("inspect", "job", str(job))
    login.sendline("echo pid=$$ [$KOCHI_ATTEMPT_NONCE]")
    login.expect(r"pid=(\d+) \[\]")
    pid = int(login.match[1])
    assert here.type("cancel", str(job)).returncode == 0
    wait_until(lambda: find_job(here.machine, job).state == "ended")
    assert psutil.pid_exists(pid)
    login.sendline("exit 5")
    login.expect(pexpect.EOF)
    login.close()
    assert login.exitstatus == 5


def test_wrong_numbers_and_ended_jobs_are_told_in_one_message(here: Node) -> None:
    job = here.submit("true")
    wait_until(lambda: find_job(here.machine, job).state == "ended")
    here.begin("sleep 300")
    waiting = here.type("enqueue", "-q", "other", "--", "true")
    assert waiting.returncode == 0

    def said(*words: str, status: int = 1) -> str:
        done = here.type("inspect", *words)
        assert (done.returncode, done.stdout) == (status, "")
        assert "Traceback" not in done.stderr
        return done.stderr

    assert said("job", JOB) == (
        f"kochi: job {FIRST} has ended: nothing of it is on a node any more\n"
        f"To see how, type: kochi show job {FIRST}; kochi show log job {FIRST}\n"
    )
    third = FIRST + 2
    assert said("job", str(third)) == (
        f"kochi: job {third} waits: it is on no node yet\n"
        f"To see why it waits, type: kochi show job {third}\n"
    )
    assert "there is no job 99 on machine local; " in said("job", "99")
    assert f"there is no worker 99 on machine local; known: {FIRST}\n" in said("99")
    assert f"If it is the number of a job, type: kochi inspect job {third}\n" in said(str(third))
    assert "'x' is not the number of a job" in said("job", "x", status=2)
    assert "the number of the worker was expected" in said("worker", status=2)
    missing = said(WORKER, "--", "no-such", status=127)
    assert missing == "kochi: there is no program no-such there\n"
    here.type("release", WORKER, "--now")
    wait_until(lambda: list_workers(here.machine)[0].is_gone)
    assert said(WORKER) == (
        f"kochi: worker {FIRST} has left: nothing of it is on {socket.gethostname()} any more\n"
        "To list the workers that are there, type: kochi show workers\n"
    )


# ---- by ssh


def test_a_login_by_ssh_is_beside_the_job(there: Node) -> None:
    job = there.begin(SCRIPT)
    assert not there.login.exists()  # never unless a person asks
    words = ("inspect", "job", str(job))
    wait_until(lambda: there.type(*words, "--", "printenv", "FOUND").stdout == "it\n")
    done = there.type(*words, "--", "bash", "-c", f"hostname; {SHOW}")
    assert done.returncode == 7
    *said, cpus = done.stdout.splitlines()
    assert said == ["node7", f"it {job}", "/usr"]
    assert cpus.endswith("list: 0")
    # As a pipe, unchanged.
    data = "".join(chr(each) for each in range(1, 128) if each != 13) * 1000
    assert there.type(*words, "--", "cat", stdin=data).stdout == data
    # A word stays a word.
    odd = "a  b\n'c' \"$d\" `e` \\ %f"
    assert there.type(*words, "--", "printf", "%s", odd).stdout == odd


def test_a_terminal_by_ssh_is_a_real_one(there: Node) -> None:
    job = there.begin("sleep 300")
    login = there.open("inspect", "job", str(job))
    login.expect(f"kochi: beside job {FIRST} on node7, CPUs ")
    login.sendline("stty size; echo $TERM")
    login.expect("33 99\r\nxterm\r\n")
    login.setwinsize(44, 111)
    login.sendline(until_size(44, 111))
    login.expect("sized\r\n")
    # Ctrl-C is for the program there.
    login.sendline(interruptible("begun") + "; echo status $?")
    login.expect("begun\r\n")
    login.sendintr()
    login.expect("interrupted\r\nstatus 3\r\n")
    login.sendline("echo still $((1+1)) here; exit 6")
    login.expect("still 2 here")
    login.expect(pexpect.EOF)
    login.close()
    assert login.exitstatus == 6


def test_jobs_end_while_somebody_is_logged_in_and_start_as_well(there: Node) -> None:
    job = there.begin("while [ ! -e go ]; do sleep 0.1; done")
    login = there.open("inspect", "job", str(job))
    # It leaves a process in another session.
    login.sendline("setsid sleep 1000 & echo begun $((3+4))")
    login.expect("begun 7")
    (there.directory / "go").touch()
    wait_until(lambda: find_job(there.machine, job).state == "ended")
    result = find_job(there.machine, job).result
    assert result is not None and result.reason == "success"
    second = there.submit("true")
    wait_until(lambda: find_job(there.machine, second).state == "ended")
    login.sendline("echo still $((4+4)) here")
    login.expect("still 8 here")

    # All ends with the worker.
    there.type("release", WORKER)
    login.expect(pexpect.EOF)
    assert there.work.wait() == 0
    wait_until(lambda: commands_on(there) == ["sleep", "bash"], "all is gone")
    assert not (there.login / "answer.json").exists()


def test_a_worker_that_leaves_tells_nobody_of_its_server_any_more(there: Node) -> None:
    assert there.type("inspect", WORKER, "--", "true").returncode == 0
    (server,) = servers_on(there)
    server.suspend()  # so that it cannot do so itself
    there.type("release", WORKER)
    assert there.work.wait() == 0
    assert not (there.login / "answer.json").exists()


@pytest.mark.parametrize("who", ["the worker", "all"])
def test_logins_end_when_the_worker_is_killed(there: Node, who: str) -> None:
    there.begin("sleep 300")
    login = there.open("inspect", WORKER)
    login.sendline("setsid sleep 1000 & echo begun $((3+4))")
    login.expect("begun 7")
    worker = process_of_worker(there)
    supervisor = worker.parent()
    assert supervisor is not None
    if who == "all":
        supervisor.kill()  # which is what ends the worker, too
    with contextlib.suppress(psutil.NoSuchProcess):
        worker.kill()
    login.expect(pexpect.EOF)
    wait_until(lambda: commands_on(there) == ["sleep", "bash"], "all is gone")


def processes_on(node: Node) -> list[psutil.Process]:
    own = os.readlink(f"/proc/{node.host._first.pid}/ns/pid")
    found = []
    for each in psutil.process_iter(["name", "status", "cmdline"]):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{each.pid}/ns/pid") == own and each.info["status"] != "zombie":
                found.append(each)
    return found


def process_of_worker(node: Node) -> psutil.Process:
    """The child of its supervisor."""
    words = "snakemake_kochi.worker"
    (worker,) = [each for each in processes_on(node) if words in (each.info["cmdline"] or ())]
    return worker


def commands_on(node: Node) -> list[str]:
    """The names of the processes on a node."""
    return sorted((each.info["name"] for each in processes_on(node)), reverse=True)


def servers_on(node: Node) -> list[psutil.Process]:
    """The ssh servers of workers."""
    module = "snakemake_kochi.terminal.login_server"
    return [each for each in processes_on(node) if module in (each.info["cmdline"] or ())]


def test_a_second_login_uses_the_same_server_and_a_dead_one_is_replaced(there: Node) -> None:
    there.begin("sleep 300")
    assert there.type("inspect", WORKER, "--", "true").returncode == 0
    first = (there.login / "answer.json").read_text()
    assert there.type("inspect", WORKER, "--", "true").returncode == 0
    assert (there.login / "answer.json").read_text() == first
    for each in servers_on(there):
        each.kill()
    assert there.type("inspect", WORKER, "--", "true").returncode == 0
    assert (there.login / "answer.json").read_text() != first


def test_a_server_whose_connections_somebody_holds_says_so_and_serves_again(there: Node) -> None:
    assert there.type("inspect", WORKER, "--", "true").returncode == 0
    port = json.loads((there.login / "answer.json").read_text())["port"]
    with contextlib.ExitStack() as held:
        wait_until(lambda: not is_greeted(port, held), "all connections are taken")
        refused = there.type("inspect", WORKER, "--", "true")
        assert refused.returncode == 1
        assert "has as many connections as it serves at a time" in refused.stderr
        assert "kochi interact -q q" in refused.stderr
    wait_until(lambda: there.type("inspect", WORKER, "--", "true").returncode == 0, "a free place")


def is_greeted(port: int, held: contextlib.ExitStack) -> bool:
    """Whether an ssh server greets one more connection, which is held then."""
    connection = held.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    return connection.recv(1) != b""


def test_a_server_is_asked_for_again_if_the_last_one_ended_just_then(there: Node) -> None:
    worker = process_of_worker(there)
    worker.suspend()
    login = there.open("inspect", WORKER, "--", "hostname")
    wait_until(lambda: (there.login / "asked").exists(), "a server is asked for")
    (there.login / "asked").unlink()
    worker.resume()
    login.expect("node7\r\n")
    login.expect(pexpect.EOF)


def test_a_node_without_sshd_says_so(there: Node) -> None:
    for program in ("/usr/sbin/sshd", "/usr/bin/sshd", "/sbin/sshd", "/usr/local/sbin/sshd"):
        if Path(program).exists():
            hidden = ("mount", "--bind", "/dev/null", program)
            assert there.host.start(*hidden, cwd=there.directory).wait() == 0
    done = there.type("inspect", WORKER, "--", "true")
    assert done.returncode == 1
    assert done.stderr == (
        f"kochi: no ssh server can be started for worker {FIRST} on node7: there is no program "
        "sshd on that node\nIts administrators can install OpenSSH's server there. For a shell on "
        "the node as a job of the worker, type: kochi interact -q QUEUE\n"
    )
    # The jobs go on.
    job = there.submit("true")
    wait_until(lambda: find_job(there.machine, job).state == "ended")


def test_an_ordinary_user_logs_in(tmp_path: Path) -> None:
    user = OrdinaryUser()
    try:
        with Host("login1", tmp_path) as login, Host("node9", tmp_path) as node:
            work = user.start(node, *COMMAND, "work", "-q", "q", "-b")
            work.wait_for(f"Kochi worker {FIRST} started")
            words = ("sh", "-c", "id -un; hostname; exit 5")
            typed = user.start(login, *COMMAND, "inspect", WORKER, "--", *words)
            assert typed.wait() == 5
            assert typed.said == "ada\nnode9\n"
    finally:
        shutil.rmtree(user.directory)


# ---- others


def ssh(
    node: Node, key: Path, *options: str, user: str = "", word: str = ""
) -> subprocess.CompletedProcess[str]:
    """Somebody tries to log in."""
    answer = json.loads((node.login / "answer.json").read_text())
    command = [
        *("ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"),
        *("-o", "UserKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes"),
        *("-o", f"IdentityFile={quoted(key)}", "-p", str(answer["port"]), *options),
        *("-l", user or answer["user"], "127.0.0.1", word or packed(["id", "-u"])),
    ]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def test_only_the_worker_s_user_can_log_in_or_read_the_keys(there: Node, tmp_path: Path) -> None:
    there.begin("sleep 300")
    assert there.type("inspect", WORKER, "--", "true").returncode == 0
    own = ssh(there, there.login / "user_key")
    assert own.stdout == f"{os.getuid()}\n"

    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    refused = ssh(there, other)
    assert (refused.returncode, refused.stdout) == (255, "")
    assert "Permission denied (publickey)." in refused.stderr
    refused = ssh(there, other, "-o", "PreferredAuthentications=password,keyboard-interactive")
    assert "Permission denied (publickey)." in refused.stderr
    # Another account, with the right key.
    refused = ssh(there, there.login / "user_key", user="daemon")
    assert "Permission denied (publickey)." in refused.stderr
    # Nothing but what kochi sends, and no forwarding.
    shell = ssh(there, there.login / "user_key", word="id")
    assert shell.returncode == 126
    assert shell.stderr.endswith("kochi: this server only executes what kochi sends\n")
    forward = ssh(there, there.login / "user_key", "-W", "127.0.0.1:22")
    assert "administratively prohibited" in forward.stderr

    modes = {path.name: path.stat().st_mode & 0o777 for path in there.login.iterdir()}
    private = {"user_key", "host_key", "sshd_config", "answer.json", "known_hosts"}
    assert {modes[name] for name in private} == {0o600}
    assert there.login.stat().st_mode & 0o777 == 0o700
    as_stranger = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    for name in private:
        done = subprocess.run([*as_stranger, "cat", there.login / name], capture_output=True)
        assert done.returncode != 0 and not done.stdout
    # The keys are in no process list.
    words = " ".join(
        " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])
    )
    assert "PRIVATE KEY" not in words


def test_another_host_key_is_refused(there: Node) -> None:
    there.begin("sleep 300")
    assert there.type("inspect", WORKER, "--", "true").returncode == 0
    known = there.login / "known_hosts"
    other = there.directory / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    known.write_text(f"kochi-worker-{WORKER} {other.with_suffix('.pub').read_text()}")
    done = there.type("inspect", WORKER, "--", "echo", "reached")
    assert (done.returncode, done.stdout) == (255, "")
    assert "Host key verification failed" in done.stderr


def test_a_root_with_blanks_and_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "a root 100% & more"
    monkeypatch.setenv("KOCHI_ROOT", str(root))
    with Host("node8", tmp_path) as host:
        node = Node(host, tmp_path)
        done = node.type("inspect", WORKER, "--", "hostname")
        assert (done.returncode, done.stdout) == (0, "node8\n")


def test_what_start_up_files_print_is_not_in_a_pipe(there: Node) -> None:
    home = there.directory / "with-banner"
    home.mkdir()
    (home / ".bashrc").write_text("echo welcome\n")
    own = pwd.getpwuid(os.getuid())
    passwd = there.directory / "passwd"
    line = f"{own.pw_name}:x:{own.pw_uid}:{own.pw_gid}::{home}:/bin/bash\n"
    passwd.write_text(line + Path("/etc/passwd").read_text())
    bind = ("mount", "--bind", str(passwd), "/etc/passwd")
    assert there.host.start(*bind, cwd=there.directory).wait() == 0
    assert there.type("inspect", WORKER, "--", "echo", "it").stdout == "it\n"
