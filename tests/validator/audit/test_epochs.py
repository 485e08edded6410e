"""Epochs and their secrets, on a real chain."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ledger.client import Ledger
from ledger.client.audits import commitment_of
from ledger.errors import TransactionReverted
from ledger.events.types import SecretCommitted, SecretRevealed
from protocol.identifiers import ZERO_ADDRESS, address
from protocol.identity.keys import Key
from tests.kit.world import POOL, World
from validator.audit.epochs import Epochs, secret_of
from validator.loops.epochs import EpochLoop, EpochTooShort

PLACE: dict[str, Any] = {"chain_id": 31337, "contract": ZERO_ADDRESS, "pool_id": 1, "epoch": 1}


def test_a_secret_is_derived_from_key_chain_contract_pool_and_epoch() -> None:
    key = Key(b"\x01" * 32)
    first = secret_of(key, **PLACE)
    assert first == secret_of(Key(b"\x01" * 32), **PLACE)
    assert first.hex() == VECTOR
    others = [
        secret_of(Key(b"\x02" * 32), **PLACE),
        secret_of(key, **PLACE | {"chain_id": 1}),
        secret_of(key, **PLACE | {"contract": address("0x" + "11" * 20)}),
        secret_of(key, **PLACE | {"pool_id": 2}),
        secret_of(key, **PLACE | {"epoch": 2}),
    ]
    assert len({first, *others}) == 6


async def test_rows_are_drawn_by_the_newest_secret_before_the_submission_even_after_a_restart(world: World) -> None:
    ledger, key = await world.as_("validator"), world.keys["validator"]

    def restarted() -> Epochs:
        return Epochs(ledger, key, pool_id=POOL)

    running = restarted()
    assert await running.latest() == 0
    assert await running.secret_before(await ledger.block() + 1) is None  # no commitment: all rows
    blocks = []
    for epoch in (1, 2, 3):
        assert await restarted().commit_next() == epoch
        blocks.append(await ledger.block())
    for epochs in (running, restarted()):
        assert await epochs.secret_before(blocks[0]) is None  # a commitment in the submission's own block is too late
        for epoch, block in enumerate(blocks, start=1):
            found = await epochs.secret_before(block + 1)
            assert found is not None
            assert (found.epoch, found.block, found.secret) == (epoch, block, epochs.secret(epoch))
            assert found.secret.hex() not in repr(found)
        last = await epochs.secret_before(blocks[2] + 1000)
        assert last is not None
        assert last.epoch == 3
    for epoch in (1, 2):
        assert await running.is_ours_to_reveal(epoch)
        await restarted().reveal(epoch)
        assert not await running.is_ours_to_reveal(epoch)
    with pytest.raises(TransactionReverted, match="EpochNotOver"):
        await running.reveal(3)
    entry = await ledger.audits.get(pool_id=POOL, validator=key.address, epoch=2)
    assert entry is not None
    assert entry.secret == "0x" + running.secret(2).hex()


async def test_a_commitment_made_by_other_software_is_not_used_for_drawing(world: World) -> None:
    ledger, key = await world.as_("validator"), world.keys["validator"]
    other = commitment_of(pool_id=POOL, validator=key.address, epoch=7, secret=b"\x07" * 32)
    await ledger.audits.commit(pool_id=POOL, epoch=7, commitment=other)
    epochs = Epochs(ledger, key, pool_id=POOL)
    assert await epochs.secret_before(await ledger.block() + 1) is None
    assert not await epochs.is_ours_to_reveal(7)
    assert await epochs.commit_next() == 8
    found = await epochs.secret_before(await ledger.block() + 1)
    assert found is not None
    assert found.epoch == 8


async def test_epochs_begin_regularly_and_reveal_the_former_secret_even_after_a_restart(
    world: World,
) -> None:
    ledger, key = await world.as_("validator"), world.keys["validator"]

    def restarted() -> EpochLoop:
        return EpochLoop(ledger, Epochs(ledger, key, pool_id=POOL), pool_id=POOL, length=LENGTH)

    running = restarted()
    for _ in range(3):  # nothing more is due before the epoch's length has passed
        await running.round()
    assert await running_epochs(ledger) == ([1], [])
    await restarted().round()  # killed and restarted within the epoch
    assert await running_epochs(ledger) == ([1], [])
    await world.warp(LENGTH)
    await running.round()
    assert await running_epochs(ledger) == ([1, 2], [1])
    for _ in range(2):
        await world.warp(LENGTH)
        await Epochs(ledger, key, pool_id=POOL).commit_next()  # killed before it could reveal the former secret
    assert await running_epochs(ledger) == ([1, 2, 3, 4], [1])
    await restarted().round()
    assert await running_epochs(ledger) == ([1, 2, 3, 4], [1, 2, 3])


async def test_a_secret_is_not_revealed_while_a_reorg_could_remove_the_next_commitment(world: World) -> None:
    ledger, key = await world.as_("validator"), world.keys["validator"]
    loop = EpochLoop(ledger, Epochs(ledger, key, pool_id=POOL), pool_id=POOL, length=LENGTH, settled=3)
    await loop.round()
    await world.warp(LENGTH)
    shown = []
    for _ in range(5):
        await loop.round()
        shown.append((await running_epochs(ledger))[1])
        await world.controls.mine()
    assert shown[0] == []
    assert shown[-1] == [1]


async def test_no_epoch_begins_after_the_judge_period_became_longer_than_an_epoch(world: World) -> None:
    ledger, key = await world.as_("validator"), world.keys["validator"]
    periods = [LENGTH]

    async def terms() -> Any:
        return SimpleNamespace(judge_period=periods[-1])

    loop = EpochLoop(ledger, Epochs(ledger, key, pool_id=POOL), pool_id=POOL, length=LENGTH, terms=terms)
    await loop.round()
    periods.append(LENGTH + timedelta(seconds=1))
    await loop.round()  # the current epoch is unchanged
    await world.warp(LENGTH)
    with pytest.raises(EpochTooShort):
        await loop.round()
    assert await running_epochs(ledger) == ([1], [])
    periods.append(LENGTH)
    await loop.round()
    assert await running_epochs(ledger) == ([1, 2], [1])


async def running_epochs(ledger: Ledger) -> tuple[list[int], list[int]]:
    """Runs epochs; returns which were committed and which were revealed."""
    committed = await ledger.history(SecretCommitted, pool_id=POOL, second=ledger.address)
    revealed = await ledger.history(SecretRevealed, pool_id=POOL, second=ledger.address)
    return [each.epoch for each in committed], [each.epoch for each in revealed]


LENGTH = timedelta(minutes=5)
VECTOR = "b2342211df652fdef44cc19b4f3456223bad0c937235d663e626a01549dc1d36"
