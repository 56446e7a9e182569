"""Files that stay at home although something that runs elsewhere names them: git ignores them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from snakemake_kochi.project.configuration import FILE_NAME
from snakemake_kochi.snapshot import ignored_files

_SNAKEFILES = ("Snakefile", "workflow/Snakefile")
# Made by programs, and made again.
_MADE = re.compile(r"(^|/)(results|\.snakemake|__pycache__|\.git|build|\.venv|venv)/?$")
_MOST = 10


def left_behind(directory: Path, texts: Mapping[Path, str]) -> Iterator[str]:
    """A sentence for each ignored file or directory that a text names; `texts`: the experiments."""
    ignored = [path for path in ignored_files(directory) if not _MADE.search(path)]
    if not ignored:
        return
    read = {path.relative_to(directory).as_posix(): text for path, text in texts.items()}
    for name in (FILE_NAME, *_SNAKEFILES):
        if (directory / name).is_file() and name not in read:
            read[name] = (directory / name).read_text(errors="replace")
    number = 0
    for path in ignored:
        inside = [name for name in read if name == path or name.startswith(_as_directory(path))]
        # What is at hand anyway: a text that is itself ignored, but for kochi.yaml, which is sent.
        by = [name for name, text in read.items() if _names(text, path)]
        what = next((name for name in inside if name != FILE_NAME), None)
        if what is not None or by:
            if (number := number + 1) > _MOST:
                yield "More files that git ignores stay here"
                return
            whose = f", and {by[0]} names it" if by else ""
            yield f"{what or path.rstrip('/')} stays here, because git ignores it{whose}"


def _as_directory(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"


def _names(text: str, path: str) -> bool:
    """Whether a text has a path as a word, or, for a directory, a path below it."""
    end = r"(?=\S)" if path.endswith("/") else r"(?![\w.-]*\w)"
    return re.search(rf"(?<![\w.-])(?<![\w.-]/)(\./)?{re.escape(path)}{end}", text) is not None
