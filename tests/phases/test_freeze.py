"""Facts of machines and CSV files: frozen at the start of a run, and looked up only where used."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from slurm_fake import AWAY, FakeSlurm, says
from support import git, write

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.phases.freeze import Freeze, load_freeze, take_freeze
from snakemake_kochi.project.grid import Grid

KOCHI_YAML = """
machines:
  local: {facts: {network: none, licences: 3}}
  own: {scheduler: slurm, facts: {network: omnipath}}
  big: {scheduler: slurm, facts: {cores: 96, kind: $5}, allocation: {partition: gpus}}
  script: {alloc_script: run-it}
"""
SAID = "main*|1-00:00:00|4|4000|(null)|x|7\nmain*|1-00:00:00|64|256000|(null)|x|2\n"
SAID += "gpus|30:00|32|128000|gpu:a100:4(S:0-1)|x|3\n"
NODES = """\
NodeName=a1 CPUTot=64 CPUEfctv=62 RealMemory=256000 Sockets=2 Boards=1 Partitions=main
NodeName=b1 CPUTot=32 RealMemory=128000 Sockets=4 Partitions=gpus,all
"""


def project(directory: Path, params: str, rest: str = "", **files: str) -> Path:
    write(directory / "kochi.yaml", KOCHI_YAML)
    text = f"run: {{script: x}}\nbatches:\n  b:\n    params: {params}\n    {rest}\n"
    write(directory / "e.yaml", text)
    for name, content in files.items():
        write(directory / name.replace("_", "."), content)
    git(directory, "init", "--quiet")
    return directory


def points(freeze: Freeze) -> list[dict[str, str]]:
    grid: Grid = freeze.experiment("e.yaml").grid("b", freeze.machine_name)
    return [dict(point.parameters) for point in grid.points]


def said(freeze: Freeze) -> str:
    with pytest.raises(ConfigError) as caught:
        freeze.experiment("e.yaml").grid("b", freeze.machine_name)
    return str(caught.value)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm beside git, which a freeze needs."""
    path = os.environ["PATH"]
    (tmp_path / "bin").mkdir()
    fake = FakeSlurm(tmp_path / "bin", monkeypatch)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{path}")
    fake.answers("sinfo", says(SAID))
    fake.answers("scontrol", says(NODES), says(""))
    return fake


# ---- facts


def test_the_facts_of_this_computer_are_what_a_run_can_have(tmp_path: Path) -> None:
    params = "{c: $machine.cores, s: $machine.sockets, g: '`$machine.gpus + $machine.nodes`'}"
    (point,) = points(take_freeze(project(tmp_path, params), "local"))
    assert point["c"] == str(len(os.sched_getaffinity(0)))
    assert int(point["s"]) >= 1 and int(point["g"]) >= 1
    params = "{n: '${machine.name}-$machine.network', l: {range: $machine.licences}}"
    freeze = take_freeze(project(tmp_path, params), "local")
    assert points(freeze) == [{"n": "local-none", "l": str(number)} for number in range(3)]


