"""A citation file for results: CITATION.cff, Citation File Format 1.2.0
(https://github.com/citation-file-format/citation-file-format)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from snakemake_kochi.export.publication import Publication, plain
from snakemake_kochi.export.repository import Author

_HEAD = """\
# How to cite these results. Correct the authors and the title before you publish, and add the DOI.
"""
_NOBODY = Author("unknown")


def citation(publication: Publication) -> str:
    """The text of the file. Its authors are those of the project: of its own CITATION.cff, else of
    its commits."""
    about, newest = publication.about, publication.newest
    data: dict[str, Any] = {
        "cff-version": "1.2.0",
        "message": "If you use these results, please cite them as below.",
        "type": "dataset",
        "title": plain(publication.title),
        "abstract": plain(publication.summary),
        "authors": [_person(author) for author in about.authors or (_NOBODY,)],
        "date-released": publication.date[:10],
    }
    if about.address:
        data["repository-code"] = about.address
    if base := newest.record["snapshot"]["base"]:
        data["commit"] = base
    if about.license:
        data["license"] = about.license
    if about.keywords:
        data["keywords"] = list(about.keywords)
    return _HEAD + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=88)


def _person(author: Author) -> Mapping[str, str]:
    found = {
        "family-names": author.family,
        "given-names": author.given,
        "orcid": author.orcid,
        "affiliation": author.affiliation,
    }
    if not author.given and not author.orcid:
        # A group, or somebody with one name.
        found = {"name": author.family, "affiliation": ""}
    return {key: plain(text) for key, text in found.items() if text}
