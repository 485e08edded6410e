"""Base class of the settings of every service.

Values come from flags, environment variables, a TOML file and defaults, in this order of precedence.

    class DiscoverySettings(Settings):
        service = "discovery"
        port: int = Field(8001, description="Port to listen on.")

`DiscoverySettings.load(file=..., flags={"port": 9000})` reads the table `[discovery]` of the file and variables such as
`MUSTER_DISCOVERY_PORT`. A secret `x` may be given as `x_file`, the path of a file that contains it. Relative paths in
the TOML file are relative to its directory, all others to the working directory: see
`protocol.runtime.configuration_file`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from protocol.errors import plain_message
from protocol.runtime.configuration_file import find_configuration_file, placed, searched_places
from protocol.runtime.configuration_text import ConfigurationFile, InvalidSetting, nearest
from protocol.runtime.setting_descriptions import SettingDescription, described, variable_of

MOST_SECRET_BYTES = 64 * 1024
"""Maximum size of a file with a secret, in bytes."""
_FILE = "_file"
_OTHER_VARIABLES = ("_KEY", "_PASSWORD", "_TOKEN", "_ADDRESS", "_OPTIONS")
"""Ends of variables that other parts read, such as MUSTER_ORCHESTRATOR_KEY (`protocol.identity.keystores`)."""

__all__ = ["InvalidSetting", "SettingValue", "Settings", "default_directory"]


def default_directory(name: str) -> Path:
    """Returns the default directory of a service's data.

    It is `/var/lib/muster/NAME` for root, else a directory below the user's data directory.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/muster") / name
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "muster" / name


@dataclass(frozen=True, slots=True)
class SettingValue:
    """One setting in force, for display.

    Args:
        key: Name in the configuration file, with dots between tables.
        value: Its value as text; secrets are hidden.
        source: Where the value comes from: an environment variable, `FILE:LINE`, or `default`. Empty if a required
            setting is missing.
    """

    key: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class _Layer:
    """Values from one source (command line, environment or file), and how that source spells the keys."""

    name: Callable[[str], str]
    """Function that returns a key as the source spells it, for errors."""
    values: Mapping[str, Any]
    place: Callable[[Sequence[str]], str]
    """Function that returns where the value of a key comes from; the key is a path through nested tables."""
    base: Path | None = None
    """Directory of relative paths in the values; None for the working directory."""


