"""Runs whose files a newer run replaced in the branch."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from pathlib import Path

from .conftest import Crate, Export, Projects, clone_with_branch, commit_to

BRANCH = "kochi_artifacts_local"
NEWER = "sum.first.29990101T000000.newer"


def test_a_replaced_run_gets_neither_the_numbers_nor_the_files_of_the_newer_one(
    projects: Projects, export: Export, crate: Crate, tmp_path: Path
) -> None:
    clone = clone_with_branch(projects, tmp_path)
    records = [
        json.loads(each.read_text()) for each in (crate.directory / "records/local").iterdir()
    ]
    of_point = [r for r in records if (r["parameters"], r["duplicate"]) == ({"n": "1"}, 0)]
    (old,) = [record for record in of_point if record["batch"] == "first"]
    output = b"total 777\n"
    files: dict[str, str | None] = {"local/sum/1_0.log": output.decode()}
    artifacts = [dict(each) for each in old["artifacts"]]
    for each in artifacts:
        if each["type"] == "stdout":
            each |= {"size": len(output), "sha256": hashlib.sha256(output).hexdigest()}
    newer = {
        **old,
        "identity": NEWER,
        "started": "2999-01-01T00:00:00+00:00",
        "ended": "2999-01-01T00:00:01+00:00",
        "artifacts": artifacts,
        "output": {"start": 0, "size": len(output)},
    }
    text = json.dumps(newer)
    files[f"local/.kochi/records/00/{NEWER}.json"] = files["local/sum/1_0.stats"] = text
    commit_to(clone, files, BRANCH)

    both = ("--ro-crate", tmp_path / "crate", "--appendix", tmp_path / "appendix.md")
    outcome = export(*both, "sum.yaml", "first", "--json", cwd=clone)
    assert outcome.status == 0, outcome.err
    made = Crate(tmp_path / "crate")
    (table,) = made.directory.glob("tables/local/*/first.csv")
    with table.open(newline="") as lines:
        rows = [(row["n"], row["duplicate"], row["total"]) for row in csv.DictReader(lines)]
    assert sorted(rows) == [("1", "0", "777"), ("1", "1", "10"), ("2", "0", "20"), ("2", "1", "20")]

    def results(identity: str) -> set[str]:
        action = made.entities[f"#run/{identity}"]
        listed = action["result"] if isinstance(action["result"], list) else [action["result"]]
        return {Path(each["@id"]).suffix for each in listed}

    # Both wrote the same text file; the log, and the copy of its record, are the newer run's.
    assert results(old["identity"]) == {".txt", ".json"}
    assert results(NEWER) == {".txt", ".json", ".log", ".stats"}
    readme = (made.directory / "README.md").read_text()
    assert "1 older run is not in the table" in readme
    told = [
        re.search(r"Output\*\*: (\d+) files of (.*)", each)
        for each in (readme, (tmp_path / "appendix.md").read_text())
    ]
    assert told[0] and told[1] and told[0].groups() == told[1].groups()
    assert told[0][1] == str(json.loads(outcome.out)["files"]) == "12"
