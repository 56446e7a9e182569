"""`kochi check`: results of a batch against the references of its experiment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import git, write

from snakemake_kochi.cli.main import run

from .conftest import BRANCH, Project

SORT = """
    default_params: {n: 1}
    metrics: {time: {pattern: '^time (.+)$', unit: ms}, rate: {pattern: 'rate (.+)', unit: MB/s}}
    references: REFERENCES
    batches:
      first:
        params: {n: [1, 2]}
        duplicates: 10
        artifacts: [{type: stdout, dest: "sort/${n}_${duplicate}.log"}]
    run: {depend_params: [n], script: ls}
    """


class Check:
    def __init__(self, project: Project, capsys: pytest.CaptureFixture[str]) -> None:
        self.project, self._capsys = project, capsys

    def write(self, references: str) -> None:
        write(self.project.top / "sort.yaml", SORT.replace("REFERENCES", references))

    def ran(self, time: float, duplicates: int = 10) -> None:
        """Runs of around so many ms, twice as many with n = 2; the rate is 1000 of it."""
        for n in (1, 2):
            for duplicate in range(duplicates):
                own = n * (time + 0.1 * (7 * duplicate % 10))
                self.project.run(
                    f"time {own}\nrate {1000 / own}\n",
                    "sort.yaml",
                    parameters={"n": str(n)},
                    dest=f"sort/{n}_{duplicate}.log",
                    duplicate=duplicate,
                )
        self.project.commit()

    def verdicts(self, *words: str, status: int = 0) -> list[str]:
        assert run(["check", "sort.yaml", "first", "--json", *words]) == status
        return [each["verdict"] for each in json.loads(self._capsys.readouterr().out)]

    def says(self, words: Sequence[str] = (), status: int = 0) -> str:
        assert run(["check", "sort.yaml", "first", *words]) == status
        said = self._capsys.readouterr()
        return said.out + said.err


@pytest.fixture
def check(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Check:
    monkeypatch.chdir(project.top)
    return Check(project, capsys)


def test_a_value_has_a_tolerance_and_a_direction(check: Check) -> None:
    values = (
        "[{value: 100, where: {n: 1}}, {value: VALUE, where: {n: 2}, metric: METRIC, within: 2%}]"
    )

    def verdicts(value: str, metric: str, status: int = 0) -> list[str]:
        check.write(values.replace("VALUE", value).replace("METRIC", metric))
        return check.verdicts(status=status)

    check.write(values.replace("VALUE", "200").replace("METRIC", "time"))
    check.ran(100)
    assert verdicts("200", "time") == ["as expected", "as expected"]
    assert verdicts("250", "time")[1] == "as expected", "it is faster"
    assert verdicts("190", "time", 1)[1] == "worse"
    # 196.9 and 2 % are within the interval of 200.2 to 201.4.
    assert verdicts("196.9", "time")[1] == "perhaps worse"
    assert verdicts("4.5", "rate")[1] == "as expected"
    assert verdicts("5.5", "rate", 1)[1] == "worse"
    check.write("[{value: 1, where: {n: 3}}]")
    assert check.verdicts(status=1) == ["no result"]
    check.write("[{value: 1, machine: spica}, {value: 100, where: {n: 1}}]")
    assert check.verdicts() == ["no result", "as expected"]


def test_a_known_regression_is_accepted_until_its_day(check: Check, tmp_path: Path) -> None:
    accepted = "{value: 90, where: {n: 1}, accepted: {reason: newer compiler, until: DAY}}"
    check.write(f"[{accepted.replace('DAY', '2999-01-01')}, {{value: 100, where: {{n: 2}}}}]")
    check.ran(100)
    words = ("--junit", str(tmp_path / "checks.xml"))
    text = check.says(words, status=1)
    assert "accepted: newer compiler (until 2999-01-01)" in text
    assert "| +101 % (+100 to +102)  | worse " in text
    suite = ElementTree.parse(tmp_path / "checks.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [[each.tag for each in case] for case in suite] == [
        ["skipped", "system-out"],
        ["failure", "system-out"],
    ]
    check.write(f"[{accepted.replace('DAY', '2001-01-01')}]")
    assert check.verdicts(status=1) == ["worse"]


def test_results_are_checked_against_those_of_a_commit_of_the_branch(check: Check) -> None:
    check.write("[{value: 1}]")
    check.ran(100)
    before = git(check.project.top, "rev-parse", BRANCH).strip()
    check.write(f"[{{commit: {before}}}]")
    check.ran(101)
    assert check.verdicts() == ["as expected", "as expected"]
    check.ran(110)
    assert check.verdicts(status=1) == ["worse", "worse"]
    assert f"| {before[:12]} | +9.96 % (" in check.says(status=1)


@pytest.mark.parametrize(
    ("value", "count", "said", "status"),
    [
        ("nan", 10, "| time (n=1) | | 4 | | no result |", 1),
        ("0", 10, "time (n=1): a ratio needs values above 0, and one is 0", 1),
        ("-3", 10, "time (n=1): a ratio needs values above 0, and one is -3", 1),
        ("inf", 10, "time (n=1): a ratio needs values above 0, and one is inf", 1),
        ("5", 10, "+25 % (+25 to +25) | worse", 1),
        ("5", 1, "+25 % | perhaps worse", 0),
    ],
)
def test_impossible_missing_equal_and_single_values_have_one_answer_each(
    check: Check, value: str, count: int, said: str, status: int
) -> None:
    check.write("[{value: 4, where: {n: 1}}]")
    for duplicate in range(count):
        for n in ("1", "2"):
            check.project.run(
                f"time {value if n == '1' else 7}\nrate 1\n",
                "sort.yaml",
                parameters={"n": n},
                dest=f"sort/{n}_{duplicate}.log",
                duplicate=duplicate,
            )
    check.project.commit()
    text = " ".join(check.says(status=status).split())
    assert " ".join(said.split()) in text
    assert ("no result |" in text) == (value == "nan")


def test_without_references_it_says_what_to_write(check: Check) -> None:
    check.write("[{value: 1}]")
    check.ran(100, duplicates=1)
    text = SORT.replace("    references: REFERENCES\n", "")
    write(check.project.top / "sort.yaml", text)
    assert "has no references" in check.says(status=1)
