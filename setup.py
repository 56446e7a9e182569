"""How snakemake_kochi is packaged; the settings of the tools are in pyproject.toml."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/snakemake-kochi/snakemake_kochi"
DOCUMENTATION = "https://snakemake-kochi.readthedocs.io/en/latest/"
DATA_DIRECTORIES = ("workflow", "profiles")

RUNS_ON = [
    # The oldest here is what `make test-oldest` tests with (9.0 and 9.1 rerun nothing when params
    # changed, unless told to by --rerun-triggers); 10 may move what the executor uses.
    "snakemake>=9.3.0,<10",
    # What the plugins are written against; Snakemake's plugin catalog reads compatibility here.
    "snakemake-interface-common>=1.17.4,<2",
    "snakemake-interface-executor-plugins>=9.3.2,<10",
    "snakemake-interface-logger-plugins>=1.2,<3",
    # kochi.yaml and experiments.
    "pyyaml>=6.0",
    # Snapshots and artifact branches.
    "gitpython>=3.1.30",
    # The queue's lock; 4 brought fallback_to_soft and preserve_lock_file.
    "filelock>=4.0,<5",
    # Parameter grids (Snakemake's Paramspace) and result tables.
    "pandas>=2.0",
    # The plots of a batch.
    "matplotlib>=3.7",
    # `snakemake --report` asks for it; every batch brings a table and a plot for the report.
    "pygments>=2.15",
    # The command `kochi`.
    "click>=8.1",
    # Globs of `sources:` with the rules of .gitignore.
    "pathspec>=1.0",
    # Imported here and by Snakemake: the shape of YAML files, tables, directories.
    "jsonschema>=4.18",
    "tabulate>=0.9",
    "platformdirs>=4.0",
    # Durations as people write and read them; Snakemake's own resources are read by it.
    "humanfriendly>=10.0",
    # Submissions to a scheduler that is away for a moment; Snakemake retries by it, too.
    "tenacity>=8.2",
    # Which log a launched Snakemake has open; Snakemake imports it, too.
    "psutil>=5.9",
]
TESTS = [
    "hypothesis",
    # Filesystems that refuse, delay and lose answers (tests/faulty_filesystem.py).
    "mfusepy>=3.0",
    "pytest>=8.0",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.7",
    # Rules with `notebook:` are executed by these, in the conformance tests.
    "ipykernel>=6.0",
    "nbconvert>=7.0",
    # `--logger rich` has to work with us.
    "snakemake-logger-plugin-rich",
    # The tests of the package build it without a network.
    "setuptools>=70.1",
]
BENCHMARKS = [
    # What our executor is compared with: a Snakemake for each job, without a batch system.
    "snakemake-executor-plugin-cluster-generic>=1.0",
]
SLURM_BENCHMARK = [
    # The same with Slurm; apart from the others, as it slows down every start of a Snakemake.
    "snakemake-executor-plugin-slurm>=2.8",
]
CHECKS = [
    # Below the next minor versions: a new formatter's taste must not fail an old commit.
    "mypy>=2.4,<2.5",
    "ruff>=0.17.5,<0.18",
    "snakefmt>=2.1,<2.2",
    "pandas-stubs",
    "types-PyYAML",
    "types-jsonschema",
    "types-psutil",
    "types-tabulate",
]
SITE = [
    # `make docs`: the theme, Markdown, and the reference of commands out of click's own data.
    "furo>=2024.8.6",
    "myst-parser>=4.0",
    "sphinx>=8.0",
    "sphinx-click>=6.0",
]


def version() -> str:
    # Not imported: while this runs, what the package imports is not installed yet.
    text = (HERE / "snakemake_kochi" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+?)"', text, re.MULTILINE)
    if found is None:
        raise RuntimeError(
            "snakemake_kochi/__init__.py: a line '__version__ = \"...\"' was expected"
        )
    return found[1]


def description() -> str:
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.is_file() else ""


class BuildWithData(build_py):
    """Puts workflow/ and profiles/ into the built package snakemake_kochi.

    Mapping them with `package_dir` would do it too, but then setuptools no longer sees a plain
    layout, installs `pip install -e .` through an import hook, and Snakemake, which lists the
    directories of sys.path, does not find the plugin.
    """

    def run(self) -> None:
        if not self.editable_mode:
            # What an earlier build left there, and is deleted since, would be installed again.
            for name in self.distribution.packages:
                shutil.rmtree(Path(self.build_lib, name.split(".")[0]), ignore_errors=True)
        super().run()
        if not self.editable_mode:
            for name in DATA_DIRECTORIES:
                shutil.copytree(
                    HERE / name,
                    Path(self.build_lib, "snakemake_kochi", name),
                    ignore=shutil.ignore_patterns("__pycache__", ".*"),
                )


setup(
    name="snakemake-executor-plugin-kochi",
    version=version(),
    description="Benchmarks on clusters: Kochi's experiments and persistent workers for Snakemake",
    long_description=description(),
    long_description_content_type="text/markdown",
    author="the snakemake_kochi developers",
    url=DOCUMENTATION,
    project_urls={
        "Repository": REPOSITORY,
        "Documentation": DOCUMENTATION,
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    },
    license="MIT",
    python_requires=">=3.11,<3.15",
    install_requires=RUNS_ON,
    extras_require={
        "test": TESTS,
        "check": CHECKS,
        "docs": SITE,
        "bench": BENCHMARKS,
        "bench-slurm": SLURM_BENCHMARK,
    },
    # The root is named so that setuptools knows the layout as plain: see BuildWithData.
    package_dir={"": "."},
    packages=find_packages(include=["snakemake_kochi*", "snakemake_*_plugin_kochi"]),
    cmdclass={"build_py": BuildWithData},
    entry_points={"console_scripts": ["kochi = snakemake_kochi.cli:main"]},
    classifiers=[
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: System :: Distributed Computing",
    ],
    keywords=["snakemake", "plugin", "executor", "benchmark", "hpc", "slurm"],
)
