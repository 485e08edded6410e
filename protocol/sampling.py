"""Sampling parameters of an answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.errors import InvalidInput

LEAST_TEMPERATURE = 0.01
MOST_TEMPERATURE = 100.0
MOST_NEW_TOKENS = 1 << 20
MOST_TOP_K = (1 << 31) - 1
NO_TOP_K = 0
"""The value of `top_k` that keeps every token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """Sampling parameters of a slot. Penalties and minimum lengths are missing, because replay does not support them.

    Training leases have `top_p=1.0` and `top_k=0`. Evaluations set `top_k=1` for greedy answers.

    Args:
        max_new_tokens: Maximum tokens of an answer, including its end token.
        temperature: Divisor of the logits, 0.01 to 100.
        top_p: Keeps the smallest set of most probable tokens with this total probability; above 0, and 1.0 keeps all.
        top_k: Keeps this many most probable tokens, before `top_p`; 0 keeps all.

    Raises:
        InvalidInput: A value has another type (bool is not a number here), is not finite, or is out of range.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = NO_TOP_K

    def __post_init__(self) -> None:
        _check_integer("max_new_tokens", self.max_new_tokens, least=1, most=MOST_NEW_TOKENS)
        _check_integer("top_k", self.top_k, least=0, most=MOST_TOP_K)
        _check_number("temperature", self.temperature, least=LEAST_TEMPERATURE, most=MOST_TEMPERATURE)
        _check_number("top_p", self.top_p, least=0.0, most=1.0)
        if self.top_p == 0:
            raise InvalidInput("top_p is 0, which keeps no token", hint="use top_k=1 for greedy answers")

    @property
    def of_draws(self) -> tuple[float, float, int]:
        """Parameters that influence which token is drawn: all except the limit of new tokens."""
        return self.temperature, self.top_p, self.top_k

    @property
    def masks(self) -> bool:
        """True if top-k or top-p may exclude tokens."""
        return self.top_p < 1.0 or self.top_k != NO_TOP_K


def _check_integer(name: str, value: object, *, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(f"{name} is {value!r}", hint=f"give a whole number from {least} to {most}")


def _check_number(name: str, value: object, *, least: float, most: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(float(str(value))) or not least <= float(str(value)) <= most:
        raise InvalidInput(f"{name} is {value!r}", hint=f"give a number from {least} to {most}")
