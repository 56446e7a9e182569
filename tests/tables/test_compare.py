"""`kochi compare`: two values of a parameter, from an artifact branch."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pandas
import pytest
from matplotlib.axes import Axes
from support import git, write

from snakemake_kochi.cli.main import run
from snakemake_kochi.statistics import comparison
from snakemake_kochi.tables.branch import read_batch
from snakemake_kochi.tables.compare import unknown, words_of

from .conftest import BRANCH, Project

SORT = """
    default_params: {n: 1, by: quick}
    metrics: {time: {pattern: '^time (.+)$', unit: ms}, word: 'says (\\w+)', rate: 'rate (.+)'}
    batches:
      first:
        params: {by: [quick, heap], n: [1, 2]}
        duplicates: 10
        artifacts: [{type: stdout, dest: "sort/${by}_${n}_${duplicate}.log"}]
    run: {depend_params: [n, by], script: ls}
    """
Time = Callable[[str, int, int], object]


class Compare:
    """Runs a batch whose times a function of by, n and duplicate tells, and compares."""

    def __init__(self, project: Project, capsys: pytest.CaptureFixture[str]) -> None:
        self.project, self._capsys = project, capsys
        self._began = (f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}" for n in count())
        write(project.top / "sort.yaml", SORT)

    def ran(self, time: Time, duplicates: int = 10, **changes: Any) -> None:
        for duplicate in range(duplicates):
            for n in (1, 2):
                for by in ("quick", "heap") if duplicate % 2 else ("heap", "quick"):
                    self.one(by, n, duplicate, time(by, n, duplicate), **changes)
        self.project.commit()

    def one(self, by: str, n: int, duplicate: int, time: object, **changes: Any) -> None:
        self.project.run(
            f"time {time}\nsays x\nrate {time}\n",
            "sort.yaml",
            parameters={"by": by, "n": str(n)},
            dest=f"sort{changes.get('machine', '')}/{by}_{n}_{duplicate}.log",
            duplicate=duplicate,
            started=f"{next(self._began)}+00:00",
            **changes,
        )

    def json(self, *words: str) -> Any:
        by = () if {"--against", "--with"} & {*words} else ("--by", "by")
        status = run(["compare", "sort.yaml", "first", *by, "--json", *words])
        said = self._capsys.readouterr()
        assert status == 0, said.err
        return json.loads(said.out)["comparisons"][0]

    def verdicts(self, *words: str) -> list[tuple[str, str]]:
        return [(each["verdict"], each["why"]) for each in self.json(*words)["points"]]

    def text(self, *words: str) -> str:
        assert run(["compare", "sort.yaml", "first", *words]) == 0
        return self._capsys.readouterr().out

    def fails(self, *words: str) -> str:
        assert run(["compare", "sort.yaml", "first", *words]) in (1, 2)
        return self._capsys.readouterr().err


@pytest.fixture
def compare(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Compare:
    monkeypatch.chdir(project.top)
    return Compare(project, capsys)


def noisy(effects: dict[tuple[str, int], float], seed: int = 1) -> Time:
    random = np.random.default_rng(seed)

    def time(by: str, n: int, _duplicate: int) -> object:
        return 100 * n * effects.get((by, n), 1.0) * (1 + random.normal(0, 0.02))

    return time


def test_a_planted_difference_is_found_at_its_point_in_both_directions(compare: Compare) -> None:
    compare.ran(noisy({("heap", 2): 1.1}))
    found = compare.json()
    one, two = found["points"]
    assert (one["point"], two["point"]) == ({"n": "1"}, {"n": "2"})
    assert (one["verdict"], two["verdict"]) == ("no difference shown", "slower")
    assert one["ratio"]["lower"] < 1 < one["ratio"]["upper"]
    assert 1.07 < two["ratio"]["lower"] < 1.1 < two["ratio"]["upper"] < 1.13
    assert one["why"].endswith("would have been") and found["chance"] <= 0.05
    assert found["values"] == ["quick", "heap"] and found["needed"] == 7
    back = compare.json("--base", "heap")
    assert [each["verdict"] for each in back["points"]] == ["no difference shown", "faster"]
    assert back["points"][1]["ratio"]["estimate"] == pytest.approx(1 / two["ratio"]["estimate"])
    # Of a rate, more is faster; of what is no time, it is only more.
    assert compare.verdicts("--metric", "rate")[1][0] == "higher"
    # A difference that does not matter.
    assert compare.verdicts("--within", "20") == [("the same", "within 20 %")] * 2


def test_the_page_has_both_medians_the_ratio_and_what_holds_for_all_points(
    compare: Compare, tmp_path: Any
) -> None:
    compare.ran(noisy({("heap", 1): 1.1, ("heap", 2): 1.1}))
    text = compare.text("--by", "by")
    assert text.startswith("# sort first: time (ms) by by, quick and heap\n\n| n ")
    (row,) = [line for line in text.splitlines() if line.startswith("| 2 ")]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[3] == "10" and cells[6] == "slower (also under repeated looks)"
    assert " to " in cells[1] and " to " in cells[2] and " to " in cells[5]
    assert "heap compared with quick: over all 2 points the mean ratio is 1." in text
    assert "at least one point differs (p = 0.002)" in text
    assert "7 pairs show a difference of a single one; here are 10." in text
    assert "do not cover differences between sessions" in text
    page = tmp_path / "page.md"
    assert compare.text("--by", "by", "-o", str(page)) == f"Wrote {page}\n"
    assert page.read_text() == text
    figure = tmp_path / "page.svg"
    assert compare.text("--by", "by", "-o", str(figure)) == f"Wrote {figure}\n"
    for words in ("n=2", "time: heap / quick", "95 % intervals"):
        assert f"<!-- {words}" in figure.read_text()


def test_the_promised_confidence_is_printed_and_the_medians_are_those_of_the_table(
    compare: Compare, tmp_path: Any
) -> None:
    repeat = "repeat: {until: 50%, by: by, confidence: 99%}"
    write(compare.project.top / "sort.yaml", SORT.replace("duplicates: 10", repeat))
    compare.ran(noisy({}), duplicates=15)
    found = compare.json()
    # 4 / 0.008: a little less than 0.01, because one looks several times.
    assert (found["confidence"], found["needed"]) == (0.99, 9)
    assert "| ratio " in (text := compare.text("--by", "by")) and "| 99 % interval " in text
    assert "95 %" not in text
    compare.text("--by", "by", "-o", str(tmp_path / "ratios.svg"))
    assert "<!-- 99 % intervals" in (tmp_path / "ratios.svg").read_text()
    assert run(["table", "sort.yaml", "first", "--csv"]) == 0
    table = pandas.read_csv(io.StringIO(compare._capsys.readouterr().out))
    for point in found["points"]:
        for by, side in zip(found["values"], point["sides"], strict=True):
            runs = table[(table["by"] == by) & (table["n"] == int(point["point"]["n"]))]
            assert (side["lower"], side["upper"]) == pytest.approx(
                (runs["time_lower"].iloc[0], runs["time_upper"].iloc[0])
            )
            assert side["estimate"] == pytest.approx(runs["time"].median())


def test_too_few_pairs_and_runs_without_a_partner_are_told(compare: Compare) -> None:
    compare.ran(noisy({}), duplicates=3)
    compare.one("heap", 1, 3, 100)
    compare.project.commit()
    assert compare.verdicts() == [("too few pairs", "n = 3: no interval")] * 2
    text = compare.text("--by", "by")
    assert "Nothing can be said of all points together: 7 pairs are needed." in text
    assert "1 runs are left out of the ratios: the other side lacks their duplicate." in text


@pytest.mark.parametrize(
    ("time", "verdict", "why"),
    [
        (lambda by, n, d: 5, "the same", "within 1 %"),
        (lambda by, n, d: d, "not comparable", "a ratio needs values above 0, and one is 0"),
        (lambda by, n, d: -d - 1, "not comparable", "a ratio needs values above 0, and one is -1"),
        (lambda by, n, d: "inf", "not comparable", "a ratio needs values above 0, and one is inf"),
        (lambda by, n, d: "nan" if by == "heap" else 5, "too few pairs", "no pair"),
        (lambda by, n, d: 5 if by == "heap" else 6, "faster", ""),
    ],
)  # fmt: skip
def test_equal_impossible_and_missing_values_have_one_answer_each(
    compare: Compare, time: Time, verdict: str, why: str
) -> None:
    compare.ran(time, duplicates=7)
    assert compare.verdicts() == [(verdict, why)] * 2


def test_what_ought_not_to_differ_makes_points_not_comparable_until_it_is_accepted(
    compare: Compare,
) -> None:
    random = noisy({})
    for by, model, gcc in (("quick", "EPYC", "12"), ("heap", "Xeon", "13")):
        facts = {"compiler": {"output": f"gcc {gcc}\nmore", "command": "gcc --version"}}
        for duplicate in range(6):
            for n in (1, 2):
                own: dict[str, Any] = {"hardware": {"cpu_model": model}} if n == 1 else {}
                own["system"] = {"governor": "powersave" if by == "quick" else "performance"}
                time = random(by, n, duplicate)
                compare.one(by, n, duplicate, time, facts=facts, **own)
    compare.project.commit()
    one, two = compare.verdicts()
    assert one == (
        *("not comparable",),
        "cpu_model differs: EPYC and Xeon; to compare all the same: --accept cpu_model",
    )
    assert two == (
        *("not comparable",),
        "governor differs: powersave and performance; to compare all the same: --accept governor",
    )
    one, two = compare.verdicts("--accept", "governor")
    assert "cpu_model differs" in one[1] and "compiler differs: gcc 12 and gcc 13;" in two[1]
    assert "pairs are needed" not in (text := compare.text("--by", "by"))
    assert "all together" not in text
    one, two = compare.verdicts("--accept", "compiler", "--accept", "governor")
    assert one[0] == "not comparable" and two[0] == "no difference shown"
    names = ("fact.compiler", "cpu_model", "governor")
    accepted = [word for fact in names for word in ("--accept", fact)]
    assert [verdict for verdict, _ in compare.verdicts(*accepted)] == ["no difference shown"] * 2
    assert "One side ran before the other" in compare.text("--by", "by", *accepted)


def test_isolation_and_the_launcher_ought_not_to_differ(compare: Compare) -> None:
    isolation = {
        "isolate": ["environment", "files"],
        "program": "/usr/bin/bwrap",
        "version": "bubblewrap 0.8.0",
        "visible": [],
        "container": None,
    }
    container = {"image": "debian:12", "digest": "sha256:1", "volumes": ["/data"], "modules": []}
    podman = {**isolation, "isolate": [], "version": "podman 5", "container": container}
    launcher = {"name": "srun", "line": "srun -n 4", "nodes": 1, "tasks": 4, "cpus_per_task": None}
    random = noisy({})
    for duplicate in range(8):
        for by, own in (("quick", isolation), ("heap", None if duplicate else podman)):
            compare.one(by, 1, duplicate, random(by, 1, duplicate), isolation=own)
        for by, start in (("quick", None), ("heap", launcher)):
            compare.one(by, 2, duplicate, random(by, 2, duplicate), launcher=start)
    compare.project.commit()
    one, two = compare.verdicts()
    assert one[1] == (
        "isolation differs: environment, files, /usr/bin/bwrap, bubblewrap 0.8.0 and none, "
        "sha256:1, debian:12, /data, /usr/bin/bwrap, podman 5; "
        "to compare all the same: --accept isolation"
    )
    assert two[1] == "launcher differs: none and srun; to compare all the same: --accept launcher"
    accepted = compare.verdicts("--accept", "isolation", "--accept", "launcher")
    assert [verdict for verdict, _ in accepted] == ["no difference shown"] * 2


def test_points_are_repeated_until_their_ratio_is_known_also_where_facts_differ(
    compare: Compare,
) -> None:
    def unknown_within(width: str) -> dict[tuple[str, ...], str]:
        repeat = f"repeat: {{until: {width}, by: by}}"
        write(compare.project.top / "sort.yaml", SORT.replace("duplicates: 10", repeat))
        report = read_batch(compare.project.top, "sort.yaml", "first")
        assert report.repeat is not None
        return {point: why for point, (_, why) in unknown(report, report.repeat).items()}

    random = noisy({})
    for duplicate in range(10):
        for n in (1, 2):
            for by, launcher in (("quick", None), ("heap", {"name": "srun", "line": "srun"})):
                compare.one(by, n, duplicate, random(by, n, duplicate), launcher=launcher)
    compare.project.commit()
    assert unknown_within("50%") == {}
    assert unknown_within("0.01%") == {("1",): "", ("2",): ""}
    compare.one("heap", 2, 0, -1)
    compare.project.commit()
    why = "not comparable: a ratio needs values above 0, and one is -1"
    assert unknown_within("50%") == {("2",): why}


@pytest.mark.parametrize("is_alike", [False, True])
def test_a_decided_point_goes_on_as_long_as_its_pairs_are_too_few_for_an_interval(
    compare: Compare, is_alike: bool
) -> None:
    write(
        compare.project.top / "sort.yaml",
        SORT.replace("duplicates: 10", "repeat: {until: 0.1%, by: by}"),
    )
    for duplicate in range(10):
        place = duplicate if is_alike else 7 * duplicate % 10
        for n in (1, 2):
            compare.one("quick", n, duplicate, 100)
            compare.one("heap", n, duplicate, 300 + 10 * place)
    compare.project.commit()
    report = read_batch(compare.project.top, "sort.yaml", "first")
    assert report.repeat is not None
    assert len(unknown(report, report.repeat)) == 2 * is_alike
    verdict = "too few pairs" if is_alike else "slower"
    assert [each for each, _ in compare.verdicts()] == [verdict] * 2


def test_allocations_count_and_not_the_runs_in_them(compare: Compare) -> None:
    random = np.random.default_rng(2)
    offsets = {each: 1 + random.normal(0, 0.05) for each in "abcdef"}

    def ran(places: Callable[[str, int], str]) -> list[dict[str, Any]]:
        for duplicate in range(12):
            for n in (1, 2):
                for by in ("quick", "heap"):
                    name = places(by, duplicate)
                    time = 100 * offsets[name] * (1 + random.normal(0, 0.005))
                    allocation = {"scheduler": "slurm", "id": name}
                    compare.one(by, n, duplicate, time, allocation=allocation)
        compare.project.commit()
        points: list[dict[str, Any]] = compare.json()["points"]
        return points

    # Both sides in each of four: their effects cancel.
    for point in ran(lambda by, duplicate: "abcd"[duplicate % 4]):
        assert point["ratio"]["n"] == 4 and point["sides"][0]["n"] == 4
        assert 0.98 < point["ratio"]["lower"] < point["ratio"]["upper"] < 1.02
    # Each side in three of its own: nothing is shown that is one of these.
    for point in ran(lambda by, duplicate: ("abc" if by == "quick" else "def")[duplicate % 3]):
        assert point["ratio"]["n"] == 3 and point["verdict"] == "no difference shown"
        assert point["ratio"]["upper"] / point["ratio"]["lower"] > 1.1
    for point in ran(lambda by, duplicate: "a" if by == "quick" else "b"):
        why = "n = 1 of 3 allocations or nodes: no interval"
        assert (point["verdict"], point["why"]) == ("too few pairs", why)
    assert "medians of several allocations or nodes count" in compare.text("--by", "by")


def test_machines_with_one_node_each_are_compared_by_their_runs(compare: Compare) -> None:
    random = noisy({})
    for machine, factor in (("local", 1.0), ("spica", 1.1)):
        for duplicate in range(10):
            for n in (1, 2):
                time = factor * float(str(random("quick", n, duplicate)))
                own = {"node": machine, "hardware": {"cpu_model": machine}}
                compare.one("quick", n, duplicate, time, machine=machine, **own)
        compare.project.commit()
    text = compare.text("--by", "machine")
    assert (
        text.count("| slower") == 2 and "One allocation or node of each machine is compared" in text
    )
    assert "One side ran before the other" not in text
    # Of another node of one of them, the nodes count.
    compare.one("quick", 1, 0, 100, machine="spica", node="n2")
    compare.project.commit()
    one, two = [line for line in compare.text("--by", "machine").splitlines() if "| quick" in line]
    assert "n = 1 of 3 allocations or nodes: no interval" in one and "| slower" in two


def test_a_parameter_called_code_is_compared_in_the_newest_code_alone(compare: Compare) -> None:
    text = SORT.replace("n: [1, 2]", "n: 1").replace("by: [quick, heap]", "by: quick")
    text = text.replace("      first:\n", "      first:\n        code: [main, working-tree]\n")
    write(compare.project.top / "sort.yaml", text.replace("sort/", "sort/${code}"))
    for script in ("old", "new"):
        for duplicate in range(8):
            for code, time in (("main", 100), ("working-tree", 90)):
                compare.project.run(
                    f"time {time + 7 * duplicate % 8}\n",
                    "sort.yaml",
                    parameters={"by": "quick", "n": "1", "code": code},
                    dest=f"sort/{code}quick_1_{duplicate}.log",
                    duplicate=duplicate,
                    started=f"{next(compare._began)}+00:00",
                    run_script=script,
                )
        compare.project.commit()
    text = compare.text("--by", "code")
    assert text.startswith("# sort first: time (ms) by code, main and working-tree\n")
    assert text.count("| faster") == 1 and "other code are left out" in text


def test_three_values_are_compared_with_the_first_one(compare: Compare, tmp_path: Any) -> None:
    write(compare.project.top / "sort.yaml", SORT.replace("[quick, heap]", "[quick, heap, tree]"))
    random = noisy({("tree", 1): 1.1, ("tree", 2): 1.1})
    for duplicate in range(8):
        for n in (1, 2):
            for by in ("quick", "heap", "tree"):
                compare.one(by, n, duplicate, random(by, n, duplicate))
    compare.project.commit()
    text = compare.text("--by", "by")
    assert text.startswith("# sort first: time (ms) by by, 3 values\n")
    heap, tree = text.split("## by: ")[1:]
    assert heap.startswith("heap compared with quick\n") and heap.count("no difference shown") == 2
    assert tree.startswith("tree compared with quick\n") and tree.count("| slower") == 2
    compare.text("--by", "by", "-o", str(tmp_path / "three.svg"))
    figure = (tmp_path / "three.svg").read_text()
    assert "<!-- time: heap / quick" in figure and "<!-- time: tree / quick" in figure


def test_pairs_that_are_alike_have_wider_intervals_and_are_told(
    compare: Compare, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compare.project.top / "sort.yaml", SORT.replace("duplicates: 10", "duplicates: 40"))
    noise = np.random.default_rng(3).normal(0, 1, (2, 40))
    for duplicate in range(1, 40):
        noise[:, duplicate] += 0.6 * noise[:, duplicate - 1]

    def time(by: str, n: int, duplicate: int) -> float:
        return 100 + (by == "heap") * float(noise[n - 1][duplicate])

    compare.ran(time, duplicates=40)
    text = compare.text("--by", "by")
    assert "Neighbouring pairs are alike (r = 0." in text and ": 40 count as " in text
    assert "Neighbouring runs are alike (r = 0." in text
    # The bars of the figure are the intervals.
    drawn: list[Any] = []
    plot = Axes.plot

    def recorded(self: Axes, *given: Any, **how: Any) -> Any:
        drawn.append(given)
        return plot(self, *given, **how)

    monkeypatch.setattr(Axes, "plot", recorded)
    compare.text("--by", "by", "-o", str(tmp_path / "ratios.svg"))
    ratios = [point["ratio"] for point in compare.json()["points"]]
    bars = [x for x, *_ in drawn if isinstance(x, list)]
    assert bars == [[each["lower"], each["upper"]] for each in ratios]
    logs = [math.log(time("heap", 1, d) / 100) for d in range(40)]
    plain = comparison.paired(logs)
    assert plain.lower is not None and ratios[0]["lower"] < plain.lower


def test_a_difference_of_one_point_among_many_says_what_it_lacks(compare: Compare) -> None:
    """The interval of a point is for itself, its verdict allows for all of them."""

    def of_one(n: int, by: str, more: float, duplicate: int) -> float:
        if by == "quick":
            return 100.0
        # Of the other point as often larger as smaller.
        return 100 + (more if n == 2 else (duplicate % 2 - 0.5) * (duplicate + 1))

    few = [10, 14, 11, 13, 9, 12]
    compare.ran(lambda by, n, d: of_one(n, by, few[d], d), duplicates=6)
    one, two = compare.json()["points"]
    assert two["ratio"]["lower"] > 1
    for each in (one, two):
        assert each["verdict"] == "no difference shown"
        assert each["why"] == "7 pairs are needed among 2 points"
    # A pair of eight in the other direction.
    more = [5, 1, 8, 2, 7, -2.5, 6, 4]
    compare.ran(lambda by, n, d: of_one(n, by, more[d], d), duplicates=8)
    one, two = compare.json()["points"]
    assert two["ratio"]["lower"] > 1
    assert (two["verdict"], two["why"]) == (
        "no difference shown",
        "p = 0.039 is too large among 2 points",
    )
    assert one["why"].endswith("would have been")


def test_few_allocations_are_enough_for_a_point_and_not_for_all_of_them(compare: Compare) -> None:
    def text(allocations: str) -> str:
        for number, name in enumerate(allocations):
            for n in (1, 2):
                for by, time in (("quick", 100), ("heap", 150 + 5 * number % 7)):
                    allocation = {"scheduler": "slurm", "id": name}
                    compare.one(by, n, number, time, allocation=allocation)
        compare.project.commit()
        return compare.text("--by", "by")

    few = text("abcd")
    assert few.count("| slower") == 2 and "at least one point differs" not in few
    assert "the pairs are too few for a word on all points together (p = 0.12)." in few
    enough = text("abcdef")
    assert enough.count("| slower") == 2 and "at least one point differs (p = 0.031)" in enough


def test_the_line_about_all_points_says_what_their_rows_say(compare: Compare) -> None:
    """The level of a batch with `repeat` is 4 %; here p of the only point is between 4 and 5 %."""
    repeat = "repeat: {until: 50%, by: by, min: 6}"
    text = SORT.replace("duplicates: 10", repeat).replace("n: [1, 2]", "n: 1")
    write(compare.project.top / "sort.yaml", text)
    for duplicate, more in enumerate([6, 1, 8, -2, 9, 4, 7]):
        for by, time in (("quick", 100), ("heap", 100 + more)):
            compare.one(by, 1, duplicate, time)
    compare.project.commit()
    found = compare.json()
    (point,) = found["points"]
    assert point["verdict"] == "no difference shown" and not found["differs"]
    assert found["chance"] == point["ratio"]["p"] == pytest.approx(3 / 64)
    assert "no point is shown to differ (p = 0.047)" in compare.text("--by", "by")


def test_the_code_of_results_is_compared_where_no_parameter_names_it(compare: Compare) -> None:
    random = noisy({})

    def ran(commit: str, factor: float, script: str) -> None:
        snapshot = {"tree": commit * 40, "base": commit * 40, "dirty": False}
        compare.ran(
            lambda by, n, d: factor * float(str(random(by, n, d))),
            snapshot=snapshot,
            run_script=script,
        )

    ran("a", 1.0, "old")
    assert "have the same code_commit: nothing to compare" in compare.fails("--by", "code")
    ran("b", 0.9, "new")
    assert len(compare.json()["points"]) == 2  # of the newest code
    text = compare.text("--by", "code")
    assert f"time (ms) by code_commit, {'a' * 12} and {'b' * 12}" in text
    assert text.count("| faster") == 4 and "One side ran before the other" in text
    before = git(compare.project.top, "rev-parse", BRANCH).strip()
    assert compare.text("--by", "code", "--at", before).startswith(text.partition("\n")[0])


def test_results_are_compared_with_those_of_an_earlier_commit_of_the_branch(
    compare: Compare,
) -> None:
    compare.ran(noisy({}), duplicates=8)
    before = git(compare.project.top, "rev-parse", BRANCH).strip()
    against = ("--against", before)
    assert "are the same runs" in compare.fails(*against)
    compare.one("heap", 1, 0, 120)
    compare.project.commit()
    assert compare.verdicts(*against)[0] == ("too few pairs", "n = 1: no interval")
    compare.ran(noisy({("heap", 2): 1.1}, seed=2), duplicates=8)
    text = compare.text(*against)
    assert text.startswith(f"# sort first: time (ms) by results, {before[:12]} and now\n")
    (row,) = [line for line in text.splitlines() if line.startswith("| heap  | 2 ")]
    assert "| slower" in row and text.count("no difference shown") == 3
    assert "One side ran before the other" in text
    assert "there is no commit 'nothing'" in compare.fails("--against", "nothing")
    assert "--against and --with compare results, and --by" in compare.fails(*against, "--by", "n")


def test_results_of_two_machines_are_compared_with_earlier_ones_of_one(compare: Compare) -> None:
    compare.ran(noisy({}), duplicates=8)
    before = git(compare.project.top, "rev-parse", BRANCH).strip()
    compare.ran(noisy({}, seed=2), duplicates=8)
    compare.ran(noisy({}, seed=3), duplicates=8, machine="spica")
    points = compare.json("--against", before)["points"]
    pairs = {"local": 8, "spica": None}
    assert len(points) == 8
    for each in points:
        assert each["point"].keys() == {"machine", "by", "n"}
        assert (each["ratio"] and each["ratio"]["n"]) == pairs[each["point"]["machine"]]


def test_a_batch_is_compared_with_another_one_of_its_file(compare: Compare) -> None:
    first = SORT[SORT.index("      first:") : SORT.index("    run: {")]
    second = first.replace("first:", "second:").replace("sort/", "two/")
    write(compare.project.top / "sort.yaml", SORT.replace("    run: {", f"{second}    run: {{"))
    compare.ran(noisy({}))
    compare.ran(noisy({("heap", 1): 1.1}, seed=2), batch="second")
    assert "slower" in compare.verdicts("--with", "second")[2][0]
    assert compare.text("--with", "second").startswith(
        "# sort second: time (ms) by results, first "
    )
    assert "is of batch 'third', known: first, second" in compare.fails("--with", "third")


def test_with_run_both_batches_run_and_it_is_told_if_ratios_are_not_waited_for(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def runs(_machine: str | None, _file: str, batch: str) -> int:
        ran.append(batch)
        return 0

    monkeypatch.setattr("snakemake_kochi.cli.compare.run_first", runs)
    first = SORT[SORT.index("      first:") : SORT.index("    run: {")]
    second = first.replace("first:", "second:").replace("sort/", "two/")
    write(compare.project.top / "sort.yaml", SORT.replace("    run: {", f"{second}    run: {{"))
    compare.ran(noisy({}))
    compare.ran(noisy({}), batch="second")

    def said(*words: str) -> str:
        assert run(["compare", "sort.yaml", "first", "--run", *words]) == 0
        return compare._capsys.readouterr().err

    told = "kochi: the number of runs does not depend on these ratios"
    assert f"{told}\n" in said("--with", "second") and ran == ["first", "second"]
    how = "for runs until they are known, sort.yaml needs `repeat: {until: 2%, by: by}`"
    assert f"{told}; {how}\n" in said("--by", "by")
    assert "a fact 'governer', did you mean" in said("--by", "by", "--accept", "governer")
    for by, is_told in (("n", True), ("by", False)):
        repeat = SORT.replace("duplicates: 10", f"repeat: {{until: 2%, by: {by}}}")
        write(compare.project.top / "sort.yaml", repeat)
        assert (told in said("--by", "by")) is is_told


def test_a_wrong_name_has_the_nearest_one_and_a_text_is_no_metric(compare: Compare) -> None:
    compare.ran(noisy({}), duplicates=1)
    assert "Choose what is compared: --by by or --by n" in compare.fails()
    assert "has no parameter 'nn', did you mean 'n'?" in compare.fails("--by", "nn")
    assert "have the same machine: nothing to compare" in compare.fails("--by", "machine")
    assert "by = 'quik', did you mean 'quick'?" in compare.fails("--by", "by", "--base", "quik")
    assert "no metric 'tim', did you mean 'time'?" in compare.fails("--by", "n", "--metric", "tim")
    assert "'word' of sort first is a text" in compare.fails("--by", "n", "--metric", "word")
    assert "--within" in compare.fails("--by", "n", "--within", "-1")
    said = compare.fails("--by", "n", "--accept", "governer")
    assert "no run of sort first has a fact 'governer', did you mean 'governor'?" in said
    both: Sequence[str] = ("--json", "-o", "x.md")
    assert "only one of --output and --json" in compare.fails("--by", "n", *both)


def test_one_value_with_results_is_nothing_to_compare(compare: Compare) -> None:
    for n in (1, 2):
        compare.one("quick", n, 0, 5)
    compare.project.commit()
    for words in ((), ("--json",), ("--base", "heap")):
        said = compare.fails("--by", "by", *words)
        assert "all results of sort first have by = quick: nothing to compare" in said
        assert "To run the others, type: kochi batch sort.yaml first" in said


def test_wrong_words_are_told_before_a_batch_runs(compare: Compare) -> None:
    def fails(*words: str) -> str:
        return compare.fails("--run", *words)

    assert "--run makes new results, and --at is about old ones" in fails("--at", "main")
    assert "Choose what is compared: --by by or --by n" in fails()
    assert "sort first has no parameter 'nn', did you mean 'n'?" in fails("--by", "nn")
    assert "no metric 'tim', did you mean 'time'?" in fails("--by", "n", "--metric", "tim")
    assert "by = 'quik', did you mean 'quick'?" in fails("--by", "by", "--base", "quik")
    assert "there is no commit 'nothing'" in fails("--against", "nothing")
    assert "there is no batch 'second', known: first" in fails("--with", "second")
    both = ("--by", "n", "--with", "second")
    assert "--against and --with compare results, and --by" in fails(*both)
    assert not (compare.project.top / ".snakemake").exists()


def test_several_machines_are_a_column_before_a_batch_runs(compare: Compare) -> None:
    text = SORT.replace("      first:\n", "      first:\n        machines: [spica, local]\n")
    write(compare.project.top / "sort.yaml", text.replace("by: [quick, heap], ", ""))
    said = compare.fails("--run")
    assert "sort first has several parameters with several values" in said
    assert "Choose what is compared: --by machine or --by n" in said
    said = compare.fails("--run", "--by", "machine", "--base", "spice")
    assert "no run of sort first has machine = 'spice', did you mean 'spica'?" in said
    # The only column with several values is what is compared.
    write(compare.project.top / "sort.yaml", text.replace("by: [quick, heap], n: [1, 2]", "n: 1"))
    said = compare.fails("--run", "--base", "spice")
    assert "no run of sort first has machine = 'spice', did you mean 'spica'?" in said
    assert not (compare.project.top / ".snakemake").exists()


NAMES = {
    ("faster", "slower"): [
        "s", "ms", "µs", "seconds", "time", "wall_time", "run_seconds", "latency_p99", "duration",
        "ns/op", "ms/step", "ns_per_block", "time_per_step", "seconds per iteration",
        "time per simulated day", "time_ms",
    ],
    ("slower", "faster"): [
        "ns/day", "ns_per_day", "sim ns per hour", "simulated_time_per_day", "timesteps/day",
        "timesteps/s", "time_steps_per_second", "ops_per_sec_avg", "tokens_per_second_per_user",
        "requests per second (mean)", "transactions per seconds", "frames-per-second",
        "updates_per_ms", "ops per ms", "op/µs", "jobs/min", "jobs per hour", "GB s-1", "s^-1",
        "1/s", "GB/s", "MB / s", "GFLOP/s", "Gflops", "throughput", "memory_bandwidth",
    ],
    ("lower", "higher"): [
        "bandwidth_time_ms", "flops_time", "time per flop", "ns/flop", "runtime_speedup",
        "speed-up", "speedup per s", "gc_ms_per_s", "downtime per day", "s/day", "max/min",
        "max / min", "timesteps", "time / ms", "MiB", "%", "rate", "errors", "iterations",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for words, names in NAMES.items() for name in names]
)
def test_a_time_is_faster_where_it_is_smaller_and_a_rate_where_it_is_larger(
    name: str, words: tuple[str, str]
) -> None:
    assert words_of(name, "") == words_of("metric", name) == words


def test_a_parameter_may_be_named_results(compare: Compare) -> None:
    text = SORT.replace("n: 1", "results: 1").replace("n: [1", "results: [1")
    text = text.replace("[n, by]", "[results, by]").replace("${n}", "${results}")
    write(compare.project.top / "sort.yaml", text)

    def ran(factor: float) -> None:
        for duplicate in range(8):
            for results in "12":
                compare.project.run(
                    f"time {factor * (100 + duplicate)}\n",
                    "sort.yaml",
                    parameters={"by": "quick", "results": results},
                    dest=f"sort/quick_{results}_{duplicate}.log",
                    duplicate=duplicate,
                    started=f"{next(compare._began)}+00:00",
                )
        compare.project.commit()

    ran(1)
    before = git(compare.project.top, "rev-parse", BRANCH).strip()
    ran(1.1)
    found = compare.json("--against", before)
    assert found["by"] == "results_"
    assert [each["point"]["results"] for each in found["points"]] == ["1", "2"]
    assert [each["verdict"] for each in found["points"]] == ["slower"] * 2


def test_nothing_is_said_of_all_points_where_no_round_or_no_pair_has_them(
    compare: Compare,
) -> None:
    write(compare.project.top / "sort.yaml", SORT.replace("duplicates: 10", "duplicates: 20"))
    random = noisy({("heap", 1): 1.5, ("heap", 2): 1.5})
    for duplicate in range(20):
        for by in ("quick", "heap"):
            n = 1 + duplicate % 2
            compare.one(by, n, duplicate, random(by, n, duplicate))
    compare.project.commit()
    text = compare.text("--by", "by")
    assert "over all 2 points at least one point differs (p = " in text and "nan" not in text
    for duplicate in range(20):
        for n in (1, 2):
            for by in ("quick", "heap"):
                allocation = {"scheduler": "slurm", "id": f"{by}{duplicate % 4}"}
                time = random(by, n, duplicate)
                compare.one(by, n, duplicate, time, allocation=allocation)
    compare.project.commit()
    text = compare.text("--by", "by")
    assert text.count("| slower") == 2 and "pairs are needed" not in text
    assert "nothing is said of all together: the sides ran in allocations of their own" in text


def test_the_history_of_a_point_has_the_versions_between_which_it_changed(
    compare: Compare, tmp_path: Any
) -> None:
    random = np.random.default_rng(4)
    assert run(["history", "sort.yaml", "first"]) == 1
    for version in range(24):
        snapshot = {"tree": f"{version:040}", "base": f"{version:040}"[::-1], "dirty": False}
        for n in (1, 2):
            time = 100 * (1.1 if n == 2 and version >= 11 else 1) + random.normal(0, 1)
            compare.one("quick", n, 0, time, snapshot=snapshot, run_script=f"run {version}")
        if version == 5:
            compare.project.commit()
            assert run(["history", "sort.yaml", "first"]) == 0
            text = compare._capsys.readouterr().out
            assert text.count("too few versions (12 are needed)") == 2
    compare.project.commit()
    assert run(["history", "sort.yaml", "first"]) == 0
    text = compare._capsys.readouterr().out
    assert text.startswith("# sort first: time (ms) over versions of the code\n")
    one, two = [line for line in text.splitlines() if line.startswith("| quick")]
    assert "no change shown" in one
    cells = [cell.strip() for cell in two.split("|")[1:-1]]
    assert cells[:6] == ["quick", "2", "24", "change", "010000000000", "110000000000"]
    assert 1.08 < float(cells[-1]) < 1.12
    assert run(["history", "sort.yaml", "first", "--json"]) == 0
    points = json.loads(compare._capsys.readouterr().out)["points"]
    assert [len(each["changes"]) for each in points] == [0, 1]
    assert len(points[1]["values"]) == 24 and points[1]["changes"][0]["begins"] == cells[5]
    assert run(["history", "sort.yaml", "first", "-o", str(tmp_path / "history.svg")]) == 0
    for words in ("by=quick, n=2", "Medians of each version of the code", "000000000000"):
        assert f"<!-- {words}" in (tmp_path / "history.svg").read_text()
    compare._capsys.readouterr()
    assert run(["history", "sort.yaml", "first", "--metric", "word"]) == 1
    assert "'word' of sort first is a text" in compare._capsys.readouterr().err
