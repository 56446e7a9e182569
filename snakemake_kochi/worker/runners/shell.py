"""Plain shell commands of Snakemake's, without a Snakemake: prepared here, and executed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.runners.child import Child, enter, execute, fork_child


class ShellRunner:
    """See `interface.Runner`."""

    name = "shell"

    def can_run(self, ticket: Ticket) -> bool:
        return ticket.shell is not None

    def is_ready(self, ticket: Ticket) -> bool:
        return True

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> Child:
        return fork_child(
            self.name, ticket, log, cpus, lambda: _run_shell(ticket, dict(environment))
        )


def _run_shell(ticket: Ticket, environment: dict[str, str]) -> int:
    """Returns only when the command cannot be executed, with an exit status."""
    assert ticket.shell is not None
    if status := enter(ticket, environment):
        return status
    shell = ticket.shell
    return execute(ticket, shell.executable, [shell.executable, "-c", shell.script], environment)
