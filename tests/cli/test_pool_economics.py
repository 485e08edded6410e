"""`muster pool economics`: its output about attacks as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cli.output.printing import show_json
from cli.pool.economics import Attacks, attacks, looked_at, show_attacks
from protocol.errors import InvalidInput
from tests.kit.economics import RULES, TERMS, economics


def found(*, validators: int = 4, most_corrupt: int = 2, look_cost: int = 0) -> Attacks:
    return attacks(
        TERMS,
        economics(),
        RULES,
        rows=64,
        validators=validators,
        most_corrupt=most_corrupt,
        look_cost=look_cost,
    )


def test_json_amounts_are_decimal_strings_and_counts_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    show_json(found().raw())
    printed = json.loads(capsys.readouterr().out)
    assert printed["poisoning"] == {
        "caught": 7 / 64,
        "if_caught": "384000000000000000",
        "per_learned_row": "47157894736842105",
    }
    assert [each["corrupt"] for each in printed["collusion"]] == [1, 2]
    assert printed["collusion"][0]["gain"].startswith("-")
    assert [each["nodes"] for each in printed["stalling"]] == [66, 1, 3]
    assert printed["sybils"]["honest_files"] == 32
    assert printed["fees"]["pays"] is True


def test_the_text_states_the_cost_of_each_attack(capsys: pytest.CaptureFixture[str]) -> None:
    show_attacks(found(look_cost=2 * TERMS.verdict_fee))
    printed = capsys.readouterr().out
    for words in ("0.384 MUST", "launders_by_dispute", "ghost: submits", "does not pay: -0.001 MUST a look"):
        assert words in printed


def test_a_pool_without_validators_has_no_collusion_table(capsys: pytest.CaptureFixture[str]) -> None:
    none = found(validators=0, most_corrupt=0)
    assert none.collusion == ()
    show_attacks(none)
    assert "no validators" in capsys.readouterr().err


def test_more_corrupt_validators_than_the_pool_has_are_refused() -> None:
    with pytest.raises(InvalidInput, match="3 of 2 validators"):
        found(validators=2, most_corrupt=3)


def test_the_probability_of_a_look_combines_paid_looks_and_each_honest_validators_own() -> None:
    assert looked_at(TERMS, honest=0, corrupt=1) == 0
    assert looked_at(TERMS, honest=1, corrupt=1) == pytest.approx(1 - 0.95**2)
    assert looked_at(TERMS, honest=3, corrupt=1) == pytest.approx(1 - 0.95**4)
    assert looked_at(TERMS, honest=2, corrupt=2) == pytest.approx(1 - 0.95**2), "an accomplice takes the paid look"
    assert looked_at(replace(TERMS, look_bps=0), honest=3, corrupt=1) == pytest.approx(1 - 0.95**3)
