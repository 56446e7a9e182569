# make check    formatter, linters, types
# make test     all tests, also with the oldest supported Snakemake
# make demo     the example, from nothing to a plot
# make docs     the site of the documentation, in build/docs
# make bench    measurements, against other executors, too; BENCH="local --cores 4" chooses
# make clean    delete what these made
#
# Each sets up the virtual environment it needs; PYTHON=... chooses the interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help check lint test test-oldest demo docs bench clean
.PHONY: environment environment-oldest environment-slurm

# Paths are relative throughout: make cannot handle spaces in the path of the checkout.
VENV := .venv
VENV_OLDEST := .venv-oldest
VENV_SLURM := .venv-slurm
# A wrong user-wide installation or configuration must not leak in.
unexport PYTHONPATH PYTHONHOME SNAKEMAKE_PROFILE
export PYTHONNOUSERSITE := 1

OLDEST_SNAKEMAKE := $(shell sed -n 's/.*"snakemake>=\([0-9.]*\).*/\1/p' setup.py)
PYTEST_OPTIONS ?=
# A module stays together; tests/conftest.py has the longest ones begin first.
SPREAD := --dist loadscope --no-loadscope-reorder

# What tests and measurements need besides Python, by Debian's names; package:program, where they
# differ. With a database, Slurm remembers its jobs.
PROGRAMS := strace munge slurmctld slurmd
DATABASE := slurmdbd mariadb-server-core:mariadbd
# Filesystems with faults, and one that two nodes share.
FILESYSTEMS := fuse3:fusermount3 glusterfs-server:glusterd glusterfs-client:glusterfs

# What is run below may call make itself, and must not take itself for a part of this one.
APART := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

environment:
	@tools/environment.sh $(VENV) test,check,docs,bench

environment-oldest:
	@tools/environment.sh $(VENV_OLDEST) test snakemake==$(OLDEST_SNAKEMAKE)

environment-slurm:
	@tools/environment.sh $(VENV_SLURM) bench-slurm

check: environment
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/snakefmt --check workflow examples
	$(MAKE) --no-print-directory lint

lint: environment
	$(APART) PATH="$$PWD/$(VENV)/bin:$$PATH" $(VENV)/bin/python tools/lint.py build/lint

# Four on two cores: many a test waits for a time to pass.
test: environment environment-slurm
	@tools/programs.sh $(PROGRAMS) $(DATABASE) $(FILESYSTEMS)
	$(APART) $(VENV)/bin/python -m pytest -n 4 $(SPREAD) --durations 10 $(PYTEST_OPTIONS)
	$(MAKE) --no-print-directory test-oldest

# Only the modules that have such tests: to collect all takes longer than some of them run.
test-oldest: environment-oldest
	$(APART) $(VENV_OLDEST)/bin/python -m pytest -n 3 $(SPREAD) -m compatibility $(PYTEST_OPTIONS) \
		$$(grep -rl --include='test_*.py' mark.compatibility tests | sort)

demo: environment
	$(APART) PATH="$$PWD/$(VENV)/bin:$$PATH" examples/demo.sh build/demo

docs: environment
	$(APART) $(VENV)/bin/python -m sphinx -W --keep-going -q docs build/docs
	@echo "The site: $$PWD/build/docs/index.html"

bench: environment environment-slurm
	@tools/programs.sh $(PROGRAMS)
	$(APART) $(VENV)/bin/python -m bench $(BENCH)

clean:
	rm -rf build dist *.egg-info $(VENV) $(VENV_OLDEST)
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .snakemake
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
