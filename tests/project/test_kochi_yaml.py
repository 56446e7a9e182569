"""kochi.yaml: machines, dependencies, recipes, and the order of what is said about them."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from pathlib import Path

import pytest

from snakemake_kochi.errors import ConfigError, KochiError, NameNotFoundError
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.machines import ControllerPlace
from snakemake_kochi.project.recipes import Project, Requirement

EXAMPLE = """
machines:
  spica:
    login_host: deneb
    work_dir: ~/w
    kochi_root: /shared/.kochi
    alloc_interact_script: srun -w spica --pty bash
    alloc_script: sbatch --wrap="$KOCHI_WORKER_LAUNCH_CMD" -w spica -t ${KOCHI_ALLOC_TIME_LIMIT:-0}
    load_env_script:
      on_login_node: |
        module load git
      on_machine: [module load gcc, module load mpi]
dependencies:
  massivethreads:
    git: git@github.com:massivethreads/massivethreads.git
    script: [./configure --prefix=$KOCHI_INSTALL_PREFIX, make -j, make install]
    envs: {CC: gcc, CFLAGS: -O0}
    recipes:
      - {name: release, branch: master, envs: {CFLAGS: -O3}}
      - {name: pinned, commit_hash: 0123456}
      - name: develop
        mirror: true
        mirror_dir: ../massivethreads
        before_script: echo before
        after_script: echo development
  jemalloc:
    depends: [{name: massivethreads, recipe: release, machines: [spica]}]
    on_machine: true
    recipes: [{name: v5.2.1, script: make}, {name: 1.10, script: make, on_machine: no}]
    activate_script: export LD_PRELOAD=$KOCHI_INSTALL_PREFIX_JEMALLOC/lib/libjemalloc.so
"""


def project(text: str = EXAMPLE) -> Project:
    return load_project(Path("/projects/p"), text)


def recipes(text: str) -> Project:
    return project(f"dependencies:\n  a:\n    recipes:\n{text}")


def said(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        project(text)
    return str(caught.value)


def test_a_machine_has_what_the_file_says() -> None:
    machine = project().machine("spica")
    assert (machine.login_host, machine.work_dir, machine.kochi_root) == (
        "deneb",
        "~/w",
        "/shared/.kochi",
    )
    assert machine.alloc_interact_script == "srun -w spica --pty bash"
    assert machine.alloc_script.endswith("-t ${KOCHI_ALLOC_TIME_LIMIT:-0}")


def test_a_machine_says_where_its_controllers_are() -> None:
    def place(text: str) -> ControllerPlace:
        return (
            project(f"machines: {{m: {{scheduler: slurm, controller: {text}}}}}")
            .machine("m")
            .controller
        )

    assert place("{in_allocation: true, time: 1d}") == ControllerPlace(True, 86400)
    assert place("{in_allocation: no}") == place("") == ControllerPlace()
    assert "in_allocation: this is for machines with a scheduler" in said(
        "machines: {m: {controller: {in_allocation: true}}}"
    )
    assert "time: this key is for controllers with 'in_allocation: true'" in said(
        "machines: {m: {scheduler: slurm, controller: {time: 1h}}}"
    )
    assert "'soon'" in said(
        "machines: {m: {scheduler: slurm, controller: {in_allocation: true, time: soon}}}"
    )


def test_the_environment_script_may_differ_between_login_and_compute_nodes() -> None:
    machine = project().machine("spica")
    assert machine.load_env_on_login_node == "module load git\n"
    assert machine.load_env_on_machine == "module load gcc\nmodule load mpi"


@pytest.mark.parametrize("written", ["module load x", "[module load x]"])
def test_one_environment_script_counts_for_both(written: str) -> None:
    machine = project(f"machines: {{m: {{load_env_script: {written}}}}}").machine("m")
    assert machine.load_env_on_login_node == machine.load_env_on_machine == "module load x"


def test_the_local_machine_always_exists() -> None:
    assert project("").machine("local").load_env_on_machine == ""


def test_the_local_machine_may_be_configured() -> None:
    machine = project("machines: {local: {load_env_script: . env.sh}}").machine("local")
    assert machine.load_env_on_machine == ". env.sh"


def test_an_unknown_machine_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(NameNotFoundError, match=r"no machine 'spicca'.*did you mean 'spica'"):
        project().machine("spicca")


@pytest.mark.parametrize(
    "text", ["", "# nothing", "machines:", "dependencies:\nmachines:\n", "machines: {m: }"]
)
def test_empty_files_and_sections_are_fine(text: str) -> None:
    assert not project(text).dependencies


def test_a_list_of_lines_is_one_script() -> None:
    recipe = project().dependencies["massivethreads"]["release"]
    assert recipe.script == "./configure --prefix=$KOCHI_INSTALL_PREFIX\nmake -j\nmake install"


def test_lines_that_look_like_yaml_values_stay_commands() -> None:
    recipe = recipes("    - {name: r, script: [true, yes, 1.10]}").dependencies["a"]["r"]
    assert recipe.script == "true\nyes\n1.10"


def test_before_script_and_after_script_surround_the_script() -> None:
    recipe = project().dependencies["massivethreads"]["develop"]
    lines = recipe.install_script.splitlines()
    assert (lines[0], lines[2], lines[-1]) == ("echo before", "make -j", "echo development")


def test_the_environment_is_merged_between_dependency_and_recipe() -> None:
    found = project().dependencies["massivethreads"]
    assert found["release"].envs == {"CC": "gcc", "CFLAGS": "-O3"}
    assert found["pinned"].envs == {"CC": "gcc", "CFLAGS": "-O0"}


def test_names_and_hashes_that_look_like_numbers_keep_their_text() -> None:
    assert list(project().dependencies["jemalloc"]) == ["v5.2.1", "1.10"]
    assert project().dependencies["massivethreads"]["pinned"].commit_hash == "0123456"


PARENT = """
dependencies:
  b: {recipes: [{name: x, script: make}]}
  a:
    git: parent.git
    branch: parent
    mirror: false
    mirror_dir: parent
    before_script: parent
    script: parent
    after_script: parent
    activate_script: parent
    depends: [{name: b, recipe: x}]
    on_machine: false
    strict: true
    recipes:
      - {name: inherits}
      - {name: overrides, KEY: VALUE}
