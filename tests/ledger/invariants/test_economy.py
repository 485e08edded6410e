"""Under any actions no token is lost or created, no work is paid twice, and all funds can be withdrawn.

`MUSTER_HISTORIES=2000 python -m pytest tests/ledger/invariants` tries other and more histories than every run does.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ledger.devchain import ChainKind, ChainProcess
from tests.kit.contract_world import World
from tests.ledger.invariants.machine import Histories

HISTORIES = {ChainKind.ANVIL: 8, ChainKind.EMBEDDED: 1}
STEPS = 50
"""Histories are long because withdrawing all funds at the end takes as long as ten steps."""


@pytest.mark.timeout(3600)  # the requested number of histories, however slow the machine is
def test_every_history_matches_the_model_and_ends_with_all_funds_withdrawn(
    economy: World, ledger_process: ChainProcess
) -> None:
    asked = os.environ.get("MUSTER_HISTORIES")
    Histories.world = economy
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=int(asked) if asked else HISTORIES[ledger_process.kind],
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=asked is None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
