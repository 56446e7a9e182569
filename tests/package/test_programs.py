"""What `make test` finds missing, and by which name it would install it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support import REPOSITORY


@pytest.mark.parametrize(
    ("named", "missing"),
    [
        (["no-such-program"], "no-such-program"),
        (["id", "no-such-package:id"], ""),
        (["id:no-such-program", "some-package:no-such-other"], "id some-package"),
    ],
)
def test_a_program_that_is_missing_is_told_by_the_name_of_its_package(
    tmp_path: Path, named: list[str], missing: str
) -> None:
    # Without apt-get nothing can be installed, whoever asks.
    (tmp_path / "id").symlink_to(str(shutil.which("id")))
    done = subprocess.run(
        [str(shutil.which("bash")), str(REPOSITORY / "tools" / "programs.sh"), *named],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    said = f"Missing Debian packages, which only root can install: {missing}\n" if missing else ""
    assert (done.returncode, done.stderr) == (int(bool(missing)), said)
