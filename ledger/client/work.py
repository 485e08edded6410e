"""Work, from the lease to the money: submissions, verdicts, disputes, rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum

from ledger.abi_types import struct_from_abi
from ledger.client.contract import BoundContract
from ledger.events.types import RewardsClaimed, VerdictRefused, WorkRefused, WorkSubmitted
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_DIGEST, Address, Digest
from protocol.leases import Lease
from protocol.verdicts import Outcome

LOST_DISPUTE_BPS = 1_000
"""The part of the penalty that a dispute of a rejection costs if it stands (`LOST_DISPUTE_BPS` of `WorkTypes.sol`)."""


class WorkStatus(IntEnum):
    """Where a piece of work is on its way to money."""

    SUBMITTED = 1
    PROVISIONAL = 2
    """Judged once; can be disputed until its deadline."""
    DISPUTED = 3
    FINAL = 4
    EXPIRED = 5
    """Nobody judged it in time: unpaid, blameless."""


@dataclass(frozen=True, slots=True)
class WorkRecord:
    """A piece of work on the ledger. Money is in the token's smallest unit."""

    node: Address
    provider: Address
    pool_id: int
    units: int
    max_units: int
    """Of the lease; the penalty is for all of them."""
    sha256: Digest
    status: WorkStatus
    outcome: Outcome | None
    """The verdict that counts so far; None before the first."""
    reason: int
    judge: Address | None
    looker: Address | None
    """The validator that confirmed the first verdict."""
    disputer: Address | None
    juror: Address | None
    """The first validator that contradicted the first verdict in a dispute; a second one decides."""
    opinion: Outcome | None
    """What the juror found."""
    since: datetime
    """When it came to its status."""
    deadline: datetime | None
    """Until when the next step may come; None if none may."""
    reward: int
    penalty: int

    @property
    def lost_dispute_cost(self) -> int:
        """The stake that node or provider loses by disputing a rejection that a validator then decides to be one."""
        return self.penalty * LOST_DISPUTE_BPS // 10_000


@dataclass(frozen=True, slots=True)
class Submission:
    """A leased piece of work, ready to be carried to the ledger by anybody."""

    lease: Lease
    lease_signature: bytes
    sha256: Digest
    units: int
    node_signature: bytes
    """May be empty if the carrier is the node itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A validator's finding on one piece of work, and of which submission it is.

    The ledger refuses it if another file, or another number of units, was submitted under the key: a reorganisation can
    bring that about.
    """

    key: Digest
    sha256: Digest
    """Of the file that was judged."""
    units: int
    """Of the submission that was judged."""
    outcome: Outcome
    reason: int
    audit_hash: Digest = ZERO_DIGEST
    decisive: bool = False
    """Whether it answers a dispute. The ledger takes a first verdict and a decisive one never for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """A second look by another validator that agrees with the first verdict, and that the terms pay for."""

    key: Digest
    sha256: Digest
    """Of the file that was examined."""
    outcome: Outcome
    """What was found; the ledger refuses it if another outcome stands there."""
    reason: int
    audit_hash: Digest


@dataclass(frozen=True, slots=True)
class Refusal:
    """An item of a batch that the ledger did not take; the others are not touched by it."""

    key: Digest
    reason: str
    """The name of the contract's error with its arguments."""


@dataclass(frozen=True, slots=True)
class PaidTotals:
    """What a pool has paid so far."""

    accrued: int
    paid: int


