"""What a phase that failed leaves beside where its output would be: why, and what was printed last.

Snakemake does not hand on why a job failed, and under some executors its output is nowhere but on
the terminal. The end of the run tells it from here. Beside OUTPUT there is OUTPUT.failed (JSON:
"version", "reason", "output": the last lines) until it is told, or the phase begins again: a job
that fails before it begins has nothing there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError, KochiError, PhaseError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically

VERSION = 1
LAST_LINES = 10


@dataclass(frozen=True)
class Failure:
    reason: str
    output: tuple[str, ...] = ()


def forget_failure(output: Path) -> None:
    """Call when the phase begins, and when it was told."""
    with suppress(OSError):
        _beside(output).unlink(missing_ok=True)


def note_failure(output: Path, error: KochiError) -> None:
    """Without which the run has failed all the same."""
    failure = (
        Failure(error.reason, error.output)
        if isinstance(error, PhaseError)
        else Failure(error.message)
    )
    with suppress(OSError):
        make_directory(output.parent)
        write_atomically(_beside(output), to_json({"version": VERSION, **asdict(failure)}))


def read_failure(output: Path) -> Failure | None:
    """What is noted there, None if nothing."""
    try:
        data = read_json(_beside(output), VERSION)
        return Failure(str(data["reason"]), tuple(map(str, data["output"])))
    except (OSError, DamagedFileError, KeyError, TypeError):
        return None


def _beside(output: Path) -> Path:
    return output.with_name(f"{output.name}.failed")
