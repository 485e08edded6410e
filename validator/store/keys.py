"""Names of a validator's keys in Redis."""

from __future__ import annotations

from protocol.redis.connection import RedisKeys


def keys_of(pool_id: int) -> RedisKeys:
    """The keys of the validators of a pool that share this Redis.

    `cursor:NAME` (positions in the ledger's events), `queue:waiting` (set by when they may be taken), `queue:ready` (by
    deadline), `queue:again` (the same, of what somebody had before), `queue:leased` (by the end of the lease),
    `queue:parked` (by when), `item:WORKKEY.KIND` (hash), `due` (work keys by when the ledger may let go of them),
    `lease:LOOP` and `fence:LOOP`, `members` (processes that share this Redis, by their last sign), `well` (those of
    them that take work), `member:ID` (how each is), `others` (when each validator was last heard of on the ledger),
    `counts` (verdicts given), `record:VALIDATOR:NODE` (what a node's verdicts said),
    `forgeries:VALIDATOR:PROVIDER` (forged work of a provider's nodes), `outputs:FINGERPRINT` (whose outputs they were
    first), `near-ties:VALIDATOR:NODE:ARITHMETIC` (deviations of a node's newest files).
    """
    return RedisKeys(f"validator-{pool_id}")
