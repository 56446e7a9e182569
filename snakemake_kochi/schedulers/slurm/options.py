"""Options of sbatch: those that people may give, and those that Kochi gives.

Kochi refuses an option that it gives itself, or that has a key or resource of Kochi: these also
size its workers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.schedulers.interface import (
    AllocationRequest,
    AllocationSettings,
    Wanted,
    time_limit,
)

# The names of constraints: keys of a machine's `allocation`, and options of sbatch.
PROGRAM = "sbatch"
CONSTRAINTS: tuple[str, ...] = ("partition", "account", "qos", "reservation", "constraint", "gres")
INSTEAD_OF_NODE_SPEC = "for Slurm use 'partition', 'constraint' or 'arguments: [--nodelist=...]'"
# Constraints on the account and the location: a controller needs no others.
_OF_CONTROLLERS = ("partition", "account", "qos", "reservation")
# Generic resources that are GPUs: gpu, gpu:2, gpu:a100, gpu:a100:2.
GPUS = re.compile(r"gpu(?::(\w*[A-Za-z_][\w.-]*))?(?::(\d+))?")
_LONGEST_COMMENT = 200  # characters
_EXCLUDE = re.compile(r"(?:--exc\w*=|-x)(.+)")
_CLUSTERS = re.compile(r"(?:--clusters?=|-M)(\S+)")

_SHORT = {
    "A": "account", "a": "array", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "e": "error", "G": "gpus", "J": "job-name", "M": "clusters", "N": "nodes",
    "n": "ntasks", "o": "output", "P": "dependency", "p": "partition", "q": "qos", "t": "time",
    "W": "wait", "h": "help", "V": "version",
}  # fmt: skip
_OURS = "kochi sets it, to find its allocations and their workers"
_NOT_FOR_WORKERS = "kochi starts workers itself, in allocations that begin when Slurm has the nodes"
_REFUSED = {
    **dict.fromkeys(("job-name", "output", "error", "array", "parsable", "open-mode"), _OURS),
    **dict.fromkeys(("chdir", "signal"), _OURS),
    **dict.fromkeys(("export", "export-file"), "a worker needs the run's environment"),
    **dict.fromkeys(("wrap", "wait", "test-only", "help", "usage", "version"), _NOT_FOR_WORKERS),
}
# Options with a resource of a rule instead, which also sizes the workers or selects their queue.
_REFUSED_TO_RULES = {
    **_REFUSED,
    "dependency": _NOT_FOR_WORKERS,
    "account": "use resource slurm_account",
    "partition": "use resource slurm_partition",
    "clusters": "all jobs of a run go to the cluster of its machine",
    "cluster": "all jobs of a run go to the cluster of its machine",
    "mem": "use resource mem_mb",
    "mem-per-cpu": "use resource mem_mb_per_cpu",
    "time": "use resource runtime",
    "nodes": "use resource nodes",
    "ntasks": "use resource tasks",
    "ntasks-per-node": "use resource tasks_per_node",
    "ntasks-per-gpu": "use resource tasks_per_gpu",
    "cpus-per-task": "use threads, or resource cpus_per_task",
    "cpus-per-gpu": "use resource cpus_per_gpu",
    "gpus": "use resource gpu",
}
_OF_JOBS = "kochi requests what its jobs need; for the most that a node has, use the key"
# Options with a key of a machine instead: a rule may override it, and it gives the size of workers.
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
        "kochi starts one worker in each allocation; for several nodes, use the key 'nodes'",
    ),
}


# ---- options that people give


def argument_problem(word: str) -> str | None:
    """The reason why a machine's `arguments` may not contain this word, with the alternative.

    None if they may.
    """
    if not is_option(word):
        return None
    if re.search(r"\s", word.partition("=")[0]):
        return f"{word!r}: one argument was expected, such as --exclude=n1"
    why = _REFUSED_TO_MACHINES.get(_name(word, _REFUSED_TO_MACHINES))
    return None if why is None else f"{word} cannot be used: {why}"


def refused_to_rule(word: str) -> str | None:
    """The reason why a rule may not give an option, with the alternative; None if it may."""
    return _REFUSED_TO_RULES.get(_name(word, _REFUSED_TO_RULES))


def _name(word: str, options: Collection[str]) -> str:
    """The long name of an option.

    sbatch also takes the beginning of a name if no other option begins like that.
    """
    if not word.startswith("--"):
        return _SHORT.get(word[1:2], "")
    name = word[2:].partition("=")[0]
    if name in options or len(name) < 2:
        return name
    return next((each for each in options if each.startswith(name)), name)


def joined_options(words: Iterable[str]) -> list[str]:
    """Each option in one word with its value.

    Raises ValueError, for people, for a word that is neither.
    """
    options: list[str] = []
    for word in words:
        if is_option(word):
            options.append(word)
        elif options and options[-1].startswith("--") and "=" not in options[-1]:
            options[-1] += f"={word}"
        elif options and re.fullmatch(r"-[A-Za-z]", options[-1]):
            options[-1] += word
        else:
            raise ValueError(f"{word!r} is neither an option of sbatch nor the value of one")
    return options


def is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def clusters(arguments: Iterable[str]) -> list[str]:
    """The clusters that arguments of sbatch name."""
    found = map(_CLUSTERS.fullmatch, arguments)
    return [name for match in found if match for name in match[1].split(",")]


# ---- options that Kochi gives


def with_node_spec(settings: AllocationSettings) -> AllocationSettings:
    """The settings with their `node_spec`, a number of nodes or their names, in Slurm's terms."""
    spec = settings.node_spec
    if spec is None:
        return settings
    if spec.isdecimal() and len(spec) < 10:
        return replace(settings, nodes=max(1, int(spec)))
    return replace(settings, arguments=(*settings.arguments, f"--nodelist={spec}"))


