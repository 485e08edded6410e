"""Torch on one thread, and tiny real models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.kit.tiny_model import tiny_folder

torch.set_num_threads(1)  # several threads of several test processes on two cores stand in each other's way


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Qwen2 of random weights."""
    return tiny_folder(tmp_path_factory.mktemp("models") / "qwen2", kind="qwen2")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Llama of random weights, without shared embeddings."""
    return tiny_folder(tmp_path_factory.mktemp("models") / "llama", kind="llama")
