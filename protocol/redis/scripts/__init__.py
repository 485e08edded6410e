"""Lua scripts that several services use, and their typed calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.redis.script_call import ScriptCall


class Admission(NamedTuple):
    """Decision of the replay guard."""

    outcome: str
    """`admitted`, `replayed` or `too-many`."""
    wait_us: int
    """Microseconds until the address may send its next request; 0 unless the outcome is `too-many`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit(ScriptCall[Admission]):
    """Checks nonce and rate of one request, and records both.

    Args:
        address: Signer of the request.
        nonce: Nonce of the request.
        attempt: Random id of this call; repetitions of the call have the same id and get the same answer.
        now_us: The time, in Unix microseconds.
        nonce_kept_ms: Milliseconds for which the nonce is stored.
        interval_us: Microseconds between requests at the address's sustained rate.
        tolerance_us: Microseconds by which the address may be ahead of that rate.
    """

    address: str
    nonce: str
    attempt: str
    now_us: int
    nonce_kept_ms: int
    interval_us: int
    tolerance_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLease(ScriptCall[str]):
    """Acquires, renews or releases a leader lease; replies with its value, empty while another holder has it.

    Args:
        loop: Name of the work that the lease protects.
        holder: Id of the caller.
        held: Value that the caller holds; empty if none.
        lifetime_ms: Time until the lease expires unless renewed; 0 releases it.
    """

    loop: str
    holder: str
    held: str
    lifetime_ms: int