def settings_for(request: AllocationRequest, settings: AllocationSettings) -> AllocationSettings:
    """The settings that apply to allocations with a request.

    The node resources in the settings are valid for their partition. For another partition, Slurm
    has to report them.
    """
    both = {**settings.constraints, **request.constraints}
    found = replace(settings, constraints=FrozenDict({k: v for k, v in both.items() if v}))
    if request.nodes is not None:
        found = replace(found, nodes=request.nodes)
    partition = request.constraints.get("partition")
    if partition is not None and partition != settings.constraints.get("partition"):
        found = replace(found, cores=None, memory_mb=None, gpus=None)
    return found


def sbatch_arguments(
    name: str, settings: AllocationSettings, wanted: Wanted, grace: float, log: Path
) -> list[str]:
    """The arguments for allocations with this job name, each for a worker.

    Slurm tells the worker `grace` seconds before its end. `settings`: those of the machine.
    """
    request = wanted.request
    settings = settings_for(request, settings)
    arguments = [
        f"--job-name={name}",
        *_comment(wanted.purpose),
        f"--output={log}",
        *(request_shape(request) if request.has_shape else _worker_shape(wanted, settings)),
        # To the shell only: it has become the worker, which tells its jobs. Slurm may be early by
        # half a minute, and mostly the worker knows its end.
        f"--signal=B:USR1@{int(grace)}",
        # A requeued job waits for two minutes although nodes are free: a run submits another one.
        "--requeue" if wanted.comes_back else "--no-requeue",
        "--open-mode=append",
    ]
    if wanted.count > 1:
        arguments.append(f"--array=1-{wanted.count}")
    arguments += _place_and_time(settings, wanted)
    return [*arguments, *_exclude(arguments, wanted.excluded)]


def _comment(purpose: str) -> list[str]:
    """What administrators read about a job: one word, for scripts around sbatch that quote nothing.

    The fields of lists are often separated by |, and characters beyond ASCII stop some databases.
    """
    text = re.sub(r"[^!-~]|[|]", "_", purpose)
    cut = text if len(text) <= _LONGEST_COMMENT else f"{text[: _LONGEST_COMMENT - 3]}..."
    return [f"--comment={cut}"] if cut else []


def shell_arguments(name: str, settings: AllocationSettings, wanted: Wanted) -> list[str]:
    """The arguments of salloc for an allocation with this job name. `settings`: the machine's."""
    settings = with_node_spec(settings)
    shape = _worker_shape(wanted, settings)
    own = [f"--job-name={name}", *_comment(wanted.purpose)]
    return [*own, *shape, *_place_and_time(settings, wanted)]


