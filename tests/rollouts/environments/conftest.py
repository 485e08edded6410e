"""Fixtures: problem files, and sandboxes for the whole session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pydantic import JsonValue

from rollouts.sandbox import Isolation, Sandboxes, SandboxSettings

WriteRows = Callable[[Sequence[object]], dict[str, JsonValue]]


@pytest.fixture(scope="session")
def sandboxes() -> Iterator[Sandboxes]:
    """Returns sandboxes with the strongest isolation of this machine."""
    found = Sandboxes(SandboxSettings(most=2))
    yield found
    found.close()


@pytest.fixture(scope="session")
def weaker_sandboxes() -> Iterator[Sandboxes]:
    """Returns sandboxes with the isolation inside a worker's container."""
    found = Sandboxes(SandboxSettings(isolation=Isolation.PROCESS, most=2))
    yield found
    found.close()


@pytest.fixture
def write_rows(tmp_path: Path) -> WriteRows:
    """Writes rows as JSON lines; returns the options that name the file."""

    def write(rows: Sequence[object]) -> dict[str, JsonValue]:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path = tmp_path / f"{hashlib.sha256(text).hexdigest()[:8]}.jsonl"
        path.write_bytes(text)
        return {"path": str(path), "sha256": hashlib.sha256(text).hexdigest()}

    return write


def row(
    info: object, *, task_type: str = "verifiable_math", prompt: str = "What?", problem_id: str = "p"
) -> dict[str, object]:
    """Returns one problem in the format of GENESYS."""
    return {
        "problem_id": problem_id,
        "task_type": task_type,
        "prompt": prompt,
        "verification_info": info,
        "source": "x",
    }
