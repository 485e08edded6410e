"""Store of near-tie budgets, which bound the near-ties in each node's newest files, by validator and arithmetic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from protocol.identifiers import Address, Digest
from protocol.redis.connection import RedisKeys, store_errors
from protocol.verdicts import Outcome, ReasonCode
from rollouts.calibration.near_ties import NearTieCount, newest, over_budget
from validator.domain.submissions import SubmittedWork
from validator.examination.interface import Conclusion

KEPT = timedelta(days=30)
"""Time without an accepted file after which a node's budget is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Near-ties of a node's newest accepted files, and the node's last work that was rejected for near-ties.

    A rejection empties the window, so that the files of an unlucky honest node are not rejected one after another. The
    key of the rejected work is stored, because a repeated examination must reject that work again.
    """

    files: tuple[tuple[str, NearTieCount], ...] = ()
    """Work keys with the near-ties of their files, oldest first."""
    charged: str = ""
    """Key of the last rejected work; empty if there is none."""
    words: str = ""
    """Reason of that rejection."""


class NearTieBudgets:
    """The near-tie budgets of one validator.

    Args:
        redis: Redis client.
        keys: Redis keys of the pool's validators.
        validator: Address of the validator. Each validator has its own budgets, because each validator recomputes
            different rows.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, validator: Address) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._keys = keys
        self._validator = validator

    async def applied(self, work: SubmittedWork, conclusion: Conclusion) -> Conclusion:
        """Counts the near-ties of an accepted file; returns a rejection if the node's budget is then exceeded.

        The method returns other conclusions unchanged: those that are no acceptance, or to which no budget applies.
        Repeated examinations of the same work count once.

        Args:
            work: The submission.
            conclusion: Conclusion of its examination.

        Raises:
            StoreUnavailable: Redis is down.
        """
        ties = conclusion.near_ties
        if conclusion.outcome is not Outcome.ACCEPTED or ties is None:
            return conclusion
        words = await self._count(work.node, f"{conclusion.engine}-{conclusion.dtype}", work.key, ties)
        if not words:
            return conclusion
        return replace(
            conclusion,
            outcome=Outcome.REJECTED,
            reason=ReasonCode.SAMPLING_BUDGET,
            words=f"sampling: {words}; the work is not paid, and no stake is lost",
        )

    async def _count(self, node: Address, arithmetic: str, key: Digest, ties: NearTieCount) -> str:
        name = self._keys.of("near-ties", self._validator, node, arithmetic)
        found: list[str] = []

        async def change(line: Any) -> None:  # noqa: ANN401 - untyped in redis-py
            window = _with(_load(await line.get(name)), key, ties)
            found[:] = [window.words if window.charged == key else ""]
            line.multi()
            line.set(name, _dump(window), ex=int(KEPT.total_seconds()))

        with store_errors():
            await self._redis.transaction(change, name)
        return found[0]


def _with(window: _Window, key: Digest, ties: NearTieCount) -> _Window:
    if window.charged == key:
        return window
    files = (*(each for each in window.files if each[0] != key), (key, ties))
    files = files[-newest(_ties(files)) :]
    words = over_budget(_ties(files))
    return _Window(charged=key, words=words) if words else replace(window, files=files)


def _ties(files: Sequence[tuple[str, NearTieCount]]) -> list[NearTieCount]:
    return [ties for _, ties in files]


def _dump(window: _Window) -> str:
    files = [[key, asdict(ties)] for key, ties in window.files]
    return json.dumps({"files": files, "charged": window.charged, "words": window.words})


def _load(text: bytes | None) -> _Window:
    if text is None:
        return _Window()
    values = json.loads(text)
    return _Window(
        files=tuple((key, NearTieCount(**ties)) for key, ties in values["files"]),
        charged=values["charged"],
        words=values["words"],
    )
