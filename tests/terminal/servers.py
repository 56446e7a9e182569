"""A web server that a person starts in the shell of a job, and who asks it."""

from __future__ import annotations

import shlex
import sys
import urllib.request

from support import wait_until

from .conftest import Person

SERVER = f"{shlex.quote(sys.executable)} -m http.server --bind 127.0.0.1"


def fetch(port: int, name: str = "") -> bytes:
    """What the server answers at a port of this computer. Raises OSError."""
    address = f"http://127.0.0.1:{port}/{name}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        found = answer.read()
    assert isinstance(found, bytes)
    return found


def answers(port: int) -> bool:
    try:
        fetch(port)
    except OSError:
        return False
    return True


def serve(person: Person, port: int) -> None:
    """Start the server at a prompt, fetch something large from it, and leave the shell."""
    person.asks("seq 200000 > numbers")
    person.types(f"{SERVER} $KOCHI_FORWARD_PORT & sleep 0.1")
    wait_until(lambda: answers(port), "the server answers")
    assert fetch(port, "numbers") == b"".join(b"%d\n" % each for each in range(1, 200_001))
    person.asks("true")
    person.types("kill %1; exit")
