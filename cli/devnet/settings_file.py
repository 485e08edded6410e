"""Settings files as the devnet writes them: TOML, for their owner's eyes only, and never half there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

Tables = Mapping[str, Mapping[str, object]]


def write_settings(path: Path, tables: Tables, *, head: str = "", tail: str = "") -> None:
    """Writes the tables, in one step."""
    partial = path.with_name(f".{path.name}.partial")
    partial.touch(mode=0o600)
    partial.write_text(head + as_toml(tables) + tail)
    partial.replace(path)


def as_toml(tables: Tables) -> str:
    """The tables as TOML."""
    lines = []
    for name, table in tables.items():
        lines.append(f"\n[{name}]")
        lines += [f"{key} = {_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """JSON is TOML for strings, numbers, booleans and arrays of them; tables are written inline."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(str(value) if isinstance(value, Path) else value)
