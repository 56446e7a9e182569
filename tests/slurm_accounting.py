"""A real Slurm of one's own with a database of its jobs: `sacct` and `sacctmgr` answer."""

from __future__ import annotations

import getpass
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slurm_cluster import SlurmCluster, find_program, free_ports

CLUSTER = "own"
# Where the packages of Linux distributions have MariaDB's own SQL.
_SHARED = (Path("/usr/share/mysql"), Path("/usr/share/mariadb"))
# No port, no passwords: its socket is in a directory that nobody else can enter. A crash of the
# computer may cost it everything.
_DATABASE = (
    "--no-defaults",
    "--skip-networking",
    "--skip-grant-tables",
    "--skip-log-bin",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-log-file-size=4M",
    "--innodb-buffer-pool-size=16M",
)
_SETTINGS = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
# For historical reasons munge's socket has this name here.
AccountingStoragePass={directory}/munge.socket
JobAcctGatherType=jobacct_gather/linux
{enforced}
"""
_SLURMDBD = """
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
# No port is open to others.
CommunicationParameters=NoInAddrAny
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageLoc=slurm
StorageUser={user}
LogFile={directory}/slurmdbd.log
PidFile={directory}/slurmdbd.pid
"""


class AccountedCluster(SlurmCluster):
    """A `SlurmCluster` with a slurmdbd, and a MariaDB of its own below its directory: five seconds.

    `accounts`: those of the user, of which the first is taken by default. `enforced`: what of them
    Slurm insists on (slurm.conf, AccountingStorageEnforce). Needs slurmdbd and mariadbd as well:
    Debian's slurmdbd and mariadb-server-core.
    """

    def __init__(
        self,
        nodes: int = 2,
        cpus: int = 2,
        *,
        accounts: Sequence[str] = ("proj",),
        enforced: Sequence[str] = (),
        settings: Sequence[str] = (),
        partitions: Sequence[str] = ("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE",),
    ) -> None:
        super().__init__(nodes, cpus, settings=settings, partitions=partitions)
        self._accounts = accounts
        self._enforced = enforced

    def start_controller(self) -> None:
        """Start slurmctld, and before the first time what it tells of its jobs."""
        if "mariadbd" not in self._processes:
            self._start_database()
            self.start_accounting()
            self._introduce()
        super().start_controller()

    def start_accounting(self) -> None:
        """Start slurmdbd."""
        # The library that talks to the database has no other setting for its socket.
        socket_path = f"MYSQL_UNIX_PORT={self._socket}"
        self._start("slurmdbd", "env", socket_path, find_program("slurmdbd"), "-D")
        self._wait(lambda: self._succeeds("sacctmgr", "show", "cluster"), "slurmdbd answers")

    def stop_accounting(self) -> None:
        """Stop slurmdbd: what is told it is kept by slurmctld until it is back."""
        self._stop("slurmdbd", signal.SIGTERM)

    def account(self, *command: str) -> str:
        """Have sacctmgr do something without asking back, and slurmctld know of it."""
        return self.run("sacctmgr", "--immediate", *command)

    def _start_database(self) -> None:
        data = self.directory / "database"
        data.mkdir()
        options = (*_DATABASE, f"--user={getpass.getuser()}", f"--datadir={data}")
        shared = next(filter(Path.is_dir, _SHARED), _SHARED[0])
        tables = (shared / "mysql_system_tables.sql").read_text()
        subprocess.run(
            [find_program("mariadbd"), *options, "--bootstrap"],
            input=f"create database mysql;\nuse mysql;\n{tables}",
            capture_output=True,
            text=True,
            check=True,
        )
        self._start("mariadbd", "mariadbd", *options, f"--socket={self._socket}")
        self._wait(self._socket.exists, "mariadbd listens")

    @property
    def _socket(self) -> Path:
        return self.directory / "database.socket"

    def _configure(self) -> None:
        super()._configure()
        (port,) = free_ports(1)
        enforced = ",".join(self._enforced)
        names = {
            "host": socket.gethostname().partition(".")[0],
            "port": port,
            "user": getpass.getuser(),
            "directory": self.directory,
            "enforced": f"AccountingStorageEnforce={enforced}" if enforced else "",
        }
        with self.configuration.open("a") as configuration:
            configuration.write(_SETTINGS.format(**names))
        slurmdbd = self.directory / "slurmdbd.conf"
        slurmdbd.touch(mode=0o600)
        slurmdbd.write_text(_SLURMDBD.format(**names))

    def _introduce(self) -> None:
        """Slurm's users and accounts are those of its database."""
        user = getpass.getuser()
        self.account("add", "cluster", CLUSTER)
        for account in self._accounts:
            self.account("add", "account", account)
            self.account("add", "user", user, f"Account={account}")
        self.account("modify", "user", user, "set", f"DefaultAccount={self._accounts[0]}")
