"""Numerics classes that the pool's validators can verify, so that nodes generate no work that nobody can verify."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta

from orchestrator.store.numerics import NumericsRow, NumericsStore
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock, milliseconds
from protocol.wire.runs import is_numerics_class
from protocol.wire.validators import NumericsReceipt

LIFE = timedelta(minutes=15)
"""Time for which a report counts. A validator that stopped, or lost its role, counts until then."""

REPEAT_AFTER = LIFE / 3
"""Time after which a validator is told to repeat its report, so that two repetitions may fail."""

_CACHED_FOR = timedelta(seconds=1)
"""Time for which reports are cached, because every answer of `/run/step` depends on them."""


class ValidatorNumerics:
    """The numerics classes that validators of the pool reported.

    Args:
        store: Store of reports.
        clock: Clock of their expiry.
    """

    def __init__(self, store: NumericsStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._read_at: float | None = None
        self._reports: Sequence[NumericsRow] = ()

    async def report(self, validator: Address, classes: Iterable[str]) -> NumericsReceipt:
        """Stores a validator's report in place of its earlier one."""
        now_ms, unique = unix_ms(self._clock.now()), tuple(dict.fromkeys(classes))
        await self._store.put(validator, unique, now_ms=now_ms, life_ms=milliseconds(LIFE))
        self._read_at = None
        return NumericsReceipt(
            validator=validator,
            classes=unique,
            expires_at_ms=now_ms + milliseconds(LIFE),
            again_in_ms=milliseconds(REPEAT_AFTER),
        )

    async def reports(self) -> Sequence[NumericsRow]:
        """Returns the reports that have not expired, cached for one second."""
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at >= _CACHED_FOR.total_seconds():
            self._reports = await self._store.live(now_ms=unix_ms(self._clock.now()))
            self._read_at = now
        return self._reports

    async def unverifiable(self, arithmetic: Sequence[str]) -> tuple[str, ...]:
        """Returns those of the names that are numerics classes which no validator can verify.

        The result is empty if no validator has reported, because older validators do not report.
        """
        classes = [name for name in arithmetic if is_numerics_class(name)]
        if not classes:  # the usual case, which needs no read
            return ()
        reports = await self.reports()
        verified = validators_by_class(reports)
        return tuple(name for name in classes if name not in verified) if reports else ()


def validators_by_class(reports: Iterable[NumericsRow]) -> Counter[str]:
    """Returns the number of validators that can verify each class."""
    return Counter(name for report in reports for name in report.classes)
