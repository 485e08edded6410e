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
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from protocol.errors import InvalidInput, NotFound, plain_message
from protocol.runtime.configuration_file import find_configuration_file, placed, searched_places
from protocol.runtime.setting_descriptions import SettingDescription, described, variable_of

MOST_FILE_BYTES = 1024 * 1024
"""Maximum size of a configuration file, in bytes."""
MOST_SECRET_BYTES = 64 * 1024
"""Maximum size of a file with a secret, in bytes."""
_FILE = "_file"


def default_directory(name: str) -> Path:
    """Returns the default directory of a service's data.

    It is `/var/lib/muster/NAME` for root, else a directory below the user's data directory.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/muster") / name
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "muster" / name


class InvalidSetting(InvalidInput):
    """A setting is unknown or its value is invalid."""

    code = "invalid-setting"


@dataclass(frozen=True, slots=True)
class _Layer:
    """Values from one source (command line, environment or file), and how that source spells the keys."""

    name: Callable[[str], str]
    """Function that returns a key as the source spells it, for errors."""
    values: Mapping[str, Any]
    base: Path | None = None
    """Directory of relative paths in the values; None for the working directory."""


class Settings(BaseSettings):
    """Base class of every service's settings."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_nested_delimiter="__")

    service: ClassVar[str]
    """Name of the service's table in the file, with dots for nested tables (`shardcast.relay`). It is also part of the
    names of environment variables.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Disables pydantic's own sources of values.

        `load` reads the sources itself, so that errors can name the source of a value.
        """
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

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
        said = {key: value for key, value in (flags or {}).items() if value is not None}
        layers = [_Layer(lambda key: "--" + key.replace("_", "-"), said), cls._environment()]
        if file is not None:
            table = _table(file, cls.service)
            layers.append(_Layer(lambda key: f"{file}: {cls.service}.{key}", table, base=file.parent))
        merged: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for layer in layers:
            for key, value in cls._resolved(layer).items():
                if key in merged and isinstance(merged[key], dict) and isinstance(value, dict):
                    merged[key] = _under(value, merged[key])
                elif key not in merged:
                    merged[key] = value
                    origin[key] = layer.name(key)
        try:
            return cls(**merged)
        except ValidationError as error:
            raise cls._complaint(error, origin, file) from None

    @classmethod
    def describe(cls) -> list[SettingDescription]:
        """Describes all settings, in the order of the settings class."""
        return described(cls, service=cls.service)

    @classmethod
    def _variable(cls, key: str) -> str:
        return variable_of(cls.service, key)

    @classmethod
    def _environment(cls) -> _Layer:
        try:
            values = EnvSettingsSource(cls, env_prefix=cls._variable(""))()
        except SettingsError as error:
            raise InvalidSetting(
                f"environment: {error}", hint="write lists and tables as JSON in environment variables"
            ) from None
        for key in cls._secrets():
            if path := os.environ.get(cls._variable(key + _FILE)):
                values[key + _FILE] = path
        # Unknown names are ignored here: `MUSTER_DISCOVERY_X_PORT` may belong to another service named `discovery_x`.
        fields = cls.model_fields
        known = {key: value for key, value in values.items() if key in fields or key.removesuffix(_FILE) in fields}
        return _Layer(cls._variable, known)

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
                close = difflib.get_close_matches(key, allowed, n=1, cutoff=0.5)
                raise InvalidSetting(
                    f"{layer.name(raw)} is not a setting of {cls.service}",
                    hint=f"did you mean {close[0]}?" if close else f"the settings are {', '.join(sorted(allowed))}",
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
            # Only plain values are repeated in errors, because a table may contain a secret.
            shown = top not in secrets and isinstance(item["input"], (str, int, float)) and not _sounds_secret(key)
            got = f", not {str(item['input'])[:80]!r}" if shown else ""
            lines.append(f"{where}: {plain_message(item['msg'])}{got}")
        if file is None:
            lines.insert(0, f"no configuration file found; looked for {', '.join(map(str, searched_places()))}")
        return InvalidSetting(
            "; ".join(lines[:10]), hint=f"`muster settings {cls.service}` lists every setting with its limits"
        )


def _table(file: Path, service: str) -> Mapping[str, Any]:
    content: Any = _read_toml(file)
    walked: list[str] = []
    for part in service.split("."):
        walked.append(part)
        content = content.get(part, {})
        if not isinstance(content, dict):
            raise InvalidSetting(f"{file}: {'.'.join(walked)} is not a table", hint=f"write [{service}]")
    table: Mapping[str, Any] = content
    return table


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as source:
            data = source.read(MOST_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"the settings file {file} does not exist") from error
    except OSError as error:
        raise InvalidSetting(f"can't read {file}: {error.strerror}") from error
    if len(data) > MOST_FILE_BYTES:
        raise InvalidSetting(f"{file} is longer than {MOST_FILE_BYTES} bytes")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{file} is not TOML: {error}") from None


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
