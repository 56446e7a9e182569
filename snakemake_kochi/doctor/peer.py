"""`python -m snakemake_kochi.doctor.peer DIRECTORY`: the other node's part of a conversation.

It runs as a job, so it stops by itself when nobody answers any more.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import cast

from snakemake_kochi.doctor.files import watch
from snakemake_kochi.doctor.locks import contend
from snakemake_kochi.doctor.messages import TROUBLE, SilenceError, hear, tell
from snakemake_kochi.errors import KochiError
from snakemake_kochi.locks.lock import Kind, hold
from snakemake_kochi.paths import TrialPaths
from snakemake_kochi.queue.processes import this_node


def main(arguments: list[str]) -> int:
    trial = TrialPaths(Path(arguments[0]))
    try:
        _converse(trial)
    except SilenceError as error:
        print(error, file=sys.stderr)
        return 1
    except (KochiError, OSError) as error:
        print(error, file=sys.stderr)
        if trial.directory.is_dir():
            message = error.message if isinstance(error, KochiError) else str(error)
            hint = error.hint if isinstance(error, KochiError) else None
            tell(trial, TROUBLE, message=f"on {this_node().host}: {message}", hint=hint)
        return 1
    return 0


def _converse(trial: TrialPaths) -> None:
    plan = hear(trial, "plan")
    kind = cast(Kind, plan["kind"])
    held_there, held_here = Path(plan["held_there"]), Path(plan["held_here"])
    tell(trial, "hello", node=asdict(this_node()), answer=contend(held_there, kind))
    with hold(held_here, kind, patience=0):
        tell(trial, "held")
        hear(trial, "tried")
    for number in range(int(plan["rounds"])):
        hear(trial, f"ping-{number}")
        tell(trial, f"pong-{number}", time=time.time())
    hear(trial, "write")
    tell(trial, "reading")
    tell(trial, "read", **asdict(watch(trial.document)))
    hear(trial, "end")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
