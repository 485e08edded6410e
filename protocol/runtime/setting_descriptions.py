"""Describes settings for documentation.

Types and limits come from the JSON schema of the settings, so the descriptions are never outdated.

Nested tables are flattened: the orchestrator's table `requirements` becomes `requirements.min_gpus` and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDescription:
    """One setting of a service, for documentation.

    Args:
        key: Name in the configuration file, with dots between tables.
        kind: Type and limits of the value, in words.
        default: Default value as text. Empty if the setting is required; `(secret)` for a secret with a default.
        required: Whether the setting must be given, because it has no default.
        variable: Name of the environment variable.
        flag: Name of the command-line option; empty if there is none.
        description: Purpose of the setting.
    """

    key: str
    kind: str
    default: str
    required: bool
    variable: str
    flag: str
    description: str


def described(model: type[BaseModel], *, service: str) -> list[SettingDescription]:
    """Describes all settings of a service, in the order of its settings class."""
    whole = model.model_json_schema()
    defaults = {name: field.get_default(call_default_factory=True) for name, field in model.model_fields.items()}
    return list(_rows(whole, whole.get("$defs", {}), service, defaults=defaults, path=()))


def variable_of(service: str, *path: str) -> str:
    """Returns the name of a setting's environment variable.

    An example is `MUSTER_ORCHESTRATOR_REQUIREMENTS__MIN_GPUS`.
    """
    return f"MUSTER_{service}_{'__'.join(path)}".replace(".", "_").upper()


def in_words(schema: Schema, definitions: Mapping[str, Schema]) -> str:  # noqa: PLR0911 - one line per kind of value
    """Describes the values that a schema allows, in words.

    Examples: `integer, 1 to 64`; `list of path (at most 16)`; `one of docker, process`.

    Args:
        schema: JSON schema of the value as pydantic writes it (draft 2020-12).
        definitions: Schemas that a `$ref` in `schema` may name.
    """
    schema = _resolved(schema, definitions)
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if choices := schema.get("anyOf"):
        return " or ".join(in_words(each, definitions) for each in choices if each.get("type") != "null")
    match schema.get("type"):
        case "boolean":
            return "true or false"
        case "integer" | "number" as number:
            return _with(number, _range(schema))
        case "array":
            return f"list of {in_words(schema.get('items', {}), definitions)}{_in_brackets(schema, 'Items')}"
        case "object":
            return _table(schema, definitions)
        case "string":
            return _text(schema)
        case _:
            return "any value"


def _rows(
    schema: Schema,
    definitions: Mapping[str, Schema],
    service: str,
    *,
    defaults: Mapping[str, object],
    path: tuple[str, ...],
) -> Iterator[SettingDescription]:
    required: Sequence[str] = schema.get("required", ())
    for name, written in schema["properties"].items():
        where, field = (*path, name), _resolved(written, definitions)
        default = defaults.get(name)
        if "properties" in field and isinstance(default, BaseModel):
            yield from _rows(field, definitions, service, defaults=dict(default), path=where)
            continue
        yield SettingDescription(
            key=".".join(where),
            kind=in_words(field, definitions),
            default="" if name in required else _text_of(default),
            required=name in required,
            variable=variable_of(service, *where),
            flag="--" + "-".join(where).replace("_", "-"),
            description=field.get("description", ""),
        )


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Returns the schema with its `$ref` resolved.

    Keys beside the `$ref` take precedence over those of the definition.
    """
    if "$ref" not in schema:
        return schema
    return {**definitions[schema["$ref"].rpartition("/")[2]], **schema}


def _text_of(default: object) -> str:
    match default:
        case None:
            return "none"
        case SecretStr() | SecretBytes():
            value = str(default.get_secret_value())
            return (
                value if "://" in value and "@" not in value else "(secret)"
            )  # a URL without user and password is no secret
        case bool():
            return str(default).lower()
        case Enum():
            return str(default.value)
        case Mapping() | list() | tuple():
            return ", ".join(map(_text_of, default)) or "none"
        case _:
            return str(default)


def _text(schema: Schema) -> str:
    if pattern := schema.get("pattern"):
        return f"text like {pattern}"
    kind = {"path": "path", "password": "secret text"}.get(schema.get("format", ""), "text")
    return _with(kind, _count(schema, "Length"))


def _table(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    if "properties" in schema:
        return "table with " + ", ".join(schema["properties"])
    values = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    inside = [in_words(each, definitions) for each in values if isinstance(each, Mapping)]
    return (f"table of {' or '.join(inside)}" if inside else "table") + _in_brackets(schema, "Properties")


def _range(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f"{least} to {most}"
    said = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return ", ".join(f"{words} {schema[name]}" for name, words in said.items() if name in schema)


def _count(schema: Schema, what: str) -> str:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    unit = " characters" if what == "Length" else ""
    if least and most:
        return f"{least} to {most}{unit}"
    return f"at least {least}{unit}" if least else f"at most {most}{unit}" if most else ""


def _in_brackets(schema: Schema, what: str) -> str:
    limits = _count(schema, what)
    return f" ({limits})" if limits else ""


def _with(kind: str, limits: str) -> str:
    return f"{kind}, {limits}" if limits else kind
