"""The gradient of a step's mean loss, whatever rows its examples are packed into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from trainer.packing import pack
from trainer.sft.examples import Example

NOT_LEARNED = -100
"""The label of a token that no loss is taken of."""


def add_gradients(model: PreTrainedModel, examples: Sequence[Example], *, row_tokens: int, rows_at_once: int) -> float:
    """Adds the gradient of the examples' mean loss to a model's; returns that loss, in nats per learned token.

    Args:
        model: Any causal model of transformers.
        examples: Each learned token of all of them weighs the same.
        row_tokens: The most tokens of a packed row.
        rows_at_once: Rows that go through the model together.
    """
    learned = sum(len(example.completion) for example in examples)
    packed = pack([example.tokens for example in examples], row_tokens=row_tokens)
    labels = np.full_like(packed.tokens, NOT_LEARNED)
    for example, place in zip(examples, packed.places, strict=True):
        first = place.start + len(example.prompt) - 1  # this token's logits are of the one after it
        labels[place.row, first : first + len(example.completion)] = example.completion
    call: Any = model  # transformers annotates its methods in parts only, and so does torch
    total = 0.0
    for start in range(0, len(labels), rows_at_once):
        rows = slice(start, start + rows_at_once)
        keep = np.flatnonzero((labels[rows] != NOT_LEARNED).any(axis=0))  # no other logits are computed
        logits = call(
            input_ids=_on(model, packed.tokens[rows]),
            position_ids=_on(model, packed.positions[rows]),
            attention_mask=_on(model, packed.mask[rows, None]),
            logits_to_keep=_on(model, keep),
            use_cache=False,
        ).logits
        targets = _on(model, labels[rows][:, keep])
        loss: Any = cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=NOT_LEARNED, reduction="sum"
        )
        (loss / learned).backward()
        total += loss.item()
    return total / learned


def _on(model: PreTrainedModel, values: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(model.device)
