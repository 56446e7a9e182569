"""Metadata, requirements and data of the package. pyproject.toml has the settings of the tools."""

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
    # `make test-oldest` tests with the lower bound. By default, 9.0 and 9.1 rerun nothing when
    # params changed. 10 may move functions that the executor uses.
    "snakemake>=9.3.0,<10",
    # The interfaces of the plugins. Snakemake's plugin catalog derives compatibility from them.
    "snakemake-interface-common>=1.17.4,<2",
    "snakemake-interface-executor-plugins>=9.3.2,<10",
    "snakemake-interface-logger-plugins>=1.2,<3",
    # kochi.yaml and experiments.
    "pyyaml>=6.0",
    # Snapshots and artifact branches.
    "gitpython>=3.1.30",
    # The locks of the queue. Version 4 added fallback_to_soft and preserve_lock_file.
    "filelock>=4.0,<5",
    # Intervals and comparisons of results. pandas needs it, too.
    "numpy>=1.25",
    # Parameter grids (Snakemake's Paramspace) and result tables.
    "pandas>=2.0",
    # The plots of a batch.
    "matplotlib>=3.7",
    # `snakemake --report` requires it. Every batch has a table and a plot for the report.
    "pygments>=2.15",
    # The command `kochi`.
    "click>=8.1",
    # The patterns of `sources:`, with the rules of .gitignore.
    "pathspec>=1.0",
    # Shapes of YAML files, tables, directories of the user. Snakemake imports them, too.
    "jsonschema>=4.18",
    # Checks 10,000 records of an artifact branch in a second. Snakemake's nbformat imports it, too.
    "fastjsonschema>=2.15",
    "tabulate>=0.9",
    "platformdirs>=4.0",
    # Which distributions and wheels a Python on another host needs. Snakemake uses it, too.
    "packaging>=24.0",
    # Durations for people. Snakemake parses its resources with it, too.
    "humanfriendly>=10.0",
    # `kochi export` writes the metadata of a research object crate with it.
    "rocrate>=0.15",
    # Repeats commands of a scheduler that is away for a moment. Snakemake uses it, too.
    "tenacity>=8.2",
    # Finds the log that a launched Snakemake has open. Snakemake uses it, too.
    "psutil>=5.9",
]
TESTS = [
    "hypothesis",
    # Simulated processes (tests/simulator): a switch takes a microsecond, one of threads twenty.
    "greenlet>=3.0",
    # A filesystem that refuses calls, delays them or loses answers (tests/faulty_filesystem.py).
    "mfusepy>=3.0",
    "pytest>=8.0",
    # Repeats a test with a real cluster, terminal or network once, and prints that it did.
    "pytest-rerunfailures>=15.0",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.7",
    # Tests type at a terminal: job control and window sizes need a real one.
    "pexpect>=4.8",
    # `kochi machine setup` uses the one that a user has; tests/remote/test_interpreters.py.
    "uv>=0.8",
    # They execute rules with `notebook:` in the conformance tests.
    "ipykernel>=6.0",
    "nbconvert>=7.0",
    # `--logger rich` must work with the executor.
    "snakemake-logger-plugin-rich",
    # The community's validator of research object crates.
    "roc-validator>=0.13,<0.14",
    # The oracle for intervals and tests. Too slow to import and too large for the package.
    "scipy>=1.11",
    # The tests of the package build it without network access.
    "setuptools>=70.1",
]
BENCHMARKS = [
    # Compared with the kochi executor: a Snakemake for each job, without a batch system.
    "snakemake-executor-plugin-cluster-generic>=1.0",
]
SLURM_BENCHMARK = [
    # The same with Slurm, in an environment of its own: it slows down each start of Snakemake.
    "snakemake-executor-plugin-slurm>=2.8",
]
CHECKS = [
    # Below the next minor versions: a change of style in a formatter must not fail old commits.
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
    # `make docs`: the theme, Markdown, and the reference of commands, which click describes.
    "furo>=2024.8.6",
    "myst-parser>=4.0",
    "sphinx>=8.0",
    "sphinx-click>=6.0",
]


def version() -> str:
    # Read, not imported: while this runs, the requirements of the package are not installed yet.
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
    """Copies workflow/ and profiles/ into the built package snakemake_kochi.

    A mapping in `package_dir` would do the same, but setuptools would no longer recognise a plain
    layout. `pip install -e .` would then install an import hook, and Snakemake, which lists the
    directories of sys.path, would not find the plugin.
    """

    def run(self) -> None:
        if not self.editable_mode:
            # Otherwise files of an earlier build, deleted since, would be installed again.
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
    # With the root, setuptools recognises the layout as plain: see BuildWithData.
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
