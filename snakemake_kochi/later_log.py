"""Messages for Python's `logging`, for modules that each run loads and that rarely have one."""

from __future__ import annotations


class LaterLog:
    """A logger of that name, which is made with its first message."""

    def __init__(self, name: str) -> None:
        self._name = name

    def warning(self, said: str, *values: object) -> None:
        # Imported here: it takes longer than the modules that use it.
        import logging

        logging.getLogger(self._name).warning(said, *values)
