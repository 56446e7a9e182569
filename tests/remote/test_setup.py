"""`kochi machine setup` against a real sshd: nothing of the package is there before."""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution, distribution
from pathlib import Path
from threading import Thread

import pytest
from full_disk import mounted
from remote.setups import KOCHI, PROLOGUE, PYTHON, make_project, set_up, show, there
from ssh_host import SshHost
from support import wait_until

from snakemake_kochi.errors import KochiError
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.remote import collection, interpreters, setup, wheels
from snakemake_kochi.remote.collection import Collection
from snakemake_kochi.remote.connection import Connection
from snakemake_kochi.remote.environment import Environment
from snakemake_kochi.remote.pythons import Python, described
from snakemake_kochi.remote.version import NOT_SET_UP, find_kochi
from snakemake_kochi.remote.wheels import (
    InstalledWheel,
    NotPackableError,
    identity,
    installed_wheel,
    own_wheel,
)


def make_old_version(directory: Path) -> None:
    old = directory / "pythons" / "0.0.9-aa-bb"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "python").symlink_to(PYTHON)
    (old / "used").touch()
    os.utime(old / "used", (0, 0))
    (directory / "python-0.0.9-aa").symlink_to(f"pythons/{old.name}")


def test_a_machine_without_an_index_gets_the_package_and_all_that_it_needs(
    host: SshHost, tmp_path: Path
) -> None:
    """The laptop is killed while the wheels travel; the next call goes on. Then the real thing."""
    project = make_project(tmp_path / "project", host.machine(kochi_root='"~/my $WHERE"'))
    host.program("git", 'exec /usr/bin/git "$@"')
    root = host.home / "my root"
    prologue = 'export KOCHI_ROOT="$HOME/my root"'
    host.banner("echo Welcome; export WHERE=root")
    line = [*KOCHI, "machine", "setup", "spica", "--python", PYTHON]

    first = subprocess.Popen(line, cwd=project, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(list(root.glob("remote/wheels/*.whl"))) > 20, "wheels arrive", 120)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not list(root.glob("remote/python-*"))

    again = subprocess.run(line, cwd=project, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    counts = re.search(
        r"(\d+) wheels for it are there already; sending (\d+) wheels ", again.stderr
    )
    assert counts is not None, again.stderr
    assert int(counts[1]) > 20
    assert int(counts[1]) + int(counts[2]) > 60
    assert f"kochi {identity()} is now in {root} of spica" in again.stdout
    checks = again.stdout.partition("$ kochi doctor\n")[2]
    assert re.search(rf"^ok +rename in {re.escape(str(root))}/machines/spica", checks, re.M), checks
    assert not list(root.glob("remote/pythons/.*"))

    # As other commands find it, in a KOCHI_ROOT that is a symbolic link, of a Python of its own.
    (host.home / "link").symlink_to(root)
    for where in ("my root", "link"):
        found = there(
            host,
            f'{find_kochi("spica")}\necho "$kochi"\n"$kochi" --version\n'
            '"${kochi%/*}/python" -c "import snakemake_kochi; print(snakemake_kochi.__file__)"\n'
            '"${kochi%/*}/snakemake" --help | grep -c -e --kochi-queue',
            f'export KOCHI_ROOT="$HOME/{where}"',
        )
        kochi, version, module, count = found.stdout.splitlines()
        assert Path(kochi).is_relative_to(host.home / where / "remote" / "pythons")
        assert version == "kochi, version 0.1.0"
        assert Path(module).is_relative_to(host.home / where / "remote" / "pythons")
        assert int(count) > 0
    run = there(host, f'{find_kochi("spica")}\n"$kochi" run -- echo "it runs"', prologue)
    assert (run.returncode, run.stdout) == (0, "it runs\n"), run.stderr

    make_old_version(root / "remote")
    twice = subprocess.run([*line, "--clean"], cwd=project, capture_output=True, text=True)
    assert twice.returncode == 0, twice.stderr
    assert f"kochi {identity()} is in {root} of spica already" in twice.stdout
    assert re.search(r"^versions +1 ", twice.stdout, re.M), twice.stdout
    assert [path.name for path in root.glob("remote/python-*")] == [f"python-{identity()}"]
    show(project, root)
    assert host.logins == 1


# ---- a small package in its place: what else may happen


def test_a_failed_installation_leaves_the_good_one(
    host: SshHost,
    small: InstalledWheel,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    set_up(host)
    link = host.root / "remote" / f"python-{identity()}"
    good = os.readlink(link)
    monkeypatch.setattr(setup, "_TRIAL", "import missing_here")

    with pytest.raises(
        KochiError, match="was not installed on spica; what worked there still does"
    ):
        set_up(host, again=True)
    assert "No module named 'missing_here'" in capfd.readouterr().err
    assert os.readlink(link) == good
    assert [path.name for path in (host.root / "remote" / "pythons").iterdir()] == [Path(good).name]
    assert there(host, f'{find_kochi("spica")}\n"$kochi"').stdout == "kochi, version 0.1.0\n"

    monkeypatch.setattr(setup, "_TRIAL", "import kochi_small")
    set_up(host, again=True)
    assert os.readlink(link) != good


def test_a_version_shares_the_files_that_are_as_in_the_one_before_and_stays_without_it(
    host: SshHost, small: InstalledWheel
) -> None:
    set_up(host)
    link = host.root / "remote" / f"python-{identity()}"
    before = link.resolve()
    [damaged] = before.glob("lib/python*/site-packages/kochi_small.py")
    damaged.write_text("")
    set_up(host, again=True)
    after = link.resolve()
    pip = damaged.parent.relative_to(before) / "pip" / "__init__.py"
    for shared in (Path("bin/kochi"), pip):
        assert (before / shared).samefile(after / shared)
    assert not damaged.samefile(after / damaged.relative_to(before))
    shutil.rmtree(before)
    assert there(host, f'{find_kochi("spica")}\n"$kochi"').stdout == "kochi, version 0.1.0\n"


def test_what_a_killed_installation_has_made_is_deleted_by_the_next(
    host: SshHost, small: InstalledWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pythons = host.root / "remote" / "pythons"
    monkeypatch.setattr(setup, "_TRIAL", "import os, time; os.kill(os.getppid(), 9)")
    with pytest.raises(KochiError, match="was not installed"):
        set_up(host)
    [left] = pythons.iterdir()
    assert left.name.startswith(".")
    monkeypatch.setattr(setup, "_TRIAL", "import kochi_small")
    set_up(host)
    [made] = pythons.iterdir()
    assert not made.name.startswith(".")


@pytest.mark.parametrize("when", ["sending", "installing"])
def test_a_laptop_that_is_killed_leaves_nothing_in_the_way(
    when: str, host: SshHost, small: InstalledWheel, tmp_path: Path
) -> None:
    reached, go = tmp_path / "reached", tmp_path / "go"
    add = setup._add

    def stop_at_end(stream: tarfile.TarFile, name: str, content: bytes) -> None:
        if name == "end":
            reached.touch()
            wait_until(go.exists)
        add(stream, name, content)

    def be_the_laptop() -> None:
        os.setsid()
        if when == "sending":
            setup._add = stop_at_end
        else:
            waits = f"while not os.path.exists({str(go)!r}): time.sleep(0.05)"
            setup._TRIAL = f"import os, time\nopen({str(reached)!r}, 'w').close()\n{waits}"
        set_up(host)

    laptop = multiprocessing.get_context("fork").Process(target=be_the_laptop, daemon=True)
    laptop.start()
    wait_until(reached.exists, when)
    assert laptop.pid is not None
    os.killpg(laptop.pid, signal.SIGKILL)
    laptop.join()
    go.touch()
    pythons = host.root / "remote" / "pythons"
    ends = "it ends there"
    wait_until(lambda: not [each for each in pythons.iterdir() if each.name[0] == "."], ends)
    set_up(host)
    [made] = pythons.iterdir()
    link = host.root / "remote" / f"python-{identity()}"
    assert os.readlink(link) == f"pythons/{made.name}"
    assert there(host, f'{find_kochi("spica")}\n"$kochi"').stdout == "kochi, version 0.1.0\n"
    assert not [each for each in (host.root / "remote").rglob("*.tmp") if each.is_file()]


def test_a_full_disk_is_said_and_nothing_is_left_half_done(
    host: SshHost, small: InstalledWheel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with mounted(tmp_path / "disk"):
        prologue = f"export KOCHI_ROOT={shlex.quote(str(tmp_path / 'disk'))}"
        with pytest.raises(KochiError, match="was not installed"):
            set_up(host, prologue)
        said = capfd.readouterr().err
        assert "No space left on device" in said
        assert "choose another kochi_root" in said
        assert list((tmp_path / "disk" / "remote" / "pythons").iterdir()) == []


def test_a_filesystem_that_executes_nothing_is_refused(
    host: SshHost, small: InstalledWheel, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with mounted(disk):
        subprocess.run(["mount", "-o", "remount,noexec", str(disk)], check=True)
        with pytest.raises(KochiError, match="are not executed") as raised:
            set_up(host, f"export KOCHI_ROOT={shlex.quote(str(disk))}")
        assert "noexec" in str(raised.value.hint)


def test_a_kochi_root_that_cannot_be_made_is_said_with_what_to_do(
    host: SshHost, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for root, said in (
        (str(tmp_path / "file" / "root"), "Not a directory"),
        ("$NOWHERE/kochi", "$NOWHERE, which is not set on the login host"),
        (".kochi", "no absolute path on the login host: .kochi"),
    ):
        machine = Machine("spica", kochi_root=root)
        with Connection(host.name) as connection, pytest.raises(KochiError) as raised:
            setup.look(connection, Environment.of(machine), None, tries=True)
        assert said in raised.value.message and "\n" not in raised.value.message
        assert "see: machines: spica: kochi_root in kochi.yaml" in str(raised.value.hint)


def test_a_python_without_ensurepip_gets_pip_from_a_wheel(
    host: SshHost, small: InstalledWheel
) -> None:
    """As Debian's, whose ensurepip is a package of its own."""
    host.program(
        "python-of-debian",
        f'{shlex.quote(PYTHON)} "$@" | sed \'s/"has_ensurepip": true/"has_ensurepip": false/\'',
    )
    with Connection(host.name) as connection:
        found = setup.look(connection, Environment(PROLOGUE), "python-of-debian")
    assert [each.has_ensurepip for each in found.pythons] == [False]
    set_up(host, python="python-of-debian")
    pip = there(host, f'{find_kochi("spica")}\n"${{kochi%/*}}/pip" --version').stdout
    assert str(host.root / "remote") in pip


@pytest.fixture
def leaf(small: InstalledWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package needs another one, which is not installed here; the wheel of that."""

    class Needy:
        requires = ("kochi-test-leaf>=1",)

    def installed(name: str) -> object:
        return Needy if name == wheels.OWN_NAME else distribution(name)

    monkeypatch.setattr(collection, "distribution", installed)
    monkeypatch.setattr(setup, "_TRIAL", "import kochi_leaf")
    (tmp_path / "index").mkdir()
    metadata = "kochi_test_leaf-2.dist-info"
    text = tmp_path / "METADATA"
    text.write_text("Metadata-Version: 2.1\nName: kochi-test-leaf\nVersion: 2\n")
    (tmp_path / "leaf.py").write_text("")
    files = ((tmp_path / "leaf.py", "kochi_leaf.py"), (text, f"{metadata}/METADATA"))
    wheel = InstalledWheel("kochi-test-leaf", "2", ("py3-none-any",), files, metadata, is_pure=True)
    return wheel.write(tmp_path / "index")


def test_an_index_of_the_host_is_used_where_it_has_one(host: SshHost, leaf: Path) -> None:
    with pytest.raises(KochiError, match="no wheel of kochi-test-leaf>=1 for Python"):
        set_up(host)
    said = set_up(host, f"{PROLOGUE}\nexport PIP_FIND_LINKS={shlex.quote(str(leaf.parent))}")
    assert "It does: 1 large wheel came from there." in said
    assert (host.root / "remote" / "wheels" / leaf.name).is_file()


class Proxy(BaseHTTPRequestHandler):
    """The only way to an index, which has one wheel."""

    leaf: Path

    def do_GET(self) -> None:
        page = f'<a href="{self.leaf.name}">{self.leaf.name}</a>'.encode()
        content = self.leaf.read_bytes() if self.path.endswith(".whl") else page
        is_known = self.path.startswith("http://index.invalid/simple/kochi-test-leaf/")
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_index_behind_a_proxy_of_the_host_is_used(host: SshHost, leaf: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Proxy,), {"leaf": leaf})) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        said = set_up(
            host,
            f"{PROLOGUE}\nunset PIP_NO_INDEX\n"
            f"export http_proxy=http://127.0.0.1:{server.server_port} no_proxy= NO_PROXY=\n"
            "export PIP_CONFIG_FILE=/dev/null PIP_EXTRA_INDEX_URL=\n"
            "export PIP_INDEX_URL=http://index.invalid/simple PIP_TRUSTED_HOST=index.invalid",
        )
        server.shutdown()
    assert "It does: 1 large wheel came from there." in said


def test_a_host_without_a_python_of_use_says_what_it_has_and_what_to_do(
    host: SshHost, small: InstalledWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreters, "uv_words", lambda: None)
    host.program(
        "python3",
        f'{shlex.quote(PYTHON)} "$@" | sed \'s/"version": \\[3, [0-9]*/"version": [3, 6/\'',
    )
    tools = ("sh", "git", "df", "awk", "dirname", "mkdir", "chmod", "rm", "sed", "base64")
    tools += ("touch", "uname", "getconf")
    for tool in tools:
        (host.bin / tool).symlink_to(str(shutil.which(tool)))
    environment = Environment(f"{PROLOGUE}\nPATH={shlex.quote(str(host.bin))}")
    with Connection(host.name) as connection:
        with pytest.raises(KochiError) as old:
            setup.set_up(connection, environment, None, False, print)
        with pytest.raises(KochiError) as named:
            setup.set_up(connection, environment, "/no/such/python3", False, print)
        (host.bin / "python3").unlink()
        with pytest.raises(KochiError) as none:
            setup.set_up(connection, environment, None, False, print)
    assert re.search(
        r"none from 3\.11 to 3\.14 was found there\n  \S+: Python 3\.6\.", old.value.message
    )
    assert "/no/such/python3: not a Python that starts" in named.value.message
    uv = host.home / ".local/share/uv/python/cpython-3.11.7-linux-x86_64-gnu/bin/python3"
    uv.parent.mkdir(parents=True)
    uv.symlink_to(PYTHON)
    with Connection(host.name) as connection:
        of_uv = setup.look(connection, environment, None).python
    assert of_uv is not None
    assert of_uv.path == str(uv)
    for error in (old, named, none):
        assert "Type: pip install uv\nThen type the same line again" in error.value.message
        assert "name its path with --python" in error.value.message


def test_a_machine_without_a_login_host_needs_no_setup(host: SshHost, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", "")
    done = subprocess.run(
        [*KOCHI, "machine", "setup", "local"], cwd=project, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("kochi: machine 'local' has no login_host")


# ---- which kochi other commands use


def test_other_commands_refuse_another_version_with_the_line_to_type(host: SshHost) -> None:
    check = f'{find_kochi("spica")}\necho "$kochi"'
    line = "type: kochi machine setup spica"

    none = there(host, f"PATH=/usr/bin:/bin\n{check}")
    assert (none.returncode, none.stdout) == (NOT_SET_UP, "")
    assert "does not have this package" in none.stderr
    assert line in none.stderr

    host.program("kochi", "echo 'kochi, version 0.0.1'")
    old = there(host, check)
    assert old.returncode == NOT_SET_UP
    assert (
        f"another version of this package, there: 0.0.1 ({host.bin}/kochi), here: 0.1.0"
        in old.stderr
    )
    assert line in old.stderr

    host.program("kochi", "echo 'kochi, version 0.1.0'")
    assert there(host, check).stdout == f"{host.bin}/kochi\n"

    # Of the versions in KOCHI_ROOT, none is the one from here.
    other = host.root / "remote" / "python-0.1.0-0123456789" / "bin"
    other.mkdir(parents=True)
    (other / "python").symlink_to(PYTHON)
    found = there(host, check)
    assert found.returncode == NOT_SET_UP
    assert f"there: 0.1.0-0123456789, here: {identity()}" in found.stderr


# ---- wheels


def test_a_wheel_of_an_installed_distribution_has_its_name_and_its_files(tmp_path: Path) -> None:
    wheel = installed_wheel(distribution("psutil"))
    assert wheel.file_name.startswith(
        f"psutil-{distribution('psutil').version}-cp36-abi3-manylinux"
    )
    path = wheel.write(tmp_path)
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", target]
    subprocess.run([*pip, path], check=True, capture_output=True)
    found = subprocess.run(
        [sys.executable, "-S", "-c", "import psutil; print(psutil.__file__, psutil.cpu_count())"],
        env={"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(str(target / "psutil"))


def test_a_distribution_that_an_old_pip_has_installed_from_its_source_is_packed(
    tmp_path: Path,
) -> None:
    # As pip 23.0 leaves it where the package `wheel` is missing.
    egg = tmp_path / "site" / "old_style-1.0-py3.11.egg-info"
    files = {
        egg / "PKG-INFO": "Metadata-Version: 2.1\nName: old.style\nVersion: 1.0\n",
        egg / "top_level.txt": "old_style\n",
        egg / "installed-files.txt": "../old_style/__init__.py\n"
        "../old_style/__pycache__/__init__.cpython-311.pyc\nPKG-INFO\ntop_level.txt\n",
        egg.with_name("old_style") / "__init__.py": "answer = 42\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    wheel = installed_wheel(Distribution.at(egg))
    assert wheel.file_name == "old.style-1.0-py3-none-any.whl"
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", target]
    subprocess.run([*pip, wheel.write(tmp_path)], check=True, capture_output=True)
    assert (target / "old_style" / "__init__.py").read_text() == "answer = 42\n"

    (egg / "installed-files.txt").write_text("../old_style/fast.so\n")
    with pytest.raises(NotPackableError, match="compiled here"):
        installed_wheel(Distribution.at(egg))


def python_here() -> Python:
    out = subprocess.run(
        [PYTHON, "-I", "-", PYTHON],
        input=setup.DESCRIBE,
        capture_output=True,
        text=True,
        check=True,
    )
    [found] = described(out.stdout.splitlines())
    return found


def test_wheels_that_were_made_for_another_python_or_platform_are_not_taken() -> None:
    here = python_here()
    assert here.problem is None
    machine = here.markers["platform_machine"]
    version = f"cp{here.version[0]}{here.version[1]}"
    assert here.takes(f"a-1-{version}-{version}-manylinux_2_17_{machine}.whl")
    assert here.takes(f"a-1-{version}-{version}-manylinux2014_{machine}.whl")
    assert here.takes(f"a-1-cp38-abi3-manylinux_2_17_{machine}.whl")
    assert here.takes("a-1-py2.py3-none-any.whl")
    assert not here.takes(f"a-1-cp310-cp310-manylinux_2_17_{machine}.whl")
    assert not here.takes(f"a-1-{version}-{version}-manylinux_2_99_{machine}.whl")
    assert not here.takes(f"a-1-{version}-{version}-manylinux_2_17_sparc.whl")
    assert not here.takes(f"a-1-{version}-{version}-musllinux_1_2_{machine}.whl")
    assert not here.takes("nonsense.whl")


def test_what_is_required_by_another_python_or_platform_only_is_not_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Needy:
        requires = ("of-windows; sys_platform == 'win32'", "of-3-13; python_version >= '3.13'")

    def installed(name: str) -> object:
        return Needy if name == wheels.OWN_NAME else distribution(name)

    here = python_here()
    assert {"snakemake", "pandas", "matplotlib", "numpy"} <= set(Collection(here).wanted)
    monkeypatch.setattr(collection, "distribution", installed)
    old = replace(here, markers={**here.markers, "python_version": "3.12"})
    assert set(Collection(old).wanted) == {wheels.OWN_NAME}
    new = replace(here, markers={**here.markers, "python_version": "3.13"})
    assert set(Collection(new).wanted) == {wheels.OWN_NAME, "of-3-13"}


def test_each_change_of_the_package_is_another_version(tmp_path: Path) -> None:
    wheel = own_wheel()
    path, name = wheel.files[0]
    changed = tmp_path / path.name
    changed.write_bytes(path.read_bytes() + b"\n")
    assert replace(wheel, files=((changed, name), *wheel.files[1:])).digest != wheel.digest
    assert replace(wheel, files=wheel.files).digest == wheel.digest
