"""Somebody's laptop, on which they type commands of kochi."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import run_apart

from tests.terminal.conftest import Person

KOCHI = (sys.executable, "-m", "snakemake_kochi.cli")
# Each run waits for a file, so that nothing depends on how fast this computer is.
EXPERIMENT = """
    default_params: {n: 1}
    metrics: {time: 'time (.+)'}
    batches:
      test:
        machines: [MACHINES]
        params: {n: [1, 2]}
        artifacts: [{type: stdout, dest: "wait/${n}.log"}]
    run:
      depend_params: [n]
      exclusive: false
      script: |
        touch "$GO.$KOCHI_MACHINE.$KOCHI_PARAM_N"
        while [ ! -e "$GO" ]; do sleep 0.1; done
        echo "on $(hostname), in job ${SLURM_JOB_ID:-none}"
        echo "time $KOCHI_PARAM_N"
    """
SNAKEFILE = """
    rule out:
        output: "out"
        shell: 'touch "$GO.rule"; while [ ! -e "$GO" ]; do sleep 0.1; done; touch {output}'
    """


@dataclass
class Laptop:
    """A laptop with a project at `top`. `environment` are variables besides those of the test,
    `before` is what comes in front of each command."""

    top: Path
    environment: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    before: Sequence[str] = field(default=(), kw_only=True)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.before, *KOCHI, *words],
            cwd=self.top,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kochi(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self.before, *KOCHI, *words]
        done = run_apart(*command, cwd=self.top, env=self.environment)
        print(f"$ kochi {' '.join(words)}\n{done.stdout}{done.stderr}[{done.returncode}]")
        return done

    def opens(self, *words: str, **options: Any) -> Person:
        """The same in a terminal of its own."""
        command = [*self.before, *KOCHI]
        return Person(*words, command=command, env=self.environment, cwd=str(self.top), **options)
