"""Watches whether this node's delivered work is paid, and stops leasing when it is not.

A pool can take files and pay nothing: its validators stay silent until the work expires, or its escrow or this node's
membership is gone when the work is submitted. Nothing on the ledger punishes that, so the contributor's own worker
bounds the loss: after `MOST_UNPAID` such pieces in a row it leases nothing more until a person resumes it, or until a
piece is paid after all. Work that a validator found fault with does not count: that is the node's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from protocol.errors import MusterError
from protocol.identifiers import address, digest
from protocol.leases import Lease, WorkKey
from protocol.runtime.clock import Clock
from worker.chain.ledger_chain import Payment, WorkerChain
from worker.state import StateDirectory

MOST_UNPAID = 3
"""Pieces in a row that may go unpaid without a verdict."""
MOST_WATCHED = 512
"""Pieces that are watched at a time; the oldest are forgotten."""
LOOKS_A_ROUND = 32
LOOK_EVERY = timedelta(seconds=60)

UNPAYABLE = frozenset({"EscrowTooLow", "NotMember", "WrongStatus"})
"""The ledger's reasons to refuse work that lie with the pool: no escrow, no membership any more, the pool has ended."""

_FILE = "pay"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """A piece of work that was delivered, or that the ledger refused to take."""

    key: WorkKey
    expiry: int
    """Of its lease, Unix time in seconds."""
    refused: str = ""
    """Why the ledger refused it the last time; empty if it took it."""

    @property
    def name(self) -> str:
        return f"step {self.key.step}, index {self.key.index}"


class PayWatch:
    """Remembers delivered work on disk and looks from time to time how it ended.

    Args:
        state: The worker's directory.
        chain: The ledger.
        clock: Whose time is waited.
    """

    def __init__(self, *, state: StateDirectory, chain: WorkerChain, clock: Clock) -> None:
        self._state = state
        self._chain = chain
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._unpaid: list[str] = []
        """The pieces that were not paid, since the last one that was."""
        self._restore()

    @property
    def stopped(self) -> str:
        """Why this worker leases nothing; empty while it does."""
        if len(self._unpaid) < MOST_UNPAID:
            return ""
        return f"{len(self._unpaid)} delivered pieces of work in a row were not paid: " + "; ".join(
            self._unpaid[-MOST_UNPAID:]
        )

    def delivered(self, lease: Lease) -> None:
        """Watches work that the ledger has."""
        self._watch(_Watched(key=lease.key, expiry=lease.expiry))

    def refused(self, lease: Lease, reason: str) -> None:
        """Watches work that the ledger refused. It counts as unpaid if the ledger lacks it when the lease ends.

        Args:
            lease: The work's.
            reason: The name of the contract's error, with or without its arguments. Reasons that do not lie with the
                pool are passed over.
        """
        name = reason.split("(", maxsplit=1)[0].strip()
        if name in UNPAYABLE:
            self._watch(_Watched(key=lease.key, expiry=lease.expiry, refused=name))

    def resume(self) -> None:
        """Leases again, because a person says so. What is watched goes on being watched."""
        if self._unpaid:
            _log.info("leasing-resumed", because="a person said so")
        self._unpaid = []
        self._save()

    async def run(self) -> None:
        """Looks again and again, until it is cancelled."""
        while True:
            try:
                await self.look()
            except MusterError as error:
                _log.info("payments-not-looked-at", detail=error.detail)
            await self._clock.sleep(LOOK_EVERY)

    async def look(self) -> None:
        """Looks at the pieces that were looked at least recently, `LOOKS_A_ROUND` of them.

        Raises:
            MusterError: The chain can't be asked; nothing counts then.
        """
        if not self._watched:
            return
        now = await self._chain.now()
        for name, one in list(self._watched.items())[:LOOKS_A_ROUND]:
            payment = await self._chain.payment(one.key)
            over = now > datetime.fromtimestamp(min(one.expiry, 2**37), UTC)
            if payment is Payment.OPEN or (payment is None and not over):
                self._watched[name] = self._watched.pop(name)  # to the end of the line
                continue
            del self._watched[name]
            self._count(one, payment)
            self._save()

    def _count(self, one: _Watched, payment: Payment | None) -> None:
        was = self.stopped
        match payment:
            case Payment.PAID:
                self._unpaid = []
            case Payment.EXPIRED:
                self._unpaid.append(f"{one.name} expired without a verdict")
            case None if one.refused:
                self._unpaid.append(f"{one.name} was refused by the ledger ({one.refused})")
        del self._unpaid[:-MOST_WATCHED]
        if self.stopped and not was:
            _log.error("leasing-stopped", why=self.stopped, hint="ask the pool's owner; then `muster worker resume`")
        elif was and not self.stopped:
            _log.info("leasing-resumed", because=f"{one.name} was paid")

    def _watch(self, one: _Watched) -> None:
        if self._watched.get(one.key.hash) == one:
            return
        self._watched[one.key.hash] = one
        while len(self._watched) > MOST_WATCHED:
            del self._watched[next(iter(self._watched))]
        self._save()

    def _save(self) -> None:
        rows = [
            {
                "pool_id": one.key.pool_id,
                "run": one.key.run,
                "node": one.key.node,
                "step": one.key.step,
                "index": one.key.index,
                "expiry": one.expiry,
                "refused": one.refused,
            }
            for one in self._watched.values()
        ]
        self._state.write(_FILE, {"watched": rows, "unpaid": self._unpaid})

    def _restore(self) -> None:
        saved = self._state.read(_FILE) or {}
        try:
            watched = [_read(row) for row in saved.get("watched", [])]
            unpaid = [str(each) for each in saved.get("unpaid", [])]
        except (KeyError, TypeError, ValueError, MusterError):  # another release wrote it: begin anew
            return
        self._watched = {one.key.hash: one for one in watched}
        self._unpaid = unpaid


def _read(row: Mapping[str, Any]) -> _Watched:
    key = WorkKey(
        pool_id=int(row["pool_id"]),
        run=digest(row["run"]),
        node=address(row["node"]),
        step=int(row["step"]),
        index=int(row["index"]),
    )
    return _Watched(key=key, expiry=int(row["expiry"]), refused=str(row["refused"]))