def _place_and_time(settings: AllocationSettings, wanted: Wanted) -> list[str]:
    arguments = []
    if gres := generic_resources(wanted.request, settings, wanted.gpus):
        arguments.append(f"--gres={gres}")
    if wanted.seconds is not None:
        arguments.append(f"--time={time_limit(wanted.seconds)}")
    others = [each for each in CONSTRAINTS if each != "gres"]
    arguments += _options(settings.constraints, others)
    return [*arguments, *settings.arguments, *wanted.request.arguments]


def controller_arguments(
    name: str, output: Path, settings: AllocationSettings, limit: str | None, purpose: str
) -> list[str]:
    """The arguments for a controller on one core. `limit`: its time limit in Slurm's words."""
    return [
        *(f"--job-name={name}", *_comment(purpose), f"--output={output}", "--open-mode=append"),
        # A requeued controller would meet the lock of the earlier one in its directory.
        *("--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--no-requeue"),
        *_options(settings.constraints, _OF_CONTROLLERS),
        # Time for the run to end in order; its supervisor gets the signal.
        "--signal=B:USR1@60",
        *([] if limit is None else [f"--time={limit}"]),
    ]


def _options(constraints: Mapping[str, str], names: Iterable[str]) -> list[str]:
    return [f"--{name}={constraints[name]}" for name in names if name in constraints]


def request_shape(request: AllocationRequest) -> list[str]:
    """The shape that a request gives its allocations."""
    arguments = [] if request.nodes is None else [f"--nodes={request.nodes}"]
    if request.tasks is not None:
        arguments.append(f"--ntasks={request.tasks}")
    if request.tasks_per_node is not None:
        arguments.append(f"--ntasks-per-node={request.tasks_per_node}")
    elif request.tasks is None:
        arguments.append("--ntasks-per-node=1")
    arguments.append(f"--cpus-per-task={request.cpus_per_task or 1}")
    if request.memory_mb_of_core is not None:
        arguments.append(f"--mem-per-cpu={request.memory_mb_of_core}M")
    elif request.memory_mb is not None:
        arguments.append(f"--mem={request.memory_mb}M")
    if request.gpus:
        # For all its nodes together: a generic resource would be for each node.
        model = f"{request.gpu_model}:" if request.gpu_model else ""
        arguments.append(f"--gpus={model}{request.gpus}")
    if request.whole_nodes:
        arguments.append("--exclusive")
    return arguments


def _worker_shape(wanted: Wanted, settings: AllocationSettings) -> list[str]:
    """The shape for one worker, on the first of the nodes."""
    arguments = [
        f"--nodes={settings.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={wanted.cores}",
    ]
    if wanted.memory_mb:
        arguments.append(f"--mem={wanted.memory_mb}M")
    if wanted.whole_node:
        arguments.append("--exclusive")
    return arguments


def generic_resources(
    request: AllocationRequest, settings: AllocationSettings, gpus: int
) -> str | None:
    """The generic resources of each node: those of the settings, and `gpus`.

    The request's generic resources, if any, replace those of the settings. `gpus` is left out if
    the settings name GPUs and the request names no model.
    """
    gres = settings.constraints.get("gres")
    own = gres.split(",") if gres else []
    if request.has_shape:
        return ",".join(own) or None
    has_gpus = any(GPUS.fullmatch(each) for each in own)
    if gpus and (request.gpu_model or not has_gpus):
        own = [each for each in own if not GPUS.fullmatch(each)]
        model = f"{request.gpu_model}:" if request.gpu_model else ""
        own.append(f"gpu:{model}{gpus}")
    return ",".join(own) or None


def _exclude(arguments: Iterable[str], nodes: Iterable[str]) -> list[str]:
    """The option that also excludes these nodes: of several, sbatch heeds the last."""
    if not (added := list(nodes)):
        return []
    given = [found[1] for each in arguments if (found := _EXCLUDE.fullmatch(each))]
    return [f"--exclude={','.join([*given[-1:], *added])}"]
