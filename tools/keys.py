"""Write the tables of keys in the documentation anew, from the schemas: keys.py

A table is below a remark `<!-- keys: SCHEMA PATH -->`, where PATH leads to a mapping in the schema:
`machine/clean` is the property `clean` of the definition `machine`, no path the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
_TABLE = re.compile(r"(<!-- keys: (\w+) ?([\w/]*) -->\n)(?:\n(?:\|.*\n)+)?")


def with_tables(text: str) -> str:
    """The text of a page with today's tables."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table(found[2], found[3])}", text)


def _table(kind: str, path: str) -> str:
    schemas = ROOT / "workflow/schemas"
    schema = yaml.safe_load((schemas / f"{kind}.schema.yaml").read_text("utf-8"))
    # Experiments refer to those of kochi.yaml, which have other names.
    others = yaml.safe_load((schemas / "kochi.schema.yaml").read_text("utf-8"))
    schema["definitions"] = others["definitions"] | schema["definitions"]
    mapping = schema
    for number, name in enumerate(path.split("/") if path else ()):
        of = schema["definitions"] if number == 0 else _properties(schema, mapping)
        mapping = of[name]
    rows: dict[str, list[str]] = {}
    for key, value in _properties(schema, mapping).items():
        # The keys of a batch, of which a file without `batches` has one, are in its own table.
        if not str(value.get("$ref", "")).startswith("#/definitions/batch/"):
            rows.setdefault(_meaning(schema, value), []).append(f"`{key}`")
    lines = [f"| {', '.join(keys)} | {meaning} |\n" for meaning, keys in rows.items()]
    return "".join(["| key | meaning |\n|---|---|\n", *lines])


def _resolved(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in value:
        target: Any = schema
        for part in value["$ref"].partition("#/")[2].split("/"):
            target = target[part]
        value = {**target, **{key: own for key, own in value.items() if key != "$ref"}}
    return value


def _properties(schema: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a mapping, or of the mappings of a list or below names."""
    value = _resolved(schema, value)
    for inner in ("items", "additionalProperties"):
        if "properties" not in value and inner in value:
            value = _resolved(schema, value[inner])
    return dict(value["properties"])


def _meaning(schema: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    """The description of a key, with the words that are possible."""
    found = _resolved(schema, value)
    said = found["description"].replace("|", "\\|")
    inner = found.get("items", {})
    words = found.get("enum") or (inner.get("enum", []) if isinstance(inner, Mapping) else [])
    shown = [f"`{word}`" for word in words if word]
    is_said = all(word in said for word in shown)
    return said if is_said else f"{said} Possible: {', '.join(shown)}."


if __name__ == "__main__":
    for page in (ROOT / "docs").glob("*.md"):
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
