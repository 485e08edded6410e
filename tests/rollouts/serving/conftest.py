"""One service for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.serving import ServedModel, chat_folder, served_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a tiny model with a chat template."""
    return chat_folder(tmp_path_factory.mktemp("served") / "first")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[ServedModel]:
    """Returns a running service."""
    with served_model(folder) as running:
        yield running
