"""Trains a tiny model to say given messages, so that a real engine draws, and proves, a scripted dialogue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rollouts.models.facts import read_model
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.turns import drawn_places
from tests.kit.tiny_model import END

_MODELS: Any = AutoModelForCausalLM
_IGNORED = -100
_STEPS = 600
_ENOUGH = 2e-3


def memorise(folder: Path, planner: SlotPlanner, scripts: Iterable[tuple[int, Sequence[str]]]) -> None:
    """Trains the model of a folder on dialogues.

    Args:
        folder: The model.
        planner: Begins the dialogues, so that the model reads the environment's own replies.
        scripts: Prompts with the model's messages.
    """
    tokenizer, facts = FolderTokenizer(folder), read_model(folder)
    rows: list[tuple[list[int], list[int]]] = []
    for index, messages in scripts:
        prompt, tokens = planner.ask(index, None)
        conversation = planner.converse(prompt, tokens, model=facts)
        for message in messages:
            conversation.add([*tokenizer.encode_answer(message), END])
        labels = [_IGNORED] * len(tokens) + [_IGNORED] * len(conversation.tokens)
        places = drawn_places(conversation.turns, drawn=len(conversation.drawn)) + len(tokens)
        for place, token in zip(places.tolist(), conversation.drawn, strict=True):
            labels[place] = token
        rows.append(([*tokens, *conversation.tokens], labels))
    longest = max(len(tokens) for tokens, _ in rows)
    inputs = torch.tensor([tokens + [END] * (longest - len(tokens)) for tokens, _ in rows])
    labels_of = torch.tensor([labels + [_IGNORED] * (longest - len(labels)) for _, labels in rows])
    model = _MODELS.from_pretrained(folder)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(_STEPS):
        loss = model(input_ids=inputs, labels=labels_of).loss
        if loss.item() < _ENOUGH:
            break
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.save_pretrained(folder)
