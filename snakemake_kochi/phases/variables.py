"""Environment variables for a record: those of a list of names, as the run script sees them.

Only names on the list are read: an environment has what its user does not want to show to others.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from snakemake_kochi.confidential import is_secret_variable
from snakemake_kochi.phases.script import Environment
from snakemake_kochi.schedulers.environment import RECORDED_VARIABLES

# Names, and beginnings of names, of variables that change the results of benchmarks.
_OWN = (
    *("OMP_*", "KMP_*", "GOMP_*", "LIBOMP*"),
    *("MKL_*", "OPENBLAS_*", "BLIS_*", "GOTO_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_*"),
    *("CUDA_*", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "NCCL_*"),
    *("OMPI_MCA_*", "PRTE_MCA_*", "I_MPI_*", "MPICH_*", "MV2_*", "UCX_*", "FI_*", "PSM2_*"),
    *("MALLOC_*", "GLIBC_TUNABLES", "TCMALLOC_*", "LD_PRELOAD", "JULIA_NUM_THREADS"),
)
# A * ends the beginning of a name.
VARIABLES = (*_OWN, *RECORDED_VARIABLES)
_MOST = 200
_LONGEST = 1000  # characters of a value
# Bash has others in its environment, and not as variables.
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# The file that bash executes before a script.
_EXECUTED_FIRST = "BASH_ENV"


def is_as_given(environment: Environment, more: Collection[str]) -> bool:
    """Whether a script finds the variables of the list as its process was given them, so that
    `noted` needs nothing of `noting`."""
    # Bash itself sets some that `more` may name.
    if environment.load_environment or environment.installs or more:
        return False
    return _EXECUTED_FIRST not in environment.of_process()


def noting(more: Iterable[str], file: Path) -> str:
    """Lines for bash that write the exported variables of the list to a file, for `noted`.

    They start no process, and nothing in them ends the script.
    """
    patterns = "|".join(dict.fromkeys(_patterns(more)))
    names, values = shlex.quote(f"{file}.names"), shlex.quote(str(file))
    # One compgen with a pattern takes half the time of one for each name. It is part of each run's
    # time, so it matters. Options of the shell are the user's afterwards.
    return (
        "if shopt -q extglob; then _kochi_glob=s; else _kochi_glob=u; shopt -s extglob; fi\n"
        f"{{ compgen -e -X '!@({patterns})'; }} 2> /dev/null > {names} || :\n"
        'shopt "-$_kochi_glob" extglob\n'
        "{ while IFS= read -r _kochi_name; do\n"
        '  printf "%s=%s\\0" "$_kochi_name" "${!_kochi_name}"\n'
        f"done; }} 2> /dev/null < {names} > {values} || :\n"
        "unset _kochi_name _kochi_glob\n"
    )


def noted(more: Iterable[str], file: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The variables that `noting` wrote, by name; without the file those that were `given`.

    Names and values that look like secrets are left out, and the rest of a long value.
    """
    try:
        lines = os.fsdecode(file.read_bytes()).split("\0")
        seen = dict(line.partition("=")[::2] for line in lines if line)
    except OSError:
        seen = {name: value for name, value in given.items() if _NAME.fullmatch(name)}
    patterns = _patterns(more)
    whole = {pattern for pattern in patterns if not pattern.endswith("*")}
    beginnings = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    wanted = {
        name: value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        for name, value in sorted(seen.items())
        if (name in whole or name.startswith(beginnings)) and not is_secret_variable(name, value)
    }
    return {name: value[:_LONGEST] for name, value in list(wanted.items())[:_MOST]}


def _patterns(more: Iterable[str]) -> tuple[str, ...]:
    return (*VARIABLES, *more)
