"""Which shell commands do nothing but run a phase, and with which arguments."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_kochi.executor.plain import phase_in

_BASH = "/bin/bash"
_START = 'set -euo pipefail; "$KOCHI_PYTHON" -P -m snakemake_kochi.phases '
_WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(_WORDS.filter(bool), min_size=1, max_size=5))
def test_a_phase_has_the_words_that_its_rule_was_given(words: list[str]) -> None:
    assert phase_in(_START + shlex.join(words), _BASH) == tuple(words)


def test_a_phase_has_the_words_that_bash_would_pass() -> None:
    text = "run x.yaml --batch='a b' --parameters 'it'\"'\"'s=1' n=2  --installs  --output a/b "
    command = [_BASH, "-c", f"printf '%s\\n' {text}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert list(phase_in(_START + text, _BASH)) == done.stdout.splitlines()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "run x; rm y",
            "run x && y",
            "run x | y",
            "run x > y",
            "run x & ",
            "run $HOME",
            "run `x`",
        ),
        *("run ~", "run x*", "run [x]", "run {x,y}", 'run "x"', "run x\ny", "run \\x", "run x # y"),
        *("run !x", "run x?", "run (x)", "run '", "run é"),
    ],
)
def test_a_command_on_which_bash_does_more_is_no_phase(text: str) -> None:
    assert phase_in(_START + text, _BASH) == ()


@pytest.mark.parametrize(
    ("script", "executable"),
    [
        (f"module load gcc; {_START}run x", _BASH),
        (f"{_START.removeprefix('set -euo pipefail; ')}run x", _BASH),
        (f"{_START}run x", "/bin/zsh"),
        (f"{_START}run x", None),
        (f"nice {_START}run x", _BASH),
        (f"{_START.replace('.phases', '.tables')}run x", _BASH),
    ],
)
def test_a_command_of_another_shell_or_program_is_no_phase(
    script: str, executable: str | None
) -> None:
    assert phase_in(script, executable) == ()
