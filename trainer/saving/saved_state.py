"""Saved state of unfinished work: a file with tensors, a position and the settings that determine the result.

Work resumes only with the settings that the state was saved with; otherwise the result would match neither set of
settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from protocol.errors import Conflict
from trainer.saving.files import write_whole
from trainer.saving.tensor_file import tensor_file

_FORMAT = 1
_KEY = "muster"


def write_state(
    path: Path, tensors: Mapping[str, torch.Tensor], *, about: Mapping[str, object], facts: Mapping[str, object]
) -> None:
    """Replaces a saved state atomically.

    Args:
        path: Path of the file.
        tensors: Tensors of the state.
        about: Settings that determine the outcome of the saved work; `read_state` requires equal ones.
        facts: The rest of the state, as JSON.

    Raises:
        NotWritten: The disk is full or refuses the write; the previous state is unchanged.
    """
    saved = {"format": _FORMAT, "about": dict(about), **facts}
    write_whole(path, tensor_file(tensors, metadata={_KEY: json.dumps(saved)}))


@contextmanager
def read_state(
    path: Path, *, about: Mapping[str, object], owner: str, work: str, hint: str
) -> Iterator[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    """Reads a saved state, which the caller parses inside the `with` block.

    If the caller's parsing raises an error, the file counts as damaged.

    Args:
        path: Path of the file.
        about: Settings that must equal the settings in the file.
        owner: Name of the program that saves such states, such as `trainer`, inserted in error texts.
        work: Name of the work that the settings determine, such as `run`, inserted in error texts.
        hint: Hint of all errors.

    Yields:
        The facts and the tensors.

    Raises:
        Conflict: The state was saved with other settings or by another release, or is damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            saved: dict[str, Any] = json.loads(file.metadata()[_KEY])
            if saved.get("format") != _FORMAT:
                raise Conflict(f"{path} is of another release", hint=hint)
            found: Mapping[str, object] = saved["about"]
            changed = sorted(name for name in {*found, *about} if found.get(name) != about.get(name))
            if changed:
                raise Conflict(f"{path} is of another {work}: {', '.join(changed)} differs", hint=hint)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        yield saved, tensors
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise Conflict(f"{path} is not a {owner}'s state: {error}", hint=hint) from error
