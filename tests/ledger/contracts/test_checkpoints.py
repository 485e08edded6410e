"""Checkpoints: announced by the publisher only, with increasing versions."""

from __future__ import annotations

import pytest

from orchestrator.settings import OrchestratorSettings
from tests.kit.contract_world import CHECKPOINTS, DIGEST, RUN, SHA256, World

MAX_ADVANCE = 256


def test_the_latest_announcement_is_returned_with_its_block(world: World) -> None:
    receipt = world.announce(4, 1)
    assert receipt.only("CheckpointAnnounced")["version"] == 4
    expected = {
        "version": 4,
        "attempt": 1,
        "blockNumber": receipt.block,
        "announcedAt": world.chain.now(),
        "digest": DIGEST,
    }
    assert world.chain.call(CHECKPOINTS, "latestOf", world.pool, RUN) == expected
    assert world.chain.call(CHECKPOINTS, "announcementOf", world.pool, RUN, 4) == expected


def test_the_first_announcement_may_be_of_version_zero(world: World) -> None:
    world.announce(0, 0)
    assert world.chain.call(CHECKPOINTS, "latestOf", world.pool, RUN).digest == DIGEST
    assert world.chain.refusal(CHECKPOINTS, "announce", world.pool, RUN, 0, 0, DIGEST, sender=world.publisher) == (
        "NotNewer"
    )


@pytest.mark.parametrize(
    ("version", "attempt", "fine"),
    [(5, 0, True), (9, 0, True), (4, 2, True), (4, 1, False), (4, 0, False), (3, 9, False), (0, 0, False)],
)
def test_version_and_attempt_only_increase(world: World, version: int, attempt: int, fine: bool) -> None:
    world.announce(4, 1)
    if fine:
        world.announce(version, attempt)
        latest = world.chain.call(CHECKPOINTS, "latestOf", world.pool, RUN)
        assert (latest.version, latest.attempt) == (version, attempt)
    else:
        arguments = (world.pool, RUN, version, attempt, DIGEST)
        assert world.chain.refusal(CHECKPOINTS, "announce", *arguments, sender=world.publisher) == "NotNewer"


@pytest.mark.parametrize("version", [MAX_ADVANCE + 1, 1_000_000, 2**64 - 1])
def test_an_announcement_far_ahead_of_the_latest_is_refused(world: World, version: int) -> None:
    def refusal(version: int, attempt: int = 0) -> str:
        arguments = (world.pool, RUN, version, attempt, DIGEST)
        return str(world.chain.refusal(CHECKPOINTS, "announce", *arguments, sender=world.publisher))

    assert refusal(version) == "TooFarAhead"
    world.announce(MAX_ADVANCE, 2**32 - 1)
    assert refusal(min(MAX_ADVANCE + version, 2**64 - 1)) == "TooFarAhead"
    world.announce(2 * MAX_ADVANCE, 0)
    latest = world.chain.call(CHECKPOINTS, "latestOf", world.pool, RUN)
    assert (latest.version, latest.attempt) == (2 * MAX_ADVANCE, 0)


def test_every_version_that_a_trainer_can_publish_next_may_be_announced(world: World) -> None:
    assert world.chain.call(CHECKPOINTS, "MAX_ADVANCE") == MAX_ADVANCE
    bounds = OrchestratorSettings.model_fields["run_async_level"].metadata
    (most_ahead,) = (bound.le for bound in bounds if hasattr(bound, "le"))
    assert most_ahead + 1 <= MAX_ADVANCE


def test_announcements_are_kept_per_run_and_per_pool(world: World) -> None:
    world.announce(4, 1)
    other = (world.pool, SHA256, 0, 0, DIGEST)
    world.chain.send(CHECKPOINTS, "announce", *other, sender=world.publisher)
    assert world.chain.call(CHECKPOINTS, "latestOf", world.pool, RUN).version == 4
    assert world.chain.call(CHECKPOINTS, "latestOf", world.pool + 1, RUN).digest == bytes(32)


def test_only_the_publisher_announces_and_an_empty_digest_is_refused(world: World) -> None:
    arguments = (world.pool, RUN, 4, 1, DIGEST)
    for name in ("owner", "manager", "orchestrator", "stranger"):
        caller = world.people[name]
        assert world.chain.refusal(CHECKPOINTS, "announce", *arguments, sender=caller) == "NotPublisher"
    empty = (world.pool, RUN, 4, 1, bytes(32))
    assert world.chain.refusal(CHECKPOINTS, "announce", *empty, sender=world.publisher) == "NoDigest"