class Settings(BaseModel):
    """Base class of every service's settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    service: ClassVar[str]
    """Name of the service's table in the file, with dots for nested tables (`shardcast.relay`). It is also part of the
    names of environment variables.
    """
    partial: ClassVar[bool] = False
    """Whether the class has only some settings of its table. The class that has all of them refuses unknown ones."""

    @classmethod
    def load(cls, *, file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Self:
        """Reads the settings from all sources.

        Args:
            file: Path of a TOML file; by default the file that `find_configuration_file` finds.
            flags: Values from the command line by setting; None for an option that was not given.

        Raises:
            NotFound: The file does not exist.
            InvalidSetting: A key is unknown, or a value is invalid. The error names the source and never repeats a
                secret.
        """
        file = find_configuration_file(file)
        merged, origin = cls._merged(cls._layers(file, flags or {}))
        try:
            return cls(**merged)
        except ValidationError as error:
            raise cls._complaint(error, origin, file) from None

    @classmethod
    def explain(cls, *, file: Path | None = None) -> tuple[list[SettingValue], InvalidSetting | None]:
        """Returns every setting with its value and the source of the value, and the error that `load` would raise.

        Args:
            file: Path of a TOML file; by default the file that `find_configuration_file` finds.

        Raises:
            NotFound: The file does not exist.
            InvalidSetting: A source has an unknown key, or the file is not TOML.
        """
        file = find_configuration_file(file)
        layers = cls._layers(file, {})
        merged, origin = cls._merged(layers)
        loaded, fault = None, None
        try:
            loaded = cls(**merged)
        except ValidationError as error:
            fault = cls._complaint(error, origin, file)
        rows, applied = [], cls.applied_defaults(merged)
        for one in cls.describe():
            path = one.key.split(".")
            layer = next((each for each in layers if _has(each.values, path)), None)
            value = _inside(merged if loaded is None else loaded, path)
            if layer is None:
                default = _shown(one.key, applied[one.key]) if one.key in applied else one.default
                rows.append(SettingValue(one.key, default, "" if one.required else "default"))
            else:
                shown = "(hidden)" if path[0] in cls._secrets() else _shown(one.key, value)
                rows.append(SettingValue(one.key, shown, layer.place(path)))
        return rows, fault

    @classmethod
    def _layers(cls, file: Path | None, flags: Mapping[str, Any]) -> list[_Layer]:
        """Returns the sources, in order of precedence."""
        said = {key: value for key, value in flags.items() if value is not None}
        layers = [_Layer(_option, said, lambda path: _option(path[0])), cls._environment()]
        if file is not None:
            read = ConfigurationFile.read(file, own=cls.service)
            table, above = read.table(cls.service), cls.service.split(".")
            if cls.partial:
                table = {key: value for key, value in table.items() if key.replace("-", "_") in cls.model_fields}

            def place(path: Sequence[str]) -> str:
                given = next((key for key in table if key.replace("-", "_") in {path[0], path[0] + _FILE}), path[0])
                return read.place([*above, given, *path[1:]])

            layers.append(_Layer(lambda key: f"{file}: {cls.service}.{key}", table, place, base=file.parent))
        return layers

    @classmethod
    def _merged(cls, layers: Sequence[_Layer]) -> tuple[dict[str, Any], dict[str, str]]:
        """Merges the sources; returns the values, and for each setting the name that its source uses."""
        merged: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for layer in layers:
            for key, value in cls._resolved(layer).items():
                if key in merged and isinstance(merged[key], dict) and isinstance(value, dict):
                    merged[key] = _under(value, merged[key])
                elif key not in merged:
                    merged[key] = value
                    origin[key] = layer.name(key)
        return merged, origin

    @classmethod
    def describe(cls) -> list[SettingDescription]:
        """Describes all settings, in the order of the settings class."""
        applied = {name: _shown(name, value) for name, value in cls.applied_defaults({}).items()}
        found = described(cls, service=cls.service)
        return [replace(one, default=applied[one.key]) if one.key in applied else one for one in found]

    @classmethod
    def applied_defaults(cls, given: Mapping[str, Any]) -> Mapping[str, object]:  # noqa: ARG003 - for subclasses
        """Returns the values that apply to settings whose default depends on other settings.

        Args:
            given: The given settings, as the sources have them; invalid values are possible.
        """
        return {}

    @classmethod
    def _variable(cls, key: str) -> str:
        return variable_of(cls.service, key)

    @classmethod
    def _environment(cls) -> _Layer:
        values = _variables(cls, prefix=cls._variable(""))
        for key in cls._secrets():
            if path := os.environ.get(cls._variable(key + _FILE)):
                values[key + _FILE] = path
        fields = cls.model_fields
        known = {key: value for key, value in values.items() if key in fields or key.removesuffix(_FILE) in fields}
        if not cls.partial:
            cls._check_variables()

        def place(path: Sequence[str]) -> str:
            names = [cls._variable("__".join(path[:depth])) for depth in range(len(path), 0, -1)]
            names.append(names[-1] + _FILE.upper())
            return next((name for name in names if name in os.environ), names[0])

        return _Layer(cls._variable, known, place)

    @classmethod
    def _check_variables(cls) -> None:
        """Refuses variables that look like a misspelt setting.

        Others are ignored: Docker and Kubernetes set variables such as `MUSTER_DISCOVERY_PORT_8001_TCP` for a service
        named `muster-discovery`.
        """
        prefix = cls._variable("")
        keys = {key.upper() for key in (*cls.model_fields, *(secret + _FILE for secret in cls._secrets()))}
        for name in sorted(os.environ):
            key = name.removeprefix(prefix)
            if key == name or key.partition("__")[0] in keys or name.endswith(_OTHER_VARIABLES):
                continue
            if close := next(iter(difflib.get_close_matches(key, sorted(keys), n=1, cutoff=0.7)), None):
                raise InvalidSetting(
                    f"the variable {name} is not a setting of {cls.service}", hint=f"did you mean {prefix}{close}?"
                )

    @classmethod
    def _secrets(cls) -> list[str]:
        return [name for name, field in cls.model_fields.items() if _is_secret(field)]

    @classmethod
    def _resolved(cls, layer: _Layer) -> dict[str, Any]:
        """Returns the layer's values, with secrets read from their files.

        Raises `InvalidSetting` for unknown keys.
        """
        values: dict[str, Any] = {}
        secrets = cls._secrets()
        allowed = [*cls.model_fields, *(key + _FILE for key in secrets)]
        for raw, value in layer.values.items():
            key = raw.replace("-", "_")
            if key not in allowed:
                close = nearest(key, allowed)
                raise InvalidSetting(
                    f"{layer.name(raw)} is not a setting of {cls.service}",
                    hint=f"did you mean {close}?" if close else f"the settings are {', '.join(sorted(allowed))}",
                )
            if key.removesuffix(_FILE) in secrets and key not in cls.model_fields:
                secret = key.removesuffix(_FILE)
                if secret in layer.values:
                    raise InvalidSetting(
                        f"{layer.name(secret)} is given twice", hint=f"keep one of {layer.name(secret)} and {key}"
                    )
                values[secret] = _read_secret(placed(str(value), layer.base), layer.name(raw))
            else:
                values[key] = _placed_inside(value, cls.model_fields[key].annotation, layer.base)
        return values

    @classmethod
    def _complaint(cls, error: ValidationError, origin: Mapping[str, str], file: Path | None) -> InvalidSetting:
        secrets = cls._secrets()
        lines = []
        for item in error.errors(include_url=False):
            key = ".".join(str(part) for part in item["loc"]) or "(all)"
            top = str(item["loc"][0]) if item["loc"] else ""
            if item["type"] == "missing" and top not in origin:
                lines.append(f"{cls.service}.{key} is required (or {cls._variable(key)})")
                continue
            where = origin.get(top, f"{cls.service}.{top}") + key[len(top) :]
            if item["type"] == "extra_forbidden":
                close = nearest(str(item["loc"][-1]), _fields_of(cls, item["loc"][:-1]))
                lines.append(f"{where} is not a setting" + (f"; did you mean {close}?" if close else ""))
                continue
            # Only plain values are repeated in errors, because a table may contain a secret.
            shown = top not in secrets and isinstance(item["input"], (str, int, float)) and not _sounds_secret(key)
            got = f", not {str(item['input'])[:80]!r}" if shown else ""
            lines.append(f"{where}: {plain_message(item['msg'])}{got}")
        if file is None:
            lines.insert(0, f"no configuration file found; looked for {', '.join(map(str, searched_places()))}")
        return InvalidSetting(
            "; ".join(lines[:10]), hint=f"`muster settings {cls.service}` lists every setting with its limits"
        )


def _variables(kind: type[Settings], *, prefix: str) -> dict[str, Any]:
    """Returns the values of the settings that environment variables with this prefix give.

    Raises:
        InvalidSetting: A list or table is not JSON.
    """
    if not any(name.upper().startswith(prefix) for name in os.environ):
        return {}
    from pydantic_settings import EnvSettingsSource  # noqa: PLC0415 - takes 0.1 s, and most commands need it not
    from pydantic_settings.exceptions import SettingsError  # noqa: PLC0415

    # The source reads only the fields of the class, which therefore need not be a `BaseSettings`.
    source = EnvSettingsSource(cast("Any", kind), env_prefix=prefix, env_nested_delimiter="__", case_sensitive=False)
    try:
        return source()
    except SettingsError as error:
        raise InvalidSetting(
            f"environment: {error}", hint="write lists and tables as JSON in environment variables"
        ) from None


def _option(key: str) -> str:
    return "--" + key.replace("_", "-")


def _read_secret(path: Path, where: str) -> str:
    try:
        with path.open("rb") as source:
            data = source.read(MOST_SECRET_BYTES + 1)
        if len(data) > MOST_SECRET_BYTES:
            raise InvalidSetting(f"{where}: {path} is longer than {MOST_SECRET_BYTES} bytes")
        return data.decode().rstrip("\r\n")
    except OSError as error:
        raise InvalidSetting(f"{where}: can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidSetting(f"{where}: {path} is not text") from None


def _placed_inside(value: Any, kind: Any, base: Path | None) -> Any:  # noqa: ANN401 - a raw value and any annotation
    """Resolves the relative paths in a raw value of the annotated type.

    Values that are not paths are returned unchanged.
    """
    if kind is Path and isinstance(value, str):
        return placed(value, base)
    if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
        kinds = {name: field.annotation for name, field in kind.model_fields.items()}
        return {name: _placed_inside(item, kinds.get(name), base) for name, item in value.items()}
    for part in get_args(kind):  # the types inside a union, list, tuple or Annotated
        if isinstance(value, list):
            value = [_placed_inside(item, part, base) for item in value]
        else:
            value = _placed_inside(value, part, base)
    return value


def _has(values: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Returns whether a source sets the setting at a path of nested tables, or a whole table that contains it."""
    content: Any = {key.replace("-", "_").removesuffix(_FILE): value for key, value in values.items()} | {
        key.replace("-", "_"): value for key, value in values.items()
    }
    for part in path:
        if not isinstance(content, dict):
            return True
        if part not in content:
            return False
        content = content[part]
    return True


