"""`python -m snakemake_kochi.worker SETTINGS`: how other parts of the project start a worker."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.worker.settings import read_settings
from snakemake_kochi.worker.start import run_worker


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and work; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m snakemake_kochi.worker", description=__doc__)
    parser.add_argument("settings", type=Path, metavar="SETTINGS", help="a file: WorkerSettings")
    # Values that are known only inside an allocation take precedence over the file.
    parser.add_argument("--allocation", metavar="NAME", help="the allocation of this process")
    parser.add_argument("--worker", type=int, metavar="N", help="the number of this worker")
    parser.add_argument("--cores", type=int, metavar="N", help="how many the allocation has here")
    parser.add_argument("--parent", type=int, metavar="PID", help="it ends with that process")
    try:
        if "--root" in arguments:
            raise WorkerError(
                "an earlier release of snakemake_kochi requested this worker, and this release "
                "cannot start it",
                "A run that goes on requests another worker. If kochi alloc requested this one, "
                "run kochi alloc again.",
            )
        given = vars(parser.parse_args(arguments))
        path = given.pop("settings")
        found = {name: value for name, value in given.items() if value is not None}
        settings = replace(read_settings(path), **found)
        # The process that started this worker has already reported any doubts.
        settings.kochi_root.secure(settings.paths.directory)
        return run_worker(settings)
    except KochiError as error:
        print(f"kochi worker: {error.message}", file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
