"""A seed makes random numbers repeatable, but only within its block."""

from __future__ import annotations

from datetime import timedelta
from random import SystemRandom

import pytest

from protocol.http.tokens import new_token
from protocol.identity.keys import Key
from protocol.runtime import randomness
from protocol.runtime.randomness import jittered, randbelow, randbits, seeded, shuffled, token_bytes, token_hex, unit


def _drawn() -> list[object]:
    pause = jittered(timedelta(hours=1))
    return [token_bytes(8), token_hex(8), randbelow(1 << 40), randbits(64), unit(), pause, shuffled(range(50))]


def test_a_seed_repeats_all_numbers_and_another_seed_changes_them() -> None:
    with seeded(7):
        first = _drawn()
    with seeded(7):
        again = _drawn()
    with seeded(8):
        other = _drawn()
    assert first == again
    assert all(mine != theirs for mine, theirs in zip(first, other, strict=True))


def test_the_operating_system_is_the_source_outside_a_block_even_after_an_error() -> None:
    with pytest.raises(KeyError), seeded(7):
        raise KeyError
    assert isinstance(randomness._unpredictable, SystemRandom)
    assert token_hex(16) != token_hex(16)
    before = unit()
    with seeded(7):
        unit()
    assert unit() != before


def test_a_seed_affects_no_credentials() -> None:
    with seeded(7):
        first = Key.generate().address, new_token()
    with seeded(7):
        assert (Key.generate().address, new_token()) != first


def test_tokens_have_the_requested_length() -> None:
    assert (len(token_bytes(20)), len(token_hex(20))) == (20, 40)
    assert {randbelow(2) for _ in range(200)} == {0, 1}
    assert 0 <= randbits(3) < 8