def _inside(content: Any, path: Sequence[str]) -> Any:  # noqa: ANN401 - a value of any setting
    for part in path:
        content = content.get(part) if isinstance(content, dict) else getattr(content, part, None)
    return content


def _shown(key: str, value: Any) -> str:  # noqa: ANN401, PLR0911 - a value of any setting; one line per kind
    """Formats the value of a setting for display, without secrets."""
    match value:
        case None:
            return "none"
        case SecretStr() | SecretBytes():
            return "(hidden)"
        case bool():
            return str(value).lower()
        case Path():
            return str(value)
        case _ if any(word in key.lower() for word in ("secret", "password", "token")):
            return "(hidden)"
        case Enum():
            return str(value.value)
        case BaseModel():
            return _shown(key, {name: getattr(value, name) for name in type(value).model_fields})
        case Mapping():
            return ", ".join(f"{name} = {_shown(f'{key}.{name}', item)}" for name, item in value.items()) or "none"
        case list() | tuple() | set() | frozenset():
            return ", ".join(_shown(key, item) for item in value) or "none"
        case _:
            return re.sub(r"://[^/@\s]*@", "://(hidden)@", str(value))


def _fields_of(kind: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """Returns the names of the settings in the nested table at a place; empty if there is no such table."""
    for part in place:
        field = kind.model_fields.get(str(part))
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        inner = next((each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)), None)
        if inner is None:
            return []
        kind = inner
    return list(kind.model_fields)


def _under(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merges two tables recursively; entries of `above` take precedence."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _under(below[key], value) if both else value
    return merged


def _is_secret(field: FieldInfo) -> bool:
    kinds = (field.annotation, *get_args(field.annotation))
    return any(kind in (SecretStr, SecretBytes) for kind in kinds)


def _sounds_secret(key: str) -> bool:
    return any(word in key.lower() for word in ("secret", "password", "token", "key", "url"))
