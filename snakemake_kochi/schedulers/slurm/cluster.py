"""What a Slurm tells of itself: its cluster's name, and what one may ask it for."""

from __future__ import annotations

import contextlib
import getpass
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tenacity import RetryCallState

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_name
from snakemake_kochi.schedulers.interface import RefusedError, UnreachableError
from snakemake_kochi.schedulers.slurm.commands import NoProgramError, Pace, run, trying_again
from snakemake_kochi.schedulers.slurm.partitions import LISTED, Partition, read_partitions

# Seconds for each answer: a person waits; and for one that only a remark depends on.
_PATIENCE = 10.0
_SHORT_PATIENCE = 2.0
ONCE = Pace(submission=0.0)
_NAME = re.compile(r"^\s*ClusterName\s*=\s*(\S+)\s*$", re.MULTILINE)
# Where a cluster's name cannot be that of a machine.
_NO_NAME = "slurm"


@dataclass(frozen=True)
class Accounts:
    """Those that a user may name, and the one that Slurm takes without; none where Slurm keeps no
    accounts."""

    names: tuple[str, ...] = ()
    default: str | None = None


def is_installed() -> bool:
    """Whether jobs can be handed to a Slurm here, as far as can be told without asking it."""
    return shutil.which("sbatch") is not None


def is_there() -> bool:
    """Whether there is one that answers at once; its programs may be here for none."""
    if not is_installed():
        return False
    with contextlib.suppress(KochiError):
        return bool(run(["scontrol", "show", "config"], _SHORT_PATIENCE))
    return False


def cluster_name(pace: Pace = ONCE, tell: Callable[[str], None] | None = None) -> str:
    """The cluster's name, as a machine's. `tell` is given what a person who waits should know.
    Raises KochiError when Slurm does not answer in time, or not like this."""

    def say(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if tell is not None and state.attempt_number == 1 and isinstance(error, KochiError):
            tell(f"{error.message}. It is asked again, for {pace.submission:.0f} s")

    ask = trying_again(pace, threading.Event(), say)
    found = _NAME.search(ask(_ask, "scontrol", "show", "config"))
    return found[1] if found is not None and is_name(found[1]) else _NO_NAME


def partitions() -> Sequence[Partition]:
    """Those that one may use, with nodes of one kind each. Raises KochiError."""
    return read_partitions(_ask("sinfo", "--noheader", "--exact", f"--format={LISTED}"))


def accounts() -> Accounts:
    """The user's."""
    listing = ("--noheader", "--parsable2")
    user = getpass.getuser()
    with contextlib.suppress(KochiError):
        said = _ask("sacctmgr", *listing, "show", "associations", f"user={user}", "format=account")
        names = tuple(dict.fromkeys(filter(None, map(str.strip, said.splitlines()))))
        said = _ask("sacctmgr", *listing, "show", "user", user, "format=defaultaccount")
        return Accounts(names, next(iter(said.split()), None))
    return Accounts()


def _ask(*command: str) -> str:
    try:
        return run(command, _PATIENCE)
    except UnreachableError as error:
        raise UnreachableError(
            f"Slurm is here, and does not answer: {error.message}",
            "Try again later; or to run on this computer, add to the line: --kochi-where here",
        ) from error
    except NoProgramError:
        raise
    except RefusedError as error:
        raise RefusedError(
            error.message, "Is this a login node of a cluster with Slurm?"
        ) from error
