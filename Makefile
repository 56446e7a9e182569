# make check    formatter, linters, types
# make test     all tests, some again with the executor kochi or with the oldest supported Snakemake
# make demo     run the example, from nothing to a plot
# make nightly  the simulator, with all that `make test` leaves out, for hours
# make docs     build the documentation in build/docs
# make bench    all benchmarks; BENCH="local --cores 4" selects one, with options
# make constraints    the newest versions for the environments of all of these
# make clean    delete everything that these commands made
#
# Each command sets up the virtual environment that it needs. PYTHON=... selects the interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help check lint test test-copies test-oldest nightly demo docs bench clean
.PHONY: environment environment-oldest environment-slurm constraints

# All paths are relative, because make cannot handle spaces in the path of the checkout.
VENV := .venv
VENV_OLDEST := .venv-oldest
VENV_SLURM := .venv-slurm
# The user's installations and configuration must not affect the results, nor their time: without
# files for compiled modules, each process of the tests would compile all of them.
unexport PYTHONPATH PYTHONHOME SNAKEMAKE_PROFILE PYTHONDONTWRITEBYTECODE
export PYTHONNOUSERSITE := 1

OLDEST_SNAKEMAKE := $(shell sed -n 's/.*"snakemake>=\([0-9.]*\).*/\1/p' setup.py)
PYTEST_OPTIONS ?=
# All tests of a module run in one process; tests/conftest.py starts the longest modules first.
SPREAD := --dist loadscope --no-loadscope-reorder --max-worker-restart 0

# The Debian packages that tests and benchmarks need; PACKAGE:PROGRAM if the names differ. Slurm needs
# the database to remember ended jobs.
PROGRAMS := strace numactl openmpi-bin:mpirun munge slurmctld slurmd
# Programs that isolate jobs.
ISOLATION := bubblewrap:bwrap podman
# Login nodes, and the networks between them and their users.
LOGIN := openssh-server:sshd openssh-client:ssh iproute2:ip
# Login shells that read a command in their own way.
SHELLS := tcsh fish
# What the lines and the scripts of Kochi's tutorial call.
TUTORIAL := g++ bzip2 procps:top
# Users have it, and it has to understand what we keep in its format.
LARGE_FILES := git-lfs
DATABASE := slurmdbd mariadb-server-core:mariadbd
# FUSE for filesystems with faults or delays, GlusterFS for a filesystem that two nodes share.
FILESYSTEMS := fuse3:fusermount3 glusterfs-server:glusterd glusterfs-client:glusterfs

# The commands below may call make, which must not take itself for a submake of this one.
APART := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

environment:
	@tools/environment.sh $(VENV) test,check,docs,bench

environment-oldest:
	@tools/environment.sh $(VENV_OLDEST) test tools/constraints-oldest.txt

environment-slurm:
	@tools/environment.sh $(VENV_SLURM) bench-slurm

COMPILE := $(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--no-annotate --no-header setup.py

# The newest versions that the environments may have: their tests then do not depend on the day.
constraints: environment
	$(COMPILE) --all-extras --output-file tools/constraints.txt
	echo "snakemake==$(OLDEST_SNAKEMAKE)" | $(COMPILE) - --extra test \
		--output-file tools/constraints-oldest.txt

check: environment
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/snakefmt --check workflow examples
	$(MAKE) --no-print-directory lint

lint: environment
	$(APART) PATH="$$PWD/$(VENV)/bin:$$PATH" $(VENV)/bin/python tools/lint.py build/lint

# Six processes on two cores, because many tests only wait.
test: environment environment-slurm
	@tools/programs.sh $(PROGRAMS) $(DATABASE) $(FILESYSTEMS) $(LARGE_FILES) $(ISOLATION) \
		$(LOGIN) $(SHELLS) $(TUTORIAL)
	$(APART) $(VENV)/bin/python -m pytest -n 6 $(SPREAD) --durations 10 $(PYTEST_OPTIONS)
	$(MAKE) --no-print-directory test-copies
	$(MAKE) --no-print-directory test-oldest

# What phases do in processes of their own they do in copies of a process.
test-copies: environment
	$(APART) $(VENV)/bin/python -m pytest -n 6 $(SPREAD) -m phases --executor kochi $(PYTEST_OPTIONS) \
		$$(grep -rl --include='test_*.py' mark.phases tests | sort)

# Only modules with such tests: collecting all modules takes longer than some of these tests.
test-oldest: environment-oldest
	$(APART) $(VENV_OLDEST)/bin/python -m pytest -n 3 $(SPREAD) -m compatibility $(PYTEST_OPTIONS) \
		$$(grep -rl --include='test_*.py' mark.compatibility tests | sort)

# How many random histories it plays.
HISTORIES ?= 1000000
nightly: environment
	@tools/programs.sh $(FILESYSTEMS)
	$(APART) KOCHI_NIGHTLY=$(HISTORIES) $(VENV)/bin/python -m pytest -n 2 tests/simulator $(PYTEST_OPTIONS)

demo: environment
	$(APART) PATH="$$PWD/$(VENV)/bin:$$PATH" examples/demo.sh build/demo

docs: environment
	$(APART) $(VENV)/bin/python -m sphinx -W --keep-going -q docs build/docs
	@echo "The documentation: $$PWD/build/docs/index.html"

bench: environment environment-slurm
	@tools/programs.sh $(PROGRAMS) $(FILESYSTEMS)
	$(APART) $(VENV)/bin/python -m bench $(BENCH)

clean:
	rm -rf build dist *.egg-info $(VENV) $(VENV_OLDEST) $(VENV_SLURM)
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .snakemake
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
