"""The economy in plain Python: the effect of every action, and the name of the error that refuses it.

Written from the design instead of the contracts: there is no storage layout, no batches and no signatures. Time is that
of the block in which an action happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from eth_abi.abi import encode
from eth_utils.crypto import keccak

ACCEPTED, REJECTED, FORGED = 1, 2, 3
MAX_UNBONDS = 32
MAX_FEES = 3
CONFIRMED_FROM = 4
LOST_DISPUTE_BPS = 1_000
READABLE_BLOCKS = 256
"""The number of recent blocks whose hash a contract can read."""


class Refused(Exception):
    """An action refused with the error of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(slots=True)
class Provider:
    """Stake, its locks, and the unbonding queue: id to (amount, matures at)."""

    active: int = 0
    membership_lock: int = 0
    work_lock: int = 0
    queue: dict[int, tuple[int, int]] = field(default_factory=dict)
    next_id: int = 0

    @property
    def unbonding(self) -> int:
        """Returns the stake in the queue."""
        return sum(amount for amount, _ in self.queue.values())

    @property
    def free(self) -> int:
        """Returns active stake that is not locked."""
        return self.active - self.membership_lock - self.work_lock


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms that the model knows."""

    price: int
    penalty: int
    stake: int
    judge: int
    challenge: int
    dispute: int
    notice: int
    max_nodes: int
    fee: int
    look: int


@dataclass(slots=True)
class Pool:
    """A pool's money, members and bans."""

    terms: Terms
    burns: bool
    pending: Terms | None = None
    pending_at: int = 0
    balance: int = 0
    reserved: int = 0
    accrued: int = 0
    paid: int = 0
    ended: bool = False
    held_until: int = 0
    """The latest expiry at which a lease is still valid after the pool's end."""
    announced: int = 0
    ready_at: int = 0
    lapses_at: int = 0
    validators: tuple[str, ...] = ()
    members: dict[str, int] = field(default_factory=dict)
    former: dict[str, int] = field(default_factory=dict)
    """For each former member the latest expiry at which its leases are still valid."""
    banned: dict[str, int] = field(default_factory=dict)
    """For each banned node and provider the latest expiry at which leases are still valid."""
    may_join: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Work:
    """A work record and the terms under which it was submitted."""

    pool: int
    node: str
    units: int
    max_units: int
    terms: Terms
    since: int
    file: bytes
    status: str = "submitted"
    outcome: int = 0
    judge: str = ""
    judged_block: int = 0
    looker: str = ""
    disputer: str = ""
    disputed_block: int = 0
    seed: int = 0
    juror: str = ""
    opinion: int = 0

    @property
    def reward(self) -> int:
        """Returns the reward of the work."""
        return self.units * self.terms.price

    @property
    def penalty(self) -> int:
        """Returns the penalty if forged; claiming fewer units than the lease allows does not lower it."""
        return self.max_units * self.terms.penalty

    @property
    def reserved(self) -> int:
        """Returns the escrow reserved for the work."""
        return self.reward + MAX_FEES * self.terms.fee

    @property
    def open(self) -> bool:
        """Returns whether reward and penalty are still reserved."""
        return self.status in {"submitted", "provisional", "disputed"}

    @property
    def deadline(self) -> int:
        """Returns the last second of the next step."""
        periods = {"submitted": self.terms.judge, "provisional": self.terms.challenge, "disputed": self.terms.dispute}
        return self.since + periods[self.status]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A validator's finding and the submission it refers to."""

    outcome: int
    file: bytes
    units: int
    decisive: bool


