"""Gradient of a step's mean loss, independent of how its examples are packed into rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from trainer.learning.packing import pack
from trainer.sft.examples import Example

NOT_LEARNED = -100
"""Label of tokens without loss."""


def add_gradients(model: PreTrainedModel, examples: Sequence[Example], *, row_tokens: int, rows_at_once: int) -> float:
    """Adds the gradient of the examples' mean loss to the model and returns the loss, in nats per learned token.

    Args:
        model: Any causal model of transformers.
        examples: Examples of the step; each token with loss has the same weight.
        row_tokens: Maximum tokens of a packed row.
        rows_at_once: Number of rows per forward pass.
    """
    learned = sum(example.learned for example in examples)
    packed = pack([example.tokens for example in examples], row_tokens=row_tokens)
    labels = np.full_like(packed.tokens, NOT_LEARNED)
    for example, place in zip(examples, packed.places, strict=True):
        first = place.start + len(example.prompt) - 1  # the logits at this position predict the next token
        labels[place.row, first : first + len(example.completion)] = example.completion
        labels[place.row, [first + at for at in example.given]] = NOT_LEARNED
    call: Any = model  # transformers and torch annotate only some of their methods
    total = 0.0
    for start in range(0, len(labels), rows_at_once):
        rows = slice(start, start + rows_at_once)
        keep = np.flatnonzero((labels[rows] != NOT_LEARNED).any(axis=0))  # compute the logits of these positions only
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
