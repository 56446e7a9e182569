"""What `make test` finds missing, and by which name it would install it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support import REPOSITORY, write


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


def test_apptainer_is_made_anew_after_an_interrupted_call(tmp_path: Path) -> None:
    """With stand-ins for the programs that bring its files."""
    scripts = {
        "apt-get": 'case "$*" in *download*) : > apptainer.deb ;; esac',
        "dpkg-deb": 'mkdir -p "$3/etc" "$3/usr/bin" "$3/usr/lib/machine/apptainer/bin"\n'
        'touch "$3/usr/lib/machine/libseccomp.so.2" "$3/usr/lib/machine/ld-linux.so.2"\n'
        'printf "#!/bin/sh\\n" > "$3/usr/bin/apptainer"; chmod +x "$3/usr/bin/apptainer"',
        # As if the first call were killed.
        "patchelf": f"[ -e {tmp_path}/called ] || {{ touch {tmp_path}/called; exit 1; }}",
    }
    for name, text in scripts.items():
        write(tmp_path / "bin" / name, f"#!/bin/sh\n{text}\n").chmod(0o755)
    command = [str(REPOSITORY / "tools" / "apptainer.sh"), str(tmp_path / "made")]
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    done = [subprocess.run(command, env=environment, timeout=30).returncode for _ in range(2)]
    assert done == [1, 0]
    assert (tmp_path / "made" / "bin" / "apptainer").exists()