@dataclass(slots=True)
class Economy:
    """The complete state of the economy."""

    unbonding_period: int
    owners: dict[str, str]
    providers: dict[str, Provider]
    pools: dict[int, Pool]
    wallets: dict[str, int]
    addresses: dict[str, str]
    hash_of: Callable[[int], bytes]
    """Returns the hash of a block."""
    now: int
    block: int = 0
    """The number of the block in which the next action happens."""
    capacity: int = 10
    burned: int = 0
    reserve: int = 0
    works: dict[bytes, Work] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    accrued: dict[tuple[int, str], int] = field(default_factory=dict)

    def stake(self, provider: str, amount: int) -> None:
        """Moves tokens into active stake."""
        self._spend(provider, amount)
        self.providers[provider].active += amount

    def begin_unbond(self, provider: str, amount: int) -> None:
        """Puts free stake into the queue."""
        account = self.providers[provider]
        _unless(amount <= account.free, "StakeTooLow")
        first = min(account.queue, default=account.next_id)
        _unless(account.next_id - first < MAX_UNBONDS, "TooManyUnbonds")
        account.active -= amount
        account.queue[account.next_id] = (amount, self.now + self.unbonding_period)
        account.next_id += 1

    def cancel_unbond(self, provider: str, entry: int) -> None:
        """Makes an entry active again."""
        account = self.providers[provider]
        _unless(entry in account.queue, "NoSuchUnbond")
        account.active += account.queue.pop(entry)[0]
        # The numbers of cancelled entries at the end are reused, unless cancelling empties the queue.
        account.next_id = max(account.queue, default=account.next_id - 1) + 1

    def withdraw(self, provider: str) -> None:
        """Pays out what has matured."""
        account = self.providers[provider]
        due = {entry: amount for entry, (amount, at) in account.queue.items() if at <= self.now}
        _unless(bool(due), "NothingMatured")
        for entry, amount in due.items():
            del account.queue[entry]
            self.wallets[provider] += amount

    def fund(self, pool: int, amount: int) -> None:
        """Adds to a pool's money."""
        self._spend("owner", amount)
        self.pools[pool].balance += amount

    def announce_withdrawal(self, pool: int, amount: int) -> None:
        """Gives notice of a withdrawal."""
        entry = self.pools[pool]
        entry.announced, entry.ready_at = amount, self._notice_end(pool)
        entry.lapses_at = 2 * entry.ready_at - self.now

    def withdraw_escrow(self, pool: int, amount: int) -> None:
        """Withdraws free escrow to the owner, after its notice."""
        entry = self.pools[pool]
        _unless(amount <= entry.announced and entry.ready_at <= self.now <= entry.lapses_at, "NotAnnounced")
        _unless(amount <= entry.balance - entry.reserved, "EscrowTooLow")
        entry.announced -= amount
        entry.balance -= amount
        self.wallets["owner"] += amount

    def end(self, pool: int) -> None:
        """Closes a pool."""
        _unless(not self.pools[pool].ended, "WrongStatus")
        self.pools[pool].ended, self.pools[pool].held_until = True, self._notice_end(pool)

    def set_terms(self, pool: int, terms: Terms) -> None:
        """Sets terms that take effect after the notice period."""
        entry = self.pools[pool]
        _unless(not entry.ended, "WrongStatus")
        entry.terms = self.terms(pool)
        entry.pending, entry.pending_at = terms, self.now + entry.terms.notice

    def terms(self, pool: int) -> Terms:
        """Returns the terms in force now."""
        entry = self.pools[pool]
        return entry.pending if entry.pending and entry.pending_at <= self.now else entry.terms

    def retire(self, node: str) -> None:
        """Retires a node."""
        _unless(node not in self.retired, "NotProvider")
        self.retired.add(node)

    def register(self, node: str) -> None:
        """Registers a retired node again."""
        _unless(node in self.retired, "NodeTaken")
        self.retired.discard(node)

    def join(self, pool: int, node: str) -> None:
        """Makes a node a member."""
        entry, provider, terms = self.pools[pool], self.owners[node], self.terms(pool)
        _unless(not entry.ended, "WrongStatus")
        _unless(node not in self.retired, "NotRegistered")
        _unless(not entry.banned.keys() & {node, provider}, "Banned")
        _unless(self.now >= entry.may_join.get(provider, 0), "TooSoon")
        _unless(node not in entry.members, "MemberAlready")
        _unless(len(entry.members) < terms.max_nodes, "PoolFull")
        lock = terms.stake * self.capacity
        _unless(lock <= self.providers[provider].free, "StakeTooLow")
        self.providers[provider].membership_lock += lock
        entry.members[node] = lock
        entry.former.pop(node, None)

    def leave(self, pool: int, node: str) -> None:
        """Ends a membership."""
        _unless(node in self.pools[pool].members, "NotMember")
        self._depart(pool, node)

    def ban(self, pool: int, who: str) -> None:
        """Bans a provider, or a node, which is also removed."""
        _unless(who not in self.pools[pool].banned, "BanUnchanged")
        self.pools[pool].banned[who] = self._notice_end(pool)
        self._depart(pool, who)

    def unban(self, pool: int, who: str) -> None:
        """Lifts a ban."""
        _unless(who in self.pools[pool].banned, "BanUnchanged")
        del self.pools[pool].banned[who]

    def submit(self, key: bytes, work: Work, *, expiry: int) -> None:
        """Submits work under a lease that ends at `expiry`, and reserves its reward, fees and penalty."""
        entry, node, provider = self.pools[work.pool], work.node, self.owners[work.node]
        _unless(key not in self.works, "WorkExists")
        _unless(not entry.ended or expiry <= entry.held_until, "WrongStatus")
        _unless(node in entry.members or expiry <= entry.former.get(node, 0), "NotMember")
        _unless(node not in entry.members or node not in self.retired, "NotRegistered")
        _unless(provider not in entry.banned or expiry <= entry.banned[provider], "Banned")
        _unless(work.reserved <= entry.balance - entry.reserved, "EscrowTooLow")
        _unless(work.penalty <= self.providers[provider].free, "StakeTooLow")
        entry.reserved += work.reserved
        self.providers[provider].work_lock += work.penalty
        self.works[key] = work

    def judge(self, key: bytes, verdict: Verdict, validator: str) -> None:
        """Gives a verdict, the first or a decisive one."""
        work, outcome = self.works[key], verdict.outcome
        _unless(work.status == ("disputed" if verdict.decisive else "submitted"), "WrongStatus")
        _unless((verdict.file, verdict.units) == (work.file, work.units), "OtherSubmission")
        pool = self.pools[work.pool]
        _unless(validator in pool.validators, "NotValidator")
        _unless(self.now <= work.deadline, "TooLate")
        if not verdict.decisive:
            work.status, work.outcome, work.judge, work.since = "provisional", outcome, validator, self.now
            work.judged_block = self.block
            return
        _unless(validator not in {work.judge, work.looker, work.disputer, work.juror}, "ConflictOfInterest")
        _unless(self._drawn(work), "NotYourTurn")
        jury = self._jury(key, work, work.seed)
        turn = work.terms.dispute // (len(jury) + 1)
        _unless(self.now >= work.since + jury.index(validator) * turn, "NotYourTurn")
        if not work.juror and len(pool.validators) >= CONFIRMED_FROM and outcome != work.outcome:
            work.juror, work.opinion = validator, outcome
            return
        final = sorted((work.outcome, work.opinion, outcome))[1] if work.juror else outcome
        self._close(work, final, decided={validator: outcome})

    def confirm(self, key: bytes, outcome: int, validator: str) -> None:
        """Records a second look that agrees."""
        work = self.works[key]
        _unless(work.status == "provisional", "WrongStatus")
        _unless(outcome == work.outcome, "OutcomeDiffers")
        _unless(validator in self.pools[work.pool].validators, "NotValidator")
        _unless(validator != work.judge, "ConflictOfInterest")
        _unless(self.now <= work.deadline, "TooLate")
        age = self.block - work.judged_block - 1
        readable = 1 <= age <= READABLE_BLOCKS
        _unless(not work.looker and readable and work.terms.look > 0, "NoLookWanted")
        work.looker = validator

    def dispute(self, key: bytes, who: str) -> None:
        """Disputes a verdict."""
        work = self.works[key]
        _unless(work.status == "provisional", "WrongStatus")
        _unless(self.now <= work.deadline, "TooLate")
        _unless(who != work.judge, "NotDisputant")
        _unless(work.outcome != ACCEPTED or who in self.pools[work.pool].validators, "NotDisputant")
        work.status, work.disputer, work.since = "disputed", who, self.now
        work.disputed_block, work.seed = self.block, 0

    def expire(self) -> int:
        """Expires all work that was not judged in time; returns the number."""
        due = [work for work in self.works.values() if work.status == "submitted" and work.deadline < self.now]
        for work in due:
            self._release(work)
            work.status = "expired"
        return len(due)

    def finalize(self) -> int:
        """Finalises all due work; returns the number."""
        waiting = {"provisional", "disputed"}
        due = [work for work in self.works.values() if work.status in waiting and work.deadline < self.now]
        for work in due:
            undecided = work.status == "disputed" and work.outcome == FORGED
            self._close(work, REJECTED if undecided else work.outcome, decided={})
        return len(due)

    def claim(self, provider: str) -> None:
        """Pays a provider all its rewards."""
        owed = {pool: self.accrued.pop((pool, provider), 0) for pool in self.pools}
        _unless(any(owed.values()), "NothingToClaim")
        for pool, amount in owed.items():
            self.pools[pool].paid += amount
            self.wallets[provider] += amount

    def _close(self, work: Work, outcome: int, *, decided: dict[str, int]) -> None:
        self._release(work)
        pool, provider = self.pools[work.pool], self.owners[work.node]
        if outcome == work.outcome or not decided:
            paid = [work.judge, work.looker]
        else:
            paid = [work.disputer] if work.disputer in pool.validators else []
        paid += [work.juror] if work.opinion == outcome else []
        paid += [name for name, found in decided.items() if found == outcome]
        for name in filter(None, paid):
            self._pay(work.pool, name, work.terms.fee)
        lost_in_vain = decided and outcome == work.outcome == REJECTED and work.disputer in {work.node, provider}
        work.status, work.outcome = "final", outcome
        if outcome == ACCEPTED:
            self._pay(work.pool, provider, work.reward)
        if lost_in_vain:
            self._slash(work, work.penalty * LOST_DISPUTE_BPS // 10_000)
        if outcome == FORGED:
            self._slash(work, work.penalty)
            self._depart(work.pool, work.node)
            pool.former.pop(work.node, None)
            terms = self.terms(work.pool)
            pool.may_join[provider] = self.now + terms.judge + terms.challenge + terms.dispute

    def _slash(self, work: Work, amount: int) -> None:
        """Takes stake. Open work is always covered, so a slash never has to take from the queue."""
        self.providers[self.owners[work.node]].active -= amount
        if self.pools[work.pool].burns:
            self.burned += amount
        else:
            self.reserve += amount

    def _pay(self, pool: int, who: str, amount: int) -> None:
        self.pools[pool].balance -= amount
        self.pools[pool].accrued += amount
        self.accrued[pool, who] = self.accrued.get((pool, who), 0) + amount

    def turns(self, key: bytes, names: tuple[str, ...]) -> list[str]:
        """Orders validators by their turns in a dispute as of the next block; those without a turn are last.

        Histories choose validators by their place in this order instead of by name, because block hashes decide the
        order:
        a chain reverted to a snapshot has other hashes, and the same choices must lead to the same history.
        """
        work = self.works[key]
        if work.status != "disputed" or not (seed := self._seed(work, self.block + 1)):
            return list(names)
        jury = self._jury(key, work, seed)
        return [*jury, *(name for name in names if name not in jury)]

    def _seed(self, work: Work, block: int) -> int:
        """Returns the seed of a dispute's order for a transaction in this block; 0 if there is none."""
        if work.seed or not 0 < block - work.disputed_block - 1 <= READABLE_BLOCKS:
            return work.seed
        return int.from_bytes(self.hash_of(work.disputed_block + 1), "big") % 2**56 | 1

    def _drawn(self, work: Work) -> bool:
        """Returns whether the order of a dispute's validators is known; records the order."""
        work.seed = self._seed(work, self.block)
        if not work.seed and self.block - work.disputed_block - 1 > READABLE_BLOCKS:
            work.disputed_block = self.block
        return work.seed != 0

    def _jury(self, key: bytes, work: Work, seed: int) -> list[str]:
        """Returns the validators that may decide a dispute, in the order of their turns."""
        out = {work.judge, work.looker, work.disputer, work.juror}
        return sorted(
            (name for name in self.pools[work.pool].validators if name not in out),
            key=lambda name: keccak(encode(["bytes32", "uint256", "address"], [key, seed, self.addresses[name]])),
        )

    def _notice_end(self, pool: int) -> int:
        return self.now + self.terms(pool).notice

    def _release(self, work: Work) -> None:
        self.pools[work.pool].reserved -= work.reserved
        self.providers[self.owners[work.node]].work_lock -= work.penalty

    def _depart(self, pool: int, node: str) -> None:
        lock = self.pools[pool].members.pop(node, None)
        if lock is not None:
            self.pools[pool].former[node] = self._notice_end(pool)
            self.providers[self.owners[node]].membership_lock -= lock

    def _spend(self, who: str, amount: int) -> None:
        _unless(amount <= self.wallets[who], "ERC20InsufficientBalance")
        self.wallets[who] -= amount


def _unless(holds: bool, error: str) -> None:
    if not holds:
        raise Refused(error)