"""


@pytest.mark.parametrize(
    ("key", "written", "inherited", "overridden"),
    [
        ("git", "own.git", "parent.git", "own.git"),
        ("branch", "own", "parent", "own"),
        ("mirror", "true", False, True),
        ("mirror_dir", "own", "parent", "own"),
        ("before_script", "own", "parent", "own"),
        ("script", "[own, two]", "parent", "own\ntwo"),
        ("after_script", "own", "parent", "own"),
        ("activate_script", "own", "parent", "own"),
        ("depends", "[]", (Requirement("b", "x"),), ()),
        ("on_machine", "true", False, True),
        ("strict", "false", True, False),
        ("branch", "null", "parent", None),
    ],
)
def test_every_key_of_a_dependency_can_be_overridden_in_a_recipe(
    key: str, written: str, inherited: object, overridden: object
) -> None:
    found = project(PARENT.replace("KEY", key).replace("VALUE", written)).dependencies["a"]
    assert getattr(found["inherits"], key) == inherited
    assert getattr(found["overrides"], key) == overridden


def test_a_mirror_takes_precedence_over_a_branch_and_a_branch_over_a_commit() -> None:
    found = recipes(
        "    - {name: m, script: x, mirror: yes, mirror_dir: d, git: g, branch: b}\n"
        "    - {name: b, script: x, git: g, branch: b, commit_hash: c}\n"
        "    - {name: c, script: x, git: g, commit_hash: c}\n"
        "    - {name: d, script: x, git: g}\n"
    ).dependencies["a"]
    sources = {n: (r.mirror, r.branch, r.commit_hash) for n, r in found.items()}
    assert sources == {
        "m": (True, None, None),
        "b": (False, "b", None),
        "c": (False, None, "c"),
        "d": (False, None, None),
    }


def test_a_mirrored_directory_is_relative_to_the_project() -> None:
    found = project()
    recipe = found.dependencies["massivethreads"]["develop"]
    assert found.mirror_directory(recipe) == Path("/projects/p/../massivethreads")
    assert found.mirror_directory(found.dependencies["massivethreads"]["release"]) is None


@pytest.mark.parametrize(
    ("written", "remote"),
    [
        ("git@host:a/b.git", "git@host:a/b.git"),
        ("https://host/a.git", "https://host/a.git"),
        ("../a", "/projects/p/../a"),
        ("/srv/a", "/srv/a"),
    ],
)
def test_a_local_git_path_is_relative_to_the_project(written: str, remote: str) -> None:
    found = recipes(f"    - {{name: r, script: x, git: '{written}'}}")
    assert found.remote(found.dependencies["a"]["r"]) == remote


def test_a_key_for_yaml_anchors_is_allowed() -> None:
    found = project("x-m: &m {login_host: h}\n.n: 1\nmachines: {m: *m}")
    assert found.machine("m").login_host == "h"


@pytest.mark.parametrize("name", ["depends", "envs", "artifacts"])
def test_a_dependency_may_be_named_like_a_key(name: str) -> None:
    message = said(f"dependencies: {{{name}: {{recipes: [{{script: x}}]}}}}")
    assert message == f"kochi.yaml:1: dependencies.{name}.recipes[0]: the key 'name' is missing"


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file() -> None:
    lines = said(
        "dependencies:\n  a:\n    recipes:\n"
        "    - {name: [r]}\n"
        "    - {name: s, script: x, brnch: b, strict: 1}\n"
        "machines:\n  m: {logn_host: x}\n"
    ).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "kochi.yaml:4",
        "kochi.yaml:5",
        "kochi.yaml:5",
        "kochi.yaml:7",
    ]


CIRCLE = """
dependencies:
  left:
    script: x
    recipes:
      - {name: l, depends: [{name: right, recipe: r}]}
  right: {script: x, recipes: [{name: r, depends: [{name: left, recipe: l}]}]}
  self: {script: x, recipes: [{name: s}, {name: t, depends: [{name: self, recipe: t}]}]}
  one: {script: x, recipes: [{name: o, depends: [{name: two, recipe: o, machines: spica}]}]}
  two: {script: x, recipes: [{name: o, depends: [{name: one, recipe: o}]}]}
