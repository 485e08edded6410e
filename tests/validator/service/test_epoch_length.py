"""A validator whose epochs are too short for its pool does not start."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledger.errors import ChainUnavailable
from protocol.identity.keys import Key
from tests.kit.validators import PoolWithValidators
from validator import service
from validator.loops.epochs import EpochTooShort, check_epoch_length
from validator.settings import ValidatorSettings


@pytest.mark.parametrize(("length", "refused"), [(59, True), (60, False), (3600, False)])
def test_an_epoch_is_at_least_as_long_as_the_judge_period(length: int, refused: bool) -> None:
    told = pytest.raises(EpochTooShort, match="epoch_s is 59, but the pool gives validators 60 s to judge")
    with told if refused else nullcontext() as refusal:
        check_epoch_length(timedelta(seconds=length), judge_period=timedelta(seconds=60))
    if refusal is not None:
        assert "set epoch_s of the validator to 60 or more" in refusal.value.hint


@pytest.mark.parametrize("answers", [True, False])
async def test_the_epoch_length_is_checked_at_startup_unless_the_chain_is_down(
    answers: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed: list[bool] = []

    async def terms() -> Any:
        if not answers:
            raise ChainUnavailable("no answer")
        return SimpleNamespace(judge_period=timedelta(minutes=1))

    async def aclose() -> None:
        closed.append(True)

    monkeypatch.setattr(service, "open_chain", lambda *_, **__: SimpleNamespace(terms=terms, aclose=aclose))
    monkeypatch.setattr(service, "own_key", lambda _: Key.generate())
    settings = ValidatorSettings(pool_id=1, orchestrator="https://x.example", deployment=tmp_path / "d", epoch_s=30)
    if answers:
        with pytest.raises(EpochTooShort):
            await service.check_pool(settings)
    else:
        await service.check_pool(settings)
    assert closed == [True]


async def test_an_epoch_that_would_be_too_short_does_not_begin(pool: PoolWithValidators) -> None:
    """This also holds if the chain was down when the validator started; without an epoch all rows are recomputed."""
    validator = pool.validator(epoch_s=3599)
    with pytest.raises(EpochTooShort):
        await validator.loops.audit.epochs()
    assert (await validator.status())["epoch"] == 0
