"""Fixtures: torch on one thread, and tiny real models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.kit.tiny_model import tiny_folder

torch.set_num_threads(1)  # several threads in several test processes slow each other down on two cores


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a Qwen2 with random weights."""
    return tiny_folder(tmp_path_factory.mktemp("models") / "qwen2", kind="qwen2")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a Llama with random weights, without shared embeddings."""
    return tiny_folder(tmp_path_factory.mktemp("models") / "llama", kind="llama")