"""


def test_circles_of_recipes_are_reported_at_once() -> None:
    lines = said(CIRCLE.lstrip()).splitlines()
    told = "recipes depend on each other in a circle"
    assert lines == [
        f"kochi.yaml:5: dependencies.left.recipes[0]: {told}: left:l -> right:r -> left:l",
        f"kochi.yaml:7: dependencies.self.recipes[1]: {told}: self:t -> self:t",
        f"kochi.yaml:8: dependencies.one.recipes[0]: {told}: one:o -> two:o -> one:o",
    ]


def test_a_wrong_value_hides_no_mistake_of_its_kind() -> None:
    message = said(
        "dependencies:\n  a:\n    script: make\n    recipes:\n"
        "    - {name: x, on_machine: 3}\n"
        "    - {name: m, mirror: maybe, branch: b}\n"
        "    - {name: [n], script: ''}\n"
        "  b: x\n"
    )
    assert [line.split(": ")[1] for line in message.splitlines()] == [
        "dependencies.a.recipes[0].on_machine",
        "dependencies.a.recipes[1].mirror",
        "dependencies.a.recipes[2].name",
        "dependencies.b",
    ]


@pytest.mark.parametrize("lost", ["a: x", "a: {recipes: x}", "a: {recipes: [x]}"])
def test_mere_consequences_of_a_mistake_are_not_reported(lost: str) -> None:
    message = said(
        f"dependencies:\n  {lost}\n"
        "  b: {script: x, recipes: [{name: r, depends: [{name: a, recipe: y}]}]}"
    )
    assert message.startswith("kochi.yaml:2: dependencies.a")
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("{mirror: true, mirror_dir: ~nosuch/m}", "mirror_dir of a:r: there is no user 'nosuch'"),
        ("{git: ~nosuch/g}", "git of a:r: there is no user 'nosuch'"),
    ],
)
def test_the_home_of_a_user_who_does_not_exist_is_an_error(recipe: str, expected: str) -> None:
    found = recipes(f"    - {{name: r, script: x, {recipe[1:]}")
    recipe_found = found.recipe(Requirement("a", "r"))
    with pytest.raises(KochiError, match=expected):
        found.mirror_directory(recipe_found)
        found.remote(recipe_found)


def test_the_data_is_read_only_but_can_be_copied_and_written_as_json() -> None:
    recipe = project().dependencies["massivethreads"]["release"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.script = ""  # type: ignore[misc]
    with pytest.raises(TypeError, match="read-only"):
        recipe.envs["CC"] = "clang"  # type: ignore[index]
    assert json.loads(json.dumps(dataclasses.asdict(recipe)))["envs"]["CC"] == "gcc"
    assert copy.deepcopy(recipe) == recipe == pickle.loads(pickle.dumps(recipe))
    assert hash(recipe) == hash(copy.deepcopy(recipe))


def test_the_size_of_large_files_is_read_and_checked() -> None:
    assert project().large_files is None
    for written, size in (("50M", 50 << 20), ("2 MiB", 2 << 20), ("null", None)):
        assert project(f"large_files: {written}").large_files == size
    for wrong in ("0", "10", "1G", "big", "-1M"):
        with pytest.raises(ConfigError, match=r"large_files.*: a size like 10M was expected"):
            project(f"large_files: {wrong}")
