"""Runs, and the making of tables, as actions of a research object crate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from snakemake_kochi import __version__
from snakemake_kochi.export.content import Content
from snakemake_kochi.export.graph import Graph, digest, fragment, milliseconds, one, put, quoted
from snakemake_kochi.export.publication import Publication, part, recipes_of
from snakemake_kochi.export.selection import Run
from snakemake_kochi.export.workflows import Workflows, output_name

_KOCHI = "https://github.com/snakemake-kochi/snakemake_kochi"
_RECORDS = "https://snakemake-kochi.readthedocs.io/en/latest/records.html"
_UNITS = {"seconds": "s", "mb": "MiB"}
_STATUS = "http://schema.org/{}ActionStatus"
_LONGEST_IN_ID = 40


class Actions:
    """Describes in a graph what was done. `directory`: that of the crate."""

    def __init__(
        self, graph: Graph, publication: Publication, content: Content, directory: Path
    ) -> None:
        self._graph, self._publication = graph, publication
        self._content, self._directory = content, directory
        self._workflows = Workflows(graph, publication)

    def main_workflow(self) -> Any:
        """That of the newest run."""
        return self._workflows.workflow(self._publication.newest)

    def all(self) -> Iterator[Any]:
        """An action for each run, and for each table."""
        # Code and results first: the input of a run may be the result of another one.
        made = [
            (run, self._workflows.workflow(run), list(self._results(run)))
            for run in self._publication.runs
        ]
        for run, workflow, results in made:
            yield self._run(run, workflow, results)
        yield from self._tables()

    def _run(self, run: Run, workflow: Any, results: list[Any]) -> Any:
        record = run.record
        action = self._graph.thing(
            fragment("run", run.identity),
            "CreateAction",
            name=f"{record['name']}: {run.point}",
            description=_described(run, run in self._publication.selection.replaced),
            startTime=milliseconds(record["started"]),
            endTime=milliseconds(record["ended"]),
            actionStatus=_STATUS.format("Completed" if run.has_succeeded else "Failed"),
            instrument=one([workflow, *map(self._workflows.recipe, recipes_of(record))]),
            object=one([*self._inputs(run), *self._rule_inputs(run)]),
            result=one(results),
            location=self._node(run),
            resourceUsage=one(list(self._usage(run))),
            environment=one(list(self._environment(run))),
        )
        if not run.has_succeeded:
            put(action, error=str(record.get("reason") or "no reason was recorded"))
        return action

    def _inputs(self, run: Run) -> Iterator[Any]:
        values = {**run.record["parameters"], "duplicate": str(run.record["duplicate"])}
        for name, value in values.items():
            short = value if len(value) <= _LONGEST_IN_ID else digest(value)
            yield self._graph.thing(
                fragment("value", run.workflow, name, short),
                "PropertyValue",
                name=name,
                value=value,
                exampleOfWork=self._workflows.parameter(run, "input", name, "Text"),
            )

    def _rule_inputs(self, run: Run) -> Iterator[Any]:
        """What a job of an own rule had beside its wildcards: params and files."""
        rule = part(run.record, "rule")
        for name, value in part(rule, "params").items():
            yield self._value("param", run, str(name), str(value))
        code = self._publication.code.get(run.tree)
        listed = rule.get("inputs")
        for each in listed if isinstance(listed, list) else ():
            if not isinstance(each, dict):
                continue
            path, sha256 = str(each.get("path")), each.get("sha256")
            made = self._content.files.get(run.path(path))
            if made is not None and made[2] == sha256:
                yield self._graph.file(self._place(made[0]), name=path)
            elif code is not None and path in code.files:
                yield self._graph.file(f"{code.directory}/{path}", name=path)
            else:
                yield self._value("file", run, path, f"SHA-256 {sha256 or 'unknown'}")

    def _environment(self, run: Run) -> Iterator[Any]:
        for name, value in part(run.record, "environment").items():
            yield self._value("environment", run, str(name), str(value))

    def _value(self, kind: str, run: Run, name: str, value: str) -> Any:
        short = value if len(value) <= _LONGEST_IN_ID else digest(value)
        name_in_id = fragment(kind, run.workflow, name, short)
        return self._graph.thing(name_in_id, "PropertyValue", name=name, value=value)

    def _results(self, run: Run) -> Iterator[Any]:
        for each in run.record["artifacts"]:
            if (found := self._content.artifact_of(run, each)) is None:
                continue
            file, size, sha256 = found
            output = self._workflows.parameter(run, "output", output_name(run, each), "File")
            yield self._graph.file(
                self._place(file),
                name=each["dest"],
                contentSize=str(size),
                sha256=sha256,
                exampleOfWork=output,
                **({"encodingFormat": "text/plain"} if each.get("type") == "stdout" else {}),
            )
        yield self._record(run)

    def _record(self, run: Run) -> Any:
        place = self._place(self._content.records[run])
        return self._graph.file(place, name=f"Record of {run.identity}")

    def _place(self, file: Path) -> str:
        """The path of a file in the crate."""
        return file.relative_to(self._directory).as_posix()

    def _usage(self, run: Run) -> Iterator[Any]:
        measured = {"seconds": run.record["seconds"], **part(run.record, "usage")}
        for name, value in measured.items():
            if isinstance(value, int | float):
                yield self._graph.thing(
                    fragment("usage", run.identity, name),
                    "PropertyValue",
                    name=name,
                    value=str(value),
                    propertyID=f"{_RECORDS}#{name}",
                    unitText=_UNITS.get(name.rpartition("_")[2]),
                )

    def _node(self, run: Run) -> Any:
        record = run.record
        facts = {"machine": record["machine"]}
        for key in ("hardware", "system"):
            facts |= part(record, key)
        facts.pop("load", None)  # of a moment, not of the node
        for name, fact in part(record, "facts").items():
            facts[name] = fact.get("output") if isinstance(fact, dict) else None
        known = {name: str(value) for name, value in facts.items() if value not in (None, "")}
        node = fragment("node", record["node"], digest(str(known)))
        if self._graph.get(node) is None:
            values = [
                self._graph.thing(f"{node}/{quoted(name)}", "PropertyValue", name=name, value=text)
                for name, text in known.items()
            ]
            self._graph.thing(node, "Place", name=record["node"], additionalProperty=one(values))
        return self._graph.get(node)

    def _tables(self) -> Iterator[Any]:
        for table in self._content.tables:
            yield self._graph.thing(
                fragment("table", table.name, table.experiment, table.batch),
                "CreateAction",
                name=f"Table and plot of {table.title}, results of {table.name}",
                description=table.remark or "Made from the records and outputs in this crate",
                endTime=self._publication.date,
                instrument=self._graph.thing(
                    _KOCHI,
                    "SoftwareApplication",
                    name="snakemake_kochi",
                    url=_KOCHI,
                    softwareVersion=__version__,
                ),
                object=one([self._record(run) for run in table.runs]),
                result=one(
                    [self._graph.file(path, name=PurePosixPath(path).name) for path in table.files]
                ),
                actionStatus=_STATUS.format("Completed"),
            )


def _described(run: Run, is_replaced: bool) -> str:
    record = run.record
    text = f"On {record['node'] or 'an unknown node'} (machine {record['machine']})"
    text += f", {record['seconds']} s"
    if again := record.get("rerun_of"):
        text = f"A rerun of {again}. {text}"
    if is_replaced:
        text = f"A newer run with the same parameters replaced its results. {text}"
    return f"{text}; exit status {record.get('exit_status')}; attempt {record.get('attempt', 1)}"
