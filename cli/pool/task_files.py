"""Builds a task from a file, from options, or from both; options override the file."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from protocol.errors import InvalidInput, NotFound, plain_message
from protocol.wire.tasks import NewTask

MOST_BYTES = 256 * 1024


def read_task_file(path: Path) -> dict[str, Any]:
    """Reads a task file in TOML or JSON.

    The file has the fields of the task's spec, and the tables `secrets` and `registry`.

    Raises:
        NotFound: The file does not exist.
        InvalidInput: The file is too large, or neither TOML nor JSON.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="give a task's file, or --image IMAGE and a command") from error
    except OSError as error:
        raise InvalidInput(f"can't read {path}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise InvalidInput(f"{path} is longer than {MOST_BYTES} bytes")
    try:
        content = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except (ValueError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path} can't be read: {error}", hint="a task is TOML, or JSON in a .json file") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} does not contain a table of a task's fields")
    return content


def pairs(given: Sequence[str], *, what: str) -> dict[str, str]:
    """Reads `NAME=VALUE` options.

    Raises:
        InvalidInput: An option has no equals sign.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"{what} {text[:60]!r} is not NAME=VALUE")
        found[name] = value
    return found


def secrets_from_environment(names: Sequence[str]) -> dict[str, str]:
    """Returns secrets from environment variables of the given names.

    Secrets are not read from the command line, because other users of the machine can read command lines.

    Raises:
        NotFound: A variable is not set.
    """
    found = {}
    for name in names:
        value = os.environ.get(name)
        if value is None:
            raise NotFound(
                f"--secret {name}: the variable {name} is not set here",
                hint="secrets are read from environment variables, because other users can read command lines",
            )
        found[name] = value
    return found


def build_task(fields: dict[str, Any]) -> NewTask:
    """Builds a task from the fields of a task file.

    Errors name a field but never its value, which may be a secret.

    Raises:
        InvalidInput: A field is unknown, missing or out of bounds.
    """
    spec = {name: value for name, value in fields.items() if name not in {"secrets", "registry"}}
    try:
        return NewTask.model_validate(
            {"spec": spec, "secrets": fields.get("secrets", {}), "registry": fields.get("registry")}
        )
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(part) for part in item['loc'] if part != 'spec') or 'task'}: {plain_message(item['msg'])}"
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        raise InvalidInput(
            "; ".join(lines[:5]), hint="`muster pool run --help`, and docs/pool-owners.md, list the fields of a task"
        ) from None
