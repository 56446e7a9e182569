"""Every line somebody may install with makes `snakemake --executor kochi` known."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("snakemake_kochi", "snakemake_executor_plugin_kochi")
SOURCES = (
    *PACKAGES,
    *("workflow", "profiles", "setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE"),
)
# What would make the installation find this checkout, or the tests' own, instead of itself.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "SNAKEMAKE_PROFILE", "VIRTUAL_ENV")


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make_source(place: Path) -> Path:
    """A copy of the checkout, in a path with a space: building leaves things in it."""
    directory = place / "my checkout"
    directory.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, directory / name)
    return directory


def make_python(place: Path) -> Path:
    """The interpreter of a fresh environment that has the libraries of this one, and needs no
    network for it."""
    directory = place / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=place)
    interpreter = directory / "bin" / "python"
    (site_packages,) = directory.glob("lib/python*/site-packages")
    # A line names a directory whose own .pth files are not followed: an editable installation of
    # this project in the present environment stays unseen.
    (site_packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return interpreter


def pip(python: Path, *arguments: str | Path, cwd: Path) -> None:
    # --ignore-installed: the environment the tests run in must never be changed.
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    ignore = ("--ignore-installed",) if arguments[0] == "install" else ()
    pip_here = (sys.executable, "-m", "pip", "--python", python)
    run(*pip_here, *arguments, *offline, *ignore, cwd=cwd)


@dataclass(frozen=True)
class Installed:
    """`directory`: from where the packages must be imported."""

    python: Path
    directory: Path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    source = make_source(place)
    # Left by an earlier build, of a module that is deleted since.
    stale = source / "build" / "lib" / "snakemake_kochi"
    stale.mkdir(parents=True)
    (stale / "deleted.py").touch()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(place))
        pip(make_python(place), "wheel", "--wheel-dir", place / "made", ".", cwd=source)
    (made,) = (place / "made").glob("*.whl")
    return made


@pytest.fixture(scope="module", params=["pip install .", "a wheel", "pip install --editable ."])
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheel: Path
) -> Installed:
    place = tmp_path_factory.mktemp("installed")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(place))
        return install(request.param, make_source(place), make_python(place), wheel)


def install(way: str, source: Path, python: Path, wheel: Path) -> Installed:
    if way == "pip install --editable .":
        pip(python, "install", "--editable", ".", cwd=source)
        return Installed(python, source)
    if way == "a wheel":
        pip(python, "install", wheel, cwd=source.parent)
    else:
        pip(python, "install", ".", cwd=source)
    (site_packages,) = python.parents[1].glob("lib/python*/site-packages")
    return Installed(python, site_packages)


def test_snakemake_knows_the_executor_however_it_was_installed(
    installed: Installed, tmp_path: Path
) -> None:
    python = installed.python
    place = "import snakemake_executor_plugin_kochi as plugin; print(plugin.__file__)"
    found = Path(run(python, "-c", place, cwd=tmp_path).strip())
    assert found == installed.directory / "snakemake_executor_plugin_kochi" / "__init__.py"

    text = run(python, "-m", "snakemake", "--help", cwd=tmp_path)
    executors = re.search(r"--executor \{(.*?)\}", text)
    assert executors is not None
    assert "kochi" in executors[1].split(",")
    assert "--kochi-" in text


def test_the_rule_library_and_the_profiles_are_found_however_it_was_installed(
    installed: Installed, tmp_path: Path
) -> None:
    program = (
        "from snakemake_kochi.resources import profiles_directory, workflow_directory\n"
        "print(workflow_directory() / 'Snakefile')\n"
        "print(profiles_directory() / 'local' / 'config.yaml')\n"
    )
    for line in run(installed.python, "-c", program, cwd=tmp_path).splitlines():
        assert Path(line).is_file()
        assert Path(line).resolve().is_relative_to(installed.directory)


def test_the_command_kochi_is_installed(installed: Installed, tmp_path: Path) -> None:
    assert "init" in run(installed.python.parent / "kochi", "--help", cwd=tmp_path)


def test_the_wheel_for_another_host_has_the_same_files_however_it_was_installed(
    installed: Installed, wheel: Path, tmp_path: Path
) -> None:
    """As `kochi machine setup` makes it, without the sources."""
    program = (
        "import pathlib\n"
        "from snakemake_kochi.remote.wheels import own_wheel\n"
        f"print(own_wheel().write(pathlib.Path({str(tmp_path)!r})))\n"
    )
    made = run(installed.python, "-P", "-c", program, cwd=tmp_path).strip()

    def names(path: Path) -> set[str]:
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            return set(archive.namelist())

    assert names(Path(made)) == names(wheel)


def test_a_wheel_has_all_modules_rules_schemas_and_profiles_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    for directory in ("workflow", "profiles"):
        expected |= {
            f"snakemake_kochi/{path.relative_to(ROOT).as_posix()}"
            for path in (ROOT / directory).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    assert names == expected
    assert "snakemake_kochi/profiles/local/config.yaml" in names
    assert "snakemake_kochi/workflow/Snakefile" in names
    assert "snakemake_kochi/workflow/schemas/kochi.schema.yaml" in names


def imported_libraries() -> set[str]:
    """The top-level names that modules of ours import, the standard library's aside."""
    modules: set[str] = set()
    files = [*ROOT.glob("snakemake_*/**/*.py"), *ROOT.glob("workflow/**/*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_bytes(), file)):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
    return modules - sys.stdlib_module_names - set(PACKAGES)


def test_what_is_imported_is_required_and_what_is_required_is_imported() -> None:
    setup = (ROOT / "setup.py").read_text()
    listed = setup[setup.index("RUNS_ON = [") : setup.index("TESTS = [")]
    required = {name.lower() for name in re.findall(r'^    "([A-Za-z0-9-]+)', listed, re.M)}
    distributions = packages_distributions()
    imported = {
        distribution.lower()
        for module in imported_libraries()
        for distribution in distributions.get(module, [f"no distribution has module {module}"])
    }
    assert imported - required == set(), "add to RUNS_ON in setup.py"
    # Pygments is imported by Snakemake, when it makes a report (tests/workflow has one made).
    assert required - imported == {"pygments"}, "nothing imports these: remove them from setup.py"
