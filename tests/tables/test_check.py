"""`kochi check`: results of a batch against the references of its experiment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support import git, write

from snakemake_kochi.cli.main import run
from snakemake_kochi.frozen import FrozenDict

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

    def ran(
        self,
        time: float,
        duplicates: int = 10,
        points: Sequence[int] = (1, 2),
        more: Mapping[str, str] = FrozenDict(),
        **changes: Any,
    ) -> None:
        """Runs of around so many ms, twice as many with n = 2; the rate is 1000 of it. `more`:
        parameters beside n."""
        for n in points:
            for duplicate in range(duplicates):
                own = n * (time + 0.1 * (7 * duplicate % 10))
                self.project.run(
                    f"time {own}\nrate {1000 / own}\n",
                    "sort.yaml",
                    parameters={"n": str(n), **more},
                    dest=f"sort/{n}_{duplicate}.log",
                    duplicate=duplicate,
                    **changes,
                )
        self.project.commit()

    @property
    def head(self) -> str:
        """The commit of the artifact branch."""
        return git(self.project.top, "rev-parse", BRANCH).strip()

    def json(self, *words: str, status: int = 0) -> list[dict[str, Any]]:
        assert run(["check", "sort.yaml", "first", "--json", *words]) == status
        found: list[dict[str, Any]] = json.loads(self._capsys.readouterr().out)["checks"]
        return found

    def verdicts(self, *words: str, status: int = 0) -> list[str]:
        return [each["verdict"] for each in self.json(*words, status=status)]

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
    # Of another machine there need be none; but a value of which there is no point checks nothing.
    check.write("[{value: 1, machine: spica}, {value: 100, where: {n: 1}}]")
    assert check.verdicts() == ["no result", "as expected"]
    check.write("[{value: 1, where: {n: 3}}, {value: 100, where: {n: 1}}]")
    assert check.verdicts(status=1) == ["no result", "as expected"]


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
    before = check.head
    check.write(f"[{{commit: {before}}}]")
    check.ran(101)
    assert check.verdicts() == ["as expected", "as expected"]
    check.ran(110)
    assert check.verdicts(status=1) == ["worse", "worse"]
    assert f"| 100.45 ({before[:12]}) | +9.96 % (" in check.says(status=1)


def test_a_change_since_a_commit_is_the_ratio_of_both_medians(check: Check) -> None:
    """With one run of 10 that took three times as long, the mean would have no narrow interval."""
    check.write("[{value: 1}]")
    check.ran(100)
    check.write(f"[{{commit: {check.head}}}]")
    check.ran(110)
    check.project.run(
        "time 330\n", "sort.yaml", parameters={"n": "1"}, dest="sort/1_3.log", duplicate=3
    )
    check.project.commit()
    one, two = check.json(status=1)
    assert (one["verdict"], two["verdict"]) == ("worse", "worse")
    for each in (one, two):
        ratio = each["now"]["estimate"] / each["before"]["estimate"]
        assert each["change"]["estimate"] == ratio
        assert 1.09 < each["change"]["lower"] < ratio < each["change"]["upper"] < 1.11


def test_several_allocations_are_not_compared_with_the_runs_of_one(check: Check) -> None:
    def allocated(time: float, names: str) -> None:
        for number, name in enumerate(names):
            for n in (1, 2):
                for duplicate in range(number, 12, len(names)):
                    check.project.run(
                        f"time {n * (time + duplicate)}\n",
                        "sort.yaml",
                        parameters={"n": str(n)},
                        dest=f"sort/{n}_{duplicate}.log",
                        duplicate=duplicate,
                        allocation={"scheduler": "slurm", "id": name},
                    )
        check.project.commit()

    check.write("[{value: 1}]")
    text = (check.project.top / "sort.yaml").read_text().replace("duplicates: 10", "duplicates: 12")
    write(check.project.top / "sort.yaml", text)
    allocated(1000, "abc")
    write(check.project.top / "sort.yaml", text.replace("value: 1", f"commit: {check.head}"))
    allocated(1000, "d")
    for each in check.json():
        assert (each["verdict"], each["change"]["lower"]) == ("not comparable", None)
        assert "in one allocation or on one node, else in several" in each["why"]
    assert "too few runs" not in check.says()
    allocated(1000, "efg")
    assert check.verdicts() == ["as expected"] * 2


def test_a_point_whose_result_is_gone_fails_the_check(check: Check, tmp_path: Path) -> None:
    check.write("[{value: 1}]")
    check.ran(100, points=[1], run_script="older")
    half = check.head
    check.ran(100, points=[2], run_script="older")
    whole, junit = check.head, tmp_path / "checks.xml"
    # In the commit.
    check.write(f"[{{commit: {half}}}]")
    assert check.verdicts(status=1) == ["as expected", "no result"]
    assert f"no result: in {half[:12]}" in check.says(("--junit", str(junit)), status=1)
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    assert [[each.tag for each in case] for case in suite] == [
        ["system-out"],
        ["error", "system-out"],
    ]
    assert suite[1][0].get("message") == f"{half[:12]}: no result: in {half[:12]}"
    # Now: those of n = 2 are of other code.
    check.ran(100, points=[1], run_script="newer")
    for reference in (f"commit: {whole}", "value: 1000"):
        check.write(f"[{{{reference}}}]")
        one, two = check.json(status=1)
        assert (one["verdict"], two["verdict"], two["why"]) == ("as expected", "no result", "now")
        assert two["point"] == {"n": "2"} and two["fails"] and not one["fails"]
        check.write(f"[{{{reference}, where: {{n: 1}}}}]")
        assert check.verdicts() == ["as expected"]
    # No value, where there is a result.
    check.write("[{value: 1000}]")
    check.ran(float("nan"), points=[2], run_script="newer")
    one, two = check.json(status=1)
    assert (two["verdict"], two["why"]) == ("no result", "no value")


def test_an_older_file_for_continuous_integration_does_not_outlive_an_error(
    check: Check, tmp_path: Path
) -> None:
    check.write("[{value: 1000}]")
    check.ran(100)
    words = ("--junit", str(junit := tmp_path / "checks.xml"))
    check.says(words)
    assert junit.exists()
    check.write("[{commit: nothing}]")
    assert "there is no commit 'nothing'" in check.says(words, status=1)
    assert not junit.exists()
    junit.mkdir()
    assert "checks.xml cannot be written: " in check.says(words, status=1)


def test_a_file_for_continuous_integration_replaces_nothing_but_a_file(
    check: Check, tmp_path: Path
) -> None:
    check.write("[{value: 1000}]")
    check.ran(100)
    os.mkfifo(pipe := tmp_path / "pipe")
    (link := tmp_path / "stdout").symlink_to(pipe)
    for name in (pipe, link):
        said = check.says(("--junit", str(name)), status=1)
        assert f"{name} cannot be written: a regular file was expected" in said
    assert link.is_symlink() and pipe.is_fifo()


@pytest.mark.parametrize(
    ("value", "count", "said", "status"),
    [
        ("nan", 10, "| time (n=1) | | 4 | | no result: no value |", 1),
        ("0", 10, "time (n=1): a ratio needs values above 0, and one is 0", 1),
        ("-3", 10, "time (n=1): a ratio needs values above 0, and one is -3", 1),
        ("inf", 10, "time (n=1): a ratio needs values above 0, and one is inf", 1),
        ("5", 10, "+25 % (+25 to +25) | worse", 1),
        ("5", 1, "+25 % | too few runs: beyond 5 %, n = 1: no interval |", 1),
        ("5", 5, "+25 % | too few runs: beyond 5 %, n = 5: no interval; all values", 1),
        ("4.1", 1, "+2.5 % | too few runs: within 5 %, n = 1: no interval |", 0),
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
    assert ("no value |" in text) == (value == "nan")
    assert ("1 point has too few runs for an interval" in text) == (count < 6)


def test_what_has_too_few_runs_is_an_error_beyond_its_tolerance_and_else_skipped(
    check: Check, tmp_path: Path
) -> None:
    beyond = "value: 90, where: {n: 1}"
    check.write(f"[{{{beyond}}}, {{value: 200, where: {{n: 2}}}}]")
    check.ran(100, duplicates=5)
    words = ("--junit", str(tmp_path / "checks.xml"))
    assert check.verdicts(*words, status=1) == ["too few runs"] * 2
    suite = ElementTree.parse(tmp_path / "checks.xml").getroot()
    assert [case[0].tag for case in suite] == ["error", "skipped"]
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["2", "0", "1", "1"]
    accepted = "accepted: {reason: newer compiler, until: 2999-01-01}"
    check.write(f"[{{{beyond}, {accepted}}}]")
    assert check.verdicts() == ["accepted"]


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ("duplicates: 10", 6),
        ("repeat: {until: 2%, min: 5}", 7),
        ("repeat: {until: 2%, min: 5, confidence: 99%}", 9),
    ],
)
def test_the_runs_that_an_interval_takes_are_those_of_its_confidence(
    check: Check, keys: str, count: int
) -> None:
    check.write("[{value: 1000}]")
    text = (check.project.top / "sort.yaml").read_text().replace("duplicates: 10", keys)
    write(check.project.top / "sort.yaml", text)
    check.ran(100, duplicates=count - 1)
    said = f"too few runs for an interval: a point needs {count} runs, or 3 allocations or nodes."
    assert said in check.says()
    check.ran(100, duplicates=count)
    assert check.verdicts() == ["as expected"] * 2


def test_wrong_words_are_told_before_a_batch_runs(check: Check) -> None:
    check.write("[{commit: nothing}]")
    assert "there is no commit 'nothing'" in check.says(["--run"], status=1)
    assert "--run makes new results, and --at" in check.says(["--run", "--at", "main"], status=2)
    write(check.project.top / "sort.yaml", SORT.replace("    references: REFERENCES\n", ""))
    assert "sort first has no references" in check.says(["--run"], status=1)
    assert not (check.project.top / ".snakemake").exists()


def test_a_commit_with_results_of_another_machine_is_not_read(check: Check) -> None:
    own = "{value: 1000}"
    check.write(f"[{{commit: nothing, machine: spica}}, {own}]")
    check.ran(100)
    for words in ((), ("-m", "local")):
        found = check.json(*words)
        assert [each["verdict"] for each in found] == ["no result", "as expected", "as expected"]
        assert found[0]["why"] == "none of spica"
    # The name under which results are published is one of the machine, and so is its own.
    for name in ("ada", "local"):
        check.write(f"[{{commit: nothing, machine: {name}}}, {own}]")
        assert "there is no commit 'nothing'" in check.says(status=1)
        assert "there is no commit 'nothing'" in check.says(["--run"], status=1)


def test_before_a_batch_runs_no_commit_with_results_of_another_machine_is_read(
    check: Check,
) -> None:
    check.write("[{commit: nothing, machine: spica}, {commit: never}]")
    assert "there is no commit 'never'" in check.says(["--run"], status=1)
    assert not (check.project.top / ".snakemake").exists()


def test_a_parameter_that_a_commit_lacks_matters_only_with_several_values(check: Check) -> None:
    def has(mode: str, default: str) -> None:
        check.write(f"[{{commit: {before}}}]")
        text = (check.project.top / "sort.yaml").read_text()
        text = text.replace("{n: 1}", default).replace("params: {n: [", f"params: {{{mode}n: [")
        text = text.replace("sort/${n}_", "sort/${mode}${n}_").replace("[n]", "[n, mode]")
        write(check.project.top / "sort.yaml", text)

    check.write("[{value: 1}]")
    check.ran(100)
    before = check.head
    has("", "{n: 1, mode: fast}")
    check.ran(120, more={"mode": "fast"})
    assert check.verdicts(status=1) == ["worse", "worse"]
    # Of which of two values the earlier results are, nobody knows.
    has("mode: [fast, slow], ", "{n: 1, mode: fast}")
    assert {*check.verdicts(status=1)} == {"no result"}


def test_the_results_are_named_by_their_commits(check: Check) -> None:
    check.write("[{value: 1000}]")
    check.ran(100, points=[1], snapshot={"tree": "a" * 40, "base": "b" * 40, "dirty": True})
    check.ran(100, points=[2], snapshot={"tree": "a" * 40, "base": "d" * 40, "dirty": False})
    said = f"the results are of the commits {'d' * 12} and {'b' * 12} with changes"
    assert f"T{said[1:]}.\n" in check.says()
    assert said in check.says(["--json"])


def test_each_case_for_continuous_integration_has_a_name_of_its_own(
    check: Check, tmp_path: Path
) -> None:
    check.write("[{value: 1000}]")
    check.ran(100)
    one = f"{{commit: {check.head}, where: {{n: 1}}}}"
    check.write(f"[{{value: 1000}}, {one}, {{value: 1000, where: {{n: 1}}, within: 50%}}]")
    check.says(("--junit", str(tmp_path / "checks.xml")))
    names = [case.get("name") for case in ElementTree.parse(tmp_path / "checks.xml").getroot()]
    assert names == [
        "time (n=1): 1000",
        "time (n=2)",
        f"time (n=1): {check.head[:12]}",
        "time (n=1): 1000 (2)",
    ]


def test_without_references_it_says_what_to_write(check: Check) -> None:
    check.write("[{value: 1}]")
    check.ran(100, duplicates=1)
    text = SORT.replace("    references: REFERENCES\n", "")
    write(check.project.top / "sort.yaml", text)
    assert "has no references" in check.says(status=1)
