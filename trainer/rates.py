"""Defaults that depend on the model's size: learning rate, rows per pass, evaluation size."""

from __future__ import annotations

from dataclasses import dataclass

SMALL_MODEL = 4_000_000
"""Number of parameters up to which a model gets the default sizes of the shipped base models, such as group counts."""
LOGITS_BYTES = 100 << 20
"""Maximum bytes of the float32 logits of a forward pass with the default number of rows, unless that number is one. The
backward pass takes about three times as much."""
_MOST_ROWS = 8
"""Maximum number of rows in a forward pass."""
_KNOWN_PARAMETERS = 440_000
_KNOWN_RATE = 2e-4
"""Learning rate of the shipped base models, which have `_KNOWN_PARAMETERS` parameters."""
_EXPONENT = 0.4
"""The rate decreases with this power of the number of parameters. A model of 135 million gets 2e-5, measured stable."""


def default_learning_rate(parameters: int) -> float:
    """Returns the default learning rate of AdamW for a model, rounded to one significant digit.

    Args:
        parameters: Number of weights.
    """
    rate = _KNOWN_RATE * (_KNOWN_PARAMETERS / max(1, parameters)) ** _EXPONENT
    return float(f"{min(_KNOWN_RATE, rate):.0e}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSize:
    """Size of an evaluation.

    Args:
        prompts: Number of held-out prompts.
        samples: Number of sampled answers to each prompt, in addition to the greedy answer.
    """

    prompts: int
    samples: int


def default_rows_at_once(row_tokens: int, *, vocabulary: int) -> int:
    """Returns the rows of a forward pass whose float32 logits fit into `LOGITS_BYTES`: 1 to 8."""
    return max(1, min(_MOST_ROWS, LOGITS_BYTES // (row_tokens * vocabulary * 4)))


def default_evaluation(parameters: int) -> EvaluationSize:
    """Returns the default size of an evaluation on a machine without an accelerator.

    Args:
        parameters: Number of weights.
    """
    small = parameters <= SMALL_MODEL
    return EvaluationSize(prompts=256 if small else 64, samples=4 if small else 1)
