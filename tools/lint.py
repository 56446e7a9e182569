"""Run `snakemake --lint` on the example, and fail on lints that are not allowed: lint.py DIRECTORY

It first deletes the directory, and makes the example there, as `make demo` does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Snakemake's linter has no exceptions. These are ours: the beginning of a title, and the reason.
ALLOWED = {
    "No log directive defined": "workers keep the log of every job, and `kochi show log` prints it",
    "Specify a conda environment or container": "recipes install what experiments need",
}


def lints(report: str) -> list[str]:
    """The lints in a report of `snakemake --lint`, each as "SUBJECT: TITLE"."""
    found = []
    subject = "?"
    for line in report.splitlines():
        if header := re.fullmatch(r"Lints for (.*):", line):
            subject = header[1]
        elif title := re.fullmatch(r" {4}\* (.*?):?", line):
            found.append(f"{subject}: {title[1]}")
    return found


def is_allowed(lint: str) -> bool:
    return any(f": {beginning}" in lint for beginning in ALLOWED)


def main(directory: Path) -> int:
    shutil.rmtree(directory, ignore_errors=True)
    subprocess.run([ROOT / "examples" / "prepare.sh", directory], check=True)
    project = directory / "fib"
    os.environ["KOCHI_ROOT"] = str(directory.resolve() / "root")  # not the user's
    subprocess.run(["kochi", "init"], cwd=project, check=True, stdout=subprocess.DEVNULL)
    linted = subprocess.run(["snakemake", "--lint"], cwd=project, capture_output=True, text=True)
    report = linted.stdout + linted.stderr
    found = lints(report)
    if linted.returncode != 0 and not found:
        print(report, file=sys.stderr)
        return linted.returncode
    refused = [lint for lint in found if not is_allowed(lint)]
    print("\n".join([*refused, f"snakemake --lint: {len(refused)} of {len(found)} to fix"]))
    return 1 if refused else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(str(__doc__))
    sys.exit(main(Path(sys.argv[1])))
