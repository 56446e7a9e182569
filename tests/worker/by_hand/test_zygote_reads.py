"""Changes of the files that a workflow reads during its parse."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

READ = """
    import glob, importlib, os, pathlib, sys
    from snakemake_kochi.worker.parse_state import Reads
    reads = Reads([".snakemake"])
    reads.begin()
    {read}
    reads.end()
    assert reads.changed() is None, reads.changed()
    {change}
    print(reads.changed())
"""


def changed(directory, read, change):
    """The path that counts as changed; in a new process, because the audit hook is permanent."""
    (directory / "data").mkdir(exist_ok=True)
    (directory / "data/a.txt").write_text("a")
    (directory / "own_module.py").write_text("value = 1\n")
    code = textwrap.dedent(READ).format(read=read, change=change)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.strip()
    return None if said == "None" else said.removeprefix(f"{directory}/")


WRITE = "pathlib.Path({!r}).write_text('other')"


@pytest.mark.parametrize(
    ("read", "change", "expected"),
    [
        ("open('data/a.txt').read()", WRITE.format("data/a.txt"), "data/a.txt"),
        ("pathlib.Path('data/a.txt').read_bytes()", "os.remove('data/a.txt')", "data/a.txt"),
        ("os.listdir('data')", WRITE.format("data/b.txt"), "data"),
        ("glob.glob('data/*.txt')", WRITE.format("data/b.txt"), "data"),
        ("glob.glob('*/b.txt')", WRITE.format("data/b.txt"), "data/b.txt"),
        ("list(os.walk('data'))", WRITE.format("data/b.txt"), "data"),
        ("os.path.exists('data/b.txt')", WRITE.format("data/b.txt"), "data/b.txt"),
        ("pathlib.Path('data/a.txt').is_file()", "os.remove('data/a.txt')", "data/a.txt"),
        ("import own_module", WRITE.format("own_module.py"), "own_module.py"),
        ("\ntry: open('none')\nexcept OSError: pass\n", WRITE.format("none"), "none"),
    ],
)
def test_a_path_that_was_read_and_has_changed_is_named(tmp_path, read, change, expected):
    assert changed(tmp_path, read, change) == expected


@pytest.mark.parametrize(
    ("read", "change"),
    [
        # Jobs write beside the files that the workflow reads.
        ("open('data/a.txt').read()", WRITE.format("data/b.txt")),
        ("import own_module", WRITE.format("out.txt")),
        ("importlib.util.find_spec('none')", WRITE.format("out.txt")),
        ("os.path.exists('data/a.txt')", WRITE.format("data/a.txt")),
        # Files that the parse itself made count in the state in which it left them.
        (
            "os.path.exists('made'); os.mkdir('made'); os.listdir('made'); open('made/x', 'w')",
            "pass",
        ),
        ("open('data/new', 'w').close(); open('data/new').read()", "pass"),
        ("os.makedirs('.snakemake/x'); os.listdir('.snakemake')", WRITE.format(".snakemake/y")),
    ],
)
def test_paths_that_the_workflow_has_not_read_may_change(tmp_path, read, change):
    assert changed(tmp_path, read, change) is None
