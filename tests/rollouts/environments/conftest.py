"""Files of problems, and sandboxes for the whole session."""

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
    """The best that this machine can give."""
    found = Sandboxes(SandboxSettings(most=2))
    yield found
    found.close()


@pytest.fixture(scope="session")
def weaker_sandboxes() -> Iterator[Sandboxes]:
    """Those of a worker's container."""
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
    """One problem in the form of GENESYS."""
    return {
        "problem_id": problem_id,
        "task_type": task_type,
        "prompt": prompt,
        "verification_info": info,
        "source": "x",
    }
