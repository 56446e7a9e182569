"""A machine behind a login host, on which nothing of this package is."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from remote.setups import NO_INDEX
from ssh_host import SshHost

from snakemake_kochi.remote import collection, setup, wheels
from snakemake_kochi.remote.wheels import InstalledWheel


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    for name, value in NO_INDEX.items():
        monkeypatch.setenv(name, value)
    with SshHost("spica", tmp_path, with_kochi=False, variables=NO_INDEX) as made:
        made.use(monkeypatch)
        yield made


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstalledWheel:
    """A package that is called like ours, and needs nothing."""
    source = tmp_path / "small"
    source.mkdir()
    (source / "module.py").write_text("def main():\n    print('kochi, version 0.1.0')\n")
    (source / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {wheels.OWN_NAME}\nVersion: 0.1.0\n"
    )
    (source / "entry_points.txt").write_text("[console_scripts]\nkochi = kochi_small:main\n")
    metadata = "snakemake_executor_plugin_kochi-0.1.0.dist-info"
    wheel = InstalledWheel(
        wheels.OWN_NAME,
        "0.1.0",
        ("py3-none-any",),
        (
            (source / "module.py", "kochi_small.py"),
            (source / "METADATA", f"{metadata}/METADATA"),
            (source / "entry_points.txt", f"{metadata}/entry_points.txt"),
        ),
        metadata,
        is_pure=True,
        build="0abc",
    )
    monkeypatch.setattr(collection, "own_wheel", lambda: wheel)
    monkeypatch.setattr(setup, "_TRIAL", "import kochi_small")

    class Needy:
        requires: tuple[str, ...] = ()

    monkeypatch.setattr(
        collection,
        "distribution",
        lambda name: Needy if name == wheels.OWN_NAME else distribution(name),
    )
    return wheel
