"""The diff of a snapshot, as it is kept with results."""

from __future__ import annotations

from pathlib import Path

from support import git, write

from snakemake_kochi.confidential import is_secret_variable
from snakemake_kochi.snapshot import difference, freeze, matcher
from snakemake_kochi.snapshot.difference import MOST


def diff(repository: Path, store: Path) -> str:
    outputs = ("/results/",)
    snapshot = freeze(repository, store, outputs)
    return difference(repository, store, snapshot, matcher(outputs))


def make_repository(directory: Path) -> Path:
    directory.mkdir()
    git(directory, "init", "-q", "-b", "main")
    write(directory / "kept.c", "int kept;\n")
    write(directory / "gone.c", "int gone;\n")
    write(directory / "results" / "old.csv", "1\n")
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "first")
    return directory


def test_it_has_what_was_edited_deleted_or_is_untracked_and_can_be_applied(tmp_path: Path) -> None:
    # Git separates directories by colons.
    repository, store = make_repository(tmp_path / "a:b"), tmp_path / "store"
    assert diff(repository, store) == ""
    write(repository / "kept.c", "int kept = 1;\n")
    write(repository / "new file.c", "int new;\n")
    (repository / "gone.c").unlink()
    write(repository / "results" / "new.csv", "2\n")
    text = diff(repository, store)
    assert "-int kept;\n+int kept = 1;\n" in text
    assert "results" not in text
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    write(tmp_path / "patch", text)
    git(clone, "apply", str(tmp_path / "patch"))
    assert (clone / "kept.c").read_text() == "int kept = 1;\n"
    assert (clone / "new file.c").read_text() == "int new;\n"
    assert not (clone / "gone.c").exists()


def test_secrets_submodules_and_what_is_large_are_left_out_and_named(tmp_path: Path) -> None:
    repository, store = make_repository(tmp_path / "here"), tmp_path / "store"
    library = make_repository(tmp_path / "library")
    git(repository, "submodule", "add", "-q", str(library), "library")
    git(repository, "commit", "-qm", "with a submodule")
    for name in (".env", "my-Credentials.json", "server.KEY"):
        write(repository / name, "hunter2\n")
    (repository / "data.bin").write_bytes(b"\0" * 2_000_000)
    (repository / "latin").write_bytes("käse\n".encode("latin-1"))
    (repository / "small.bin").write_bytes(b"\0\1")
    text = diff(repository, store)
    assert "hunter2" not in text
    assert "library" not in text
    assert "+k\\xe4se\n" in text
    assert "Binary files /dev/null and b/small.bin differ" in text
    assert "[left out, as too much: data.bin]\n" in text
    assert text.endswith(
        "[left out, as their names suggest secrets: .env, my-Credentials.json, server.KEY]\n"
    )


def test_secrets_in_directories_and_in_lines_are_not_told(tmp_path: Path) -> None:
    repository, store = make_repository(tmp_path / "here"), tmp_path / "store"
    for name in ("secrets/prod.yaml", ".ssh/id_dsa", "a/.kube/config", ".docker/config.json"):
        write(repository / name, "hunter2\n")
    write(repository / ".envrc", "hunter2\n")
    secret = [
        "envs: {API_TOKEN: hunter2}",
        "  DB_PASSWD: hunter2",
        "export APIKEY=hunter2",
        'os.environ["AUTH"] = "hunter2"',
        "git: https://u:hunter2@example.org/x",
        "git: https://hunter2@example.org/x",
        "curl -H 'Authorization: Bearer hunter2'",
        "Authorisation: hunter2",
        "  password: |",
        "    hunter2",
        "    hunter2",
        'TOKEN = """',
        "hunter2",
        "-----BEGIN RSA PRIVATE KEY-----",
        "hunter2",
        "-----END RSA PRIVATE KEY-----",
    ]
    plain = [
        "authors: somebody",
        "git: ssh://git@example.org/x",
        "sort_by: key",
        "git: https://example.org/x",
        "if token == 2:",
    ]
    write(repository / "more.yaml", "\n".join([*secret, *plain, ""]))
    text = diff(repository, store)
    assert "hunter2" not in text
    assert "".join(f"+{line}\n" for line in ["[left out]"] * len(secret) + plain) in text
    assert "[lines left out, as they suggest secrets: 16]\n" in text


def test_a_secret_is_not_told_at_the_head_of_a_hunk_either(tmp_path: Path) -> None:
    repository, store = make_repository(tmp_path / "here"), tmp_path / "store"
    text = "API_TOKEN = hunter2\n" + " x\n" * 9
    write(repository / "kept.c", text)
    git(repository, "commit", "-qam", "second")
    (repository / "kept.c").write_text(f"{text} y\n")
    told = diff(repository, store)
    assert "hunter2" not in told
    assert "+ y\n" in told
    assert " @@ [left out]\n" in told


def test_variables_that_are_secrets_are_known_by_name_or_by_an_address_with_a_password() -> None:
    names = ("API_TOKEN", "DB_PASSWD", "PWD", "APIKEY", "AUTH", "SSH_KEY", "MY_KEYS")
    assert all(is_secret_variable(name, "x") for name in names)
    assert is_secret_variable("SOURCE", "https://u:x@example.org")
    assert not any(is_secret_variable(name, "-O2") for name in ("CFLAGS", "AUTHOR", "KEYS"))


def test_a_long_one_is_cut_at_a_line_and_says_so(tmp_path: Path) -> None:
    repository, store = make_repository(tmp_path / "here"), tmp_path / "store"
    write(repository / "kept.c", "".join(f"int i{i};\n" for i in range(10_000)))
    for number in range(300):
        write(repository / "many" / f"{number}", "x\n")
    text = diff(repository, store)
    assert MOST - 100 < len(text) < MOST + 1000
    shown, cut, left, end = text.rsplit("\n", 3)
    assert shown.splitlines()[-1].startswith("+int i")
    assert cut.startswith("[cut: ")
    assert left.startswith("[left out, as too much: many/")
    assert left.endswith(" and 81 more]")
    assert end == ""


def test_a_sparse_partial_clone_has_one_of_what_is_there(tmp_path: Path) -> None:
    origin, store = make_repository(tmp_path / "here"), tmp_path / "store"
    write(origin / "far" / "away.c", "int away;\n")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "more")
    git(origin, "config", "uploadpack.allowFilter", "true")
    url, clone = f"file://{origin}", tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--sparse", url, str(clone))
    assert not (clone / "far").exists()
    write(clone / "kept.c", "int kept = 1;\n")
    text = diff(clone, store)
    assert "+int kept = 1;\n" in text
    assert "away" not in text
    # Git has never fetched what was committed of this one.
    write(clone / "far" / "away.c", "int away = 1;\n")
    assert diff(clone, store) == f"{text}[left out, as not in this partial clone: far/away.c]\n"


def test_without_a_commit_there_is_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "here")
    write(tmp_path / "here" / "new.c", "int new;\n")
    assert diff(tmp_path / "here", tmp_path / "store") == ""
