"""The paths of the ssh server of a worker, and of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LoginPaths:
    """An ssh server of one worker: its keys, its configuration, and who asks for it."""

    directory: Path

    @property
    def asked(self) -> Path:
        """Exists until the worker has seen that a person wants to log in."""
        return self.directory / "asked"

    @property
    def answer(self) -> Path:
        """Where the server listens, or why there is none; the server writes it."""
        return self.directory / "answer.json"

    @property
    def user_key(self) -> Path:
        return self.directory / "user_key"

    @property
    def public_key(self) -> Path:
        """The only key that the server accepts."""
        return self.directory / "user_key.pub"

    @property
    def host_key(self) -> Path:
        return self.directory / "host_key"

    @property
    def public_host_key(self) -> Path:
        return self.directory / "host_key.pub"

    @property
    def known_hosts(self) -> Path:
        """The only host key that the client accepts."""
        return self.directory / "known_hosts"

    @property
    def server_configuration(self) -> Path:
        return self.directory / "sshd_config"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def new(self, nonce: str) -> LoginPaths:
        """Where the keys are made, before they are renamed to this directory."""
        return LoginPaths(self.directory.with_name(f".{self.directory.name}-{nonce}"))


@dataclass(frozen=True)
class LaunchPaths:
    """A launched run, which goes on without a terminal."""

    directory: Path

    @property
    def launch(self) -> Path:
        return self.directory / "launch.json"

    @property
    def process(self) -> Path:
        return self.directory / "process.json"

    @property
    def alive(self) -> Path:
        """A counter: the heartbeat of the supervisor."""
        return self.directory / "alive"

    @property
    def output(self) -> Path:
        return self.directory / "output"

    @property
    def log(self) -> Path:
        """The path of Snakemake's log of the run."""
        return self.directory / "log.json"

    @property
    def end(self) -> Path:
        return self.directory / "end.json"

    @property
    def time_up(self) -> Path:
        """Exists when the scheduler said that the time of the run is nearly over."""
        return self.directory / "time-up.json"

    def stop(self, number: int) -> Path:
        """Exists when somebody on another host has told the run to stop for the n-th time."""
        return self.directory / f"stop-{number}.json"

    @property
    def gone(self) -> Path:
        """Exists when a process learned from the scheduler that the run is gone."""
        return self.directory / "gone.json"
