"""A connection to a real sshd."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_host import SshHost
from support import git

from snakemake_kochi.git import run_git
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.refusal import LostError, RemoteError
from snakemake_kochi.remote.script import Script


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    with SshHost("spica", tmp_path) as host:
        host.use(monkeypatch)
        yield host


ODD = [
    "",
    "a b",
    "'",
    '"',
    "$(touch x)",
    "`id`",
    "$HOME",
    "!!",
    "a\nb\n",
    "é\u2028",
    "*",
    "\\",
    ";",
    "-n",
]


def test_words_arrive_unchanged(host: SshHost) -> None:
    with Connection("spica") as connection:
        script = Script.of(["printf", "%s\\0", *ODD])
        answer = connection.run(script)
    assert answer.stdout.decode().split("\0")[:-1] == ODD


def test_one_login_serves_all_sessions_and_the_next_command(host: SshHost) -> None:
    for _ in range(2):
        with Connection("spica") as connection:
            for _ in range(3):
                assert connection.run(Script("cat"), b"given").stdout == b"given"
    assert host.logins == 1


def test_status_and_streams_are_those_of_the_script(host: SshHost) -> None:
    with Connection("spica") as connection:
        answer = connection.run(Script("echo out; echo err >&2; exit 255"))
        assert (answer.returncode, answer.stdout, answer.stderr) == (255, b"out\n", b"err\n")
        assert connection.run(Script("kill -9 $$")).returncode == 255
        with pytest.raises(RemoteError, match="looking failed on spica: no such thing"):
            connection.run(Script("echo no such thing >&2; exit 3"), what="looking")


@pytest.mark.parametrize("shell", ["/bin/sh", "/usr/bin/tcsh", "/usr/bin/fish"])
def test_any_login_shell_and_its_banner(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SshHost("spica", tmp_path, shell=shell) as host:
        host.use(monkeypatch)
        host.banner("echo '*** welcome ***'; echo 'quota: 90%' >&2; printf 'no line end'")
        with Connection("spica") as connection:
            answer = connection.run(Script.of(["printf", "%s\\0", *ODD]))
            assert answer.stdout.decode().split("\0")[:-1] == ODD
            assert answer.stderr == b""
            started = connection.start(Script("echo $((1 + 1))"))
            assert started.communicate()[0] == b"2\n"


def test_git_reaches_a_path_with_odd_characters_behind_a_banner(
    host: SshHost, tmp_path: Path
) -> None:
    host.banner("echo '*** welcome ***'")
    there = host.home / "a b'c%20é" / "project.git"
    git(tmp_path, "init", "-q", "--bare", str(there))
    here = tmp_path / "here"
    git(tmp_path, "init", "-q", str(here))
    git(here, "commit", "-q", "--allow-empty", "-m", "first")
    with Connection("spica") as connection:
        words = ("push", connection.url(str(there)), "HEAD:refs/heads/sent")
        run_git(here, *words, environment=connection.git_environment(), transports=["ssh"])
    assert git(there, "rev-parse", "sent") == git(here, "rev-parse", "HEAD")
    assert host.logins == 1


def test_a_login_shell_that_runs_nothing_is_said(host: SshHost) -> None:
    host.banner("echo 'This account is currently not available.'; exit 1")
    with Connection("spica") as connection, pytest.raises(RemoteError) as caught:
        connection.run(Script("true"))
    assert "does not execute commands" in caught.value.message
    assert "currently not available" in caught.value.message


def test_an_unknown_and_a_changed_host_key_are_said(host: SshHost) -> None:
    host.configure(known=False)
    assert "not known here yet" in refusal_of("spica")
    host.configure()
    host.new_host_key()
    host.restart()
    assert "not the one that is known" in refusal_of("spica")


def test_a_refused_login_is_said(host: SshHost) -> None:
    (host.directory / "authorized_keys").write_text("")
    said = refusal_of("spica")
    assert "the login was refused" in said and "ssh spica" in said


def test_a_host_that_is_not_there_is_said(host: SshHost) -> None:
    host.stop()
    assert "no ssh server answers" in refusal_of("spica")
    said = refusal_of("nowhere.invalid")
    assert "no host of this name\n  ssh: Could not resolve hostname nowhere.invalid" in said


def test_a_host_that_does_not_answer_is_said(
    host: SshHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "kochi: spica does not answer, still trying ...\n"
    with Connection("spica") as connection:
        # A command that takes long has begun, and so the host has answered.
        monkeypatch.setattr("snakemake_kochi.remote.session.SAYS_AFTER", 3.0)
        connection.run(Script("sleep 4"))
        assert capsys.readouterr().err == ""
        # The next session takes its time.
        monkeypatch.setattr("snakemake_kochi.remote.session.SAYS_AFTER", 0.5)
        host.banner("sleep 1")
        assert connection.run(Script("echo reached")).stdout == b"reached\n"
        assert capsys.readouterr().err == told
    host.forget_logins()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host.port = silent.getsockname()[1]
        host.configure("ConnectTimeout 1")
        for asks in (False, True):
            assert "it does not answer" in refusal_of("spica", asks)
            assert capsys.readouterr().err == told


def test_mistakes_in_the_configuration_of_ssh_are_said(host: SshHost) -> None:
    host.configure("NoSuchOption yes")
    said = refusal_of("spica")
    assert "does not accept its configuration" in said and "nosuchoption" in said


def test_a_jump_host_is_passed(host: SshHost, tmp_path: Path) -> None:
    with SshHost("inner", tmp_path, laptop=host.laptop) as inner:
        inner.configure("ProxyJump spica")
        with Connection("inner") as connection:
            assert connection.run(Script("pwd")).stdout.decode().strip() == str(inner.home)
        assert host.logins == inner.logins == 1
        inner.forget_logins()
        host.stop()
        assert "The way leads over spica" in refusal_of("inner")


def test_a_connection_that_is_lost_is_said_and_the_next_one_is_new(host: SshHost) -> None:
    with Connection("spica") as connection, pytest.raises(RemoteError, match="was lost"):
        # The parent of the script is sshd's process for this connection.
        connection.run(Script("kill -9 $PPID; sleep 20"))
    with Connection("spica") as connection:
        assert connection.run(Script("echo again")).stdout == b"again\n"
    assert host.logins == 2


def test_a_connection_is_lost_although_its_dying_master_still_accepts_questions(
    host: SshHost,
) -> None:
    with Connection("spica") as connection, socket.socket(socket.AF_UNIX) as dying:
        path = connection._master.path
        assert path is not None
        path.unlink()
        dying.bind(os.fspath(path))
        dying.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    dying.accept()[0].close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            with pytest.raises(LostError, match="the connection to spica was lost"):
                connection.run(Script("kill -9 $PPID; sleep 20"))
        finally:
            dying.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_master_that_hangs_is_given_up(host: SshHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snakemake_kochi.remote.connection._LONG_IDLE", 0.0)
    monkeypatch.setattr("snakemake_kochi.remote.connection._PROBED", 2)
    with Connection("spica") as connection:
        session = int(connection.run(Script("echo $PPID")).stdout)
        os.kill(session, signal.SIGSTOP)
    try:
        with Connection("spica") as connection:
            assert connection.run(Script("echo again")).stdout == b"again\n"
    finally:
        os.kill(session, signal.SIGKILL)
    assert host.logins == 2


def test_the_users_own_master_is_used(host: SshHost) -> None:
    own = host.runtime / "own"
    host.configure("ControlMaster auto", f"ControlPath {own}", "ControlPersist 60")
    for _ in range(2):
        with Connection("spica") as connection:
            assert connection.run(Script("echo used")).stdout == b"used\n"
    assert host.logins == 1
    assert own.is_socket() and not list(host.runtime.glob("kochi/*"))
    subprocess.run(["ssh", "-O", "exit", "spica"], check=True)


def test_forwardings_and_commands_of_the_users_configuration_do_no_harm(host: SshHost) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        host.configure(
            f"LocalForward {port} localhost:1",
            "ExitOnForwardFailure yes",
            "RemoteCommand tmux",
            "RequestTTY force",
        )
        with Connection("spica") as connection:
            assert connection.run(Script("echo works")).stdout == b"works\n"


def test_nobody_else_can_reach_the_socket(host: SshHost) -> None:
    with Connection("spica"):
        (directory,) = host.runtime.glob("kochi")
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o755)
    assert f"chmod 700 {directory}" in refusal_of("spica")


def refusal_of(host: str, asks: bool | None = None) -> str:
    with pytest.raises(RemoteError) as caught, Connection(host, asks) as connection:
        connection.run(Script("true"))
    return f"{caught.value.message}\n{caught.value.hint}"