def test_the_facts_of_a_cluster_are_those_of_its_partition(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    names = ("cores", "memory_mb", "gpus", "sockets", "nodes")
    params = "{" + ", ".join(f"{name}: $machine.{name}" for name in names) + "}"
    freeze = take_freeze(project(tmp_path, params), "own")
    assert points(freeze) == [dict(zip(names, ("62", "256000", "0", "2", "9"), strict=True))]
    assert len(slurm.calls("sinfo")) == 1
    # The processes of a run's jobs ask nothing again.
    assert points(load_freeze(freeze.file)) == points(freeze)
    assert len(slurm.calls("sinfo")) == 1


def test_a_fact_in_kochi_yaml_replaces_that_of_the_scheduler(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    params = "{s: $machine.sockets, k: '`$machine.cores // 2`', m: $machine.kind}"
    assert points(take_freeze(project(tmp_path, params), "big")) == [
        {"s": "4", "k": "48", "m": "$5"}
    ]


@pytest.mark.parametrize("value", ["[1, 2]", "$machine.name", "$machine.network", "$$machine.x"])
def test_a_scheduler_is_not_asked_for_what_nothing_uses(
    tmp_path: Path, slurm: FakeSlurm, value: str
) -> None:
    freeze = take_freeze(project(tmp_path, f"{{a: {value}}}"), "own")
    assert points(freeze)
    assert slurm.calls("sinfo") == slurm.calls("scontrol") == []
    assert {"facts", "without_facts", "tables"}.isdisjoint(json.loads(freeze.file.read_text()))


def test_without_an_answer_only_the_use_of_a_fact_is_an_error(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    slurm.answers("sinfo", says(AWAY, 1))
    freeze = take_freeze(project(tmp_path, "{a: $machine.cores, k: $machine.network}"), "own")
    message = said(freeze)
    assert message.startswith(
        "e.yaml:4: batches.b.params.a: $machine.cores is not known for machine 'own': "
    )
    assert "Unable to contact slurm controller" in message
    assert "write into kochi.yaml: machines: {own: {facts: {cores: VALUE}}}" in message
    assert "\n" not in message
    write(tmp_path / "kochi.yaml", KOCHI_YAML.replace("omnipath", "omnipath, cores: 8"))
    assert points(take_freeze(tmp_path, "own")) == [{"a": "8", "k": "omnipath"}]


@pytest.mark.parametrize(
    ("machine", "params", "expected"),
    [
        ("script", "{a: $machine.cores}", "alloc_script says nothing about nodes; write into"),
        (
            "local",
            "{a: $machine.corse}",
            "$machine.corse is not known for machine 'local', did you mean 'cores'? Or write",
        ),
        (
            "local",
            "{a: {pow2: $machine.network}}",
            "pow2: a whole number was expected, at most 10**18, not none",
        ),
        (
            "local",
            "{a: {range: $machine.net}}",
            "$machine.net is not known for machine 'local', did you mean 'network'?",
        ),
    ],
)
def test_a_fact_that_is_not_known_is_an_error_with_the_nearest(
    tmp_path: Path, machine: str, params: str, expected: str
) -> None:
    message = said(take_freeze(project(tmp_path, params), machine))
    assert message.startswith("e.yaml:4: batches.b.params.a: ")
    assert expected in message


def test_facts_are_for_conditions_and_requests_but_not_for_destinations(tmp_path: Path) -> None:
    rest = (
        "when: $a <= $machine.licences\n    run: {resources: {mem_mb: '`$a * $machine.licences`'}}"
    )
    freeze = take_freeze(project(tmp_path, "{a: [1, 9]}", rest), "local")
    grid = freeze.experiment("e.yaml").grid("b", "local")
    assert [point.request.resources for point in grid.points] == [{"mem_mb": 3}]
    assert len(grid.skipped) == 1
    dest = "artifacts: [{type: stats, dest: '${a}_$machine.cores'}]"
    message = said(take_freeze(project(tmp_path, "{a: [1, 9]}", dest), "local"))
    assert "artifacts[0].dest: a fact of the machine is for values and conditions only" in message


# ---- CSV


def test_values_come_from_columns_of_a_csv_file_which_is_frozen(tmp_path: Path) -> None:
    params = "{n: {csv: p.csv}, t: {csv: [p.csv, threads]}}"
    table = 'n , threads\n100,1\n100,"2"\n\n200,1\n'
    product = take_freeze(project(tmp_path, params, p_csv=table), "local")
    zipped = take_freeze(project(tmp_path, params, "zip: [n, t]", p_csv=table), "local")
    write(tmp_path / "p.csv", "code,n\nmain,1\nworking-tree,1\n")
    # A product has each value once; zipped, the rows are as in the file.
    found = [[(p["n"], p["t"]) for p in points(load_freeze(f.file))] for f in (product, zipped)]
    rows = [("100", "1"), ("100", "2"), ("200", "1")]
    assert found == [[*rows, ("200", "2")], rows]
    project(tmp_path, "{n: 1}\n    code: {csv: p.csv}")
    codes = [point["code"] for point in points(take_freeze(tmp_path, "local"))]
    assert codes == ["main", "working-tree"]


@pytest.mark.parametrize(
    ("params", "table", "expected"),
    [
        ("{n: {csv: q.csv}}", "n\n1\n", "there is no file 'q.csv' in the project"),
        ("{n: {csv: p.csv}}", "m,o\n1,2\n", "p.csv:1: there is no column 'n', known: m, o"),
        ("{n: {csv: p.csv}}", "n,n\n1,2\n", "p.csv:1: there are several columns 'n'"),
        ("{n: {csv: p.csv}}", "n,m\n1,2\n3\n", "p.csv:3: 2 fields were expected as in the first"),
        ("{n: {csv: p.csv}}", 'n\n"1\n', "p.csv:2: not valid CSV: unexpected end of data"),
        ("{n: {csv: p.csv}}", "n\n", "p.csv: there is no row with values"),
        ("{n: {csv: ../p.csv}}", "n\n1\n", "a path relative to the top of the project was"),
        ("{n: {csv: /etc/passwd}}", "n\n1\n", "a path relative to the top of the project was"),
        ("{n: {csv: [p.csv, n, m]}}", "n\n1\n", "csv: FILE or [FILE, COLUMN] was expected"),
    ],
)
def test_an_impossible_csv_file_is_an_error_at_the_key(
    tmp_path: Path, params: str, table: str, expected: str
) -> None:
    message = said(take_freeze(project(tmp_path, params, p_csv=table), "local"))
    assert message.startswith("e.yaml:4: batches.b.params.n")
    assert expected in message


def test_a_csv_file_that_git_ignores_or_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    project(tmp_path, "{n: {csv: p.csv}}", p_csv="n\n1\n")
    write(tmp_path / ".gitignore", "*.csv\n")
    assert "make sure that git does not ignore it" in said(take_freeze(tmp_path, "local"))
    write(tmp_path / ".gitignore", "")
    (tmp_path / "p.csv").write_bytes(b"n\n\xff\n")
    with pytest.raises(ConfigError, match=r"p\.csv:2: UTF-8 was expected"):
        take_freeze(tmp_path, "local")
    write(tmp_path / "e.yaml", "run: cat x.csv\nmetrics: {csv: '(x)'}\n")
    assert take_freeze(tmp_path, "local").tables == {}


def test_results_and_states_that_are_links_are_no_code(tmp_path: Path) -> None:
    directory = tmp_path / "project"
    write(directory / "kochi.yaml", "")
    write(directory / ".gitignore", "results/\n.snakemake/\n")
    git(directory, "init", "--quiet")
    before = take_freeze(directory, "local").snapshot.tree
    for name in ("results", ".snakemake"):
        (tmp_path / "scratch" / name).mkdir(parents=True)
        (directory / name).symlink_to(tmp_path / "scratch" / name)
    freeze = take_freeze(directory, "local")
    assert freeze.snapshot.tree == before
    assert {entry.path for entry in freeze.entries} == {"kochi.yaml", ".gitignore"}
