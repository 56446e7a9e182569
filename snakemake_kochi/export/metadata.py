"""ro-crate-metadata.json: what is in a crate, and which run made what from what.

The profile is Workflow Run RO-Crate 0.5 (https://w3id.org/ro/wfrun/workflow/0.5): each run is a
CreateAction, its experiment the workflow that was executed, its parameters and artifacts are the
values of the workflow's inputs and outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from snakemake_kochi.export.actions import Actions
from snakemake_kochi.export.content import Content
from snakemake_kochi.export.graph import Graph, fragment, one, put
from snakemake_kochi.export.publication import Publication, plain
from snakemake_kochi.export.repository import CITATION, Author

_CRATE = "1.1"  # the version of RO-Crate on which these versions of the profiles build
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
_TERMS = "https://w3id.org/ro/terms/workflow-run#"


def write_metadata(publication: Publication, content: Content, crate: Path) -> None:
    """Write the file. Raises OSError."""
    graph = Graph(crate, _CRATE)
    actions = Actions(graph, publication, content, crate)
    _Description(graph, publication, actions).fill()
    graph.write()


class _Description:
    """Describes a publication in a graph."""

    def __init__(self, graph: Graph, publication: Publication, actions: Actions) -> None:
        self._graph, self._publication, self._actions = graph, publication, actions

    def fill(self) -> None:
        publication, crate = self._publication, self._graph.crate
        root, about = crate.root_dataset, publication.about
        crate.metadata.extra_terms |= {
            "sha256": f"{_TERMS}sha256",
            "resourceUsage": f"{_TERMS}resourceUsage",
            "environment": f"{_TERMS}environment",
        }
        crate.metadata["conformsTo"] = [
            {"@id": f"https://w3id.org/ro/crate/{_CRATE}"},
            {"@id": "https://w3id.org/workflowhub/workflow-ro-crate/1.0"},
        ]
        root["conformsTo"] = [
            self._graph.work(uri, name=name, version=version)
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
        root["mainEntity"] = self._actions.main_workflow()
        root["mentions"] = one(list(self._actions.all()))

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
            return self._graph.work(url, name=about.license, description="See the URL")
        return self._graph.work(
            "#no-license",
            name="No license",
            description="The project has no license file",
        )

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
