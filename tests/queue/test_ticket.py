from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import read_json, to_json
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Resources, Ticket, ticket_in

WHERE = Path("x.json")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def example(**fields: object) -> Ticket:
    return Ticket(**{"name": "n", "command": ("true",), "directory": "/", **fields})  # type: ignore[arg-type]


@given(
    command=st.lists(TEXT, min_size=1).map(tuple),
    environment=st.dictionaries(TEXT.filter(lambda t: t and "=" not in t), TEXT),
    labels=st.dictionaries(TEXT, TEXT),
    cores=st.integers(1, 500),
    memory=st.none() | st.integers(0, 10**7),
)
def test_a_ticket_comes_back_from_json_as_it_was(command, environment, labels, cores, memory):
    ticket = example(
        command=command,
        environment=environment,
        labels=labels,
        resources=Resources(cores, memory_mb=memory),
    )
    data = json.loads(to_json(ticket.to_dict()))
    assert Ticket.from_dict(data, WHERE) == ticket


def test_bytes_that_are_no_text_survive_in_a_command(tmp_path):
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    path = tmp_path / "t.json"
    path.write_text(json.dumps(example(command=("cat", odd)).to_dict()))
    assert ticket_in(path.read_bytes(), str(path)).command == ("cat", odd)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "two\nlines"}, "name"),
        ({"name": "\x1b[31m"}, "name"),
        ({"name": ""}, "name"),
        ({"command": ()}, "command"),
        ({"command": "true"}, "command"),
        ({"command": ("a\0b",)}, "command"),
        ({"command": ("\ud800",)}, "command"),
        ({"directory": "relative"}, "absolute path"),
        ({"environment": {"A=B": "1"}}, "without '='"),
        ({"environment": {"A": 1}}, "environment"),
        ({"environment": ["A"]}, "environment"),
        ({"labels": {"a": "\0"}}, "labels"),
        ({"resources": None}, "resources"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(fields, said):
    with pytest.raises(KochiError, match=said):
        example(**fields)


@pytest.mark.parametrize("fields", [{"cores": 0}, {"cores": True}, {"memory_mb": -1}])
def test_resources_that_cannot_be_used_are_refused(fields):
    with pytest.raises(KochiError):
        Resources(**fields)


@pytest.mark.parametrize("key", list(example().to_dict()))
def test_a_missing_or_wrong_key_is_named_with_its_file(tmp_path, key):
    path = tmp_path / "t.json"
    data = example().to_dict()
    missing = {k: v for k, v in data.items() if k != key}
    for damaged in ({**data, key: 3.5}, missing):
        path.write_text(json.dumps(damaged))
        with pytest.raises(DamagedFileError, match=r"t\.json.*" + key):
            ticket_in(path.read_bytes(), str(path))


def test_a_ticket_is_json_that_a_person_can_read(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(to_json(example(name="größe").to_dict()))
    assert '"name": "größe"' in path.read_text()
    assert read_json(path)["command"] == ["true"]


def test_a_job_on_several_nodes_waits_for_a_worker_that_leads_so_many() -> None:
    two = Resources(nodes=2, exclusive=True)
    assert Capacity(4, 100).obstacle(two) == "2 nodes needed, 1 available"
    assert Capacity(4, 100, nodes=2).obstacle(two) is None
    ticket = Ticket(name="x", command=("true",), directory="/", resources=two)
    assert Ticket.from_dict(ticket.to_dict(), Path("x")).resources == two
