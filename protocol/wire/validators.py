"""Numerics classes that validators can verify."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireAddress
from protocol.wire.base import Milliseconds, WireModel
from protocol.wire.runs import ArithmeticName

MOST_VERIFIED = 16
"""Maximum number of numerics classes in a validator's report."""

VerifiedClasses = Annotated[tuple[ArithmeticName, ...], Field(max_length=MOST_VERIFIED)]


class NumericsReport(WireModel):
    """Body of `PUT /v1/validators/me/numerics`: all numerics classes that a validator can verify.

    The signer of the request is the validator. A report replaces the validator's earlier one.
    """

    classes: VerifiedClasses
    """Names such as `vllm-0.32.0/bfloat16/cpu-avx2`; empty if the validator can reproduce no class."""


class NumericsReceipt(WireModel):
    """A validator's stored report, which expires unless the validator repeats it."""

    validator: WireAddress
    classes: VerifiedClasses
    expires_at_ms: Milliseconds
    again_in_ms: Milliseconds
    """Milliseconds until the validator should repeat its report."""
