"""Sampling parameters that a lease fixes; defined in `protocol.sampling`, because gateways compute them, too."""

from __future__ import annotations

from protocol.sampling import (
    LEAST_TEMPERATURE,
    MOST_NEW_TOKENS,
    MOST_TEMPERATURE,
    MOST_TOP_K,
    NO_TOP_K,
    SamplingParameters,
)

__all__ = ["LEAST_TEMPERATURE", "MOST_NEW_TOKENS", "MOST_TEMPERATURE", "MOST_TOP_K", "NO_TOP_K", "SamplingParameters"]
