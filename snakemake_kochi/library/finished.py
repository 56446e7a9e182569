"""Snakemake learns that restored results are finished.

`python -m snakemake_kochi.library.finished` reads JSON: "snakefile", "config", "targets": names of
rules and files, "records": those of the restored results, which are still aside, and "freeze": the
freeze with whose code they agree. Without what Snakemake notes about a finished job (its params,
code and inputs), it would not see later changes: so a record comes to its place only now. Nothing
of the workflow is executed but tables and plots.

Private parts of Snakemake that are used, and only here: the DAG after a dry run, and the methods
with which it notes the beginning and the end of a job.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import KochiError
from snakemake_kochi.library.library import FREEZE_VARIABLE
from snakemake_kochi.paths import WorkingPaths

_TABLE = "collect_"


def main() -> int:
    """Exit status 1, with a message, if Snakemake refuses the workflow or lacks a part."""
    wanted = json.load(sys.stdin)
    try:
        _note_jobs(_planned(wanted), set(wanted["records"]))
    except (KochiError, OSError) as error:
        print(f"kochi: {error}", file=sys.stderr)
        return 1
    except (AttributeError, TypeError, ImportError) as error:
        said = "this Snakemake lacks a part that is needed to restore results"
        print(f"kochi: {said}: {error!r}", file=sys.stderr)
        return 1
    return 0


def _planned(wanted: Mapping[str, Any]) -> Any:
    """The workflow after a dry run."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import (
        ConfigSettings,
        DAGSettings,
        OutputSettings,
        Quietness,
        ResourceSettings,
    )

    with SnakemakeApi(OutputSettings(dryrun=True, quiet={Quietness.ALL})) as snakemake:
        workflow = snakemake.workflow(
            resource_settings=ResourceSettings(cores=1),
            config_settings=ConfigSettings(config=wanted["config"]),
            snakefile=Path(wanted["snakefile"]),
        )
        dag = workflow.dag(DAGSettings(targets=set(wanted["targets"])))
        try:
            dag.execute_workflow(executor="dryrun")
        except Exception as error:
            snakemake.print_exception(error)
            raise KochiError("Snakemake refuses the workflow") from error
        if os.environ[FREEZE_VARIABLE] != wanted["freeze"]:
            raise KochiError(
                "the project was changed while its results were restored",
                "Type the same command again.",
            )
        return workflow._workflow


def _note_jobs(workflow: Any, records: Collection[str]) -> None:
    dag, persistence = workflow.dag, workflow.persistence
    noted = set()
    for job in dag.jobs:
        own = [Path(output) for output in job.output if str(output) in records]
        if own:
            # If this process is killed here, Snakemake takes the job for incomplete.
            persistence.started(job)
            for record in own:
                with suppress(FileNotFoundError):  # it is in its place already
                    os.replace(WorkingPaths.record_aside(record), record)
            _note_end(persistence, job)
            noted.add(job)
    for job in dag.jobs:
        needed = set(dag.dependencies.get(job, {}))
        is_complete = not any(dag.needrun(each) for each in needed - noted)
        if job.rule.name.startswith(_TABLE) and needed & noted and is_complete:
            persistence.started(job)
            for output in job.output:
                os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
            if subprocess.run(["bash", "-c", job.shellcmd], check=False).returncode == 0:
                _note_end(persistence, job)
            else:
                persistence.cleanup(job)


def _note_end(persistence: Any, job: Any) -> None:
    """The job was not executed here, so its time is none: the record has that of its run."""
    for output in job.output:
        # Snakemake writes a job's outputs after its beginning; the record is the last of them.
        now = time.time_ns()
        os.utime(output, ns=(now, now))
    asyncio.run(persistence.finished(job))


if __name__ == "__main__":
    sys.exit(main())
