"""What the user's repository says of itself: authors, address, license, a citation file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from snakemake_kochi.errors import GitError
from snakemake_kochi.git import COMMITTER, run_git
from snakemake_kochi.project.document import read_yaml

CITATION = "CITATION.cff"
_LICENSE = re.compile(r"(LICEN[CS]E|COPYING)(\.(txt|md|rst))?", re.IGNORECASE)
# git@github.com:ada/fib.git
_SCP = re.compile(r"(?:[^@/:]+@)?([\w.-]+):(?!/)(.+)")
_ORCID = re.compile(r"https://orcid\.org/\d{4}-\d{4}-\d{4}-\d{3}[\dX]")
_MOST_AUTHORS = 50


@dataclass(frozen=True)
class Author:
    """A person, or with `given` empty perhaps a group; `orcid` and `affiliation` may be empty."""

    family: str
    given: str = ""
    orcid: str = ""
    affiliation: str = ""

    @property
    def name(self) -> str:
        return f"{self.given} {self.family}".strip()


@dataclass(frozen=True)
class About:
    """A repository at one commit.

    `address` is a URL for a browser, `license_file` the name of a file with the content
    `license_text`, `license` an SPDX identifier, `title` that of the project; each may be empty.
    `authors` are those of its CITATION.cff, else of its commits.
    """

    project: str
    title: str
    address: str
    authors: tuple[Author, ...]
    license_file: str
    license_text: bytes
    license: str
    keywords: tuple[str, ...]


def about(repository: Path, commit: str) -> About:
    """Raises GitError for a commit that is not in this clone."""
    listed = run_git(repository, "ls-tree", "-z", "--full-tree", commit).split(b"\0")
    # Regular files: of a link, git has only the target.
    entries = [line.partition(b"\t") for line in listed if line.startswith(b"100")]
    top = sorted(os.fsdecode(path) for _, _, path in entries)
    citation = _citation(repository, commit) if CITATION in top else {}
    address = _address(repository) or _text(citation.get("repository-code"))
    licenses = citation.get("license")
    keywords = citation.get("keywords")
    license_file = next((path for path in top if _LICENSE.fullmatch(path)), "")
    words = ("cat-file", "blob", f"{commit}:{license_file}")
    return About(
        project=(urlsplit(address).path.rpartition("/")[2] or repository.resolve().name),
        title=_text(citation.get("title")),
        address=address,
        authors=_cited_authors(citation) or _committers(repository, commit),
        license_file=license_file,
        license_text=run_git(repository, *words) if license_file else b"",
        license=_text(licenses[0] if isinstance(licenses, list) and licenses else licenses),
        keywords=tuple(each for each in keywords if isinstance(each, str))
        if isinstance(keywords, list)
        else (),
    )


def browsable(address: str) -> str:
    """The URL for a browser of a repository's address, without a user or a password.

    It is "" for a repository on this computer.
    """
    if (found := _SCP.fullmatch(address)) and "://" not in address:
        return _without_suffix(f"https://{found[1]}/{found[2]}")
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:  # an impossible host or port
        return ""
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname:
        return ""
    scheme = parts.scheme if parts.scheme in ("http", "https") else "https"
    host = f"{parts.hostname}:{port}" if port and scheme == parts.scheme else parts.hostname
    return _without_suffix(urlunsplit((scheme, host, parts.path, "", "")))


def _without_suffix(url: str) -> str:
    return url.rstrip("/").removesuffix(".git")


def _address(repository: Path) -> str:
    remotes = run_git(repository, "remote").decode("utf-8", "replace").split()
    for remote in sorted(remotes, key=lambda name: name != "origin"):
        words = ("config", "--get", f"remote.{remote}.url")
        url = os.fsdecode(run_git(repository, *words, accept=(0, 1))).strip()
        if found := browsable(url):
            return found
    return ""


def _citation(repository: Path, commit: str) -> Mapping[str, Any]:
    try:
        text = run_git(repository, "cat-file", "blob", f"{commit}:{CITATION}")
        data = read_yaml(CITATION, text.decode()).data
    except (GitError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _cited_authors(citation: Mapping[str, Any]) -> tuple[Author, ...]:
    listed = citation.get("authors")
    found = []
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            family = _text(each.get("family-names") or each.get("name") or each.get("alias"))
            orcid = _text(each.get("orcid"))
            author = Author(
                " ".join(filter(None, (_text(each.get("name-particle")), family))),
                _text(each.get("given-names")),
                orcid if _ORCID.fullmatch(orcid) else "",
                _text(each.get("affiliation")),
            )
            if author.name:
                found.append(author)
    return tuple(found)


def _committers(repository: Path, commit: str) -> tuple[Author, ...]:
    """The authors of the commits, the most active first; without their addresses."""
    told = run_git(repository, "shortlog", "-s", "-n", "-e", commit).decode("utf-8", "replace")
    ours = f"<{COMMITTER['GIT_AUTHOR_EMAIL']}>"  # the commits of snapshots
    people = [line.partition("\t")[2] for line in told.splitlines() if not line.endswith(ours)]
    names = dict.fromkeys(each.rpartition(" <")[0].strip() for each in people)
    some = [name for name in names if name and not name.endswith("[bot]")]
    return tuple(_split(name) for name in some[:_MOST_AUTHORS])


def _split(name: str) -> Author:
    """Git has no family names: the last word is a guess."""
    given, _, family = name.rpartition(" ")
    return Author(family, given)


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def joined(authors: Sequence[Author]) -> str:
    return ", ".join(author.name for author in authors)
