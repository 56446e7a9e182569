"""Which paths a list of patterns means; patterns are those of a .gitignore file.

The library is pathspec (`GitIgnoreSpec`), whose matching follows git's own: `*.c` matches a name at
any depth, `/a.c` and `src/*.c` only there, `docs/` a directory with all it holds, `**` any depth,
and a later `!pattern` takes back what an earlier one took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pathspec

from snakemake_kochi.errors import ConfigError


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A function that says whether a path matches. Raises ConfigError for a bad pattern."""
    for pattern in patterns:
        try:
            pathspec.GitIgnoreSpec.from_lines([pattern], backend="simple")
        except ValueError as error:
            raise ConfigError(f"pattern {pattern!r}: {error}") from error
    # The same backend everywhere: what a pattern means may not depend on what else is installed.
    spec = pathspec.GitIgnoreSpec.from_lines(patterns, backend="simple")
    return spec.match_file if patterns else lambda path: False
