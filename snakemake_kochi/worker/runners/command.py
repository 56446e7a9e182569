"""The runner that can run every ticket: it executes the command in a new process."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.runners.child import Child, fork_child
from snakemake_kochi.worker.runners.job_process import enter, execute


class CommandRunner:
    """Executes a ticket's command; see `interface.Runner`."""

    name = "command"
    helpers = ()

    def close(self) -> None:
        """Do nothing: this runner has no helpers."""

    def can_run(self, ticket: Ticket) -> bool:
        return True

    def why_not(self, ticket: Ticket) -> str:
        return ""

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
            self.name, ticket, log, cpus, lambda: _run_command(ticket, dict(environment))
        )


def _run_command(ticket: Ticket, environment: dict[str, str]) -> int:
    """Execute the command; returns an exit status, and only when the command cannot be executed."""
    if status := enter(ticket, environment):
        return status
    return execute(ticket, ticket.command[0], list(ticket.command), environment)
