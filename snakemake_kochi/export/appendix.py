"""An artifact appendix: what ran where, from which code, and how to run it again.

Markdown, with the parts that the artifact descriptions of ACM and SC ask for
(https://ctuning.org/ae/artifact.html, https://github.com/ctuning/artifact-evaluation). A fact that
no record has is said to be missing, and by what it would be recorded.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from humanfriendly import format_size, format_timespan
from humanfriendly.text import pluralize
from tabulate import tabulate

from snakemake_kochi import __version__
from snakemake_kochi.artifacts.code import CODE
from snakemake_kochi.artifacts.published import branch_called
from snakemake_kochi.export.content import Content
from snakemake_kochi.export.publication import Publication, batch_title, part, recipes_of
from snakemake_kochi.export.repository import joined
from snakemake_kochi.export.selection import Run
from snakemake_kochi.export.tables import Table

_KOCHI = "https://github.com/snakemake-kochi/snakemake_kochi"
_UNKNOWN = "not recorded"
_MOST_VALUES = 12
_MOST_PROBLEMS = 50
_MOST_FILES = 5  # in a command


def appendix(publication: Publication, content: Content | None = None) -> str:
    """The text. `content` is that of a crate that has it as its README."""
    tables = content.tables if content else []
    problems = content.problems if content else []
    parts = [
        f"# Artifact appendix: {publication.title}",
        "## Abstract",
        f"{publication.summary} Each result has a record: its parameters, its code, where and when "
        "it ran, and the SHA-256 of its files.",
        "## Check-list",
        "\n".join(f"- **{name}**: {text}" for name, text in _check_list(publication, content)),
        "## Hardware",
        *_hardware(publication),
        "## Software",
        *_software(publication),
        "## Parameters",
        *_parameters(publication),
        "## How to get it",
        *_how_to_get(publication),
        "## How to reproduce",
        *_how_to_reproduce(publication),
        "## Expected results",
        *_expected(publication, tables),
    ]
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        listed = [f"- {problem}" for problem in problems[:_MOST_PROBLEMS]]
        listed += [f"- and {more} more"] if more > 0 else []
        parts += ["## Not in this crate", "\n".join(listed)]
    return "\n\n".join(map(_line_safe, parts)) + "\n"


def _check_list(publication: Publication, content: Content | None) -> Iterator[tuple[str, str]]:
    about, runs = publication.about, publication.runs
    began, ended = publication.period
    seconds = sum(run.record["seconds"] for run in runs)
    longest = max(run.record["seconds"] for run in runs)
    yield "Authors", joined(about.authors) or _UNKNOWN
    yield (
        "Code",
        about.address or f"the repository {about.project}; its public address is not known",
    )
    license_file = f"see the file {about.license_file}" if about.license_file else ""
    yield "License", about.license or license_file or "the project has no license file"
    yield "Workflow", f"experiments of snakemake_kochi, executed by Snakemake ({_version_note()})"
    yield "Executed", began if began == ended else f"{began} to {ended}"
    yield (
        "Time",
        f"{format_timespan(seconds)} in all runs; the longest took {format_timespan(longest)}",
    )
    sizes = [size for _, size, _ in content.files.values()] if content else _sizes(runs)
    yield "Output", f"{pluralize(len(sizes), 'file')} of {format_size(sum(sizes), binary=True)}"
    if replaced := publication.selection.replaced:
        yield "Replaced runs", f"{len(replaced)}: newer runs with the same parameters replaced them"
    if failed := [run for run in runs if not run.has_succeeded]:
        yield "Failed runs", str(len(failed))


def _sizes(runs: Sequence[Run]) -> list[int]:
    """Those of the files in the branches, each as its newest run wrote it."""
    sizes = {}
    for run in runs:
        for each in run.record["artifacts"]:
            size = len(run.text) if each.get("type") == "stats" else each.get("size")
            sizes[run.path(each["dest"])] = size if isinstance(size, int) else 0
    return list(sizes.values())


def _version_note() -> str:
    return f"described by snakemake_kochi {__version__}"


def _hardware(publication: Publication) -> Iterator[str]:
    rows: Counter[tuple[str, ...]] = Counter()
    for run in publication.runs:
        record = run.record
        told = part(record, "hardware")
        memory = told.get("memory_mb")
        size = format_size(memory * 2**20, binary=True) if isinstance(memory, int) else ""
        shape = [str(told.get(key) or "?") for key in ("sockets", "cores", "threads")]
        rows[
            record["machine"],
            record["node"],
            str(told.get("cpu_model") or ""),
            " / ".join(shape) if set(shape) != {"?"} else "",
            size,
        ] += 1
    head = ("Machine", "Node", "CPU", "Sockets / cores / threads", "Memory", "Runs")
    yield _table(head, [(*row, str(count)) for row, count in sorted(rows.items())])
    if any(not row[2] for row in rows):
        yield f"The CPU of some nodes is {_UNKNOWN}."


def _software(publication: Publication) -> Iterator[str]:
    systems: set[tuple[str, str]] = set()
    facts: dict[tuple[str, str], set[str]] = {}
    for run in publication.runs:
        if system := part(run.record, "system"):
            systems.add((str(system.get("os") or ""), str(system.get("kernel") or "")))
        for name in part(run.record, "facts"):
            fact = part(run.record["facts"], name)
            key = (name, str(fact.get("command", "")))
            # Of a command that failed, the output is a message and no version.
            output = fact.get("output", "") if fact.get("exit_status") == 0 else ""
            facts.setdefault(key, set()).add(str(output).strip())
    for os_name, kernel in sorted(systems):
        yield f"System: {os_name or _UNKNOWN}, kernel {kernel or _UNKNOWN}."
    if not systems:
        yield f"System: {_UNKNOWN}."
    recipes = {recipe: None for run in publication.runs for recipe in recipes_of(run.record)}
    rows = sorted(
        (each.name, each.git or "in this artifact", each.commit or each.source) for each in recipes
    )
    if rows:
        yield "Dependencies, installed from source:"
        yield _table(("Recipe", "Source", "Commit"), rows)
    else:
        yield "No dependencies were installed."
    for (name, command), outputs in sorted(facts.items()):
        for output in sorted(outputs - {""}):
            yield f"{name} (`{command}`):"
            yield _indented(output)
    if silent := sorted(name for (name, _), outputs in facts.items() if outputs == {""}):
        yield f"Not found: {', '.join(silent)}."
    variables: dict[str, set[str]] = {}
    for run in publication.runs:
        for name, value in part(run.record, "environment").items():
            variables.setdefault(name, set()).add(str(value))
    if variables:
        yield "Environment variables of the runs:"
        seen = [(name, _shortened(sorted(found))) for name, found in sorted(variables.items())]
        yield _table(("Variable", "Values"), seen)
    if not facts:
        how = " To record them in the next runs, name their commands under `facts:` in kochi.yaml."
        # Jobs of own rules have no facts.
        is_possible = any(run.experiment for run in publication.runs)
        yield f"Compiler and libraries: {_UNKNOWN}.{how if is_possible else ''}"


def _parameters(publication: Publication) -> Iterator[str]:
    for workflow, batch in publication.selection.batches:
        runs = [r for r in publication.runs if (r.workflow, r.batch) == (workflow, batch)]
        values: dict[str, dict[str, None]] = {}
        for run in runs:
            for name, value in run.record["parameters"].items():
                values.setdefault(name, {})[value] = None
        duplicates = len({run.record["duplicate"] for run in runs})
        title = batch_title(workflow, batch)
        title += f" ({workflow})" if title != workflow else ""
        yield f"{title}: {pluralize(len(runs), 'run')}"
        rows = [(name, _shortened(list(found))) for name, found in values.items()]
        yield _table(("Parameter", "Values"), [*rows, ("(duplicates)", str(duplicates))])


def _shortened(values: Sequence[str]) -> str:
    text = ", ".join(values[:_MOST_VALUES])
    more = len(values) - _MOST_VALUES
    return f"{text} and {more} more" if more > 0 else text


def _how_to_get(publication: Publication) -> Iterator[str]:
    about = publication.about
    names = sorted({run.name for run in publication.runs})
    branches = ", ".join(f"`{branch_called(name)}`" for name in names)
    address = about.address or "ADDRESS"
    count = pluralize(len(names), "branch", "branches")
    yield f"The results are in {count} of the repository: {branches}."
    yield _indented(
        f"git clone {shlex.quote(address)} {shlex.quote(about.project)}\n"
        f"git clone {_KOCHI} snakemake_kochi\n"
        "python3 -m venv kochi-env\n"
        ". kochi-env/bin/activate\n"
        "pip install ./snakemake_kochi\n"
        f"cd {shlex.quote(about.project)}\n"
        "kochi artifact fetch"
    )
    yield "The code of each result, also what was not committed, is then under `refs/kochi/code/`:"
    rows = []
    trees = Counter((run.tree, run.record["snapshot"]["base"]) for run in publication.runs)
    for (tree, base), number in trees.items():
        here = "" if tree in publication.code else " (not published)"
        rows.append((f"{CODE}/{tree}{here}", base or "none", str(number)))
    yield _table(("Code", "Based on commit", "Runs"), rows)


def _how_to_reproduce(publication: Publication) -> Iterator[str]:
    newest = publication.newest
    lines = [f"git worktree add --detach ../again {CODE}/{newest.tree}", "cd ../again"]
    files = [
        each["dest"]
        for run in publication.runs
        for each in run.record["artifacts"]
        if run.tree == newest.tree and not run.experiment
    ]
    if files := list(dict.fromkeys(files))[:_MOST_FILES]:
        lines.append(shlex.join(["snakemake", "--cores", "all", *files]))
    if any(run.experiment and run.has_succeeded for run in publication.runs):
        yield (
            "To build and run some of these results again, each with its code, recipes and "
            "parameters, and compare the outputs with the recorded ones:"
        )
        yield _indented("kochi reproduce --sample 10")
    then = ", and to make files of its rules again" if files else ""
    yield f"To have the newest code in a directory of its own{then}:"
    yield _indented("\n".join(lines))
    if len({run.tree for run in publication.runs}) > 1:
        yield "For the results of other code, take its ref from the table above."
    yield "To see which run wrote a file, from which code, and whether it is unchanged:"
    example = next(
        (run.path(each["dest"]) for run in publication.runs for each in run.record["artifacts"]),
        "NAME/PATH",
    )
    yield _indented(shlex.join(["kochi", "why", example]))


def _expected(publication: Publication, tables: Sequence[Table]) -> Iterator[str]:
    if not tables:
        yield (
            "The tables and plots of the batches; `kochi batch` writes them to `results/`, "
            "`kochi export --ro-crate DIR` to `tables/` of a crate."
        )
    for table in tables:
        name = f"{table.title}, results of {table.name}"
        rows, *others = (quote(os.fsencode(path)) for path in table.files)
        plots = ", ".join(f"[plot]({path})" for path in others if path.endswith(".png"))
        yield f"{name} ([all runs]({rows}), {plots}):"
        yield table.summary
        if table.remark:
            yield f"Note: {table.remark}."
    yield (
        "Times depend on the hardware. Other results should be the same, if the benchmark computes "
        "the same whenever its code and parameters are the same."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[_cell(text) for text in row] for row in rows]
    return tabulate(cells, headers=list(head), tablefmt="github", disable_numparse=True)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _indented(text: str) -> str:
    """As code: whatever a record has is no Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _line_safe(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
