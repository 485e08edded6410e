"""Settings of every service: from flags, environment, a TOML file and defaults, in this order of precedence.

    class DiscoverySettings(Settings):
        service = "discovery"
        port: int = Field(8001, description="Where to listen")

`DiscoverySettings.load(file=..., flags={"port": 9000})` reads the table `[discovery]` of the file and variables such as
`MUSTER_DISCOVERY_PORT`. A secret `x` may be given as `x_file`, the path of a file that holds it. Relative paths in the
file start from its directory, all others from the working directory: `protocol.runtime.configuration_file`.
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
MOST_SECRET_BYTES = 64 * 1024
_FILE = "_file"


class InvalidSetting(InvalidInput):
    """A setting is unknown or its value is invalid."""

    code = "invalid-setting"


@dataclass(frozen=True, slots=True)
class _Layer:
    """Values from one source, and the spelling of keys in it."""

    name: Callable[[str], str]
    values: Mapping[str, Any]
    base: Path | None = None
    """Folder against which relative paths are resolved; None for the working directory."""


class Settings(BaseSettings):
    """Base class of every service's settings."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_nested_delimiter="__")

    service: ClassVar[str]
    """The table in the file, dots for nested ones (`shardcast.relay`), and part of the variables' names."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Disables pydantic's own sources: `load` reads the layers, so that errors can name a value's source."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @classmethod
    def load(cls, *, file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Self:
        """Reads all layers.

        Args:
            file: A TOML file; by default the file that `protocol.runtime.configuration_file` finds.
            flags: Values from the command line; None for options that were not given.

        Raises:
            NotFound: The file does not exist.
            InvalidSetting: A key is unknown or a value invalid; the error names the source and never repeats a secret.
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
        """Describes all settings, in the order of the class."""
        return described(cls, service=cls.service)

    @classmethod
    def _variable(cls, key: str) -> str:
        return variable_of(cls.service, key)

    @classmethod
    def _environment(cls) -> _Layer:
        try:
            values = EnvSettingsSource(cls, env_prefix=cls._variable(""))()
        except SettingsError as error:
            raise InvalidSetting(f"environment: {error}", hint="lists and tables are JSON in a variable") from None
        for key in cls._secrets():
            if path := os.environ.get(cls._variable(key + _FILE)):
                values[key + _FILE] = path
        # Other variables may have the same prefix: those of `discovery` and of a service `discovery_x`, say.
        fields = cls.model_fields
        known = {key: value for key, value in values.items() if key in fields or key.removesuffix(_FILE) in fields}
        return _Layer(cls._variable, known)

    @classmethod
    def _secrets(cls) -> list[str]:
        return [name for name, field in cls.model_fields.items() if _is_secret(field)]

    @classmethod
    def _resolved(cls, layer: _Layer) -> dict[str, Any]:
        """Returns the layer's values, with secrets read from their files; raises for unknown keys."""
        values: dict[str, Any] = {}
        secrets = cls._secrets()
        allowed = [*cls.model_fields, *(key + _FILE for key in secrets)]
        for raw, value in layer.values.items():
            key = raw.replace("-", "_")
            if key not in allowed:
                close = difflib.get_close_matches(key, allowed, n=1, cutoff=0.5)
                raise InvalidSetting(
                    f"{layer.name(raw)} is no setting of {cls.service}",
                    hint=f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(allowed))}",
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
            # Errors repeat only plain values: a table or a model may contain a secret.
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
        raise NotFound(f"there is no settings file {file}") from error
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
    """Resolves the paths in a raw value of the annotated kind; everything else stays as it is."""
    if kind is Path and isinstance(value, str):
        return placed(value, base)
    if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
        kinds = {name: field.annotation for name, field in kind.model_fields.items()}
        return {name: _placed_inside(item, kinds.get(name), base) for name, item in value.items()}
    for part in get_args(kind):  # of a union, of a list or tuple, of Annotated
        if isinstance(value, list):
            value = [_placed_inside(item, part, base) for item in value]
        else:
            value = _placed_inside(value, part, base)
    return value


def _under(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merges two tables; entries of `above` take precedence."""
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
