"""Simulated attacks that gained or harmed others under the rules before contract version 2, and no longer do."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.economy import BEFORE, MAX_UNITS, NOW, TERMS, Line, Rules, main, simulate
from ledger.amounts import UNIT

FILE_PENALTY = TERMS.penalty_per_unit * MAX_UNITS
LEAST_UNITS = 256
"""Work units of a file in the simulation: 64 answers of four tokens."""


@cache
def line(rules: Rules, strategy: str, *, share: int = 10, steps: int = 50) -> Line:
    [found] = simulate(rules, strategies=[strategy], shares=[share], steps=steps, seed=1, proven=True)
    return found


def test_a_simulation_is_determined_by_its_seed() -> None:
    first, again, other = (
        simulate(NOW, strategies=["poisoner"], shares=[10], steps=10, seed=seed)[0].result for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("strategy", ["ghost", "one-unit", "late-upload", "shopper", "launderer", "slow", "poisoner"])
def test_no_attack_gains_under_current_rules_and_honest_nodes_lose_nothing(strategy: str) -> None:
    found = line(NOW, strategy)
    assert found.gains < 0.05, "a gain above zero is due to a few slots"
    assert found.result.honest_lost == 0


@pytest.mark.parametrize("strategy", ["ghost", "one-unit", "late-upload", "shopper", "launderer"])
def test_no_attack_stops_more_than_a_twentieth_of_the_steps_under_current_rules(strategy: str) -> None:
    assert line(NOW, strategy, steps=150).stopped <= 0.05


@pytest.mark.parametrize("strategy", ["ghost", "launderer"])
def test_constant_requests_by_a_third_of_the_nodes_stop_at_most_a_twentieth_of_the_steps(strategy: str) -> None:
    assert line(NOW, strategy, share=30, steps=150).stopped <= 0.05


def test_slow_nodes_stop_few_steps_once_their_delivery_rate_is_known() -> None:
    assert line(BEFORE, "slow").stopped > 0.6
    assert line(NOW, "slow", share=1, steps=100).stopped <= 0.05
    assert line(NOW, "slow", share=10, steps=400).stopped <= 0.05


def test_one_ghost_stopped_the_run_under_the_former_rules() -> None:
    assert line(BEFORE, "ghost", share=1).stopped > 0.95


def test_a_poisoned_file_now_costs_the_penalty_of_its_whole_lease() -> None:
    before, now = line(BEFORE, "one-unit").result, line(NOW, "one-unit").result
    assert 0 < before.lost < TERMS.penalty_per_unit * 3
    assert before.bad_rows > 0
    assert now.bad_rows == 0
    assert now.lost >= FILE_PENALTY, "once for each node, which is then throttled for hours"


def test_late_uploads_lost_nothing_under_the_former_rules_and_are_now_audited_in_full() -> None:
    before, now = line(BEFORE, "late-upload").result, line(NOW, "late-upload").result
    assert before.lost == 0
    assert before.bad_rows > 0
    assert before.bad_row_costs is not None
    assert before.bad_row_costs < 0.01 * UNIT
    assert (now.bad_rows, now.lost >= FILE_PENALTY) == (0, True)


def test_choosing_slots_gained_under_the_former_rules_and_gains_nothing_now() -> None:
    assert line(BEFORE, "shopper", share=30, steps=150).gains > 0.05
    assert abs(line(NOW, "shopper", share=30, steps=150).gains) < 0.02


def test_one_corrupt_validator_of_four_laundered_most_files_formerly_and_few_now() -> None:
    before, now = line(BEFORE, "launderer"), line(NOW, "launderer", steps=200)
    assert before.gains > 0.1
    assert before.result.bad_rows > 0.9
    assert now.gains < -1
    assert now.result.bad_rows < 0.15, "the share that it accepts as the first judge before a second look"


def test_the_plain_poisoner_pays_at_least_the_price_of_a_file_per_row() -> None:
    """The ledger's minimum penalty deters on average; only a higher audit floor makes a bad row more expensive."""
    costs = [line(NOW, "poisoner", share=30, steps=steps).result.bad_row_costs for steps in (50, 100)]
    for cost in costs:
        assert cost is not None
        assert cost >= 0.8 * TERMS.price_per_unit * LEAST_UNITS


def test_both_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--steps", "3", "--share", "10", "--strategies", "ghost,slow"])
    printed = capsys.readouterr().out
    assert "before: 3 steps" in printed
    assert "now: 3 steps" in printed


@pytest.mark.parametrize("arguments", [["--share", "31"], ["--steps", "0"], ["--strategies", "saint"]])
def test_unsupported_simulation_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
