"""Names of a validator's keys in Redis."""

from __future__ import annotations

from protocol.redis.connection import RedisKeys


def keys_of(pool_id: int) -> RedisKeys:
    """Returns the keys of the validators of a pool that share this Redis.

    `cursor:NAME` (positions in the ledger's events), `queue:waiting` (set by when they may be taken), `queue:ready` (by
    deadline), `queue:again` (the same, of items that were leased before), `queue:leased` (by the end of the lease),
    `queue:parked` (by when), `item:WORKKEY.KIND` (hash), `due` (work keys by when they may be final),
    `lease:LOOP` and `fence:LOOP`, `members` (processes that share this Redis, by their last sign), `well` (those of
    them that take work), `member:ID` (condition of each), `others` (validators by their last activity on the ledger),
    `counts` (verdicts given), `record:VALIDATOR:NODE` (verdict record of a node),
    `forgeries:VALIDATOR:PROVIDER` (forged work of a provider's nodes), `outputs:FINGERPRINT` (first work with these
    outputs), `near-ties:VALIDATOR:NODE:ARITHMETIC` (deviations of a node's newest files).
    """
    return RedisKeys(f"validator-{pool_id}")
