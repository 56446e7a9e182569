"""Which machine a command uses when none is named."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from snakemake_kochi.errors import ConfigError, KochiError
from snakemake_kochi.location import find_location
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.machines import chosen_machine

MACHINES = """
machines:
  spica: {login_host: me@deneb, kochi_root: ~/k}
  vega: {hosts: ["login*.vega.org", "vega-[ab]"]}
  altair: {hosts: 'altair?'}
"""


def chosen(host: str, text: str = MACHINES, **variables: str) -> str:
    machines = load_project(Path("/nowhere"), text).machines
    return chosen_machine(machines, variables, lambda: host)


@pytest.mark.parametrize(
    ("host", "machine"),
    [
        ("deneb", "spica"),
        ("deneb.cluster.org", "spica"),
        ("DENEB", "spica"),
        ("spica", "spica"),
        ("login3.vega.org", "vega"),
        ("login3.other.org", "local"),
        ("vega-a", "vega"),
        ("vega-c", "local"),
        ("altair1.cluster.org", "altair"),
        ("laptop", "local"),
    ],
)
def test_a_host_belongs_to_the_machine_that_names_it(host: str, machine: str) -> None:
    assert chosen(host) == machine


def test_a_name_in_the_environment_comes_before_the_host() -> None:
    assert chosen("deneb", KOCHI_DEFAULT_MACHINE="vega", KOCHI_MACHINE="altair") == "vega"
    assert chosen("deneb", KOCHI_MACHINE="altair") == "altair"
    assert chosen("deneb", KOCHI_MACHINE="local") == "local"


def test_a_job_that_works_on_another_project_is_not_on_a_machine_unknown_there() -> None:
    assert chosen("deneb", KOCHI_MACHINE="rigel") == "spica"


def test_a_host_of_two_machines_is_refused_with_both_names() -> None:
    with pytest.raises(ConfigError, match="several machines") as error:
        chosen("deneb", f"{MACHINES}  sirius: {{hosts: 'den*'}}\n")
    assert "spica, sirius" in str(error.value)
    assert "-m" in str(error.value)
    assert chosen("deneb", f"{MACHINES}  sirius: {{hosts: x}}\n") == "spica"


def test_without_kochi_yaml_every_host_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_location(start=tmp_path).machine.name == "local"


def test_an_unknown_machine_where_there_is_no_kochi_yaml_is_refused_with_a_way_to_describe_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(KochiError, match="there is no machine 'spica', known: local") as error:
        find_location(environment={"KOCHI_DEFAULT_MACHINE": "spica"}, start=tmp_path)
    said = str(error.value)
    assert f"No kochi.yaml was read: there is no kochi.yaml in {tmp_path}, and this" in said
    assert "not in a git repository" in said
    assert said.index("go to the project's directory") < said.index("git init && kochi init")
    assert said.index("git init && kochi init") < said.index("conf.yaml")
    text = "machines:\n  spica:\n    scheduler: slurm\n    kochi_root: DIRECTORY"
    assert f"{text}\nIf you reach it by ssh, also: login_host: HOST" in said
    assert load_project(tmp_path, text).machine("spica").kochi_root == "DIRECTORY"


def test_a_misspelt_machine_where_there_is_no_kochi_yaml_is_refused_with_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    site = tmp_path / "site.yaml"
    site.write_text(MACHINES)
    with pytest.raises(KochiError) as error:
        find_location("spika", {"KOCHI_SITE_CONF": str(site)}, start=tmp_path)
    assert error.value.message == "there is no machine 'spika', did you mean 'spica'?"
    assert "No kochi.yaml was read" in str(error.value)
    assert "git init && kochi init" in str(error.value)
    assert "machines:" not in str(error.value)


def test_a_kochi_yaml_that_is_not_read_is_an_error_for_its_machines_and_a_warning_for_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "kochi.yaml").write_text(MACHINES)
    said = f"{tmp_path}/kochi.yaml is not read, because {tmp_path} is not in a git repository"
    with pytest.raises(ConfigError, match=said) as error:
        find_location("spica", start=tmp_path)
    assert f"Type: git init {tmp_path}" in str(error.value)
    with caplog.at_level(logging.WARNING):
        location = find_location(start=tmp_path)
    assert location.machine.name == "local"
    assert caplog.messages == [f"{said}. Type: git init {tmp_path}"]
    assert location.unread is not None
    caplog.clear()
    (tmp_path / "kochi.yaml").unlink()
    assert find_location(start=tmp_path).unread is None
    assert not caplog.messages
