"""Machines of a user and of a site, which count in every project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import git, write

from snakemake_kochi.errors import ConfigError, KochiError
from snakemake_kochi.location import find_location
from snakemake_kochi.ownership import OthersError
from snakemake_kochi.phases.freeze import load_freeze, take_freeze
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.machines import common_files


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, as the current directory."""
    directory = tmp_path / "project"
    directory.mkdir()
    git(directory, "init", "--quiet")
    write(directory / "kochi.yaml", "")
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def of_user(isolated_environment: Path) -> Path:
    """A user's own file."""
    file = isolated_environment / "conf.yaml"
    file.parent.mkdir(mode=0o700)
    return file


@pytest.fixture
def of_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "site.yaml"
    monkeypatch.setenv("KOCHI_SITE_CONF", str(file))
    return file


def test_a_machine_of_the_users_counts_inside_a_repository(repository: Path, of_user: Path) -> None:
    write(of_user, "machines: {spica: {scheduler: slurm}}\n")
    assert find_location("spica").machine.scheduler == "slurm"
    (repository / "kochi.yaml").unlink()
    assert find_location("spica").machine.scheduler == "slurm"
    assert find_location("spica").project is None


def test_the_nearest_file_counts_for_each_key(
    repository: Path, of_user: Path, of_site: Path
) -> None:
    write(
        of_site,
        """
        machines:
          spica:
            hosts: [login1, login2]
            scheduler: slurm
            lock_dir: /locks
            allocation: {partition: long, time: 1h, max_workers: 2}
            facts: {network: omnipath, cores: 96, gpus: 4}
        """,
    )
    write(of_user, "machines: {spica: {allocation: {account: me, time: 2h}, kochi_root: /mine}}\n")
    write(
        repository / "kochi.yaml",
        "machines: {spica: {lock_dir: null, allocation: {time: 3h}, load_env_script: hello, "
        "facts: {cores: 007, gpus: null, isolated: yes}}}\n",
    )
    machine = find_location("spica").machine
    assert machine.facts == {"network": "omnipath", "cores": "007", "isolated": "true"}
    assert (machine.hosts, machine.scheduler) == (("login1", "login2"), "slurm")
    assert (machine.kochi_root, machine.lock_dir) == ("/mine", None)
    assert machine.load_env_on_machine == "hello"
    settings = machine.allocation
    assert (settings.constraints, settings.max_workers) == (
        {"partition": "long", "account": "me"},
        2,
    )
    assert settings.time == 3 * 3600
    assert machine.files == ("kochi.yaml", str(of_user), str(of_site))
    assert machine.root_said_at == f"machines: spica: kochi_root in {of_user}"


def test_the_nearest_file_counts_for_each_key_of_a_section(repository: Path, of_site: Path) -> None:
    write(
        of_site,
        "machines: {spica: {load_env_script: {on_login_node: a, on_machine: b}, "
        "launchers: {own: 'x {tasks}'}, quiet: {load: 2}, clean: {jobs: 3d}}}\n",
    )
    write(
        repository / "kochi.yaml",
        "machines: {spica: {load_env_script: {on_machine: c}, launchers: {other: 'y {tasks}'}, "
        "quiet: {governor: any}, clean: {runs: 4d}}}\n",
    )
    machine = find_location("spica").machine
    assert (machine.load_env_on_login_node, machine.load_env_on_machine) == ("a", "c")
    assert machine.launchers.own == {"own": "x {tasks}", "other": "y {tasks}"}
    assert machine.quiet == {"load": 2, "governor": "any"}
    assert machine.clean is not None
    assert (machine.clean.jobs, machine.clean.runs) == (3 * 86400, 4 * 86400)


