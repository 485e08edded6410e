"""Asks at the terminal for required values that the command line lacks.

Without a terminal, the functions raise an error that names the missing flag.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

import typer
from pydantic import JsonValue

from cli.environments.commands import parse_value
from protocol.errors import InvalidInput
from rollouts.environments.registry import environment_names, find_family

DEFAULT_ENVIRONMENT = "arithmetic"


def choose_environment(given: str | None) -> str:
    """Returns the name of the environment; asks for the name if `given` is None.

    Raises:
        InvalidInput: The name is missing, and standard input is not a terminal.
    """
    if given is not None:
        return given
    known = ", ".join(environment_names())
    return _ask("Environment", flag="--environment NAME", known=f"installed: {known}", default=DEFAULT_ENVIRONMENT)


def complete_options(name: str, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns an environment's options; asks for required options that are missing.

    Answers are JSON or plain text, as in `-o key=value`. The proposed answer for the option `sha256` is the SHA-256 of
    the file that the option `path` names.

    Raises:
        InvalidInput: An option is missing, and standard input is not a terminal.
        MusterError: There is no such environment.
    """
    found = dict(given)
    for option, field in find_family(name).options.model_fields.items():
        if field.is_required() and option not in found:
            digest = _digest(found.get("path")) if option == "sha256" else None
            hint = "" if digest is None else f"the file has {digest}"
            found[option] = parse_value(_ask(f"{name}: {option}", flag=f"-o {option}=…", known=hint, default=digest))
    return found


def _ask(question: str, *, flag: str, known: str, default: str | None) -> str:
    if not sys.stdin.isatty():
        raise InvalidInput(f"{question.lower()} is missing", hint=f"give {flag}" + (f" ({known})" if known else ""))
    return str(typer.prompt(f"{question} ({known})" if known else question, default=default, err=True))


def _digest(path: JsonValue) -> str | None:
    """Returns the SHA-256 of a file; None if it can't be read."""
    if not isinstance(path, str):
        return None
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
