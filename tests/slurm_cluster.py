"""A real Slurm of one's own on this computer: several nodes, for as long as they are needed."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from snakemake_kochi.terminal.loopback import free_port

_PATIENCE = 60.0
_STOPPING = 10.0
_PAUSE, _LONGEST_PAUSE = 0.05, 0.25  # between two questions: each is a process
_MEMORY_MB = 4096  # of each node; Slurm counts it and enforces nothing
CLIENTS = (
    *("sacct", "sacctmgr", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"),
)

_SETTINGS = """
ClusterName=own
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
# No port is open to others.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdPidFile={directory}/%n.pid
SlurmdLogFile={directory}/%n.log
SlurmdSpoolDir={directory}/spool/%n
# Neither cgroups nor as many processors as the nodes claim to have are needed.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=256
MpiDefault=none
MailProg=/bin/true
PropagateResourceLimits=NONE
ReturnToService=2
KillWait=5
TaskProlog={directory}/task-prolog
# A batch job begins within a second, instead of three.
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
"""
# Each node is a computer of its own, with a lock of its own.
_TASK_PROLOG = """\
#!/bin/sh
lock={directory}/locks/$SLURMD_NODENAME
mkdir -p "$lock"
echo "export KOCHI_NODE_LOCK=$lock"
"""
# As most clusters have it: for measurements.
USUAL_PACE = "SchedulerParameters=batch_sched_delay=3"

# Added while there is no slurmctld: else each command tries to reach it for ten seconds.
_WITHOUT_CONTROLLER = "MessageTimeout=2\n"

PARTITION = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE"
# Modules that share all settings need no restart between them: those that need hosts share APART.
PARTITIONS = (
    PARTITION,
    "PartitionName=short Nodes=ALL MaxTime=2",
    "PartitionName=long Nodes=LAST MaxTime=INFINITE",
    "PartitionName=single Nodes=node1 MaxTime=INFINITE",
)
APART = {"apart": True, "settings": ("TaskPlugin=task/affinity",)}


@dataclass(frozen=True)
class _Shape:
    nodes: int
    cpus: int
    apart: bool
    settings: tuple[str, ...]
    partitions: tuple[str, ...]
    of_nodes: tuple[str, ...]


class SlurmCluster:
    """Daemons that are started and ended together; they read no configuration but their own.

        with SlurmCluster(nodes=2, cpus=4) as cluster:
            cluster.run("sbatch", "--wrap", "hostname")

    Everything is below a directory of its own, which is deleted afterwards, unless one is given.
    `settings` are further lines of slurm.conf, of which the last of a name counts; `partitions` are
    its lines about partitions, `of_nodes` is what else each of its lines about nodes has. There is
    no accounting: `sacct` answers that it is disabled, other than with
    `slurm_accounting.AccountedCluster`. Needs munged, slurmctld, slurmd and the clients: Debian's
    slurm-wlm and munge.

    `apart`: each node is a host of its own for all that can be seen, with a name, process numbers
    and mounts of its own, so that nobody sees the processes of another node. For that one has to be
    root.
    """

    def __init__(
        self,
        nodes: int = 2,
        cpus: int = 2,
        *,
        directory: Path | None = None,
        apart: bool = False,
        settings: Sequence[str] = (),
        partitions: Sequence[str] = PARTITIONS,
        of_nodes: Sequence[str] = (),
    ) -> None:
        self._shape = _Shape(
            nodes, cpus, apart, tuple(settings), tuple(partitions), tuple(of_nodes)
        )
        self._given = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts: dict[str, psutil.Process] = {}  # the first process of each

    def __enter__(self) -> SlurmCluster:
        # Not below a test's directory: the path of a socket has 107 bytes at most.
        self.directory = self._given or Path(tempfile.mkdtemp(prefix="slurm-"))
        try:
            self._configure()
            self._start_munge()
            self._start_daemons()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    # ---- what its users call

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self._shape.nodes + 1))

    def reset(
        self,
        nodes: int = 2,
        cpus: int = 2,
        *,
        apart: bool = False,
        settings: Sequence[str] = (),
        partitions: Sequence[str] = PARTITIONS,
        of_nodes: Sequence[str] = (),
    ) -> None:
        """Have it as after the start of one with these arguments: without jobs, all nodes idle, no
        calls noted. Only another one than before begins anew. Raises TimeoutError."""
        given = (tuple(settings), tuple(partitions), tuple(of_nodes))
        shape = _Shape(nodes, cpus, apart, *given)
        if shape != self._shape or not self._is_whole():
            self._end_daemons()
            for state in ("state", "spool"):
                shutil.rmtree(self.directory / state)
            self._shape = shape
            self._configure()
            self._start_daemons()
        for calls in self.directory.glob("calls-*"):
            calls.unlink()

    def _is_whole(self) -> bool:
        """Whether all daemons are there, and all nodes idle when the jobs have ended."""
        if any(process.poll() is not None for process in self._processes.values()):
            return False
        if not {"slurmctld", *self.nodes} <= self._processes.keys():
            return False
        try:
            self.cancel_jobs(_STOPPING)
        except (subprocess.SubprocessError, TimeoutError):
            return False
        return all(self._answers("idle", node) for node in self.nodes)

    @property
    def configuration(self) -> Path:
        """slurm.conf."""
        return self.directory / "slurm.conf"

    @property
    def environment(self) -> Mapping[str, str]:
        """What a command needs in its environment to talk to this cluster. It may lose SLURM_CONF:
        on an ordinary cluster, where the configuration is in its usual place, that does not
        matter, and here it is set again by the clients that come first on PATH."""
        path = f"{self.directory}/bin:{os.environ.get('PATH', os.defpath)}"
        return {"SLURM_CONF": str(self.configuration), "PATH": path}

    def run(
        self,
        *command: str,
        timeout: float = _PATIENCE,
        cwd: Path | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> str:
        """Run one of Slurm's commands; returns its standard output, without blanks around it.

        Raises subprocess.CalledProcessError, with what it said as a note.
        """
        try:
            done = subprocess.run(
                command,
                cwd=cwd or self.directory,
                env={**environment, **self.environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise
        return done.stdout.strip()

    def calls(self, client: str) -> list[str]:
        """The arguments of each call of one of Slurm's commands so far."""
        path = self._calls(client)
        return path.read_text().splitlines() if path.exists() else []

    def _calls(self, client: str) -> Path:
        return self.directory / f"calls-{client}"

    def jobs(self) -> dict[int, str]:
        """The state of each job that has not ended, by its number."""
        lines = self.run("squeue", "--noheader", "--format=%A %T").splitlines()
        return {int(number): state for number, state in map(str.split, lines)}

    def states(self, of: str = "pending,running") -> dict[str, str]:
        """The state of each job in one of some states, or in any, by the name of its allocation."""
        said = self.run("squeue", "--noheader", "--array", f"--states={of}", "--format=%i %T")
        return dict(line.split() for line in said.splitlines())

    def cancel_jobs(self, seconds: float = _PATIENCE) -> None:
        """Cancel all jobs and wait for their ends. Raises TimeoutError."""
        self.run("scancel", f"--user={getpass.getuser()}", timeout=seconds)
        self._wait(lambda: not self.jobs(), "all jobs end", seconds)

    def state_of(self, node: str) -> str:
        """As sinfo says it: idle, allocated, mixed, down, ..., `*` if it does not answer."""
        return self.run("sinfo", "--noheader", "--format=%T", f"--nodes={node}").split("\n")[0]

    def wait_for_state(self, state: str, *nodes: str) -> None:
        """Raises TimeoutError, with the ends of the daemons' logs."""
        self._wait(lambda: all(self._answers(state, node) for node in nodes), f"{nodes}: {state}")

    def start_controller(self) -> None:
        text = self.configuration.read_text()
        self.configuration.write_text(text.replace(_WITHOUT_CONTROLLER, ""))
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.configuration))
        self._wait(lambda: self._succeeds("scontrol", "ping"), "slurmctld answers")

    def start_node(self, node: str) -> None:
        """Start its slurmd, and its host, where it has one of its own that is not there."""
        slurmd = (find_program("slurmd"), "-D", "-N", node, "-f", str(self.configuration))
        if self._shape.apart and node not in self._hosts:
            self._start_host(node)
        self._start(node, *self._on(node), *slurmd)

    def stop_controller(self, number: int = signal.SIGTERM) -> None:
        """Stop slurmctld: with SIGKILL, for one that crashes."""
        self._stop("slurmctld", number)
        with self.configuration.open("a") as configuration:
            configuration.write(_WITHOUT_CONTROLLER)

    def stop_node(self, node: str, number: int = signal.SIGTERM) -> None:
        """Stop a slurmd. Processes of its jobs go on."""
        self._stop(node, number)

    def lose_node(self, node: str) -> None:
        """Have a host of its own die: all processes there, at once, without a word."""
        self._hosts.pop(node).kill()
        for name in (node, f"host of {node}"):
            self._processes.pop(name).wait(_PATIENCE)

    def run_on(self, node: str, *command: str) -> str:
        """As `run`, on the host of a node that is apart."""
        return self.run(*self._on(node), *command)

    def processes_on(self, node: str) -> list[psutil.Process]:
        """Those on the host of a node that is apart, its first one included."""
        own = _process_numbers(self._hosts[node].pid)
        return [each for each in psutil.process_iter() if _process_numbers(each.pid) == own]

    # ---- configuration

    def _configure(self) -> None:
        for name in ("state", "spool", "bin"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        for client in CLIENTS:
            script = self.directory / "bin" / client
            setting = f"export SLURM_CONF={shlex.quote(str(self.configuration))}"
            noted = shlex.quote(str(self._calls(client)))
            script.write_text(
                f'#!/bin/sh\n{setting}\necho "$*" >> {noted}\nexec {find_program(client)} "$@"\n'
            )
            script.chmod(0o755)
        ports = free_ports(1 + len(self.nodes))
        # What a cluster names must be what `hostname -s` says.
        host = socket.gethostname().partition(".")[0]
        common = _SETTINGS.format(
            host=host, port=ports[0], user=getpass.getuser(), directory=self.directory
        )
        of_nodes = self._shape.of_nodes or ("Feature=big",) * len(self.nodes)
        lines = [
            f"NodeName={node} NodeHostname={node if self._shape.apart else host} "
            f"NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={self._shape.cpus} RealMemory={_MEMORY_MB} {further} State=UNKNOWN"
            for node, port, further in zip(self.nodes, ports[1:], of_nodes, strict=True)
        ]
        partitions = [
            each.replace("=LAST", f"={self.nodes[-1]}") for each in self._shape.partitions
        ]
        text = "\n".join([common, *lines, *self._shape.settings, *partitions, ""])
        self.configuration.write_text(text)
        prolog = self.directory / "task-prolog"
        prolog.write_text(_TASK_PROLOG.format(directory=shlex.quote(str(self.directory))))
        prolog.chmod(0o755)
        # The other version asks systemd for a scope.
        (self.directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start_munge(self) -> None:
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        socket_path = self.directory / "munge.socket"
        self._start(
            "munged",
            # It minds the permissions of directories above its own.
            *("munged", "--foreground", "--force", f"--socket={socket_path}", f"--key-file={key}"),
            *(f"--{name}-file={self.directory}/munge.{name}" for name in ("pid", "log", "seed")),
        )
        self._wait(socket_path.exists, "munged listens")

    # ---- processes

    def _start(self, name: str, *command: str) -> None:
        with open(self.directory / f"{name}.output", "ab") as output:
            self._processes[name] = subprocess.Popen(
                [find_program(command[0]), *command[1:]],
                cwd=self.directory,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _start_host(self, node: str) -> None:
        """Its first process does nothing but bury the others; all end with it."""
        apart = ("--uts", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child")
        # A slurmd looks for the address of its own name.
        hosts = self.directory / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {' '.join(self.nodes)}\n")
        first = 'hostname "$0" && mount --bind "$1" /etc/hosts && echo ready'
        bury = "while :; do sleep 1000 & wait; done"
        name = f"host of {node}"
        output = self.directory / f"{name}.output"
        output.unlink(missing_ok=True)  # where it was started before, it is ready only now
        self._start(
            *(name, "unshare", *apart, "bash", "-c", f"{first} && {bury}"),
            *(node, str(hosts)),
        )
        self._wait(lambda: output.read_text().endswith("ready\n"), f"{name} is there")
        (self._hosts[node],) = psutil.Process(self._processes[name].pid).children()

    def _on(self, node: str) -> tuple[str, ...]:
        if not self._shape.apart:
            return ()
        return ("nsenter", f"--target={self._hosts[node].pid}", "--uts", "--pid", "--mount")

    def _stop(self, name: str, number: int) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            # The one that enters a host waits for the one that is there.
            entered = psutil.Process(process.pid).children() if name in self._hosts else []
            for each in entered or [process]:
                each.send_signal(number)
        try:
            process.wait(_STOPPING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start_daemons(self) -> None:
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_for_state("idle", *self.nodes)

    def _end(self) -> None:
        self._end_daemons()
        self._stop("munged", signal.SIGTERM)
        if self._given is None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end_daemons(self) -> None:
        """End exactly what was started: jobs first, for nobody else would end their processes."""
        if "slurmctld" in self._processes:
            with contextlib.suppress(subprocess.SubprocessError, TimeoutError):
                self.cancel_jobs(_STOPPING)
        for name in (*self.nodes, "slurmctld", "slurmdbd", "mariadbd"):
            self._stop(name, signal.SIGTERM)
        for node in list(self._hosts):
            self._hosts.pop(node).kill()
            self._stop(f"host of {node}", signal.SIGKILL)
        # Jobs' processes, and those that watch over them, which outlive a slurmd that was killed.
        left = list(self._processes_left())
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, _STOPPING)

    def _processes_left(self) -> Iterator[psutil.Process]:
        """Those with this cluster's configuration in their environment, its users' aside."""
        own = f"SLURM_CONF={self.configuration}".encode()
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, psutil.Error):
                variables = (directory / "environ").read_bytes().split(b"\0")
                if own not in variables:
                    continue
                process = psutil.Process(int(directory.name))
                of_job = any(each.startswith(b"SLURM_JOB_ID=") for each in variables)
                if of_job or process.name().startswith("slurmstepd"):
                    yield process

    # ---- waiting

    def _succeeds(self, *command: str) -> bool:
        try:
            self.run(*command)
        except subprocess.CalledProcessError:
            return False
        return True

    def _answers(self, state: str, node: str) -> bool:
        try:
            return self.state_of(node) == state
        except subprocess.CalledProcessError:
            return False

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float = _PATIENCE) -> None:
        began = time.monotonic()
        while not condition():
            gone = [name for name, each in self._processes.items() if each.poll() is not None]
            waited = time.monotonic() - began
            if gone or waited > seconds:
                ended = f" ({', '.join(gone)} ended)" if gone else ""
                raise TimeoutError(f"did not happen: {what}{ended}\n{self._log_ends()}")
            time.sleep(min(_PAUSE + waited / 20, _LONGEST_PAUSE))

    def _log_ends(self) -> str:
        files = sorted([*self.directory.glob("*.log"), *self.directory.glob("*.output")])
        return "\n".join(
            f"{file.name}:\n" + "\n".join(file.read_text(errors="replace").splitlines()[-10:])
            for file in files
        )


def _process_numbers(pid: int) -> str:
    """The namespace in which a process has its number."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def find_program(name: str) -> str:
    # Debian has the daemons in a directory that is not on everybody's PATH.
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    program = shutil.which(name, path=path)
    if program is None:
        raise FileNotFoundError(f"{name} is missing: make test installs what tests need")
    return program


def free_ports(count: int) -> list[int]:
    """Different ones, which the kernel gives to no connection before a daemon listens there."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)
