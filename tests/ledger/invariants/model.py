"""The economy in plain Python: what every action does, and the name of the error that refuses it.

Written from the design, not from the contracts: no storage layout, no batches, no signatures. Time is that of the block
in which an action happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ACCEPTED, REJECTED, FORGED = 1, 2, 3
MAX_UNBONDS = 32


class Refused(Exception):
    """The action is refused by the error of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(slots=True)
class Provider:
    """Stake, what binds it, and the queue of stake on its way back: id to (amount, matures at)."""

    active: int = 0
    membership_lock: int = 0
    work_lock: int = 0
    queue: dict[int, tuple[int, int]] = field(default_factory=dict)
    next_id: int = 0

    @property
    def unbonding(self) -> int:
        """What is in the queue."""
        return sum(amount for amount, _ in self.queue.values())

    @property
    def free(self) -> int:
        """Active stake that nothing binds."""
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
    members: dict[str, int] = field(default_factory=dict)
    banned: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Work:
    """A piece of work and the terms that it was submitted under."""

    pool: int
    node: str
    units: int
    terms: Terms
    since: int
    file: bytes
    status: str = "submitted"
    outcome: int = 0
    judge: str = ""
    disputer: str = ""

    @property
    def reward(self) -> int:
        """What it pays."""
        return self.units * self.terms.price

    @property
    def penalty(self) -> int:
        """What it costs if forged."""
        return self.units * self.terms.penalty

    @property
    def open(self) -> bool:
        """Whether its reward and penalty are set aside."""
        return self.status in {"submitted", "provisional", "disputed"}

    @property
    def deadline(self) -> int:
        """The last second of the next step."""
        periods = {"submitted": self.terms.judge, "provisional": self.terms.challenge, "disputed": self.terms.dispute}
        return self.since + periods[self.status]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a validator says, and of which submission."""

    outcome: int
    file: bytes
    units: int
    decisive: bool


@dataclass(slots=True)
class Economy:
    """Everything that money depends on."""

    unbonding_period: int
    owners: dict[str, str]
    providers: dict[str, Provider]
    pools: dict[int, Pool]
    wallets: dict[str, int]
    now: int
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
        # The numbers of cancelled entries at the end are given again, unless that empties the queue.
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

    def withdraw_escrow(self, pool: int, amount: int) -> None:
        """Gives free money back to the owner."""
        entry = self.pools[pool]
        _unless(amount <= entry.balance - entry.reserved, "EscrowTooLow")
        entry.balance -= amount
        self.wallets["owner"] += amount

    def end(self, pool: int) -> None:
        """Closes a pool."""
        _unless(not self.pools[pool].ended, "WrongStatus")
        self.pools[pool].ended = True

    def set_terms(self, pool: int, terms: Terms) -> None:
        """Sets terms that come into force after the notice."""
        entry = self.pools[pool]
        _unless(not entry.ended, "WrongStatus")
        entry.terms = self.terms(pool)
        entry.pending, entry.pending_at = terms, self.now + entry.terms.notice

    def terms(self, pool: int) -> Terms:
        """The terms in force now."""
        entry = self.pools[pool]
        return entry.pending if entry.pending and entry.pending_at <= self.now else entry.terms

    def retire(self, node: str) -> None:
        """Takes a node out of service."""
        _unless(node not in self.retired, "NotProvider")
        self.retired.add(node)

    def register(self, node: str) -> None:
        """Puts a retired node into service again."""
        _unless(node in self.retired, "NodeTaken")
        self.retired.discard(node)

    def join(self, pool: int, node: str) -> None:
        """Makes a node a member."""
        entry, provider, terms = self.pools[pool], self.owners[node], self.terms(pool)
        _unless(not entry.ended, "WrongStatus")
        _unless(node not in self.retired, "NotRegistered")
        _unless(not entry.banned & {node, provider}, "Banned")
        _unless(node not in entry.members, "MemberAlready")
        _unless(len(entry.members) < terms.max_nodes, "PoolFull")
        lock = terms.stake * self.capacity
        _unless(lock <= self.providers[provider].free, "StakeTooLow")
        self.providers[provider].membership_lock += lock
        entry.members[node] = lock

    def leave(self, pool: int, node: str) -> None:
        """Ends a membership."""
        _unless(node in self.pools[pool].members, "NotMember")
        self._depart(pool, node)

    def ban(self, pool: int, who: str) -> None:
        """Bans a node, which puts it out, or a provider."""
        _unless(who not in self.pools[pool].banned, "BanUnchanged")
        self.pools[pool].banned.add(who)
        self._depart(pool, who)

    def unban(self, pool: int, who: str) -> None:
        """Lifts a ban."""
        _unless(who in self.pools[pool].banned, "BanUnchanged")
        self.pools[pool].banned.discard(who)

    def submit(self, pool: int, node: str, key: bytes, file: bytes, units: int) -> None:
        """Submits work and sets its reward and penalty aside."""
        entry, provider = self.pools[pool], self.owners[node]
        _unless(key not in self.works, "WorkExists")
        _unless(not entry.ended, "WrongStatus")
        _unless(node in entry.members, "NotMember")
        _unless(provider not in entry.banned, "Banned")
        _unless(node not in self.retired, "NotRegistered")
        work = Work(pool=pool, node=node, units=units, terms=self.terms(pool), since=self.now, file=file)
        _unless(work.reward <= entry.balance - entry.reserved, "EscrowTooLow")
        _unless(work.penalty <= self.providers[provider].free, "StakeTooLow")
        entry.reserved += work.reward
        self.providers[provider].work_lock += work.penalty
        self.works[key] = work

    def judge(self, key: bytes, verdict: Verdict, validator: str) -> None:
        """Gives a verdict, the first or the one that decides."""
        work, outcome = self.works[key], verdict.outcome
        _unless(work.status == ("disputed" if verdict.decisive else "submitted"), "WrongStatus")
        _unless((verdict.file, verdict.units) == (work.file, work.units), "OtherSubmission")
        _unless(not (verdict.decisive and validator in {work.judge, work.disputer}), "ConflictOfInterest")
        _unless(self.now <= work.deadline, "TooLate")
        if verdict.decisive:
            self._close(work, outcome)
        else:
            work.status, work.outcome, work.judge, work.since = "provisional", outcome, validator, self.now

    def dispute(self, key: bytes, who: str) -> None:
        """Disputes a verdict."""
        work = self.works[key]
        _unless(work.status == "provisional", "WrongStatus")
        _unless(self.now <= work.deadline, "TooLate")
        _unless(who != work.judge, "NotDisputant")
        work.status, work.disputer, work.since = "disputed", who, self.now

    def expire(self) -> int:
        """Closes all work that nobody judged in time; returns how much."""
        due = [work for work in self.works.values() if work.status == "submitted" and work.deadline < self.now]
        for work in due:
            self._release(work)
            work.status = "expired"
        return len(due)

    def finalize(self) -> int:
        """Makes all work final that is due; returns how much."""
        waiting = {"provisional", "disputed"}
        due = [work for work in self.works.values() if work.status in waiting and work.deadline < self.now]
        for work in due:
            undecided = work.status == "disputed" and work.outcome == FORGED
            self._close(work, REJECTED if undecided else work.outcome)
        return len(due)

    def claim(self, provider: str) -> None:
        """Pays a provider all that it earned."""
        owed = {pool: self.accrued.pop((pool, provider), 0) for pool in self.pools}
        _unless(any(owed.values()), "NothingToClaim")
        for pool, amount in owed.items():
            self.pools[pool].paid += amount
            self.wallets[provider] += amount

    def _close(self, work: Work, outcome: int) -> None:
        self._release(work)
        work.status, work.outcome = "final", outcome
        pool, provider = self.pools[work.pool], self.owners[work.node]
        if outcome == ACCEPTED:
            pool.balance -= work.reward
            pool.accrued += work.reward
            self.accrued[work.pool, provider] = self.accrued.get((work.pool, provider), 0) + work.reward
        if outcome == FORGED:
            # Open work is always covered: a slash never has to reach into the queue.
            self.providers[provider].active -= work.penalty
            if pool.burns:
                self.burned += work.penalty
            else:
                self.reserve += work.penalty
            self._depart(work.pool, work.node)

    def _release(self, work: Work) -> None:
        self.pools[work.pool].reserved -= work.reward
        self.providers[self.owners[work.node]].work_lock -= work.penalty

    def _depart(self, pool: int, node: str) -> None:
        lock = self.pools[pool].members.pop(node, None)
        if lock is not None:
            self.providers[self.owners[node]].membership_lock -= lock

    def _spend(self, who: str, amount: int) -> None:
        _unless(amount <= self.wallets[who], "ERC20InsufficientBalance")
        self.wallets[who] -= amount


def _unless(holds: bool, error: str) -> None:
    if not holds:
        raise Refused(error)