class WorkBook:
    """Reads work and does everything that nodes, validators and providers may do with it."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at
        self.domain = contract.domain
        """What signatures for this contract are bound to."""

    # Reads

    async def get(self, key: Digest) -> WorkRecord | None:
        """A piece of work; None if it was never submitted."""
        values = await self._contract.read("workOf", key)
        return struct_from_abi(WorkRecord, values) if values[6] else None

    async def accrued(self, pool_id: int, provider: Address) -> int:
        """What a provider has earned in a pool and not claimed."""
        return await self._contract.read_number("accruedOf", pool_id, provider)

    async def totals(self, pool_id: int) -> PaidTotals:
        """What a pool has paid so far."""
        return await self._contract.read_struct(PaidTotals, "totalsOf", pool_id)

    # Nodes

    async def submit(self, submission: Submission) -> Digest:
        """Submits work and returns its key; reverts with the reason if the ledger does not take it."""
        receipt = await self._contract.send("submitWork", *_abi_submission(submission))
        return self._contract.events(WorkSubmitted, receipt)[0].key

    async def refusal_of(self, submission: Submission) -> Refusal | None:
        """Why the ledger would not take a submission now; None if it would. Costs no gas."""
        reason = await self._contract.refusal("submitWork", *_abi_submission(submission))
        return Refusal(submission.lease.key.hash, reason) if reason else None

    async def submit_batch(self, submissions: Sequence[Submission]) -> list[Refusal]:
        """Carries many submissions; returns those that were refused, with the reason."""
        receipt = await self._contract.send("submitBatch", [_abi_submission(item) for item in submissions])
        return self._refusals(WorkRefused, receipt)

    async def dispute(
        self, key: Digest, evidence_hash: Digest, *, deadline: datetime | None = None, node_signature: bytes = b""
    ) -> Receipt:
        """Disputes a provisional verdict: the node, its provider, another validator, or who carries the node's word."""
        until = 0 if deadline is None else int(deadline.timestamp())
        return await self._contract.send("dispute", key, evidence_hash, until, node_signature)

    # Validators

    async def judge(self, verdicts: Sequence[Verdict]) -> list[Refusal]:
        """Gives verdicts; returns those that the ledger did not take, with the reason."""
        receipt = await self._contract.send("judge", [_abi_verdict(verdict) for verdict in verdicts])
        return self._refusals(VerdictRefused, receipt)

    async def confirm(self, looks: Sequence[Confirmation]) -> list[Refusal]:
        """Records second looks that agree with first verdicts; returns those that the ledger did not take."""
        receipt = await self._contract.send("confirm", [_abi_confirmation(look) for look in looks])
        return self._refusals(VerdictRefused, receipt)

    async def look_wanted(self, key: Digest) -> bool:
        """Whether the terms pay for a second look at provisional work that nobody has looked at yet.

        False also while the block that draws it is not there, and 256 blocks later, when its hash can't be read.
        """
        return await self._contract.read_flag("lookWanted", key)

    async def turn_of(self, key: Digest, validator: Address) -> datetime | None:
        """From when on a validator may decide a dispute; None if it may not, or if the order is not drawn yet."""
        opens_at = await self._contract.read_number("turnOf", key, validator)
        return datetime.fromtimestamp(opens_at, UTC) if opens_at else None

    async def draw_juries(self, keys: Sequence[Digest]) -> Receipt:
        """Records the hashes that order the validators of disputes; needed within 256 blocks, and `judge` does it too.

        Keys without an open dispute are skipped.
        """
        return await self._contract.send("drawJuries", list(keys))

    # Anybody

    async def expire(self, keys: Sequence[Digest]) -> Receipt:
        """Lets go of work that nobody judged in time. Keys that are not due are skipped."""
        return await self._contract.send("expire", list(keys))

    async def finalize(self, keys: Sequence[Digest]) -> Receipt:
        """Pays and slashes what is decided. Keys that are not due are skipped."""
        return await self._contract.send("finalize", list(keys))

    # Providers

    async def claim(self, pool_ids: Sequence[int], to: Address) -> int:
        """Sends all that the caller has earned in these pools to `to`; returns how much it was."""
        receipt = await self._contract.send("claim", list(pool_ids), to)
        return sum(event.amount for event in self._contract.events(RewardsClaimed, receipt))

    def _refusals(self, kind: type[WorkRefused | VerdictRefused], receipt: Receipt) -> list[Refusal]:
        return [Refusal(e.key, self._contract.explain(e.reason)) for e in self._contract.events(kind, receipt)]


def _abi_submission(item: Submission) -> tuple[object, ...]:
    return _abi_lease(item.lease), item.lease_signature, item.sha256, item.units, item.node_signature


def _abi_verdict(verdict: Verdict) -> tuple[object, ...]:
    return (
        verdict.key,
        verdict.sha256,
        verdict.units,
        verdict.decisive,
        int(verdict.outcome),
        verdict.reason,
        verdict.audit_hash,
    )


def _abi_confirmation(look: Confirmation) -> tuple[object, ...]:
    return look.key, look.sha256, int(look.outcome), look.reason, look.audit_hash


def _abi_lease(lease: Lease) -> tuple[object, ...]:
    return (
        lease.pool_id,
        lease.run,
        lease.step,
        lease.index,
        lease.node,
        lease.version,
        lease.digest,
        lease.beacon_block,
        lease.salt,
        lease.groups,
        lease.max_units,
        lease.expiry,
    )
