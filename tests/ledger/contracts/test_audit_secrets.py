"""Audit secrets: bound before the draw, shown after it."""

from __future__ import annotations

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from tests.kit.contract_client import Receipt
from tests.kit.contract_world import DIGEST, POOLS, SECRETS, SHA256, World

SECRET = keccak(text="secret")


def commitment(world: World, epoch: int, secret: bytes = SECRET, by: str = "validator") -> bytes:
    return keccak(
        encode(["uint256", "address", "uint64", "bytes32"], [world.pool, world.people[by].address, epoch, secret])
    )


def commit(world: World, epoch: int, by: str = "validator") -> Receipt:
    return world.chain.send(
        SECRETS, "commit", world.pool, epoch, commitment(world, epoch, by=by), sender=world.people[by]
    )


def test_a_secret_is_bound_and_shown_when_the_next_epoch_has_begun(world: World) -> None:
    first = commit(world, 1)
    assert first.only("SecretCommitted")["commitment"] == commitment(world, 1)
    commit(world, 2)
    assert world.chain.call(SECRETS, "latestEpochOf", world.pool, world.validator.address) == 2
    world.chain.send(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator)
    entry = world.chain.call(SECRETS, "commitmentOf", world.pool, world.validator.address, 1)
    assert (entry.commitment, entry.secret, entry.committedBlock) == (commitment(world, 1), SECRET, first.block)
    assert entry.revealedAt == world.chain.now()
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator) == "RevealedAlready"


def test_a_secret_must_wait_while_its_epoch_lasts(world: World) -> None:
    commit(world, 1)
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator) == "EpochNotOver"


def test_one_who_is_no_validator_any_more_can_still_show_the_last_secret(world: World) -> None:
    commit(world, 1)
    world.chain.send(POOLS, "removeValidator", world.pool, world.validator.address, 0, sender=world.owner)
    world.chain.send(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator)
    late = (world.pool, 2, commitment(world, 2))
    assert world.chain.refusal(SECRETS, "commit", *late, sender=world.validator) == "NotValidator"


def test_another_secret_or_anothers_secret_is_not_taken(world: World) -> None:
    commit(world, 1)
    commit(world, 2)
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 1, SHA256, sender=world.validator) == "WrongSecret"
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator2) == "WrongSecret"
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 3, SECRET, sender=world.validator) == "WrongSecret"


def test_epochs_count_up_from_one_for_each_validator(world: World) -> None:
    commit(world, 5)
    for epoch in (0, 4, 5):
        arguments = (world.pool, epoch, commitment(world, epoch))
        assert world.chain.refusal(SECRETS, "commit", *arguments, sender=world.validator) == "EpochNotNewer"
    commit(world, 1, by="validator2")


def test_only_validators_commit_and_never_to_nothing(world: World) -> None:
    for name in ("owner", "manager", "stranger"):
        arguments = (world.pool, 1, DIGEST)
        assert world.chain.refusal(SECRETS, "commit", *arguments, sender=world.people[name]) == "NotValidator"
    assert world.chain.refusal(SECRETS, "commit", world.pool, 1, bytes(32), sender=world.validator) == "NoCommitment"
