"""Options of sbatch as words, and those that are not for people to give: kochi gives them itself,
or has words of its own for what they say, from which it also knows what its workers have."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

# As sbatch has it: ":" follows a letter whose option takes a value.
_SHORT = {
    "A": "account", "a": "array", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "G": "gpus", "J": "job-name", "M": "clusters", "N": "nodes",
    "n": "ntasks", "o": "output", "P": "dependency", "p": "partition", "q": "qos", "t": "time",
    "W": "wait", "h": "help", "V": "version",
}  # fmt: skip
_OURS = "kochi sets it itself, to find its allocations and their workers again"
_NOT_FOR_WORKERS = "a worker is started by kochi, in an allocation that begins when it may"
_REFUSED = {
    **dict.fromkeys(("job-name", "output", "error", "array", "parsable", "open-mode"), _OURS),
    **dict.fromkeys(("chdir", "signal"), _OURS),
    **dict.fromkeys(("export", "export-file"), "a worker needs the run's environment"),
    **dict.fromkeys(("wrap", "wait", "test-only", "help", "usage", "version"), _NOT_FOR_WORKERS),
}
# What a resource of a rule says, sizes the workers, too, or their queue.
_REFUSED_TO_RULES = {
    **_REFUSED,
    "dependency": _NOT_FOR_WORKERS,
    "account": "resource slurm_account is for that",
    "partition": "resource slurm_partition is for that",
    "clusters": "all jobs of a run go to the cluster of its machine",
    "cluster": "all jobs of a run go to the cluster of its machine",
    "mem": "resource mem_mb is for that",
    "mem-per-cpu": "resource mem_mb_per_cpu is for that",
    "time": "resource runtime is for that",
    "nodes": "resource nodes is for that",
    "ntasks": "resource tasks is for that",
    "ntasks-per-node": "resource tasks_per_node is for that",
    "ntasks-per-gpu": "resource tasks_per_gpu is for that",
    "cpus-per-task": "threads, or resource cpus_per_task, are for that",
    "cpus-per-gpu": "resource cpus_per_gpu is for that",
    "gpus": "resource gpu is for that",
}
_OF_JOBS = "kochi asks for what its jobs need; how much a node has at most says the key"
# What a key of a machine says, a rule may override, and the size of workers is known by.
_REFUSED_TO_MACHINES = {
    **_REFUSED,
    "account": "use the key 'account'",
    "partition": "use the key 'partition'",
    "qos": "use the key 'qos'",
    "reservation": "use the key 'reservation'",
    "constraint": "use the key 'constraint'",
    "gres": "use the key 'gres'",
    "time": "use the key 'time'",
    "nodes": "use the key 'nodes'",
    "mem": f"{_OF_JOBS} 'memory'",
    "mem-per-cpu": f"{_OF_JOBS} 'memory'",
    "cpus-per-task": f"{_OF_JOBS} 'cores'",
    "cpus-per-gpu": f"{_OF_JOBS} 'cores'",
    "gpus": f"{_OF_JOBS} 'gpus'",
    **dict.fromkeys(
        ("ntasks", "ntasks-per-node", "ntasks-per-gpu"),
        "kochi starts one worker in each allocation; how many nodes it leads says the key 'nodes'",
    ),
}


def refused_to_rule(word: str) -> str | None:
    """Why a rule may not give an option, with what to use instead; None where it may."""
    return _REFUSED_TO_RULES.get(_name(word, _REFUSED_TO_RULES))


def refused_to_machine(word: str) -> str | None:
    """Why a machine's `arguments` may not have an option, with what to use instead; None where they
    may."""
    return _REFUSED_TO_MACHINES.get(_name(word, _REFUSED_TO_MACHINES))


def _name(word: str, options: Collection[str]) -> str:
    """The long name of an option. sbatch understands the beginning of one, too, if no other begins
    like that."""
    if not word.startswith("--"):
        return _SHORT.get(word[1:2], "")
    name = word[2:].partition("=")[0]
    if name in options or len(name) < 2:
        return name
    return next((each for each in options if each.startswith(name)), name)


def joined_options(words: Iterable[str]) -> list[str]:
    """Each option in one word with its value. Raises ValueError, for people, for a word that is
    neither."""
    options: list[str] = []
    for word in words:
        if is_option(word):
            options.append(word)
        elif options and options[-1].startswith("--") and "=" not in options[-1]:
            options[-1] += f"={word}"
        elif options and re.fullmatch(r"-[A-Za-z]", options[-1]):
            options[-1] += word
        else:
            raise ValueError(f"{word!r} is no option of sbatch, and the value of none")
    return options


def is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"
