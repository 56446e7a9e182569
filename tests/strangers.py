"""Other users of the computer, in processes of their own."""

from __future__ import annotations

import grp  # noqa: F401
import os
import pwd  # noqa: F401
import traceback
from collections.abc import Callable, Sequence

# Users that need no entry in /etc/passwd.
STRANGER, ORDINARY = 54321, 54322
GROUP = 54323


def as_user(user: int, action: Callable[[], object], groups: Sequence[int] = ()) -> None:
    """Do something in a process of another user, with imports that are done: it may not read the
    interpreter's files."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups(groups)
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
