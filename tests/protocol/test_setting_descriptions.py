"""A setting's type is described in words, with its limits."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr, StringConstraints, TypeAdapter

from cli.configuration.settings import PLACES
from protocol.runtime.setting_descriptions import in_words


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


WORDS: dict[str, tuple[Any, str]] = {
    "between": (Annotated[int, Field(ge=1, le=64)], "integer, 1 to 64"),
    "from 0": (Annotated[int, Field(ge=0)], "integer, at least 0"),
    "above": (Annotated[float, Field(gt=0, le=9)], "number, above 0, at most 9"),
    "below": (Annotated[float, Field(lt=1)], "number, below 1"),
    "no limits": (float, "number"),
    "truth": (bool, "true or false"),
    "or none": (Annotated[int, Field(ge=1)] | None, "integer, at least 1"),
    "path": (Path, "path"),
    "secret": (SecretStr | None, "secret text"),
    "choice": (Colour | None, "one of red, blue"),
    "pattern": (Annotated[str, StringConstraints(pattern="^a+$")], "text like ^a+$"),
    "length": (Annotated[str, StringConstraints(max_length=8)], "text, at most 8 characters"),
    "list": (tuple[Path, ...], "list of path"),
    "short list": (Annotated[list[str], Field(min_length=1, max_length=4)], "list of text (1 to 4)"),
    "table": (dict[str, int], "table of integer"),
    "free table": (dict[str, Any], "table"),
    "either": (int | Colour, "integer or one of red, blue"),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_settings_type_is_described_in_words(name: str) -> None:
    kind, words = WORDS[name]
    schema = TypeAdapter(kind).json_schema()
    assert in_words(schema, schema.get("$defs", {})) == words


@pytest.mark.parametrize("service", PLACES)
def test_no_services_settings_help_contains_python_type_names(service: str) -> None:
    module, _, name = PLACES[service].partition(":")
    rows = getattr(import_module(module), name).describe()
    assert all(row.description for row in rows), [row.key for row in rows if not row.description]
    for row in rows:
        said = f"{row.kind} {row.default}"
        assert not any(word in said for word in ("Path(", "pathlib", "Annotated", "None", "<", "SecretStr", "**")), row
