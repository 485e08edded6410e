"""Initial state of contract tests: one domain, one funded active pool, one provider with one node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_utils.crypto import keccak

from ledger.artifacts import Contract
from tests.kit.contract_client import ZERO, Chain, Receipt

ONE = 10**18
DAY = 86_400
UNBONDING = 7 * DAY
FAR = 2**40 - 1
RUN = keccak(text="run")
DIGEST = keccak(text="digest")
SHA256 = keccak(text="file")

TERMS: dict[str, int] = {
    "pricePerUnit": 10,
    "penaltyPerUnit": 90,
    "stakePerCapacity": 1_000,
    "auditFloorBps": 1_000,
    "lookBps": 0,
    "judgePeriod": 600,
    "challengePeriod": 1_200,
    "disputePeriod": 1_800,
    "noticePeriod": 3_600,
    "maxNodes": 3,
    "minCapacity": 2,
    "verdictFee": 5,
}
FEES = 3 * TERMS["verdictFee"]
"""What a piece of work reserves for verdicts."""
SALT = keccak(text="salt")
ACCEPTED, REJECTED, FORGED = 1, 2, 3
PENDING, ACTIVE, ENDED = 1, 2, 3
LEFT, REMOVED, EVICTED, BANNED = 0, 1, 2, 3
SUBMITTED, PROVISIONAL, DISPUTED, FINAL, EXPIRED = 1, 2, 3, 4, 5

INVITE = "uint256 poolId,uint256 domainId,address node,uint256 nonce,uint256 expiry,string url"
LEASE = (
    "uint256 poolId,bytes32 run,uint64 step,uint32 index,address node,uint64 version,bytes32 digest,"
    "uint64 beaconBlock,bytes32 salt,uint32 groups,uint64 maxUnits,uint64 expiry"
)

MUSTER = Contract.MUSTER
REGISTRY = Contract.COMPUTE_REGISTRY
STAKE = Contract.STAKE_MANAGER
DOMAINS = Contract.DOMAIN_REGISTRY
POOLS = Contract.COMPUTE_POOLS
CHECKPOINTS = Contract.CHECKPOINTS
WORK = Contract.WORK_LEDGER
SECRETS = Contract.AUDIT_SECRETS


def actor(name: str) -> LocalAccount:
    """The account of this name; the same one in every test."""
    made = Account.from_key(keccak(text=f"muster test {name}"))
    assert isinstance(made, LocalAccount)
    return made


ACTORS = (
    "governor",
    "owner",
    "manager",
    "orchestrator",
    "publisher",
    "validator",
    "validator2",
    "validator3",
    "provider",
    "provider2",
    "node",
    "stranger",
)


@dataclass(slots=True)
class World:
    """The chain, the people, and the things that they do most often."""

    chain: Chain
    people: dict[str, LocalAccount] = field(default_factory=dict)
    pool: int = 0
    domain: int = 0
    _nonce: int = 0

    def __getattr__(self, name: str) -> LocalAccount:
        try:
            return self.people[name]
        except KeyError as error:
            raise AttributeError(name) from error

    def build(self) -> None:
        """Deploys and sets the scene."""
        for name in ACTORS:
            self.people[name] = actor(name)
            self.chain.transfer(self.people[name].address, ONE)
        for name in ("node2", "node3", "reserve", "validator4", "validator5"):
            self.people[name] = actor(name)
        self.chain.deploy(self.governor, governor=self.governor.address, unbonding=UNBONDING)
        for name in ("owner", "provider", "provider2", "stranger"):
            self.chain.send(MUSTER, "mint", self.people[name].address, 1_000_000, sender=self.governor)
            for spender in (STAKE, POOLS):
                self.chain.send(MUSTER, "approve", self.chain.address(spender), 2**256 - 1, sender=self.people[name])
        self.domain = self.create_domain(self.reserve.address)
        self.pool = self.create_pool(self.domain)
        self.register("provider", "node")
        self.chain.send(STAKE, "stake", 100_000, sender=self.provider)
        self.join("node")

    def create_domain(self, reserve: str = ZERO) -> int:
        """Opens a domain."""
        made = self.chain.send(DOMAINS, "createDomain", "text", "ipfs://rules", DIGEST, reserve, sender=self.governor)
        return int(made.only("DomainSet")["domainId"])

    def add_validators(self, count: int) -> list[str]:
        """Adds validators with gas money until the pool has `count`; returns their names."""
        names = ["validator", *(f"validator{number}" for number in range(2, count + 1))]
        for name in names[2:]:
            self.chain.transfer(self.people[name].address, ONE)
            self.chain.send(POOLS, "addValidator", self.pool, self.people[name].address, sender=self.owner)
        return names

    def create_pool(self, domain: int, *, active: bool = True, funds: int = 100_000, **terms: int) -> int:
        """Creates a pool of the owner's with two validators."""
        made = self.chain.send(
            POOLS, "createPool", domain, self.roles(), TERMS | terms, "ipfs://pool", sender=self.owner
        )
        pool = int(made.only("PoolCreated")["poolId"])
        for name in ("validator", "validator2"):
            self.chain.send(POOLS, "addValidator", pool, self.people[name].address, sender=self.owner)
        if funds:
            self.chain.send(POOLS, "fund", pool, funds, sender=self.owner)
        if active:
            self.chain.send(POOLS, "activate", pool, sender=self.owner)
        return pool

    def roles(self) -> dict[str, str]:
        """The keys of a pool."""
        return {name: self.people[name].address for name in ("manager", "orchestrator", "publisher")}

    def node_consent(self, provider: str, node: LocalAccount, *, nonce: int = 0, deadline: int = FAR) -> bytes:
        """A node's consent to a provider."""
        fields = "address provider,address node,uint256 nonce,uint256 deadline"
        return self.chain.sign(REGISTRY, node, "NodeConsent", fields, (provider, node.address, nonce, deadline))

    def provider_consent(
        self, provider: LocalAccount, node: str, *, capacity: int = 10, nonce: int = 0, deadline: int = FAR
    ) -> bytes:
        """A provider's consent to a node."""
        fields = "address provider,address node,bytes32 specsHash,uint32 capacity,uint256 nonce,uint256 deadline"
        values = (provider.address, node, DIGEST, capacity, nonce, deadline)
        return self.chain.sign(REGISTRY, provider, "ProviderConsent", fields, values)

    def permit(self, holder: str, spender: str, amount: int) -> tuple[int, bytes, bytes]:
        """A holder's EIP-2612 permit, as v, r and s."""
        nonce = self.chain.call(MUSTER, "nonces", self.people[holder].address)
        fields = "address owner,address spender,uint256 value,uint256 nonce,uint256 deadline"
        values = (self.people[holder].address, spender, amount, nonce, FAR)
        signature = self.chain.sign(MUSTER, self.people[holder], "Permit", fields, values)
        return signature[64], signature[:32], signature[32:64]

    def announce(self, version: int, attempt: int) -> Receipt:
        """Announces a checkpoint."""
        arguments = (self.pool, RUN, version, attempt, DIGEST)
        return self.chain.send(CHECKPOINTS, "announce", *arguments, sender=self.publisher)

    def register(self, provider: str, node: str, *, capacity: int = 10, nonce: int = 0) -> Receipt:
        """Registers a node."""
        owner, machine = self.people[provider], self.people[node]
        consent = self.node_consent(owner.address, machine, nonce=nonce)
        return self.chain.send(REGISTRY, "registerNode", machine.address, DIGEST, capacity, FAR, consent, sender=owner)

    def invite(self, node: str, **changes: Any) -> dict[str, Any]:
        """An invite with a fresh nonce."""
        self._nonce += 1
        base = {
            "poolId": self.pool,
            "node": self.people[node].address,
            "nonce": self._nonce,
            "expiry": FAR,
            "url": "http://orchestrator",
        }
        return base | changes

    def sign_invite(self, invite: dict[str, Any], *, by: str = "orchestrator", domain: int | None = None) -> bytes:
        """The orchestrator's signature of an invite."""
        values = (
            invite["poolId"],
            self.domain if domain is None else domain,
            invite["node"],
            invite["nonce"],
            invite["expiry"],
            invite["url"],
        )
        return self.chain.sign(POOLS, self.people[by], "Invite", INVITE, values)

    def sign_join(self, invite: dict[str, Any], *, by: str) -> bytes:
        """A node's signature of an invite."""
        hashed = self.chain.call(POOLS, "inviteHash", invite)
        return self.chain.sign(POOLS, self.people[by], "Join", "bytes32 inviteHash", (hashed,))

    def sign_leave(self, node: str, *, nonce: int, deadline: int = FAR) -> bytes:
        """A node's signature to leave."""
        fields = "uint256 poolId,address node,uint256 nonce,uint256 deadline"
        values = (self.pool, self.people[node].address, nonce, deadline)
        return self.chain.sign(POOLS, self.people[node], "Leave", fields, values)

    def join(self, node: str, **changes: Any) -> Receipt:
        """Has a stranger carry a node's joining."""
        return self.chain.send(POOLS, "join", *self.joining(node, **changes).values(), sender=self.stranger)

    def joining(self, node: str, **changes: Any) -> dict[str, Any]:
        """An invite with both signatures, as `joinBatch` takes it."""
        invite = self.invite(node, **changes)
        return {
            "invite": invite,
            "orchestratorSignature": self.sign_invite(invite),
            "nodeSignature": self.sign_join(invite, by=node),
        }

    def leave(self, node: str) -> Receipt:
        """Has a node's signature to leave carried."""
        signature = self.sign_leave(node, nonce=self.membership(node).joins)
        arguments = (self.pool, self.people[node].address, FAR, signature)
        return self.chain.send(POOLS, "leavePool", *arguments, sender=self.stranger)

    def membership(self, node: str) -> Any:
        """A node's membership of the pool."""
        return self.chain.call(POOLS, "membershipOf", self.pool, self.people[node].address)

    def member(self, node: str) -> bool:
        """Whether a node is a member of the pool."""
        return bool(self.membership(node).provider != ZERO)

    def lease(self, *, node: str = "node", index: int = 0, **changes: Any) -> dict[str, Any]:
        """A lease of a slot."""
        base = {
            "poolId": self.pool,
            "run": RUN,
            "step": 3,
            "index": index,
            "node": self.people[node].address,
            "version": 2,
            "digest": DIGEST,
            "beaconBlock": 1,
            "salt": SALT,
            "groups": 4,
            "maxUnits": 100,
            "expiry": FAR,
        }
        return base | changes

    def sign_lease(self, lease: dict[str, Any], *, by: str = "orchestrator") -> bytes:
        """The orchestrator's signature of a lease."""
        return self.chain.sign(WORK, self.people[by], "Lease", LEASE, tuple(lease.values()))

    def submission(
        self, lease: dict[str, Any], *, units: int = 100, by: str = "node", leased_by: str = "orchestrator"
    ) -> dict[str, Any]:
        """A submission with both signatures, as `submitBatch` takes it."""
        hashed = self.chain.call(WORK, "leaseHash", lease)
        fields = "bytes32 leaseHash,bytes32 sha256Hash,uint64 units"
        return {
            "lease": lease,
            "leaseSignature": self.sign_lease(lease, by=leased_by),
            "sha256Hash": SHA256,
            "units": units,
            "nodeSignature": self.chain.sign(WORK, self.people[by], "Work", fields, (hashed, SHA256, units)),
        }

    def submit(self, *, units: int = 100, **lease: Any) -> bytes:
        """Submits work and returns its key."""
        item = self.submission(self.lease(**lease), units=units, by=lease.get("node", "node"))
        receipt = self.chain.send(WORK, "submitWork", *item.values(), sender=self.stranger)
        return bytes(receipt.only("WorkSubmitted")["key"])

    def verdict(
        self, key: bytes, outcome: int = ACCEPTED, *, decisive: bool = False, sha256: bytes = SHA256, units: int = 100
    ) -> dict[str, Any]:
        """One item of `judge`, by default on what `submit` submits."""
        return {
            "key": key,
            "sha256Hash": sha256,
            "units": units,
            "decisive": decisive,
            "outcome": outcome,
            "reason": 7,
            "auditHash": DIGEST,
        }

    def judge(self, *keys: bytes, outcome: int = ACCEPTED, by: str = "validator", decisive: bool = False) -> Receipt:
        """Gives the same verdict on some work."""
        verdicts = [self.verdict(key, outcome, decisive=decisive) for key in keys]
        return self.chain.send(WORK, "judge", verdicts, sender=self.people[by])

    def dispute(self, key: bytes, *, by: str = "") -> Receipt:
        """Disputes a verdict, and mines the block whose hash orders the validators and one that can read it.

        By default the provider does; what was accepted only a validator may dispute, the third.
        """
        if not by and self.work(key).outcome == ACCEPTED:
            by = "validator3"
            if not self.chain.call(POOLS, "isValidator", self.pool, self.people[by].address):
                self.chain.send(POOLS, "addValidator", self.pool, self.people[by].address, sender=self.owner)
        by = by or "provider"
        receipt = self.chain.send(WORK, "dispute", key, SHA256, 0, b"", sender=self.people[by])
        self.next_block()
        self.next_block()
        return receipt

    def next_block(self) -> None:
        """Mines a block that changes nothing."""
        self.chain.transfer(self.reserve.address, 1)

    def turn(self, key: bytes, validator: str) -> int:
        """From when on a validator may decide a dispute, Unix time in seconds; 0 if it may not."""
        return int(self.chain.call(WORK, "turnOf", key, self.people[validator].address))

    def confirm(self, key: bytes, *, by: str, outcome: int = ACCEPTED, sha256: bytes = SHA256) -> Receipt:
        """Records a second look that agrees with the first verdict."""
        look = {"key": key, "sha256Hash": sha256, "outcome": outcome, "reason": 7, "auditHash": DIGEST}
        return self.chain.send(WORK, "confirm", [look], sender=self.people[by])

    def withdraw(self, amount: int) -> None:
        """Takes escrow out after its notice; the owner receives it."""
        self.chain.send(POOLS, "announceWithdrawal", self.pool, amount, sender=self.owner)
        self.chain.warp(TERMS["noticePeriod"])
        self.chain.send(POOLS, "withdrawEscrow", self.pool, amount, self.owner.address, sender=self.owner)

    def earned(self, who: str) -> int:
        """What a provider or validator has earned in the pool and not claimed."""
        return int(self.chain.call(WORK, "accruedOf", self.pool, self.people[who].address))

    def sign_dispute(self, key: bytes, *, by: str = "node", deadline: int = FAR) -> bytes:
        """A node's signature of a dispute."""
        fields = "bytes32 key,bytes32 evidenceHash,uint256 deadline"
        return self.chain.sign(WORK, self.people[by], "Dispute", fields, (key, SHA256, deadline))

    def finalize(self, *keys: bytes) -> Receipt:
        """Asks a stranger to make work final."""
        return self.chain.send(WORK, "finalize", list(keys), sender=self.stranger)

    def finish(self, key: bytes, outcome: int) -> Receipt:
        """Judges work and makes it final after its challenge period."""
        self.judge(key, outcome=outcome)
        self.chain.warp(TERMS["challengePeriod"] + 1)
        return self.finalize(key)

    def work(self, key: bytes) -> Any:
        """What the ledger knows of a piece of work."""
        return self.chain.call(WORK, "workOf", key)

    def stake(self, provider: str = "provider") -> Any:
        """A provider's stake."""
        return self.chain.call(STAKE, "stakeOf", self.people[provider].address)

    def escrow(self, pool: int | None = None) -> Any:
        """A pool's money."""
        return self.chain.call(POOLS, "escrowOf", pool or self.pool)

    @contextmanager
    def bare_stake_manager(self) -> Iterator[None]:
        """A second StakeManager with the stranger as its pools and work ledger, for slashes of any size."""
        real = self.chain.contracts[STAKE]
        arguments = (self.chain.address(MUSTER), self.stranger.address, self.stranger.address, UNBONDING)
        bare = self.chain.create(STAKE, *arguments, sender=self.stranger)
        for name in ("stranger", "provider2"):
            self.chain.send(MUSTER, "approve", bare, 2**256 - 1, sender=self.people[name])
        try:
            yield
        finally:
            self.chain.contracts[STAKE] = real

    def slash(self, amount: int, recipient: str) -> int:
        """Has the stranger slash `provider2` in the bare StakeManager; returns the slashed amount."""
        receipt = self.chain.send(STAKE, "slash", self.provider2.address, amount, recipient, sender=self.stranger)
        return int(receipt.only("Slashed")["taken"])

    def balance(self, who: str) -> int:
        """Somebody's tokens."""
        return int(self.chain.call(MUSTER, "balanceOf", self.people[who].address))
