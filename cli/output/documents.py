"""Reads and writes the small signed files that users exchange: invites, leases, submissions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cli.output.printing import note
from protocol.errors import InvalidInput, plain_message
from protocol.runtime.files import read_limited

M = TypeVar("M", bound=BaseModel)

_MOST_BYTES = 64 * 1024


def read_document(path: Path, kind: type[M], *, made_by: str) -> M:
    """Reads a file that may come from an untrusted author.

    Args:
        path: The file.
        kind: Model of its content.
        made_by: The command that writes files of this kind; the hint of an error names it.

    Raises:
        InvalidInput: The file can't be read, is too long or does not fit `kind`; the message names the first error.
    """
    hint = f"`{made_by}` writes such a file"
    content = read_limited(path, most=_MOST_BYTES, what="the file", hint=hint)
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise InvalidInput(f"{path} is not what this command reads: {first_fault(error)}", hint=hint) from None


def write_document(out: Path | None, document: BaseModel) -> None:
    """Writes a document to the file `out`, or to standard output if `out` is None."""
    text = document.model_dump_json(indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)
        note(f"wrote {out}")


def first_fault(error: ValidationError) -> str:
    """Returns the field and the message of the first validation error.

    The field's value is left out, because it may be a secret.
    """
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    message = plain_message(str(first["msg"]))
    return f"{place}: {message}" if place else message
