"""What a lease fixes about sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.errors import InvalidInput

LEAST_TEMPERATURE = 0.01
MOST_TEMPERATURE = 100.0
MOST_NEW_TOKENS = 1 << 20
NO_TOP_K = 0
"""The value of `top_k` that leaves every token in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How every token of a slot is drawn. There are no penalties and no minimum length: neither can be replayed.

    Training leases have `top_p=1.0` and `top_k=0`. For greedy answers, as evaluations want them, set `top_k=1`.

    Args:
        max_new_tokens: The most tokens of an answer, its end token among them.
        temperature: What logits are divided by, 0.01 to 100.
        top_p: The smallest set of most probable tokens that holds this much is kept; over 0, and 1.0 keeps all.
        top_k: This many most probable tokens are kept, before `top_p`; 0 keeps all.

    Raises:
        InvalidInput: A value is of another type (a bool is no number here), not finite, or out of its bounds.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = NO_TOP_K

    def __post_init__(self) -> None:
        _check_integer("max_new_tokens", self.max_new_tokens, least=1, most=MOST_NEW_TOKENS)
        _check_integer("top_k", self.top_k, least=0, most=1 << 31)
        _check_number("temperature", self.temperature, least=LEAST_TEMPERATURE, most=MOST_TEMPERATURE)
        _check_number("top_p", self.top_p, least=0.0, most=1.0)
        if self.top_p == 0:
            raise InvalidInput("top_p is 0, which keeps no token", hint="use top_k=1 for greedy answers")

    @property
    def masks(self) -> bool:
        """Whether any token can be left out."""
        return self.top_p < 1.0 or self.top_k != NO_TOP_K


def _check_integer(name: str, value: object, *, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(f"{name} is {value!r}", hint=f"it is a whole number from {least} to {most}")


def _check_number(name: str, value: object, *, least: float, most: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(float(str(value))) or not least <= float(str(value)) <= most:
        raise InvalidInput(f"{name} is {value!r}", hint=f"it is a number from {least} to {most}")
