"""Checks whether delivered work is paid, and stops leasing slots when work is not paid.

A pool can take files without paying: its validators may let the work expire without a verdict; or, when the work is
submitted, the escrow is used up or this node's membership has ended. The ledger has no penalty for a pool that does not
pay, so the worker limits the loss. After `MOST_UNPAID` unpaid pieces of work in a row it stops leasing slots, until
another delivered piece is paid or the contributor runs `muster worker resume`. Rejected and forged work does not count,
because validators have judged it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from protocol.errors import MusterError
from protocol.identifiers import address, digest
from protocol.leases import Lease, WorkKey
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from worker.chain.ledger_chain import LedgerChain, Payment
from worker.state import StateDirectory

MOST_UNPAID = 3
"""Number of unpaid pieces of work in a row after which leasing stops."""
MOST_WATCHED = 512
"""Maximum number of pieces of work that are watched at a time. Above it, those that have waited longest for a check are
dropped.
"""
CHECKS_PER_ROUND = 32
"""Maximum number of pieces of work that one round checks on the ledger."""
CHECK_INTERVAL = timedelta(seconds=60)
"""Pause between two rounds of checks."""

UNPAYABLE = frozenset({"EscrowTooLow", "NotMember", "WrongStatus"})
"""Contract errors that the pool causes: too little escrow, membership ended, pool not active."""

_FILE = "pay"
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """A piece of work that was delivered, or that the ledger refused."""

    key: WorkKey
    expiry: int
    """Expiry of the work's lease, in Unix seconds."""
    refused: str = ""
    """Contract error with which the ledger last refused the work; empty if the ledger accepted it."""

    @property
    def name(self) -> str:
        return f"step {self.key.step}, index {self.key.index}"


class PayWatch:
    """Watches delivered work and counts unpaid pieces.

    The state of the watch is on disk, so it survives restarts.

    Args:
        state: The worker's state directory.
        chain: The ledger.
        clock: Clock that measures the pauses.
    """

    def __init__(self, *, state: StateDirectory, chain: LedgerChain, clock: Clock) -> None:
        self._state = state
        self._chain = chain
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._unpaid: list[str] = []
        """Descriptions of the unpaid pieces of work since the last paid one."""
        self._restore()

    @property
    def stopped(self) -> str:
        """Reason why leasing has stopped; empty while leasing is allowed."""
        if len(self._unpaid) < MOST_UNPAID:
            return ""
        return f"{len(self._unpaid)} delivered pieces of work in a row were not paid: " + "; ".join(
            self._unpaid[-MOST_UNPAID:]
        )

    def delivered(self, lease: Lease) -> None:
        """Starts to watch work that the ledger has accepted."""
        self._watch(_Watched(key=lease.key, expiry=lease.expiry))

    def refused(self, lease: Lease, reason: str) -> None:
        """Starts to watch work that the ledger or the relayer refused.

        The work counts as unpaid if it is not on the ledger when its lease ends.

        Args:
            lease: Lease of the work.
            reason: Name of the contract error, with or without arguments. Errors that are not in `UNPAYABLE` are
                ignored.
        """
        name = reason.split("(", maxsplit=1)[0].strip()
        if name in UNPAYABLE:
            self._watch(_Watched(key=lease.key, expiry=lease.expiry, refused=name))

    def resume(self) -> None:
        """Allows leasing again at the contributor's request.

        The worker continues to watch work that it delivered earlier.
        """
        if self._unpaid:
            _log.info("leasing-resumed", because="the contributor resumed it")
        self._unpaid = []
        self._save()

    async def run(self) -> None:
        """Checks payments periodically until the task that runs this method is cancelled."""
        while True:
            try:
                await self.check()
            except MusterError as error:
                _log.info("payments-not-looked-at", detail=error.detail)
            await self._clock.sleep(CHECK_INTERVAL)

    async def check(self) -> None:
        """Checks the `CHECKS_PER_ROUND` pieces of work that were checked least recently.

        Raises:
            MusterError: The chain does not answer. The next call checks the remaining pieces.
        """
        if not self._watched:
            return
        now = await self._chain.now()
        for name, one in list(self._watched.items())[:CHECKS_PER_ROUND]:
            payment = await self._chain.payment(one.key)
            over = now > datetime.fromtimestamp(min(one.expiry, 2**37), UTC)
            if payment is Payment.OPEN or (payment is None and not over):
                self._watched[name] = self._watched.pop(name)  # moved to the end: checked again after all other work
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
        except (KeyError, TypeError, ValueError, MusterError):  # another release wrote the file: start without history
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
