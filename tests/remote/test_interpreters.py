"""A Python that uv brings: a real uv, a mirror of the tests' own, a host with no Python."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from full_disk import mounted
from remote.setups import KOCHI, PROLOGUE, PYTHON, make_project, set_up, show, there
from ssh_host import SshHost
from support import wait_until, write

from snakemake_kochi.errors import KochiError
from snakemake_kochi.remote import interpreters, setup
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.environment import Environment
from snakemake_kochi.remote.interpreters import Platform
from snakemake_kochi.remote.version import find_kochi
from snakemake_kochi.remote.wheels import InstalledWheel

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
FULL_VERSION = f"{VERSION}.{sys.version_info.micro}"
HERE = Platform("Linux", os.uname().machine, "glibc 2.36").request
LEFT_OUT = ("site-packages", "dist-packages", "test", "__pycache__", f"config-{VERSION}")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of this environment in the form in which uv gets one, made for /install."""
    program = f"python/bin/python{VERSION}"
    library = Path(sysconfig.get_path("stdlib"))
    path = tmp_path_factory.mktemp("mirror") / "python.tar.gz"

    def packed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(entry.name).name
        is_left_out = name.startswith(LEFT_OUT) or name.startswith("_sysconfigdata_")
        return None if is_left_out else entry

    with tarfile.open(path, "w:gz", compresslevel=1) as file:
        file.add(PYTHON, program)
        link = tarfile.TarInfo("python/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, f"python{VERSION}"
        file.addfile(link)
        file.add(library, f"python/lib/python{VERSION}", filter=packed)
        for data in library.glob("_sysconfigdata_*.py"):
            text = data.read_bytes().replace(os.fsencode(sys.base_prefix), b"/install")
            add(file, f"python/lib/python{VERSION}/{data.name}", text)
    return path


def add(file: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    file.addfile(entry, BytesIO(content))


Offer = Callable[..., None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Make uv know one Python: that of an archive, under the name of a request."""
    for name in list(os.environ):
        if name.startswith("UV_"):
            monkeypatch.delenv(name)

    def make(archive: Path, request: str = HERE, digest: str | None = None) -> None:
        _, _, system, machine, libc = request.split("-")
        major, minor, patch = map(int, FULL_VERSION.split("."))
        about = {
            "name": "cpython",
            "arch": {"family": machine, "variant": None},
            "os": system,
            "libc": libc,
            "major": major,
            "minor": minor,
            "patch": patch,
            "prerelease": "",
            "url": archive.as_uri(),
            "sha256": digest or hashlib.sha256(archive.read_bytes()).hexdigest(),
            "variant": None,
            "build": None,
        }
        known = write(
            tmp_path / "known.json",
            json.dumps({f"cpython-{FULL_VERSION}-{system}-{machine}-{libc}": about}),
        )
        # The settings of the user: a repository's must not count.
        settings = Path(os.environ["HOME"]) / ".config" / "uv" / "uv.toml"
        write(settings, f"python-downloads-json-url = {json.dumps(str(known))}\n")

    return make


def without_python(host: SshHost) -> str:
    """A text for bash after which nothing on PATH there is a Python."""
    directory = host.directory / "programs"
    directory.mkdir()
    for place in map(Path, ("/usr/bin", "/bin", "/usr/sbin", "/sbin")):
        for path in place.iterdir():
            target = directory / path.name
            if "python" not in path.name and not target.is_symlink():
                target.symlink_to(path)
    return f"export PATH={shlex.quote(str(host.bin))}:{shlex.quote(str(directory))}"


def interpreters_of(root: Path) -> list[str]:
    directory = root / "remote" / "interpreters"
    return sorted(os.listdir(directory)) if directory.exists() else []


def test_a_machine_without_a_python_gets_one_from_here(
    host: SshHost, tmp_path: Path, archive: Path, offer: Offer
) -> None:
    """The laptop is killed while the Python travels; the next call goes on. Then the real thing."""
    offer(archive)
    hidden = without_python(host)
    load = json.dumps({"on_login_node": f'{hidden}; export KOCHI_ROOT="$HOME/my root"'})
    project = make_project(tmp_path / "project", host.machine(load_env_script=load))
    write(
        project / "pyproject.toml",
        '[tool.uv]\npython-downloads-json-url = "/no/such/file.json"\n',
    )
    root = host.home / "my root"
    line = [*KOCHI, "machine", "setup", "spica"]

    # What has arrived there is held up.
    hold = 'head -c 100000; : >"$HOME/arrived"; while [ ! -e "$HOME/go" ]; do sleep 0.1; done'
    program = host.program("cat", f"{hold}; exec /bin/cat")
    said = tmp_path / "said"
    with said.open("wb") as stderr:
        first = subprocess.Popen(line, cwd=project, stderr=stderr)
    try:
        wait_until((host.home / "arrived").exists, "a part of it arrives", 200)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
        (host.home / "go").touch()
    assert "Of Python, none from 3.11 to 3.14 was found there\n" in said.read_text()
    wait_until(lambda: interpreters_of(root) == [], "what has arrived is deleted")
    program.unlink()

    again = subprocess.run(line, cwd=project, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    [name] = interpreters_of(root)
    brought = root / "remote" / "interpreters" / name
    assert re.fullmatch(rf"cpython-{re.escape(FULL_VERSION)}-linux-\S+-[0-9a-f]{{8}}", name)
    assert f"uv downloads {HERE} here ...\nSending cpython-{FULL_VERSION}-linux" in again.stderr
    assert f"\nUsing Python {FULL_VERSION}: {brought}/bin/python" in again.stderr
    # Its end is that of `kochi doctor` there.
    checks = again.stdout.partition("$ kochi doctor\n")[2]
    assert re.search(rf"^ok +versions: .*, Python {re.escape(FULL_VERSION)}", checks, re.M), checks
    assert not re.search(r"^(wrong|error|missing)", checks, re.M), checks

    used = there(
        host,
        f'{find_kochi("spica")}\n"$kochi" run -- echo "it runs"\n'
        '"${kochi%/*}/python" -c "import sys; print(sys.base_prefix)"',
        f'{hidden}; export KOCHI_ROOT="$HOME/my root"',
    )
    assert used.stdout == f"it runs\n{brought}\n", used.stderr
    assert (brought.stat().st_mode & 0o777, brought.parent.stat().st_mode & 0o777) == (0o700,) * 2

    check_clean_up(project, brought)
    assert [text.startswith(str(brought)) for text in show(project, root)] == [True]
    assert host.logins == 1


def check_clean_up(project: Path, brought: Path) -> None:
    """Of two Pythons, it takes the one that no version has."""
    unused = brought.with_name("cpython-3.11.0-linux-x86_64-gnu-aabbccdd")
    for each in (unused, brought):
        write(each / "used", "")
        os.utime(each / "used", (0, 0))
    line = [*KOCHI, "machine", "setup", "spica", "--clean"]
    cleaned = subprocess.run(line, cwd=project, capture_output=True, text=True)
    assert cleaned.returncode == 0, cleaned.stderr
    assert re.search(r"^versions +1 ", cleaned.stdout, re.M), cleaned.stdout
    assert (unused.exists(), brought.exists()) == (False, True)


# ---- a small package in its place: what else may happen


def test_a_python_travels_once_and_knows_where_it_is(
    host: SshHost, small: InstalledWheel, archive: Path, offer: Offer
) -> None:
    offer(archive)
    prologue = f"{PROLOGUE}\n{without_python(host)}"
    assert any(line.startswith("Sending cpython-") for line in set_up(host, prologue, python=None))
    [name] = interpreters_of(host.root)
    brought = host.root / "remote" / "interpreters" / name
    os.utime(brought / "used", (0, 0))
    said = set_up(host, prologue, python=None, again=True)
    assert [line for line in said if "cpython-" in line and "Using" not in line] == []
    assert interpreters_of(host.root) == [name]
    assert (brought / "used").stat().st_mtime > 0
    words = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    place = there(host, f"{shlex.quote(str(brought))}/bin/python3 -c {shlex.quote(words)}").stdout
    assert place.startswith(f"{brought}/lib")


def test_a_python_that_is_named_or_that_is_there_is_used_without_uv(
    host: SshHost, small: InstalledWheel, archive: Path, offer: Offer
) -> None:
    offer(archive, digest="0" * 64)
    prologue = f"{PROLOGUE}\n{without_python(host)}"
    assert f"Using Python {FULL_VERSION}: {PYTHON}" in set_up(host, prologue, python=PYTHON)
    with pytest.raises(KochiError, match="/no/such/python: not a Python that starts"):
        set_up(host, prologue, python="/no/such/python", again=True)
    (host.bin / "python3").symlink_to(PYTHON)
    said = set_up(host, prologue, python=None, again=True)
    assert any(line.startswith("Using Python") for line in said)
    assert interpreters_of(host.root) == []


def test_without_uv_here_it_is_said_what_to_type(
    host: SshHost, small: InstalledWheel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(interpreters, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{host.laptop}/bin")
    prologue = f"{PROLOGUE}\n{without_python(host)}"
    with pytest.raises(KochiError, match=r"none from 3\.11 to 3\.14 was found there") as raised:
        set_up(host, prologue, python=None)
    assert "Type: pip install uv\nThen type the same line again." in raised.value.message
    with Connection(host.name) as connection:
        found = setup.look(connection, Environment(prologue), None)
    assert [each for each in found.lacking if "pip install uv" in each] != []

    # The program on PATH, too, is a uv.
    (host.laptop / "bin" / "uv").symlink_to("/bin/true")
    assert interpreters.uv_words() == [f"{host.laptop}/bin/uv"]
    assert found.lacking == []


@pytest.mark.parametrize("kind", ["content", "place", "request"])
def test_what_uv_says_is_shown_when_it_does_not_download(
    host: SshHost, small: InstalledWheel, archive: Path, offer: Offer, tmp_path: Path, kind: str
) -> None:
    if kind == "content":
        offer(archive, digest="0" * 64)
        words = r"[Hh]ash|[Mm]ismatch"
    elif kind == "place":
        offer(archive)
        archive = archive.rename(archive.with_name("elsewhere.tar.gz"))
        words = "No such file|not found|Failed"
    else:
        offer(archive, "cpython-3.11-linux-sparc64-gnu")
        words = "No download found"
    try:
        with pytest.raises(KochiError, match=f"uv did not download {re.escape(HERE)}") as raised:
            set_up(host, f"{PROLOGUE}\n{without_python(host)}", python=None)
    finally:
        if kind == "place":
            archive.rename(archive.with_name("python.tar.gz"))
    assert re.search(rf"\n  uv: .*({words})", raised.value.message), raised.value.message
    assert "pip install --upgrade uv" in str(raised.value.hint)
    assert interpreters_of(host.root) == []


def test_a_full_disk_there_is_said_and_nothing_of_the_python_is_left(
    host: SshHost, small: InstalledWheel, archive: Path, offer: Offer, tmp_path: Path
) -> None:
    offer(archive)
    disk = tmp_path / "disk"
    with mounted(disk):
        prologue = f"export KOCHI_ROOT={shlex.quote(str(disk))}\n{without_python(host)}"
        with pytest.raises(KochiError, match=r"was not put on spica\n.*No space left") as raised:
            set_up(host, prologue, python=None)
        assert "choose another kochi_root" in str(raised.value.hint)
        assert interpreters_of(disk) == []


def test_a_python_of_another_processor_is_requested_and_refused_where_it_does_not_start(
    host: SshHost, small: InstalledWheel, archive: Path, offer: Offer, tmp_path: Path
) -> None:
    """uv downloads it here, where it does not start either."""
    host.program("uname", "case $1 in -s) echo Linux ;; *) echo aarch64 ;; esac")
    foreign = tmp_path / "foreign.tar.gz"
    with tarfile.open(archive) as source, tarfile.open(foreign, "w:gz", compresslevel=1) as file:
        for entry in source:
            if "_sysconfigdata_" in entry.name:
                content = source.extractfile(entry)
                assert content is not None
                add(file, entry.name, content.read())
        add(file, f"python/bin/python{VERSION}", b"\x7fELF of another kind", 0o755)
        add(file, "python/bin/python3", b"\x7fELF of another kind", 0o755)
    request = f"cpython-{VERSION}-linux-aarch64-gnu"
    offer(foreign, request)
    with pytest.raises(KochiError, match=r"was not put on spica\n(?s:.*)does not start there"):
        set_up(host, f"{PROLOGUE}\n{without_python(host)}", python=None)
    assert interpreters_of(host.root) == []


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Linux\tx86_64\tglibc 2.28", "linux-x86_64-gnu"),
        ("Linux\taarch64\tglibc 2.34", "linux-aarch64-gnu"),
        ("Linux\tppc64le\tglibc 2.17", "linux-powerpc64le-gnu"),
        ("Linux\ts390x\tldd (GNU libc) 2.31", "linux-s390x-gnu"),
        ("Linux\triscv64\t", "linux-riscv64gc-gnu"),
        ("Linux\tarmv7l\tglibc 2.31", "linux-armv7-gnueabihf"),
    ],
)
def test_the_request_is_in_the_words_of_uv(said: str, expected: str) -> None:
    platform = Platform.of(said)
    assert platform.problem is None
    assert platform.request == f"cpython-{VERSION}-{expected}"
    words = interpreters.uv_words()
    assert words is not None
    options = ("--only-downloads", "--all-platforms", "--all-arches", "--offline")
    known = subprocess.run(
        [*words, "python", "list", *options, platform.request],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.match(rf"cpython-{re.escape(VERSION)}\.\d+-{expected} ", known.stdout), known.stdout


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("FreeBSD\tamd64\t", "it runs FreeBSD, not Linux"),
        ("Linux\tx86_64\tmusl libc (x86_64)", "its C library is musl; glibc is needed"),
        ("Linux\tsparc64\tglibc 2.31", "its processors are of the kind sparc64"),
        ("", "it runs an unknown system, not Linux"),
    ],
)
def test_uv_is_not_asked_for_a_platform_without_wheels(said: str, problem: str) -> None:
    platform = Platform.of(said)
    assert platform.problem == problem
    assert not interpreters.can_bring(platform)
    assert f"uv could not bring one: {problem}. So load one" in interpreters.advice(platform)
