"""Login hosts of a real Slurm, and a laptop that reaches nothing but them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from laptop import EXPERIMENT, Laptop
from networks import Computer, Network, in_network_of
from slurm_cluster import CLIENTS, SlurmCluster
from ssh_host import SshHost
from support import git, write

from snakemake_kochi.detached.launches import Found, all_launches
from snakemake_kochi.paths import MachinePaths, Root
from tests.terminal.conftest import PROMPT

MACHINE = {"scheduler": "slurm", "allocation": "{max_workers: 2, idle_timeout: 30s}"}


@dataclass(frozen=True)
class LoginSite:
    """A laptop and the login hosts of a Slurm. Runs of its project end when `go` is there."""

    laptop: Laptop
    computer: Computer
    hosts: Mapping[str, SshHost]
    cluster: SlurmCluster
    go: Path

    @property
    def begun(self) -> set[str]:
        """The runs that have begun, as `spica.1`."""
        return {path.name.removeprefix("go.") for path in self.go.parent.glob("go.*")}

    def machine(self, name: str = "spica") -> MachinePaths:
        return Root(self.hosts[name].root).machine(name)

    def launches(self, name: str = "spica") -> list[Found]:
        return list(all_launches(self.machine(name)))

    def end(self) -> None:
        """End all that was started there."""
        self.go.touch()
        for name in self.hosts:
            for found in self.launches(name):
                if found.state in ("running", "unattended") and found.processes is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(found.processes.run.pid, signal.SIGKILL)
        self.cluster.cancel_jobs()


@contextlib.contextmanager
def login_site(
    directory: Path, cluster: SlurmCluster, **machines: Mapping[str, str]
) -> Iterator[LoginSite]:
    """Machines with keys in kochi.yaml, whose login hosts lead to the same Slurm.

    A laptop has a network of its own, with a cable to each login host and no way to Slurm, and none
    of Slurm's commands.
    """
    go = directory / "go"
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        computer = network.computer("laptop")
        hosts = {}
        for number, name in enumerate(machines):
            its, address = f"10.0.{number}.1", f"10.0.{number}.2"
            login = network.computer(name)
            network.join(computer, its, login, address)
            path = f"{directory}/host-{name}/bin:{cluster.environment['PATH']}"
            hosts[name] = SshHost(
                name,
                directory,
                variables={"GO": str(go), "PATH": path},
                address=address,
                computer=login,
                # The Slurm of the tests is in the network of this computer.
                before=in_network_of(os.getpid()),
            )
            stack.enter_context(hosts[name])
            write(
                hosts[name].home / ".bashrc",
                f"PS1='{PROMPT}'\nbind 'set enable-bracketed-paste off' 2> /dev/null\n",
            )
        top = _project(directory, hosts, machines)
        any_host = next(iter(hosts.values()))
        path = f"{directory}/laptop/bin:{_programs(directory)}"
        environment = {**any_host.environment, "PATH": path}
        laptop = Laptop(top, environment=environment, before=computer.words)
        site = LoginSite(laptop, computer, hosts, cluster, go)
        stack.callback(site.end)
        yield site


def _programs(directory: Path) -> Path:
    """All programs of this computer but Slurm's."""
    programs = directory / "laptop" / "programs"
    programs.mkdir()
    places = map(Path, os.environ["PATH"].split(os.pathsep))
    found = [each for place in places if place.is_dir() for each in place.iterdir()]
    for name, program in {each.name: each for each in reversed(found)}.items():
        if name not in CLIENTS:
            (programs / name).symlink_to(program)
    return programs


def _project(
    directory: Path, hosts: Mapping[str, SshHost], machines: Mapping[str, Mapping[str, str]]
) -> Path:
    top = directory / "fib"
    git(directory, "init", "-q", "--initial-branch=main", str(top))
    sections = [
        hosts[name].machine(**{**MACHINE, **keys}).removeprefix("machines:\n")
        for name, keys in machines.items()
    ]
    write(top / "kochi.yaml", "machines:\n" + "".join(sections))
    write(top / "wait.yaml", EXPERIMENT.replace("MACHINES", ", ".join(machines)))
    write(top / ".gitignore", "/results/\n/.snakemake/\n")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    return top
