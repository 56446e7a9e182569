"""Which directory is the project, and which file its kochi.yaml."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from snakemake_kochi.errors import ConfigError, KochiError
from snakemake_kochi.paths import Root
from snakemake_kochi.project.configuration import configuration_file, find_project, load_project


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"KOCHI_ROOT": str(tmp_path / "root")}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "my project"
    subprocess.run(["git", "init", "-q", str(directory)], check=True)
    (directory / "kochi.yaml").write_text("machines: {m: {}}")
    (directory / "sub").mkdir()
    return directory


def test_the_project_is_the_top_of_the_repository(
    repository: Path, environment: dict[str, str]
) -> None:
    assert find_project(repository / "sub", environment) == repository.resolve()


def test_outside_of_a_repository_the_message_says_what_to_type(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="not in a git repository") as caught:
        find_project(tmp_path, environment)
    assert str(caught.value) == (
        f"there is no kochi.yaml in {tmp_path}, and this directory is not in a git repository\n"
        "A project is a git repository with a kochi.yaml. To make one, type in its directory: "
        "git init && kochi init"
    )


def test_a_file_outside_of_a_repository_is_named_with_what_makes_it_count(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    directory = tmp_path / "my project"
    (directory / "sub").mkdir(parents=True)
    (directory / "kochi.yaml").write_text("machines: {m: {}}")
    for start in (directory, directory / "sub"):
        with pytest.raises(ConfigError) as caught:
            find_project(start, environment)
        assert str(caught.value) == (
            f"{directory}/kochi.yaml is not read, because {directory} is not in a git repository\n"
            f"Type: git init '{directory}'"
        )
    subprocess.run(["git", "init", "-q", str(directory)], check=True)
    assert find_project(directory / "sub", environment) == directory


def test_a_file_below_the_top_of_a_repository_is_named(
    repository: Path, environment: dict[str, str]
) -> None:
    (repository / "kochi.yaml").rename(repository / "sub" / "kochi.yaml")
    with pytest.raises(ConfigError, match=r"sub/kochi\.yaml is not read") as caught:
        find_project(repository / "sub", environment)
    assert f"not at the top of its git repository, {repository}" in str(caught.value)
    assert f"git init '{repository}/sub'" in str(caught.value)


def test_without_kochi_yaml_the_message_says_what_to_type(
    repository: Path, environment: dict[str, str]
) -> None:
    (repository / "kochi.yaml").unlink()
    with pytest.raises(ConfigError, match=r"no kochi\.yaml") as caught:
        find_project(repository, environment)
    assert "kochi init" in str(caught.value)


def test_outside_of_a_repository_the_common_file_counts(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    common = tmp_path / "root" / "conf.yaml"
    common.parent.mkdir()
    common.write_text("machines: {common: {}}")
    plain = tmp_path / "plain"
    plain.mkdir()
    assert find_project(plain, environment) == plain
    assert configuration_file(plain, environment) == common


def test_a_projects_own_file_comes_before_the_common_one(
    repository: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "conf.yaml").write_text("")
    assert configuration_file(repository, environment) == repository / "kochi.yaml"


def test_kochi_conf_overrides_the_projects_file(
    repository: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("")
    environment["KOCHI_CONF"] = str(other)
    assert find_project(repository / "sub", environment) == repository.resolve()
    assert configuration_file(repository, environment) == other


def test_kochi_conf_makes_a_project_of_any_directory(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "k.yaml").write_text("")
    environment["KOCHI_CONF"] = str(tmp_path / "k.yaml")
    assert find_project(tmp_path, environment) == tmp_path


def test_a_kochi_conf_that_does_not_exist_is_an_error(
    repository: Path, environment: dict[str, str]
) -> None:
    environment["KOCHI_CONF"] = "/nowhere/k.yaml"
    with pytest.raises(ConfigError, match=r"KOCHI_CONF names /nowhere/k\.yaml, which does not"):
        find_project(repository, environment)


def test_a_directory_that_does_not_exist_is_an_error(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="no directory"):
        find_project(tmp_path / "gone", environment)


def test_loading_reads_the_projects_file(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KOCHI_CONF", raising=False)
    project = load_project(repository)
    assert list(project.machines) == ["local", "m"]
    assert project.file == repository / "kochi.yaml"


def test_loading_a_given_text_reads_no_file(tmp_path: Path) -> None:
    project = load_project(tmp_path, "machines: {other: {}}")
    assert "other" in project.machines
    assert project.file is None


def test_loading_without_a_file_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KOCHI_CONF", raising=False)
    monkeypatch.setenv("KOCHI_ROOT", str(tmp_path / "root"))
    with pytest.raises(ConfigError, match="kochi init"):
        load_project(tmp_path)


def test_reading_leaves_the_environment_alone(repository: Path) -> None:
    before = dict(os.environ)
    load_project(repository, file=repository / "kochi.yaml")
    assert dict(os.environ) == before


@pytest.mark.parametrize("variable", ["KOCHI_CONF", "KOCHI_ROOT"])
def test_the_home_of_a_user_who_does_not_exist_is_an_error(tmp_path: Path, variable: str) -> None:
    with pytest.raises(KochiError, match=f"{variable}: there is no user 'nosuch'"):
        configuration_file(tmp_path, {variable: "~nosuch/x"})


def test_a_machines_root_in_the_home_of_nobody_is_an_error() -> None:
    with pytest.raises(KochiError, match="kochi_root: there is no user 'nosuch'"):
        Root.find("~nosuch/root", {})


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("$SCRATCH/kochi", "the variable SCRATCH in $SCRATCH/kochi is not set"),
        ("kochi", "an absolute path was expected, not kochi"),
    ],
)
def test_a_root_that_would_be_another_one_in_each_directory_is_an_error(
    root: str, said: str
) -> None:
    where = "machines: vega: kochi_root in kochi.yaml"
    for set_at, arguments in (
        (where, (root, {}, where)),
        ("KOCHI_ROOT", (None, {"KOCHI_ROOT": root})),
    ):
        with pytest.raises(KochiError) as caught:
            Root.find(*arguments)  # type: ignore[arg-type]
        assert caught.value.message == f"{set_at}: {said}"
