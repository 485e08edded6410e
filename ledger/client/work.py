"""Work records: submissions, verdicts, disputes and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from enum import IntEnum

from ledger.abi_types import struct_from_abi
from ledger.client.contract import BoundContract, Refusal
from ledger.events.types import RewardsClaimed, VerdictRefused, WorkRefused, WorkSubmitted
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_DIGEST, Address, Digest
from protocol.verdicts import Outcome
from protocol.wire.leases import SignedLease, SignedWorkClaim

LOST_DISPUTE_BPS = 1_000
"""Share of the penalty, in basis points, that the provider loses if the node or the provider disputes a rejection and
the rejection is upheld.

The same as `LOST_DISPUTE_BPS` of `WorkTypes.sol`.
"""

DECISIVE_GAS = 1_000_000
"""Gas for each verdict that may decide a dispute: the minimum gas limit of a transaction is the sum over its verdicts.

The hash of the block after the dispute determines the order of the dispute's validators. The first block whose
transactions can read this hash may contain a verdict whose gas was estimated on the block before, without the hash.
During that estimate the contract refuses the verdict early, so the estimate is far too low, and the transaction would
run out of gas. A decisive verdict takes about 160,000 gas with three validators; a pool may have 64, and a slash may
go through 32 open unbonds. Nobody pays for unused gas.
"""

MOST_DECISIVE_GAS = 10_000_000
"""Maximum of the gas limit that is computed from `DECISIVE_GAS`: nodes and chains limit the gas of one transaction."""


class WorkStatus(IntEnum):
    """State of a work record."""

    SUBMITTED = 1
    PROVISIONAL = 2
    """Has a first verdict; can be disputed until the deadline."""
    DISPUTED = 3
    FINAL = 4
    EXPIRED = 5
    """No validator judged the work in time: neither paid nor slashed."""


@dataclass(frozen=True, slots=True)
class WorkRecord:
    """State of one work item on the ledger. Money is in the token's smallest unit."""

    node: Address
    provider: Address
    pool_id: int
    units: int
    max_units: int
    """Maximum units that the lease allows; the penalty counts all of them."""
    sha256: Digest
    status: WorkStatus
    outcome: Outcome | None
    """The latest verdict; None before the first."""
    reason: int
    judge: Address | None
    looker: Address | None
    """The validator that confirmed the first verdict."""
    disputer: Address | None
    juror: Address | None
    """The first validator that contradicted the first verdict in a dispute; a second validator then decides."""
    opinion: Outcome | None
    """The outcome that the juror voted for."""
    since: datetime
    """When the record entered its current status."""
    deadline: datetime | None
    """Latest time of the next change of status; None if the status can't change any more."""
    reward: int
    penalty: int

    @property
    def lost_dispute_cost(self) -> int:
        """Stake that the provider loses if the node disputes a rejection and the rejection is upheld."""
        return self.penalty * LOST_DISPUTE_BPS // 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A validator's verdict on one submission, or a second look that confirms the first verdict.

    The ledger refuses the verdict if the submission under its key has another file or number of units, which can happen
    after a chain reorganisation.
    """

    key: Digest
    sha256: Digest
    """SHA-256 of the file that was judged."""
    units: int
    """Units of the submission that was judged."""
    outcome: Outcome
    reason: int
    audit_hash: Digest = ZERO_DIGEST
    decisive: bool = False
    """True for a verdict on disputed work, False for a first verdict; ignored for a second look. The ledger refuses a
    verdict if the value does not fit the state of the work."""


@dataclass(frozen=True, slots=True)
class PaidTotals:
    """Totals of a pool, in the token's smallest unit.

    Args:
        accrued: Sum of all rewards and fees of final work, including the claimed part.
        paid: The part that was claimed.
    """

    accrued: int
    paid: int


class WorkBook:
    """Client of the `WorkLedger` contract, for nodes, validators and providers."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at
        self.domain = contract.domain
        """EIP-712 domain of signatures for this contract."""

    # Reads

    async def get(self, key: Digest) -> WorkRecord | None:
        """Returns a work record; None if nothing was submitted under the key."""
        values = await self._contract.read("workOf", key)
        return struct_from_abi(WorkRecord, values) if values[6] else None

    async def accrued(self, pool_id: int, provider: Address) -> int:
        """Returns the unclaimed rewards of a provider in a pool, in the token's smallest unit."""
        return await self._contract.read_number("accruedOf", pool_id, provider)

    async def totals(self, pool_id: int) -> PaidTotals:
        """Returns a pool's totals: rewards and fees of all final work, and the part that was claimed."""
        return await self._contract.read_struct(PaidTotals, "totalsOf", pool_id)

    # Nodes

    async def submit(self, lease: SignedLease, *, sha256: Digest, units: int) -> Digest:
        """Submits the calling node's own work and returns its work key.

        The call omits the node's signature, to save gas: the contract needs the signature only from other senders.

        Raises:
            TransactionReverted: The ledger refuses the work.
        """
        receipt = await self._contract.send("submitWork", *_abi_work(lease, sha256, units, b""))
        return self._contract.events(WorkSubmitted, receipt)[0].key

    async def submission_refusal(self, claim: SignedWorkClaim) -> Refusal | None:
        """Returns why the ledger would refuse a submission now; None if it would accept the work. Costs no gas."""
        return await self._contract.dry_run(claim.lease.lease.key.hash, "submitWork", *_abi_claim(claim))

    async def submit_batch(self, claims: Sequence[SignedWorkClaim]) -> list[Refusal]:
        """Submits work of several nodes; returns the refused submissions with the reason."""
        receipt = await self._contract.send("submitBatch", [_abi_claim(claim) for claim in claims])
        return self._refusals(WorkRefused, receipt)

    async def dispute(
        self, key: Digest, evidence_hash: Digest, *, deadline: datetime | None = None, node_signature: bytes = b""
    ) -> Receipt:
        """Disputes a provisional verdict.

        The node, its provider, and validators other than the one that gave the verdict may call this. Any other caller
        needs the node's signature.
        """
        until = 0 if deadline is None else int(deadline.timestamp())
        return await self._contract.send("dispute", key, evidence_hash, until, node_signature)

    # Validators

    async def judge(self, verdicts: Sequence[Verdict]) -> list[Refusal]:
        """Records verdicts; returns the refused verdicts with the reason."""
        least_gas = min(MOST_DECISIVE_GAS, DECISIVE_GAS * sum(verdict.decisive for verdict in verdicts))
        receipt = await self._contract.send(
            "judge", [_abi_verdict(verdict) for verdict in verdicts], least_gas=least_gas
        )
        return self._refusals(VerdictRefused, receipt)

    async def confirm(self, looks: Sequence[Verdict]) -> list[Refusal]:
        """Records paid second looks that agree with the first verdict; returns the refused looks.

        The ledger refuses a look whose outcome differs from the first verdict. The verdict's `units` and
        `decisive` are not sent.
        """
        receipt = await self._contract.send("confirm", [_abi_confirmation(look) for look in looks])
        return self._refusals(VerdictRefused, receipt)

    async def look_wanted(self, key: Digest) -> bool:
        """Returns whether the pool pays for a second look that is not recorded yet.

        A block hash selects the work for which a second look is paid. The result is also False before that block
        exists, and once it is more than 256 blocks old, because the EVM can't read its hash any more.
        """
        return await self._contract.read_flag("lookWanted", key)

    async def turn_of(self, key: Digest, validator: Address) -> datetime | None:
        """Returns the time from which a validator may decide a dispute.

        None if the validator may not decide the dispute, or if the order of the validators is not drawn yet.
        """
        opens_at = await self._contract.read_number("turnOf", key, validator)
        return datetime.fromtimestamp(opens_at, UTC) if opens_at else None

    async def draw_juries(self, keys: Sequence[Digest]) -> Receipt:
        """Records the block hashes that determine the order of validators in disputes.

        A hash must be recorded while its block is at most 256 blocks old, because the EVM can't read older hashes.
        `judge` records hashes, too. Keys without an open dispute are skipped.
        """
        return await self._contract.send("drawJuries", list(keys))

    # Any account

    async def expire(self, keys: Sequence[Digest]) -> Receipt:
        """Expires work that no validator judged in time. Skips keys that are not due."""
        return await self._contract.send("expire", list(keys))

    async def finalize(self, keys: Sequence[Digest]) -> Receipt:
        """Pays or slashes decided work. Skips keys that are not due."""
        return await self._contract.send("finalize", list(keys))

    # Providers

    async def claim(self, pool_ids: Sequence[int], to: Address) -> int:
        """Sends the calling provider's unclaimed rewards in these pools to `to`; returns the amount."""
        receipt = await self._contract.send("claim", list(pool_ids), to)
        return sum(event.amount for event in self._contract.events(RewardsClaimed, receipt))

    def _refusals(self, kind: type[WorkRefused | VerdictRefused], receipt: Receipt) -> list[Refusal]:
        return [self._contract.refusal(event.key, event.reason) for event in self._contract.events(kind, receipt)]


def _abi_claim(claim: SignedWorkClaim) -> tuple[object, ...]:
    return _abi_work(claim.lease, claim.sha256, claim.units, claim.raw_signature)


def _abi_work(lease: SignedLease, sha256: Digest, units: int, node_signature: bytes) -> tuple[object, ...]:
    return astuple(lease.lease), lease.raw_signature, sha256, units, node_signature


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


def _abi_confirmation(look: Verdict) -> tuple[object, ...]:
    return look.key, look.sha256, int(look.outcome), look.reason, look.audit_hash
