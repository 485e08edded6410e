"""Fixtures: torch on one thread, and a warm-up that takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rollouts.models.facts import ModelFacts
from tests.kit.tiny_model import tiny_folder
from trainer.models.characters import END
from trainer.sft.settings import WarmUpSettings, check_settings

torch.set_num_threads(1)  # several threads in several test processes slow each other down on two cores

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789:="


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a Llama with random weights."""
    return tiny_folder(tmp_path_factory.mktemp("models") / "llama", kind="llama")


def character_model(*, context: int = 64) -> ModelFacts:
    """Returns facts of a model with a character tokenizer, without weights."""
    return ModelFacts(
        folder=Path(),
        config={},
        vocabulary=64,
        context=context,
        hidden=8,
        end_tokens=frozenset({END}),
        tensors={},
    )


def small(**changes: Any) -> WarmUpSettings:
    """Returns settings to warm up a model of 20,000 parameters on demonstrations, with top-level changes."""
    values: dict[str, Any] = {
        "seed": 3,
        "steps": 6,
        "examples_per_step": 8,
        "row_tokens": 64,
        "rows_at_once": 2,
        "checkpoint_every": 2,
        "dtype": "float32",
        "start": {
            "kind": "scratch",
            "characters": CHARACTERS,
            "config": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "max_position_embeddings": 64,
            },
        },
        "examples": {"kind": "environment", "count": 200},
        "optimiser": {"learning_rate": 3e-3, "warm_up_steps": 2},
        "evaluation": {"prompts": 0},
        "recipe": {
            "environment": {"name": "letters", "version": "1"},
            "sampling": {"max_new_tokens": 10},
            "group_size": 4,
            "held_out": 0.1,
            "count": 100,
        },
    }
    return check_settings(values | changes, source="the test")
