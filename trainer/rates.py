"""Default learning rate of reinforcement learning by the size of the model."""

from __future__ import annotations

_KNOWN_PARAMETERS = 440_000
_KNOWN_RATE = 2e-4
"""Learning rate of the shipped base models, which have so many parameters."""
_EXPONENT = 0.4
"""The rate decreases with this power of the number of parameters: 2e-5 for 135 million, measured as stable."""


def default_learning_rate(parameters: int) -> float:
    """Returns the default learning rate of AdamW for a model, with one significant digit.

    Args:
        parameters: Number of weights.
    """
    rate = _KNOWN_RATE * (_KNOWN_PARAMETERS / max(1, parameters)) ** _EXPONENT
    return float(f"{min(_KNOWN_RATE, rate):.0e}")
