"""Names of a validator's keys in Redis."""

from __future__ import annotations

from protocol.redis.connection import RedisKeys

SCHEMA = 1
"""Version of the data in Redis (docs/compatibility.md)."""


def keys_of(pool_id: int) -> RedisKeys:
    """Returns the Redis keys of a pool's validators, with the prefix `muster:{validator-POOL}:`.

    The following list omits the prefix. `queue:*`, `due`, `members`, `well` and `others` are sorted sets; the text
    after "by" names the score of their elements.

    - `cursor:NAME`: position in the ledger's events.
    - `queue:waiting`: ids of delayed items, by the time from which they may be taken.
    - `queue:ready`, `queue:again`: ids of items that may be taken, by deadline; `again` has those that were leased
      before.
    - `queue:leased`: ids of leased items, by the end of the lease.
    - `queue:parked`: ids of parked items, by the time of parking.
    - `item:WORKKEY.KIND`: hash with the fields of an item.
    - `look:MEMBER`: position at which a process continues its search of `queue:again`.
    - `due`: work keys, by the time from which they may be finalised.
    - `lease:LOOP`, `fence:LOOP`: leader lease of a loop, and its fencing counter.
    - `members`: ids of the processes on this Redis, by their last announcement.
    - `well`: ids of those processes to which others may leave work, by their last announcement.
    - `member:ID`: hash with the condition of a process.
    - `others`: addresses of validators, by their last activity on the ledger.
    - `counts`: hash with the numbers of verdicts by outcome and reason.
    - `record:VALIDATOR:NODE`: verdict record of a node, as one validator keeps it.
    - `forgeries:VALIDATOR:PROVIDER`: hash with the forged work of a provider's nodes.
    - `outputs:FINGERPRINT`: work key of the first file with these outputs.
    - `near-ties:VALIDATOR:NODE:ARITHMETIC`: near-ties of a node's newest files.
    """
    return RedisKeys(f"validator-{pool_id}")
