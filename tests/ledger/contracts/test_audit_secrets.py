"""Audit secrets: committed before the draw, revealed after it."""

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


def test_a_secret_is_committed_and_revealed_when_the_next_epoch_has_begun(world: World) -> None:
    first = commit(world, 1)
    assert first.only("SecretCommitted")["commitment"] == commitment(world, 1)
    commit(world, 2)
    assert world.chain.call(SECRETS, "latestEpochOf", world.pool, world.validator.address) == 2
    world.chain.send(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator)
    entry = world.chain.call(SECRETS, "commitmentOf", world.pool, world.validator.address, 1)
    assert (entry.commitment, entry.secret, entry.committedBlock) == (commitment(world, 1), SECRET, first.block)
    assert entry.revealedAt == world.chain.now()
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator) == "RevealedAlready"


def test_a_secret_cannot_be_revealed_during_its_epoch(world: World) -> None:
    commit(world, 1)
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator) == "EpochNotOver"


def test_a_removed_validator_can_still_reveal_its_last_secret(world: World) -> None:
    commit(world, 1)
    world.chain.send(POOLS, "removeValidator", world.pool, world.validator.address, 0, sender=world.owner)
    world.chain.send(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator)
    late = (world.pool, 2, commitment(world, 2))
    assert world.chain.refusal(SECRETS, "commit", *late, sender=world.validator) == "NotValidator"


def test_a_wrong_secret_or_another_validators_secret_is_refused(world: World) -> None:
    commit(world, 1)
    commit(world, 2)
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 1, SHA256, sender=world.validator) == "WrongSecret"
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 1, SECRET, sender=world.validator2) == "WrongSecret"
    assert world.chain.refusal(SECRETS, "reveal", world.pool, 3, SECRET, sender=world.validator) == "WrongSecret"


def test_epochs_are_numbered_from_one_per_validator(world: World) -> None:
    commit(world, 5)
    for epoch in (0, 4, 5):
        arguments = (world.pool, epoch, commitment(world, epoch))
        assert world.chain.refusal(SECRETS, "commit", *arguments, sender=world.validator) == "EpochNotNewer"
    commit(world, 1, by="validator2")


def test_only_validators_commit_and_an_empty_commitment_is_refused(world: World) -> None:
    for name in ("owner", "manager", "stranger"):
        arguments = (world.pool, 1, DIGEST)
        assert world.chain.refusal(SECRETS, "commit", *arguments, sender=world.people[name]) == "NotValidator"
    assert world.chain.refusal(SECRETS, "commit", world.pool, 1, bytes(32), sender=world.validator) == "NoCommitment"