def test_null_removes_a_key_of_any_kind_with_what_is_below_it(
    repository: Path, of_site: Path
) -> None:
    write(
        of_site,
        "machines: {spica: {hosts: [a], lock_kind: lease, scheduler: slurm, clean: {jobs: 3d}, "
        "allocation: {partition: long, nodes: 2, arguments: [--exclude=n1], max_workers: 3}}}\n",
    )
    write(
        repository / "kochi.yaml",
        "machines: {spica: {hosts: null, lock_kind: ~, clean: null, "
        "allocation: {partition: null, nodes: null, arguments: null}}}\n",
    )
    machine = find_location("spica").machine
    assert (machine.hosts, machine.lock_kind, machine.clean) == ((), None, None)
    settings = machine.allocation
    assert (settings.constraints, settings.arguments, settings.nodes) == ({}, (), 1)
    assert (machine.scheduler, settings.max_workers) == ("slurm", 3)
    for written in ("{allocation: null}", "{scheduler: null}"):
        write(repository / "kochi.yaml", f"machines: {{spica: {written}}}\n")
        assert find_location("spica").machine.allocation.max_workers == 8
    assert find_location("spica").machine.scheduler is None
    for written, days in (("{}", 3), ("", 3), ("{jobs: null}", 30)):
        write(repository / "kochi.yaml", f"machines: {{spica: {{clean: {written}}}}}\n")
        rules = find_location("spica").machine.clean
        assert rules is not None
        assert rules.jobs == days * 86400


def test_a_whole_number_that_yaml_reads_differently_is_refused(repository: Path) -> None:
    text = "machines: {m: {scheduler: slurm, allocation: {nodes: 010, cores: 1:30, gpus: 10}}}\n"
    write(repository / "kochi.yaml", text)
    with pytest.raises(ConfigError) as caught:
        find_location()
    assert str(caught.value).splitlines() == [
        "kochi.yaml:1: machines.m.allocation.nodes: a whole number such as 10 was expected, not "
        "010",
        "kochi.yaml:1: machines.m.allocation.cores: a whole number such as 10 was expected, not "
        "1:30",
    ]


def test_another_way_to_nodes_takes_the_place_of_the_one_below(
    repository: Path, of_site: Path
) -> None:
    write(of_site, "machines: {spica: {scheduler: slurm, allocation: {partition: long}}}\n")
    write(
        repository / "kochi.yaml",
        "machines: {spica: {alloc_script: qsub, allocation: {cores: 4}}}\n",
    )
    machine = find_location("spica").machine
    assert (machine.scheduler, machine.alloc_script) == (None, "qsub")
    assert (machine.allocation.constraints, machine.allocation.cores) == ({}, 4)


def test_a_problem_is_reported_for_its_own_file(
    repository: Path, of_user: Path, of_site: Path
) -> None:
    write(of_site, "machines:\n  spica:\n    scheduler: slurm\n    allocation: {min_workers: 9}\n")
    write(of_user, "machines: {spica: {allocation: {max_workers: 3, time: soon}}}\n")
    with pytest.raises(ConfigError) as caught:
        find_location()
    assert str(caught.value).startswith(f"{of_user}:1: machines.spica.allocation.time: 'soon'")
    write(of_user, "machines: {spica: {allocation: {max_workers: 3}}}\n")
    with pytest.raises(ConfigError) as caught:
        find_location()
    where = f"{of_site}:4: machines.spica.allocation.min_workers"
    assert str(caught.value) == f"{where}: 9 is more than max_workers, which is 3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("machines: [spica]\n", "{}:1: machines: "),
        ("machines: {\n", "{}:1: not valid YAML"),
        ("machines: {spica: {schedular: slurm}}\n", "did you mean 'scheduler'"),
    ],
)
def test_a_malformed_file_of_the_site_is_named(
    repository: Path, of_site: Path, text: str, said: str
) -> None:
    write(of_site, text)
    with pytest.raises(ConfigError) as caught:
        find_location()
    assert said.format(of_site) in str(caught.value)
    assert str(of_site) in str(caught.value)


