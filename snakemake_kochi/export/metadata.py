"""ro-crate-metadata.json: what is in a crate, and which run made what from what.

The profile is Workflow Run RO-Crate 0.5 (https://w3id.org/ro/wfrun/workflow/0.5): each run is a
CreateAction, its experiment the workflow that was executed, its parameters and artifacts are the
values of the workflow's inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from snakemake_kochi import __version__
from snakemake_kochi.export.graph import Graph, digest, fragment, milliseconds, one, put, quoted
from snakemake_kochi.export.publication import Publication, Recipe, part, plain, recipes_of
from snakemake_kochi.export.repository import CITATION, Author
from snakemake_kochi.export.selection import Run

if TYPE_CHECKING:
    from snakemake_kochi.export.crate import Content

_CRATE = "1.1"  # the version of RO-Crate on which these versions of the profiles build
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
_WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
_PARAMETER_PROFILE = "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"
_TERMS = "https://w3id.org/ro/terms/workflow-run#"
_KOCHI = "https://github.com/snakemake-kochi/snakemake_kochi"
_FORMAT = "https://snakemake-kochi.readthedocs.io/en/latest/formats.html"
_RECORDS = "https://snakemake-kochi.readthedocs.io/en/latest/records.html"
_UNITS = {"seconds": "s", "mb": "MiB"}
_SNAKEMAKE = "https://snakemake.readthedocs.io/"
_STATUS = "http://schema.org/{}ActionStatus"
_LONGEST_IN_ID = 40


def write_metadata(publication: Publication, content: Content, crate: Path) -> None:
    """Write the file. Raises OSError."""
    graph = Graph(crate, _CRATE)
    _Description(graph, publication, content, crate).fill()
    graph.write()


class _Description:
    """Describes a publication in a graph."""

    def __init__(
        self, graph: Graph, publication: Publication, content: Content, directory: Path
    ) -> None:
        self._graph = graph
        self._publication, self._content, self._directory = publication, content, directory

    def fill(self) -> None:
        publication, crate = self._publication, self._graph.crate
        root, about = crate.root_dataset, publication.about
        crate.metadata.extra_terms |= {
            "sha256": f"{_TERMS}sha256",
            "resourceUsage": f"{_TERMS}resourceUsage",
        }
        crate.metadata["conformsTo"] = [
            {"@id": f"https://w3id.org/ro/crate/{_CRATE}"},
            {"@id": "https://w3id.org/workflowhub/workflow-ro-crate/1.0"},
        ]
        root["conformsTo"] = [
            self._work(uri, name=name, version=version)
            for uri, (name, version) in _PROFILES.items()
        ]
        for name in ("README.md", CITATION):
            self._graph.file(name, about={"@id": "./"}, name=name)
        root["name"], root["description"] = plain(publication.title), plain(publication.summary)
        root["datePublished"] = publication.date
        root["license"] = self._license()
        put(root, author=one([self._person(author) for author in about.authors]))
        put(root, keywords=one(list(about.keywords)), url=about.address)
        for name, code in publication.code.items():
            self._graph.directory(code.directory, name=f"Code {name[:12]}", version=name)
        workflow = self._workflow(publication.newest)
        root["mainEntity"] = workflow
        actions = [self._run(run) for run in publication.runs]
        actions += self._tables()
        root["mentions"] = one(actions)

    # ---- runs

    def _run(self, run: Run) -> Any:
        record = run.record
        workflow = self._workflow(run)
        action = self._graph.thing(
            fragment("run", run.identity),
            "CreateAction",
            name=f"{record['name']}: {run.point}",
            description=_described(run),
            startTime=milliseconds(record["started"]),
            endTime=milliseconds(record["ended"]),
            actionStatus=_STATUS.format("Completed" if run.has_succeeded else "Failed"),
            instrument=one([workflow, *map(self._recipe, recipes_of(record))]),
            object=one(list(self._inputs(run))),
            result=one(list(self._results(run))),
            location=self._node(run),
            resourceUsage=one(list(self._usage(run))),
        )
        if not run.has_succeeded:
            put(action, error=str(record.get("reason") or "no reason was recorded"))
        return action

    def _inputs(self, run: Run) -> Iterator[Any]:
        values = {**run.record["parameters"], "duplicate": str(run.record["duplicate"])}
        for name, value in values.items():
            short = value if len(value) <= _LONGEST_IN_ID else digest(value)
            yield self._graph.thing(
                fragment("value", run.experiment, name, short),
                "PropertyValue",
                name=name,
                value=value,
                exampleOfWork=self._parameter(run, "input", name, "Text"),
            )

    def _results(self, run: Run) -> Iterator[Any]:
        for each in run.record["artifacts"]:
            path = run.path(each["dest"])
            found = self._content.files.get(path)
            if found is None or (each.get("sha256") or found[2]) != found[2]:
                continue
            _, size, digest = found
            name = each.get("src") or each.get("type") or "file"
            yield self._graph.file(
                f"results/{path}",
                name=each["dest"],
                contentSize=str(size),
                sha256=digest,
                exampleOfWork=self._parameter(run, "output", str(name), "File"),
                **({"encodingFormat": "text/plain"} if each.get("type") == "stdout" else {}),
            )
        yield self._record(run)

    def _record(self, run: Run) -> Any:
        file = self._content.records[run].relative_to(self._directory).as_posix()
        return self._graph.file(file, name=f"Record of {run.identity}")

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

    # ---- code

    def _workflow(self, run: Run) -> Any:
        path = self._publication.experiment_file(run)
        base = run.record["snapshot"]["base"]
        common = {
            "name": run.experiment,
            "version": run.tree,
            "url": self._publication.about.address,
            "programmingLanguage": self._language(run),
        }
        if not path:
            return self._graph.thing(
                fragment("code", run.tree, run.experiment), "SoftwareSourceCode", **common
            )
        if (known := self._graph.get(path)) is not None:
            return known
        same = [
            other
            for other in self._publication.runs
            if (other.tree, other.experiment) == (run.tree, run.experiment)
        ]
        inputs = {
            name: None for other in same for name in (*other.record["parameters"], "duplicate")
        }
        outputs = {
            str(each.get("src") or each.get("type") or "file"): None
            for other in same
            for each in other.record["artifacts"]
        }
        entity = self._graph.file(
            path,
            ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            conformsTo=self._graph.thing(
                _WORKFLOW_PROFILE, "CreativeWork", name="ComputationalWorkflow"
            ),
            description=f"Its code: commit {base or 'none'}, snapshot {run.tree}",
            input=one([self._parameter(run, "input", name, "Text") for name in inputs]),
            output=one([self._parameter(run, "output", name, "File") for name in outputs]),
            **common,
        )
        return entity

    def _language(self, run: Run) -> Any:
        if PurePosixPath(run.experiment).suffix in (".yaml", ".yml"):
            return self._graph.thing(
                "#kochi",
                "ComputerLanguage",
                name="Kochi experiment",
                description="Parameters, build and run scripts, executed by Snakemake",
                url=_FORMAT,
            )
        return self._graph.thing("#snakemake", "ComputerLanguage", name="Snakemake", url=_SNAKEMAKE)

    def _recipe(self, recipe: Recipe) -> Any:
        code = self._publication.code.get(recipe.source)
        return self._graph.thing(
            fragment("recipe", recipe.name, recipe.digest[:12]),
            "SoftwareApplication",
            name=recipe.name,
            softwareVersion=recipe.commit or recipe.source or recipe.digest,
            url=recipe.git,
            hasPart=code and self._graph.get(f"{code.directory}/"),
        )

    def _parameter(self, run: Run, kind: str, name: str, type_: str) -> Any:
        return self._graph.thing(
            fragment(kind, run.experiment, name),
            "FormalParameter",
            name=name,
            additionalType=type_,
            conformsTo=self._graph.thing(
                _PARAMETER_PROFILE, "CreativeWork", name="FormalParameter"
            ),
        )

    # ---- the rest

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

    def _license(self) -> Any:
        about = self._publication.about
        if about.license_file:
            return self._graph.file(
                about.license_file,
                ["File", "CreativeWork"],
                name=about.license or about.license_file,
                description="The license file of the project",
                encodingFormat="text/plain",
            )
        if about.license:
            url = f"https://spdx.org/licenses/{quote(about.license)}"
            return self._graph.thing(
                url, "CreativeWork", name=about.license, description="See the URL"
            )
        return self._graph.thing(
            "#no-license",
            "CreativeWork",
            name="No license",
            description="The project has no license file: all rights are reserved by the authors",
        )

    def _work(self, identifier: str, **properties: Any) -> Any:
        return self._graph.thing(identifier, "CreativeWork", **properties)

    def _person(self, author: Author) -> Any:
        affiliation = None
        if author.affiliation:
            affiliation = self._graph.thing(
                fragment("organisation", author.affiliation),
                "Organization",
                name=author.affiliation,
            )
        return self._graph.thing(
            author.orcid or fragment("person", author.name),
            "Person",
            name=author.name,
            givenName=author.given,
            familyName=author.family,
            affiliation=affiliation,
        )


def _described(run: Run) -> str:
    record = run.record
    text = f"On {record['node']} (machine {record['machine']}), {record['seconds']} s"
    return f"{text}; exit status {record.get('exit_status')}; attempt {record.get('attempt', 1)}"
