"""Numerics classes that validators can verify, in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.store.database import Database
from orchestrator.store.scripts import WriteNumerics
from protocol.identifiers import Address, address


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsRow:
    """Report of one validator."""

    validator: Address
    classes: tuple[str, ...]
    """Names of the numerics classes that the validator can verify."""
    expires_ms: int
    """End of the report, in Unix milliseconds."""


class NumericsStore:
    """Reads and writes validators' reports of numerics classes.

    Args:
        database: Database of the pool.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key = database.key("numerics")

    async def put(self, validator: Address, classes: Sequence[str], *, now_ms: int, life_ms: int) -> None:
        """Writes a validator's report in place of its earlier one; deletes expired reports."""
        call = WriteNumerics(validator=validator, now_ms=now_ms, life_ms=life_ms, classes=tuple(classes))
        await self._database.run(call)

    async def live(self, *, now_ms: int) -> list[NumericsRow]:
        """Returns the reports that have not expired, sorted by validator."""
        found = await self._database.ask("HGETALL", self._key)
        flat = found if isinstance(found, list) else [part for pair in found.items() for part in pair]
        rows = [_row(flat[at].decode(), flat[at + 1].decode()) for at in range(0, len(flat), 2)]
        return sorted((row for row in rows if row.expires_ms > now_ms), key=lambda row: row.validator)


def _row(validator: str, report: str) -> NumericsRow:
    expires, *classes = report.split(" ")
    return NumericsRow(validator=address(validator), classes=tuple(classes), expires_ms=int(expires))