def test_a_file_of_the_site_that_is_missing_or_cannot_be_read_is_named(
    repository: Path, of_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=f"KOCHI_SITE_CONF names {of_site}, which does not exist"):
        find_location()
    of_site.mkdir()
    with pytest.raises(ConfigError, match=f"{of_site} cannot be read"):
        find_location()
    monkeypatch.setenv("KOCHI_SITE_CONF", "")
    assert common_files() == ()


@pytest.mark.parametrize(
    ("owner", "mode", "said"),
    [
        (1234, 0o644, "{} belongs to user 1234"),
        (0, 0o646, "everybody may write to {}"),
        (0, 0o664, "the group 'daemon' may write to {}"),
    ],
)
def test_a_file_of_the_site_that_others_may_write_to_is_refused(
    repository: Path, of_site: Path, owner: int, mode: int, said: str
) -> None:
    write(of_site, "machines: {spica: {alloc_script: evil}}\n")
    os.chown(of_site, owner, 1)
    of_site.chmod(mode)
    with pytest.raises(OthersError) as caught:
        find_location()
    assert said.format(of_site) in str(caught.value)
    os.chown(of_site, 0, 0)
    of_site.chmod(0o644)
    assert find_location("spica").machine.alloc_script == "evil"


def test_a_file_of_the_site_that_others_may_replace_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shared" / "site.yaml"
    file.parent.mkdir()
    file.parent.chmod(0o777)
    write(file, "machines: {spica: {alloc_script: evil}}\n")
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    monkeypatch.setenv("KOCHI_SITE_CONF", str(link))
    with pytest.raises(OthersError, match=f"everybody may write to {file.parent}"):
        find_location()


def test_outside_of_a_repository_the_users_file_is_the_project_over_the_sites(
    tmp_path: Path, of_user: Path, of_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(of_user, "machines: {spica: {scheduler: slurm}}\n")
    write(of_site, "machines: {spica: {work_dir: /w}, vega: {}}\n")
    monkeypatch.chdir(tmp_path)
    location = find_location("spica")
    assert location.project is not None
    assert location.machine.files == (str(of_user), str(of_site))
    assert (location.machine.scheduler, location.machine.work_dir) == ("slurm", "/w")
    assert find_location("vega").machine.files == (str(of_site),)


def test_an_unknown_machine_is_looked_for_in_all_of_them(repository: Path, of_site: Path) -> None:
    write(of_site, "machines: {spica: {}}\n")
    with pytest.raises(KochiError) as caught:
        find_location("spika")
    said = f"no machine 'spika' in {repository}/kochi.yaml or {of_site}, did you mean 'spica'?"
    assert said in str(caught.value)


def test_descriptions_of_a_machine_in_other_files_are_frozen_with_the_project(
    repository: Path, of_site: Path
) -> None:
    write(of_site, "machines: {spica: {load_env_script: before}}\n")
    freeze = take_freeze(repository, "spica")
    write(of_site, "machines: {spica: {load_env_script: after}}\n")
    assert load_freeze(freeze.file).machine.load_env_on_machine == "before"
    assert load_project(repository).machine("spica").load_env_on_machine == "after"


def test_child_processes_find_the_users_file_though_the_machine_has_another_root(
    repository: Path, of_user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(of_user, f"machines: {{spica: {{kochi_root: {tmp_path}/other}}}}\n")
    location = find_location("spica")
    assert location.root.directory == tmp_path / "other"
    for name, value in location.variables.items():
        monkeypatch.setenv(name, value)
    assert find_location() == location


def test_a_limit_is_said_to_be_in_the_file_that_has_its_key(
    tmp_path: Path, isolated_environment: Path
) -> None:
    file = isolated_environment / "conf.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("machines: {vega: {alloc_script: x, allocation: {cores: 8}}}")
    own = "machines: {vega: {allocation: {memory: 4G}}}"
    vega = load_project(tmp_path, own, common=common_files()).machine("vega")
    assert vega.allocation_at(["cores"]) == f"machines: vega: allocation: cores in {file}"
    assert vega.allocation_at(["memory"]) == "machines: vega: allocation: memory in kochi.yaml"
