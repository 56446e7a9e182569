"""What a stranger may have configured in a repository so that git executes it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support import git, write

Trap = Callable[[Path, str], None]


def lose(repository: Path, name: str) -> None:
    """Take an object away, as a partial clone lacks it."""
    identity = git(repository, "rev-parse", name).strip()
    place = git(repository, "rev-parse", "--path-format=absolute", "--git-path", "objects").strip()
    (Path(place) / identity[:2] / identity[2:]).unlink()


def configure(repository: Path, settings: dict[str, str]) -> None:
    """As `git config` does, without a process for each key."""
    for name, value in settings.items():
        section, *middle, key = name.split(".")
        head = f'{section} "{".".join(middle)}"' if middle else section
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        add(repository / ".git" / "config", f'[{head}]\n\t{key} = "{quoted}"\n')


def promisor(repository: Path, name: str, url: str, **settings: str) -> None:
    remote = {"promisor": "true", "url": url, **settings}
    kinds = {"core.repositoryFormatVersion": "1", "extensions.partialClone": name}
    configure(repository, kinds | {f"remote.{name}.{key}": remote[key] for key in remote})


def add(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def by_upload_pack(repository: Path, command: str) -> None:
    promisor(repository, "local", str(repository), uploadpack=f"{command};false")


def by_transport(repository: Path, command: str) -> None:
    promisor(repository, "program", f"ext::sh -c {command.replace(' ', '% ')}")
    configure(repository, {"protocol.ext.allow": "always", "protocol.allow": "always"})


def by_ssh(repository: Path, command: str) -> None:
    promisor(repository, "ssh", "ssh://localhost/evil")
    configure(repository, {"core.sshCommand": f"{command};false"})


def by_filter(repository: Path, command: str) -> None:
    # The first file: at that of the next trap git may give up.
    write(repository / ".git" / "info" / "attributes", ".gitignore filter=a=b\n")
    text = f'[filter "a=b"]\n\tclean = {command}\n\tsmudge = {command}\n'
    add(repository / ".git" / "config", text)


def by_filter_process(repository: Path, command: str) -> None:
    add(repository / ".gitattributes", "main.c filter=Evil\n")
    included = f'[filter "Evil"]\n\tprocess = {command}\n\trequired\n'
    write(repository / ".git" / "included", included)
    configure(repository, {"include.path": "included"})


def by_watcher(repository: Path, command: str) -> None:
    git(repository, "config", "core.fsmonitor", f"{command};false")


def by_hooks(repository: Path, command: str) -> None:
    configure(repository, {"core.hooksPath": str(repository / "hooks")})
    names = ("post-index-change", "reference-transaction", "post-checkout", "pre-auto-gc")
    for name in (*names, "query-watchman", "proc-receive", "pre-receive", "post-commit"):
        write(repository / "hooks" / name, f"#!/bin/sh\n{command}\n").chmod(0o755)


def by_other_programs(repository: Path, command: str) -> None:
    add(repository / ".gitattributes", "* diff=evil\n")
    keys = (
        *("diff.external", "diff.evil.command", "diff.evil.textconv"),
        *("core.pager", "core.editor", "core.askPass", "core.gitProxy", "credential.helper"),
        *("core.alternateRefsCommand", "uploadpack.packObjectsHook"),
        *("pager.status", "trailer.x.command", "browser.x.cmd", "interactive.diffFilter"),
    )
    configure(repository, dict.fromkeys(keys, command))
    names = ("status", "ls-files", "rev-parse", "upload-pack", "config")
    configure(repository, {f"alias.{name}": f"!{command}" for name in names})
    write(repository / ".git" / "objects" / "info" / "alternates", str(repository / "x") + "\n")


def by_signature(repository: Path, command: str) -> None:
    program = write(repository / ".git" / "gpg", f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    configure(repository, {"log.showSignature": "true", "gpg.program": str(program)})
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQ==\n -----END PGP SIGNATURE-----\n"
    for name in git(repository, "for-each-ref", "--format=%(refname)", "refs/heads").split():
        with contextlib.suppress(subprocess.CalledProcessError):  # that commit is lost
            head, rest = git(repository, "cat-file", "commit", name).split("\n\n", 1)
            file = write(repository / ".git" / "signed", f"{head}\n{signature}\n{rest}")
            words = ("hash-object", "-t", "commit", "-w", "--no-filters", str(file))
            git(repository, "update-ref", name, git(repository, *words).strip())


def by_merge_driver(repository: Path, command: str) -> None:
    configure(repository, {"merge.default": "evil", "merge.evil.driver": command})


TRAPS: tuple[Trap, ...] = (
    by_signature,
    *(by_upload_pack, by_transport, by_ssh, by_filter, by_filter_process, by_watcher, by_hooks),
    *(by_merge_driver, by_other_programs),
)


@dataclass(frozen=True)
class Marks:
    """Where each trap leaves a file with its name when it is executed."""

    directory: Path

    def set_all(self, repository: Path) -> None:
        # A file that git does not know makes a tree dirty: nothing would be asked of its filters.
        write(repository / ".git" / "info" / "exclude", "/.gitattributes\n/hooks/\n")
        for trap in TRAPS:
            trap(repository, f"touch {self.directory / trap.__name__}")

    def executed(self) -> list[str]:
        return sorted(os.listdir(self.directory))


def touched_later(repository: Path) -> None:
    """The same bytes, but git has to look at them."""
    for path in repository.rglob("*"):
        if path.is_file() and ".git" not in path.relative_to(repository).parts:
            os.utime(path, (1, 1))
