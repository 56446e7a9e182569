"""Login hosts of the tests' own: a real sshd on loopback, with its own keys and homes."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from networks import Computer
from support import PYTHON_PATH, wait_until, write

from snakemake_kochi.terminal.loopback import free_port

_SSHD = "/usr/sbin/sshd"
# What sshd starts instead of the login shell's command: it sets the home and what a login shell of
# that home would read, and has the chosen shell execute the command as sshd does.
_LOGIN = """
    #!/bin/bash
    export HOME={home} KOCHI_ROOT={root} PATH={path} PYTHONPATH={python_path} SHELL={shell}
    # Each host is a computer of its own.
    export KOCHI_NODE_LOCK={home}
    {exports}
    cd "$HOME"
    [ -f "$HOME/.banner" ] && . "$HOME/.banner"
    if [ -n "$SSH_ORIGINAL_COMMAND" ]; then
        exec {before} {shell} -c "$SSH_ORIGINAL_COMMAND"
    fi
    exec {before} {shell} -l
"""


class SshHost:
    """A login host, and how this side reaches it.

        with SshHost("spica", tmp_path) as host:
            monkeypatch.setenv("PATH", host.laptop_path)   # or: host.use(monkeypatch)
            kochi("show", "queues", "-m", "spica", cwd=project)

    `name` is the name in ssh's configuration, so the `login_host` of a machine. There: `home`,
    `root` (its KOCHI_ROOT), `bin` (first on its PATH, with `kochi` of this checkout). Here: `keys`
    with the user's key, and `ssh_config`, which an `ssh` first on `laptop_path` reads: OpenSSH
    does not look at $HOME for its own.

    On a `computer` with a network of its own, it has that computer's `address`. `before`: words in
    front of the shell of a login, which may lead into another network.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        shell: str = "/bin/bash",
        variables: Mapping[str, str] | None = None,
        address: str = "127.0.0.1",
        laptop: Path | None = None,
        with_kochi: bool = True,
        computer: Computer | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self._computer, self._before = computer, before
        self.name, self._shell, self._address = name, shell, address
        self.directory = directory / f"host-{name}"
        self.laptop = laptop or directory / "laptop"
        self.home, self.bin = self.directory / "home", self.directory / "bin"
        self.root = self.home / ".kochi"
        self.log = self.directory / "sshd.log"
        self._variables = dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None
        for made in (self.home, self.bin, self.laptop / "bin", self.laptop / "ssh"):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Short, and of this test alone: the sockets of connections.
        self._runtime = self.laptop / "runtime"
        if not self._runtime.exists():
            self._runtime.symlink_to(tempfile.mkdtemp(prefix="kochi-", dir="/tmp"))
        self.runtime = self._runtime.resolve()
        if with_kochi:
            self.install_kochi()

    def install_kochi(self) -> None:
        """`kochi` of this checkout, on PATH there."""
        self.program("kochi", f'exec {shlex.quote(sys.executable)} -P -m snakemake_kochi.cli "$@"')

    def program(self, name: str, text: str) -> Path:
        """A program there, in sh, first on PATH."""
        file = write(self.bin / name, f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    def banner(self, text: str) -> None:
        """What each login runs first, in bash, as a login shell runs its files."""
        write(self.home / ".banner", text)

    def __enter__(self) -> SshHost:
        self.new_host_key()
        self._user_key()
        self.start()
        self.configure()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self.forget_logins()
        shutil.rmtree(self.runtime, ignore_errors=True)
        if kind is not None:
            print(self.log.read_text(errors="replace")[-4000:])

    def forget_logins(self) -> None:
        """End the connections that the laptop keeps for its next commands."""
        for path in sorted(self.runtime.glob("kochi/ssh-*")):
            if path.is_socket():
                words = ("ssh", "-o", f"ControlPath={path}", "-O", "exit", "--", "any")
                subprocess.run(words, capture_output=True)

    def use(self, monkeypatch: object) -> None:
        """Make this test's process, and what it starts, the laptop."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)  # type: ignore[attr-defined]

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process one of the laptop's."""
        return {"PATH": self.laptop_path, "XDG_RUNTIME_DIR": str(self.runtime)}

    @property
    def laptop_path(self) -> str:
        return f"{self.laptop / 'bin'}:{os.environ['PATH'].removeprefix(f'{self.laptop}/bin:')}"

    @property
    def ssh_config(self) -> Path:
        return self.laptop / "ssh" / "config"

    @property
    def known_hosts(self) -> Path:
        return self.laptop / "ssh" / "known_hosts"

    @property
    def logins(self) -> int:
        """How often somebody has logged in, as sshd has logged it."""
        return self.log.read_text(errors="replace").count("Accepted publickey")

    @property
    def sessions(self) -> int:
        """How many programs were started."""
        return self.log.read_text(errors="replace").count("Starting session")

    def machine(self, **keys: str) -> str:
        """The section `machines:` of a kochi.yaml with this host."""
        lines = "".join(f"    {key}: {value}\n" for key, value in keys.items())
        return f"machines:\n  {self.name}:\n    login_host: {self.name}\n{lines}"

    def new_host_key(self) -> None:
        """A host key, in place of the one it has; `restart` makes sshd use it."""
        key = self.directory / "host_key"
        key.unlink(missing_ok=True)
        _make_key(key)

    def _user_key(self) -> None:
        key = self.laptop / "ssh" / "id"
        if not key.exists():
            _make_key(key)
        shutil.copy(key.with_suffix(".pub"), self.directory / "authorized_keys")

    def start(self, port: int | None = None) -> None:
        """Start sshd, on a free port unless one is given."""
        self.port = port or (22 if self._computer else free_port())
        config = write(self.directory / "sshd_config", self._sshd_config())
        # Privilege separation of a sshd of root needs it.
        os.makedirs("/run/sshd", 0o755, exist_ok=True)
        self._process = subprocess.Popen(
            [
                *(self._computer.words if self._computer else ()),
                _SSHD,
                "-D",
                "-f",
                str(config),
                "-E",
                str(self.log),
            ],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(self._answers, "sshd answers")

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log.read_text()
        if self._computer is not None:
            return self._computer.reaches(self._address, self.port)
        with socket.socket() as connection:
            return connection.connect_ex((self._address, self.port)) == 0

    def stop(self) -> None:
        """End sshd; sessions go on, as those of a real one."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def restart(self) -> None:
        """With the same port, and the host key of now."""
        self.stop()
        self.start(self.port)

    def _sshd_config(self) -> str:
        login = write(
            self.directory / "login",
            _LOGIN.format(
                home=shlex.quote(str(self.home)),
                root=shlex.quote(str(self.root)),
                path=shlex.quote(f"{self.bin}:{os.environ['PATH']}"),
                python_path=shlex.quote(PYTHON_PATH),
                shell=shlex.quote(self._shell),
                before=shlex.join(self._before),
                exports="\n".join(
                    f"    export {name}={shlex.quote(value)}"
                    for name, value in self._variables.items()
                ),
            ),
        )
        login.chmod(0o755)
        return f"""
            ListenAddress {self._address}
            Port {self.port}
            HostKey {self.directory}/host_key
            PidFile none
            LogLevel VERBOSE
            AuthorizedKeysFile {self.directory}/authorized_keys
            StrictModes no
            UsePAM no
            PasswordAuthentication no
            KbdInteractiveAuthentication no
            PermitRootLogin yes
            PermitUserEnvironment no
            PrintMotd no
            MaxStartups 100
            ForceCommand {login}
            Subsystem sftp internal-sftp
        """

    def configure(self, *options: str, known: bool = True) -> None:
        """Write this host's part of ssh's configuration, with more lines of it; unless `known`,
        its host key is not yet known."""
        part = self.laptop / "ssh" / f"host-{self.name}"
        more = "".join(f"    {option}\n" for option in options)
        part.write_text(
            f"Host {self.name}\n    HostName {self._address}\n    Port {self.port}\n"
            f"    HostKeyAlias {self.name}\n{more}"
        )
        ssh = self.ssh_config.parent
        parts = "".join(f"Include {each}\n" for each in sorted(ssh.glob("host-*")))
        # Without `Host *`, what follows would belong to the last host.
        self.ssh_config.write_text(
            f"{parts}Host *\n    IdentityFile {ssh / 'id'}\n    IdentitiesOnly yes\n"
            f"    UserKnownHostsFile {self.known_hosts}\n    GlobalKnownHostsFile /dev/null\n"
        )
        # A login that asks would ask nobody in a test.
        for program in ("ssh", "scp", "sftp"):
            found = shutil.which(
                program, path=os.environ["PATH"].replace(f"{self.laptop}/bin:", "")
            )
            wrapper = self.laptop / "bin" / program
            wrapper.write_text(f'#!/bin/sh\nexec {found} -F "{self.ssh_config}" "$@"\n')
            wrapper.chmod(0o755)
        others = []
        if self.known_hosts.exists():
            lines = self.known_hosts.read_text().splitlines()
            others = [line for line in lines if line.split()[0] != self.name]
        if known:
            kind, key, *_ = (self.directory / "host_key.pub").read_text().split()
            others.append(f"{self.name} {kind} {key}")
        self.known_hosts.write_text("".join(f"{line}\n" for line in others))


def _make_key(path: Path) -> None:
    words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", str(path))
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
