"""Who follows Kochi's tutorial: the project, what it depends on, and windows of a terminal.

The project has the tutorial's own files, unchanged. What they get from the internet is here: git
has another address for MassiveThreads, and `wget` is a program that knows one file. MassiveThreads
and jemalloc are small stand-ins, with the interface that the tutorial's program uses.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from support import git, write

from tests.terminal.conftest import PROMPT, Person

from .test_from_kochi import ORIGINAL as COMMANDS

_FILES = Path(__file__).parent / "kochi_tutorial"
LINE = "-" * 80 + "\r\n"
# Seconds: a batch is waited for.
_PATIENCE = 150
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_BASHRC = f"PS1='{PROMPT}'\nbind 'set enable-bracketed-paste off'\n"

_MASSIVETHREADS = {
    # As autotools makes it, it takes options that it does not know.
    "configure": """
        #!/bin/sh
        for word; do case $word in --prefix=*) prefix=${word#*=} ;; esac; done
        printf 'prefix = %s\\nCFLAGS = %s\\n' "$prefix" "$CFLAGS" | cat - Makefile.in > Makefile
    """,
    "Makefile.in": """
        libmyth.so: myth.c
        \tgcc $(CFLAGS) -shared -fPIC -o libmyth.so myth.c
        install: libmyth.so
        \tmkdir -p $(prefix)/include/mtbb $(prefix)/lib
        \tcp task_group.h $(prefix)/include/mtbb
        \tcp libmyth.so $(prefix)/lib
        .PHONY: install
    """,
    "myth.c": """
        #include <stdio.h>
        int myth_start(void)
        {
            return 0;
        }
    """,
    # A task is executed at once, as MassiveThreads does it with one worker.
    "task_group.h": """
        #include <cstdlib>
        extern "C" int myth_start();
        static const int myth_started = myth_start();
        namespace mtbb {
        struct task_group {
            template <class F> void run(const F &task) { task(); }
            void wait() {}
        };
        }
    """,
}
_JEMALLOC = {
    "configure": """
        #!/bin/sh
        printf 'lib = %s/lib\\n' "${1#--prefix=}" | cat - Makefile.in > Makefile
    """,
    "Makefile.in": """
        libjemalloc.so: stats.c
        \tgcc -shared -fPIC -o libjemalloc.so stats.c
        install: libjemalloc.so
        \tmkdir -p $(lib)
        \tcp libjemalloc.so $(lib)
        .PHONY: install
    """,
    # jemalloc prints its statistics at the end of the program.
    "stats.c": """
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        __attribute__((destructor)) static void print(void)
        {
            const char *given = getenv("MALLOC_CONF");
            if (given && strstr(given, "stats_print:true"))
                fprintf(stderr, "___ Begin jemalloc statistics ___\\n");
        }
    """,
}
_TARBALL = "jemalloc-5.2.1"
_ADDRESS = "https://github.com/jemalloc/jemalloc/releases/download/5.2.1/jemalloc-5.2.1.tar.bz2"


class Surroundings:
    """What there is before the first line of the tutorial: the two repositories that are cloned, in
    a directory `internet`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._internet = directory / "internet"
        self.massivethreads = _repository(self._internet / "massivethreads", _MASSIVETHREADS)
        self.kochi_tutorial = self._internet / "kochi-tutorial"
        shutil.copytree(_FILES, self.kochi_tutorial)
        _commit(self.kochi_tutorial)
        with tarfile.open(self._internet / f"{_TARBALL}.tar.bz2", "w:bz2") as archive:
            for name, text in _JEMALLOC.items():
                file = write(self._internet / _TARBALL / name, text)
                file.chmod(0o755)
                archive.add(file, f"{_TARBALL}/{name}")

    def prepare_home(self, home: Path, path: str) -> None:
        """What a user's home has: a short prompt, PATH, a name for git, and the way to
        MassiveThreads."""
        write(home / ".bashrc", _BASHRC)
        # A login shell begins with the PATH of the system.
        write(home / ".bash_profile", f"PATH={shlex.quote(path)}\n. ~/.bashrc\n")
        write(
            home / ".gitconfig",
            f"""
            [user]
                name = A Reader
                email = reader@example.org
            [url "{self.massivethreads}"]
                insteadOf = git@github.com:massivethreads/massivethreads.git
            """,
        )

    @property
    def wget(self) -> str:
        """The program `wget`, in sh."""
        archive = shlex.quote(str(self._internet / f"{_TARBALL}.tar.bz2"))
        return f'[ "$*" = {_ADDRESS} ] && exec cp {archive} .\nexit 4'

    def programs(self) -> Path:
        """A directory with `kochi` of this checkout and `wget`."""
        directory = self.directory / "programs"
        kochi = f'exec {shlex.quote(sys.executable)} -P -m snakemake_kochi.cli "$@"'
        for name, text in {"kochi": kochi, "wget": self.wget}.items():
            write(directory / name, f"#!/bin/sh\n{text}\n").chmod(0o755)
        return directory


def _repository(directory: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        write(directory / name, text).chmod(0o755)
    _commit(directory)
    return directory


def _commit(directory: Path) -> None:
    git(directory, "init", "--quiet", "--initial-branch", "master")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", "first")


class Window(Person):
    """A window of a terminal, with bash."""

    def __init__(self, directory: Path) -> None:
        # Wide: no line is wrapped.
        super().__init__("-i", command=("bash",), cwd=str(directory), dimensions=(50, 300))
        self.child.timeout = _PATIENCE
        self.sees(PROMPT)

    def does(self, line: str, status: int = 0) -> str:
        """Type a line and wait for its end; returns what it shows."""
        _assert_is_of_the_original(line)
        shown, _, ended = self.asks(f"{line}; echo status=$?").rpartition("status=")
        assert ended == f"{status}\r\n", f"$ {line}\n{shown}[{ended}]"
        print(f"$ {line}\n{shown}")
        return _COLOURS.sub("", shown).replace("\r\n", "\n")

    def begins(self, line: str) -> None:
        """Type a line that goes on, or asks something."""
        _assert_is_of_the_original(line)
        self.types(line)
        # Its echo: what is awaited next is what it shows.
        self.sees(f"{line}\r\n")

    def sees_job(self, name: str, *lines: str) -> str:
        """Wait for a job in the window of its worker and for the lines that it prints, which may
        be regular expressions; returns all that it has shown."""
        begin = rf"Kochi job {re.escape(name)} \(ID=\d+\) started\.\r\n{LINE}"
        self.child.expect(begin)
        shown = ""
        for line in lines:
            self.child.expect(rf"{line}\r\n")
            shown += f"{self.child.before}{self.child.after}"
        return shown.replace("\r\n", "\n")


def _assert_is_of_the_original(line: str) -> None:
    """A line of kochi's has a command and options that the original has."""
    typed, *_ = f"{line} ".partition(" -- ")
    program, *words = shlex.split(typed)
    if program != "kochi":
        return
    (command,) = (each for each in COMMANDS if words[: len(each.split())] == each.split())
    options = {word for word in words if word.startswith("-")} - {"--help"}
    assert options <= {option[0] for option in COMMANDS[command].options}, line
