"""Lua scripts that several services use, and their typed calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.redis.script_call import ScriptCall


class Admission(NamedTuple):
    """Decision of the replay guard on one request."""

    outcome: str
    """`admitted`, `replayed` or `too-many`."""
    wait_us: int
    """Microseconds until the address may send its next request; 0 unless the outcome is `too-many`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(ScriptCall[Admission]):
    """Checks nonce and rate of one request, and records both if the request is admitted.

    Args:
        address: Signer of the request.
        nonce: Nonce of the request.
        attempt: Random id of this call. A repetition of the call has the same id and gets the same answer.
        now_us: Current Unix time in microseconds.
        nonce_kept_ms: Milliseconds for which the nonce is stored.
        interval_us: Microseconds between requests at the sustained rate that the address is allowed.
        tolerance_us: Microseconds by which requests may come earlier than at that rate; this allows bursts.
    """

    address: str
    nonce: str
    attempt: str
    now_us: int
    nonce_kept_ms: int
    interval_us: int
    tolerance_us: int
