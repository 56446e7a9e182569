"""Asking before something is lost."""

from __future__ import annotations

import click


def agreed(question: str, yes: bool) -> bool:
    """Whether to go on: `yes` or the answer. Without a terminal to answer in, click aborts."""
    return yes or click.confirm(question, err=True)
