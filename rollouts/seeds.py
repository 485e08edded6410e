"""A slot's seed and the draws made from it: prompts and target lengths.

`rollouts.sampling` derives the token noise from the same seed. A node can't influence the seed, because all of its
parts are fixed when the slot is leased. Until then only the orchestrator knows the salt. The beacon is the hash of the
block that holds the later of the version's announcement and the node's joining, so the beacon was unknown when those
transactions were sent. Chain and pool id bind a file to one pool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice

from protocol.errors import InvalidInput
from protocol.identifiers import Address, Digest
from protocol.wire.slots import SlotGrant

SLOT_TAG = b"muster-rollout-v2"
PROMPTS_TAG = b"muster-prompts-v1"
TARGETS_TAG = b"muster-targets-v1"
"""Domain separation tags. Changing a tag changes the protocol: existing files then fail their checks."""

MOST_GROUPS = 1 << 20


def slot_seed(
    *,
    chain_id: int,
    pool_id: int,
    run_id: Digest,
    step: int,
    node: Address,
    index: int,
    digest: Digest,
    beacon: Digest,
    salt: Digest,
) -> bytes:
    """Returns the slot's 32-byte seed: SHA-256 over 193 bytes of fixed layout.

    `muster-rollout-v2` (17) ‖ chain id (8, big-endian) ‖ pool (8, big-endian) ‖ run (32) ‖ step (8, big-endian) ‖
    node (20) ‖ index (4, big-endian) ‖ version digest (32) ‖ beacon (32) ‖ salt (32). Every field has a fixed width, so
    no two slots share a pre-image.

    Args:
        chain_id: The chain of the pool's contracts.
        pool_id: The pool that leased the slot.
        run_id: The run (`protocol.identifiers.run_id`).
        step: The training step for which the slot generates rollouts.
        node: The node that holds the lease.
        index: The slot's number for this node in this step.
        digest: The version digest of the policy.
        beacon: The hash of the lease's beacon block, which holds the later of the version's announcement and the node's
            joining.
        salt: The lease's salt, known only to the orchestrator before it signed the lease.

    Raises:
        InvalidInput: Chain id, pool or step does not fit in 8 bytes, or the index does not fit in 4 bytes.
    """
    if not 0 <= step < 1 << 64 or not 0 <= index < 1 << 32:
        raise InvalidInput(
            f"no slot has step {step} and index {index}", hint="a step must fit in 8 bytes, an index in 4"
        )
    if not 0 <= chain_id < 1 << 64 or not 0 <= pool_id < 1 << 64:
        raise InvalidInput(f"no slot is of chain {chain_id} and pool {pool_id}", hint="both must fit in 8 bytes")
    hashed = hashlib.sha256(SLOT_TAG)
    hashed.update(chain_id.to_bytes(8, "big"))
    hashed.update(pool_id.to_bytes(8, "big"))
    hashed.update(_raw(run_id))
    hashed.update(step.to_bytes(8, "big"))
    hashed.update(_raw(node))
    hashed.update(index.to_bytes(4, "big"))
    hashed.update(_raw(digest))
    hashed.update(_raw(beacon))
    hashed.update(_raw(salt))
    return hashed.digest()


def seed_of_grant(grant: SlotGrant) -> bytes:
    """Returns the seed of a leased slot: see `slot_seed`."""
    lease = grant.lease.lease
    return slot_seed(
        chain_id=grant.lease.chain_id,
        pool_id=lease.pool_id,
        run_id=lease.run,
        step=lease.step,
        node=lease.node,
        index=lease.index,
        digest=lease.digest,
        beacon=grant.beacon,
        salt=lease.salt,
    )


def prompt_positions(seed: bytes, eligible_count: int) -> Iterator[int]:
    """Yields positions in the version's table of eligible prompts, endlessly.

    The positions are random permutations (Fisher-Yates), one after another. So all positions are equally likely, and
    no position repeats before every position has occurred.

    Args:
        seed: The slot's seed.
        eligible_count: Number of prompts in the table, at least 1.

    Raises:
        InvalidInput: The table is empty, or the seed is not 32 bytes long.
    """
    if not 1 <= eligible_count < 1 << 64:
        raise InvalidInput(
            f"no slot can draw from {eligible_count} eligible prompts", hint="the table of a version has at least one"
        )
    words = _words(PROMPTS_TAG, seed)
    while True:
        yield from _permutation(words, eligible_count)


def check_groups(groups: int) -> None:
    """Checks the number of groups of a slot.

    Raises:
        InvalidInput: There are no groups, or too many.
    """
    if not 1 <= groups <= MOST_GROUPS:
        raise InvalidInput(f"a slot can't have {groups} groups", hint=f"give 1 to {MOST_GROUPS}")


def draw_targets(seed: bytes, targets: Sequence[int], groups: int) -> list[int]:
    """Draws a target length for each group, uniformly and independently of the prompts.

    Args:
        seed: The slot's seed.
        targets: The possible lengths, in the recipe's order.
        groups: Number of groups in the slot.

    Raises:
        InvalidInput: There are no targets, or there are no groups or too many.
    """
    check_groups(groups)
    if not targets:
        raise InvalidInput(
            "there are no target lengths to draw from", hint="leave the length reward out, or list its targets"
        )
    words = _words(TARGETS_TAG, seed)
    return [targets[_below(words, len(targets))] for _ in range(groups)]


def draw_places(tag: bytes, seed: bytes, count: int, wanted: int) -> list[int]:
    """Draws `wanted` distinct numbers below `count`: the first numbers of a random permutation.

    Args:
        tag: Domain separation tag of this use of the seed.
        seed: 32 bytes.
        count: Exclusive upper bound of the numbers.
        wanted: Number of draws, at most `count`.

    Raises:
        InvalidInput: `wanted` exceeds `count`, or the seed is not 32 bytes long.
    """
    if not 0 <= wanted <= count < 1 << 64:
        raise InvalidInput(f"{wanted} of {count} places can't be drawn")
    return list(islice(_permutation(_words(tag, seed), count), wanted))


def _words(tag: bytes, seed: bytes) -> Iterator[int]:
    """Yields 64-bit words endlessly: four big-endian words per SHA-256 of tag, seed and an 8-byte counter."""
    if len(seed) != 32:
        raise InvalidInput(f"a slot's seed can't have {len(seed)} bytes", hint="give 32 bytes")
    counter = 0
    while True:
        block = hashlib.sha256(tag + seed + counter.to_bytes(8, "big")).digest()
        yield from (int.from_bytes(block[at : at + 8], "big") for at in range(0, 32, 8))
        counter += 1


def _below(words: Iterator[int], bound: int) -> int:
    """Returns an unbiased integer below `bound`, by rejecting words past the largest multiple of `bound`."""
    whole = (1 << 64) - (1 << 64) % bound
    return next(word for word in words if word < whole) % bound


def _permutation(words: Iterator[int], count: int) -> Iterator[int]:
    """Yields a shuffled `range(count)`; memory grows only with the number of swapped places."""
    moved: dict[int, int] = {}
    for place in range(count):
        other = place + _below(words, count - place)
        yield moved.get(other, other)
        moved[other] = moved.get(place, place)


def _raw(name: str) -> bytes:
    """Returns the bytes of an address or digest in canonical form (0x and hex)."""
    return bytes.fromhex(name[2:])
