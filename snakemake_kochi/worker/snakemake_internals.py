"""All private parts of Snakemake that the runners use, and the checks that they exist.

A zygote parses a workflow once, and runs single jobs of it in copies of its process. Snakemake's
own `cli.args_to_api` does both, through `SnakemakeApi.workflow`, which this module replaces: the
first call keeps its result and parses the workflow; in the copies it returns that result. Where a
part is missing, UnfitError reports it and the next runner executes the job. No part of Snakemake is
imported before it is needed.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import KochiError

# All options that distinguish the arguments of one job from those of another. With any other option
# the workflow may have to be parsed differently.
JOB_OPTIONS = frozenset(
    {
        "--allowed-rules",
        "--attempt",
        "--cores",
        "--force",
        "--force-use-threads",
        "--local-groupid",
        "--target-jobs",
        "--unneeded-temp-files",
        "--wait-for-files",
        # Replaces --wait-for-files for more than twenty files. The file is below the workflow's own
        # directory, like those files, and remains as long as a job of the run may need it.
        "--wait-for-files-file",
    }
)

# Modules that Snakemake imports late, between parsing and the end of a job. To import one of them
# takes longer than to run a job. Some exist only in some releases.
_IMPORTED_LATE = (
    "graphlib",
    "snakemake.benchmark",
    "snakemake.caching.local",
    "snakemake.caching.storage",
    "snakemake.checkpoints",
    "snakemake.cwl",
    "snakemake.dag",
    "snakemake.executors.local",
    "snakemake.executors.touch",
    "snakemake.notebook",
    "snakemake.persistence",
    "snakemake.scheduler",
    "snakemake.scheduling.greedy",
    "snakemake.scheduling.job_scheduler",
    "snakemake.script",
    "snakemake.shell",
    "snakemake.storage",
    "snakemake.template_rendering",
    "snakemake.wrapper",
)
# Modules that Snakemake imports for each job that is a script, if they are installed.
_IMPORTED_FOR_SCRIPTS = ("nbformat", "numpy", "pandas")

_OF_CLI = ("SnakemakeApi", "args_to_api", "parse_args", "print_exception")
_OF_BENCHMARK = ("BenchmarkRecord", "benchmarked", "write_benchmark_records")
_OF_WORKFLOW = ("output_settings", "resource_settings", "storage_settings", "global_resources")


class UnfitError(KochiError):
    """A runner cannot serve this workflow, or not with this Snakemake."""


def load_benchmarks() -> Any:
    """Import `snakemake.benchmark`. Raises UnfitError."""
    return _load("snakemake.benchmark", _OF_BENCHMARK)


def _load(name: str, parts: Sequence[str]) -> Any:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise UnfitError(f"{name} cannot be loaded: {error}") from error
    _require(f"this Snakemake's {name}", module, parts)
    return module


def _require(what: str, owner: object, parts: Sequence[str]) -> None:
    if missing := [part for part in parts if not hasattr(owner, part)]:
        raise UnfitError(f"{what} has no {', '.join(missing)}")


def pose_as_snakemake(arguments: list[str]) -> None:
    """Set `sys` as `python -m snakemake` finds it."""
    # Python starts with -P because the workflow's directory may contain modules of any name.
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd())
    main_module = importlib.util.find_spec("snakemake.__main__")
    assert main_module is not None and main_module.origin is not None
    sys.argv = [main_module.origin, *arguments]


class ParsedWorkflow:
    """A parsed workflow."""

    def __init__(
        self, cli: Any, parser: Any, settings: argparse.Namespace, api: Any, reads_cores: bool
    ) -> None:
        """Keep a workflow after its parse.

        `settings`: the options that all its jobs have in common. `reads_cores`: whether the
        workflow read the number of cores.
        """
        self.reads_cores = reads_cores
        self._cli = cli
        self._parser = parser
        self._settings = settings
        self._options = _options_of(parser)
        self._api = api

    @property
    def wanted_modules(self) -> tuple[str, ...]:
        """The modules that its jobs will import."""
        kinds = ("script", "notebook", "wrapper")
        rules = self._api._workflow.rules
        has_scripts = any(getattr(rule, kind, None) for rule in rules for kind in kinds)
        return _IMPORTED_FOR_SCRIPTS if has_scripts else ()

    def run(self, options: list[str]) -> int:
        """Run one job as `snakemake` does, except for the parse; return its exit status.

        The arguments are those that all jobs have in common and the `options` of this job. Call
        this once, in a copy of the process.
        """
        parsed = self._api

        class Api(self._cli.SnakemakeApi):  # type: ignore[name-defined]
            def workflow(self, **settings: Any) -> Any:
                return _adapt(parsed, self, **settings)

        self._cli.SnakemakeApi = Api
        try:
            settings = self._options.parse_args(options, self._settings)
            is_done = self._cli.args_to_api(settings, self._parser)
            return 0 if is_done and self._has_run_something() else 1
        except Exception as error:
            self._cli.print_exception(error)
            return 1

    def _has_run_something(self) -> bool:
        """Whether Snakemake has run a job.

        Without this check a Snakemake that found nothing to do would count as a job's success.
        """
        scheduler = getattr(self._api._workflow, "scheduler", None)
        if getattr(scheduler, "finished_jobs", 0 if scheduler is None else 1) > 0:
            return True
        print("kochi: Snakemake found nothing to be done for this job", file=sys.stderr)
        return False


def _adapt(parsed: Any, api: Any, resource_settings: Any, storage_settings: Any, **_: Any) -> Any:
    """The parsed workflow, with all values that differ between its jobs."""
    workflow = parsed._workflow
    parsed.snakemake_api = api
    workflow.output_settings = api.output_settings
    if hasattr(workflow, "logger_manager"):
        workflow.logger_manager = api.logger_manager
    if hasattr(workflow, "start_time"):
        workflow.start_time = datetime.now()
    # The number of cores depends on the CPUs of the job.
    workflow.resource_settings.cores = resource_settings.cores
    workflow.global_resources["_cores"] = resource_settings.cores
    workflow.storage_settings.unneeded_temp_files = storage_settings.unneeded_temp_files
    # Another job may have copied scripts that have changed since.
    cache = workflow.sourcecache
    parent = Path(cache.runtime_cache_path).parent
    own = tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True)
    atexit.register(own.cleanup)
    cache._runtime_cache_path = own.name
    return parsed


def _options_of(parser: Any) -> argparse.ArgumentParser:
    """A parser that understands the options of a job as `parser` does.

    `parser` reads its configuration again each time and goes through 150 options, which takes a
    quarter of the time of a job.
    """
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known = parser._option_string_actions
    for name in JOB_OPTIONS.intersection(known):
        options._add_action(known[name])
    for action in parser._actions:
        if not action.option_strings:  # the files by which some jobs are named
            options._add_action(action)
    return options


def parse(
    arguments: list[str],
    cores: Sequence[str],
    begin: Callable[[], None],
    serve: Callable[[ParsedWorkflow], None],
) -> bool:
    """Parse the workflow, and call `serve` from within Snakemake.

    Snakemake cleans up when `serve` returns or raises. `begin` is called before any part of the
    workflow is read. `cores`: further arguments, for the parse alone. Returns whether the workflow
    was parsed; if not, Snakemake has printed the reason on stderr. Raises UnfitError, also that of
    `serve`.
    """
    cli = _load("snakemake.cli", _OF_CLI)
    for name in _IMPORTED_LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    platform.platform()  # Python caches the result; it starts a program to find out
    parser, settings = cli.parse_args([*arguments, *cores])
    of_all_jobs = parser.parse_args(arguments)
    unfit: list[UnfitError] = []

    class Api(cli.SnakemakeApi):  # type: ignore[name-defined]
        def workflow(self, **settings: Any) -> Any:
            try:
                serve(_parsed(cli, parser, of_all_jobs, super().workflow, settings))
            except UnfitError as error:
                unfit.append(error)
            raise _LeaveError

    begin()
    own, cli.SnakemakeApi = cli.SnakemakeApi, Api
    try:
        cli.args_to_api(settings, parser)
        return False
    except _LeaveError:
        if unfit:
            raise unfit[0] from None
        return True
    finally:
        cli.SnakemakeApi = own


class _LeaveError(BaseException):
    """Leaves Snakemake, which catches every Exception."""


def _parsed(
    cli: Any,
    parser: Any,
    of_all_jobs: argparse.Namespace,
    workflow: Callable[..., Any],
    settings: dict[str, Any],
) -> ParsedWorkflow:
    from snakemake_interface_executor_plugins.settings import SharedFSUsage

    storage = settings["storage_settings"]
    # Otherwise Snakemake keeps data of a job in a directory that belongs to the process.
    if storage.shared_fs_usage != SharedFSUsage.all() or storage.default_storage_provider:
        raise UnfitError("its files are not all on a shared filesystem")
    api = workflow(**settings)
    with _noting_cores() as reads:
        api.dag()
    _check(api._workflow)
    return ParsedWorkflow(cli, parser, of_all_jobs, api, bool(reads))


def _check(workflow: Any) -> None:
    _require("this Snakemake's workflow", workflow, _OF_WORKFLOW)
    if not hasattr(workflow.sourcecache, "_runtime_cache_path"):
        raise UnfitError("this Snakemake keeps sources in another way")
    # All jobs would share its file descriptors.
    if getattr(workflow, "_async_runners", None):
        raise UnfitError("its parse leaves an event loop behind")
    if workflow.storage_registry._storages:
        raise UnfitError("it uses storage providers")


@contextlib.contextmanager
def _noting_cores() -> Iterator[list[str]]:
    """Yield a list that is empty until a workflow reads its number of cores."""
    from snakemake.workflow import Workflow

    own = Workflow.cores
    reads: list[str] = []

    def cores(self: Any) -> Any:
        reads.append("cores")
        return own.fget(self)

    Workflow.cores = property(cores)
    try:
        yield reads
    finally:
        Workflow.cores = own
