"""Generates histories and compares the contracts with the model and with invariants of money."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from eth_abi.abi import encode
from eth_utils.crypto import keccak
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ledger.artifacts import Contract
from tests.kit.contract_client import ZERO, Receipt
from tests.kit.contract_world import (
    DAY,
    DIGEST,
    DOMAINS,
    FAR,
    MUSTER,
    POOLS,
    REGISTRY,
    RUN,
    SHA256,
    STAKE,
    TERMS,
    UNBONDING,
    WORK,
    World,
)
from tests.ledger.invariants.model import Economy, Pool, Provider, Refused, Terms, Verdict, Work

OWNERS = {"node": "provider", "node2": "provider", "node3": "provider2"}
VALIDATORS = ("validator", "validator2", "validator3", "validator4")
SEATS = (VALIDATORS, VALIDATORS[:3])
"""Validators of the first pool, where one alone overturns no verdict, and of the second, where one does."""
SECOND: dict[str, Any] = {"lookBps": 10_000, "verdictFee": 11}
"""Terms of the second pool, in which every verdict may be confirmed by a second look."""
PRICES: tuple[dict[str, int], ...] = (
    {},
    {"pricePerUnit": 3, "penaltyPerUnit": 27},
    {"challengePeriod": 60, "stakePerCapacity": 2_000},
    SECOND,
)
STATUS = {"submitted": 1, "provisional": 2, "disputed": 3, "final": 4, "expired": 5}

places = st.integers(0, len(VALIDATORS) - 1)
"""Places of a validator: in the order of a dispute, or else in `VALIDATORS`."""
nodes = st.sampled_from(sorted(OWNERS))
providers = st.sampled_from(sorted(set(OWNERS.values())))
first_or_second = st.integers(0, 1)
amounts = st.sampled_from([1, 500, 9_000, 40_000]) | st.integers(1, 120_000)


def known_terms(changes: dict[str, int]) -> Terms:
    """Returns the terms that the model needs."""
    terms = TERMS | changes
    return Terms(
        price=terms["pricePerUnit"],
        penalty=terms["penaltyPerUnit"],
        stake=terms["stakePerCapacity"],
        judge=terms["judgePeriod"],
        challenge=terms["challengePeriod"],
        dispute=terms["disputePeriod"],
        notice=terms["noticePeriod"],
        max_nodes=terms["maxNodes"],
        fee=terms["verdictFee"],
        look=terms["lookBps"],
    )


class Histories(RuleBasedStateMachine):
    """One history: Hypothesis chooses the actions, the model predicts the results."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.chain = self.world.chain
        self.people = self.world.people
        self.restore = self.chain.restored()
        self.restore.__enter__()
        self.pools = [self.world.pool, self.second_pool()]
        self.consents = dict.fromkeys(OWNERS, 1)
        self.finals: list[bytes] = []
        self.model = self.beginning()

    def second_pool(self) -> int:
        """Returns a pool whose domain burns penalties."""
        return int(self.world.chain.call(POOLS, "poolCount"))

    def beginning(self) -> Economy:
        """Returns the model of the world as it was built."""
        pools = self.pools
        balances = {name: self.world.balance(name) for name in ("owner", "provider", "provider2", *VALIDATORS)}
        made = Economy(
            unbonding_period=UNBONDING,
            owners=OWNERS,
            providers={name: Provider(active=self.world.stake(name).active) for name in set(OWNERS.values())},
            pools={
                pool: Pool(terms=known_terms(terms), burns=pool == pools[1], validators=seats)
                for pool, seats, terms in zip(pools, SEATS, ({}, SECOND), strict=True)
            },
            wallets=balances,
            addresses={name: self.people[name].address for name in VALIDATORS},
            hash_of=self.hash_of,
            now=self.chain.now(),
            block=self.chain.block(),
        )
        for pool in pools:
            made.pools[pool].balance = self.world.escrow(pool).balance
        made.join(pools[0], "node")
        made.join(pools[1], "node")
        made.join(pools[1], "node3")
        return made

    def hash_of(self, block: int) -> bytes:
        """Returns the hash of a block of the chain."""
        return bytes.fromhex(self.chain.rpc("eth_getBlockByNumber", hex(block), False)["hash"][2:])

    def teardown(self) -> None:
        """Withdraws all funds of all parties: no contract may keep any."""
        try:
            self.everybody_goes_home()
        finally:
            self.restore.__exit__(None, None, None)

    @rule(data=st.data(), provider=providers, amount=amounts)
    def a_provider_moves_its_stake(self, data: st.DataObject, provider: str, amount: int) -> None:
        """Adds stake, begins to unbond, cancels the unbonding, or withdraws what has matured."""
        match data.draw(st.sampled_from(["stake", "stake", "unbond", "unbond", "cancel", "withdraw"])):
            case "stake":
                self.stake(provider, amount)
            case "unbond":
                free = self.model.providers[provider].free
                self.begin_unbond(provider, data.draw(st.sampled_from([amount, max(free, 1), free + 1])))
            case "cancel":
                queue = sorted(self.model.providers[provider].queue)
                self.cancel_unbond(provider, data.draw(st.sampled_from([*queue, 99])))
            case _:
                self.withdraw(provider)

    @rule(data=st.data(), which=first_or_second, amount=amounts)
    def the_owner_moves_money_and_terms(self, data: st.DataObject, which: int, amount: int) -> None:
        """Funds, withdraws free escrow, sets terms, and rarely ends a pool."""
        acts = ["fund", "fund", "fund", "announce", "announce", "take", "take", "terms", "terms", "end"]
        match data.draw(st.sampled_from(acts)):
            case "fund":
                self.fund(which, amount)
            case "announce":
                self.announce_withdrawal(which, amount)
                self.model.now += data.draw(st.sampled_from([0, self.model.terms(self.pools[which]).notice]))
            case "take":
                pool = self.model.pools[self.pools[which]]
                free = pool.balance - pool.reserved
                self.withdraw_escrow(which, data.draw(st.sampled_from([amount, max(free, 1), free + 1])))
            case "terms":
                self.set_terms(which, data.draw(st.sampled_from(PRICES)))
            case _:
                if data.draw(st.integers(0, 2)) == 2:
                    self.end(which)

    @rule(data=st.data(), which=first_or_second, node=nodes)
    def a_membership_changes(self, data: st.DataObject, which: int, node: str) -> None:
        """Has a node join, leave, be evicted, banned, unbanned, retired or registered again."""
        acts = ["join", "join", "join", "leave", "evict", "ban", "unban", "retire", "register", "register"]
        match data.draw(st.sampled_from(acts)):
            case "join":
                self.join(which, node)
            case "leave":
                self.leave(which, node, by_provider=data.draw(st.booleans()))
            case "evict":
                self.evict(which, node)
            case "ban":
                self.ban(which, data.draw(st.sampled_from([node, OWNERS[node]])))
            case "unban":
                banned = sorted(self.model.pools[self.pools[which]].banned) or [node]
                self.unban(which, data.draw(st.sampled_from(banned)))
            case "retire":
                self.retire(node)
            case _:
                self.register(data.draw(st.sampled_from(sorted(self.model.retired) or [node])))

    @rule(data=st.data(), which=first_or_second, units=st.integers(1, 100), count=st.integers(1, 3))
    def a_node_submits(self, data: st.DataObject, which: int, units: int, count: int) -> None:
        """Submits work, mostly of a member."""
        node = data.draw(st.sampled_from(sorted(self.model.pools[self.pools[which]].members) or ["node"]) | nodes)
        notice = self.model.terms(self.pools[which]).notice
        lasts = data.draw(st.sampled_from([FAR, notice // 2]))
        former = data.draw(st.booleans())
        for index in data.draw(st.lists(st.integers(0, 99), min_size=count, max_size=count)):
            expiry = lasts if lasts == FAR else self.model.now + 10 + lasts
            if former and node in self.model.pools[self.pools[which]].members:
                self.leave(which, node, by_provider=False)
            self.submit(which, node, index, units, expiry=expiry)

    @rule(data=st.data(), which=first_or_second, units=st.integers(1, 100), outcome=st.integers(1, 3))
    def work_runs_its_course(self, data: st.DataObject, which: int, units: int, outcome: int) -> None:
        """Takes work from submission to its end, with or without disputes, on time or late."""
        pool = self.pools[which]
        node = data.draw(st.sampled_from(sorted(self.model.pools[pool].members) or ["node"]))
        index = data.draw(st.integers(100, 10_000))
        self.submit(which, node, index, units)
        key = work_key(pool, self.people[node].address, index)
        if key not in self.model.works:
            return
        self.judge(key, self.fitting(key, outcome), 0)
        match data.draw(st.sampled_from(["undisputed", "confirmed", "undecided", "upheld", "decided", "decided"])):
            case "undisputed":
                pass
            case "confirmed":  # the block right after the verdict is too early
                self.confirm(key, self.model.works[key].outcome, VALIDATORS[1])
                self.confirm(key, self.model.works[key].outcome, VALIDATORS[1])
            case "undecided":
                self.dispute(key, OWNERS[node])
            case "upheld":
                self.dispute(key, OWNERS[node])
                self.uphold(key)
            case _:
                self.dispute(key, OWNERS[node])
                for _ in range(data.draw(st.integers(1, 3))):
                    self.decide(data, key)
        if self.model.works[key].open:
            self.model.now = max(self.model.now, self.model.works[key].deadline + data.draw(st.integers(-2, 0)))
        self.settle("finalize", "WorkFinal")
        if data.draw(st.booleans()):
            self.claim(OWNERS[node])

    @precondition(lambda self: self.model.works)
    @rule(data=st.data(), outcome=st.integers(1, 3), place=places)
    def a_validator_judges(self, data: st.DataObject, outcome: int, place: int) -> None:
        """Gives a first verdict, a second one, one of the wrong kind, or one on another submission."""
        for key in data.draw(st.lists(st.sampled_from(self.some_works()), min_size=1, max_size=3)):
            fitting = self.fitting(key, outcome)
            stale = {
                "none": fitting,
                "kind": replace(fitting, decisive=not fitting.decisive),
                "file": replace(fitting, file=DIGEST),
                "units": replace(fitting, units=fitting.units + 1),
            }
            self.judge(key, stale[data.draw(st.sampled_from(["none", "none", "none", *stale]))], place)

    @precondition(lambda self: any(work.status == "provisional" for work in self.model.works.values()))
    @rule(data=st.data(), validator=st.sampled_from(VALIDATORS), decided=st.booleans(), outcome=st.integers(1, 3))
    def somebody_disputes(self, data: st.DataObject, validator: str, decided: bool, outcome: int) -> None:
        """Has the provider or a validator dispute, and perhaps another validator decide."""
        works = self.model.works
        key = data.draw(st.sampled_from(sorted(key for key, work in works.items() if work.status == "provisional")))
        provider = OWNERS[works[key].node]
        self.dispute(key, data.draw(st.sampled_from([provider, validator])))
        if decided:
            self.judge(key, self.fitting(key, outcome), data.draw(places))
            self.decide(data, key)
            self.decide(data, key)

    @precondition(lambda self: self.model.works)
    @rule(data=st.data(), outcome=st.integers(1, 3), validator=st.sampled_from(VALIDATORS))
    def a_validator_looks_again(self, data: st.DataObject, outcome: int, validator: str) -> None:
        """Records a second look that agrees with the first verdict, or that differs from it."""
        key = data.draw(st.sampled_from(self.some_works()))
        found = data.draw(st.sampled_from([self.model.works[key].outcome or outcome, outcome]))
        self.confirm(key, found, validator)

    @precondition(lambda self: self.model.works)
    @rule(
        wait=st.sampled_from([0, 0, 600, 1_200, 1_800]),
        claimant=providers | st.sampled_from(VALIDATORS),
        claims=st.booleans(),
    )
    def what_is_due_is_settled(self, wait: int, claimant: str, claims: bool) -> None:
        """Expires or finalises due work; its provider may claim."""
        self.model.now += wait
        self.settle("expire", "WorkExpired")
        self.settle("finalize", "WorkFinal")
        if claims:
            self.claim(claimant)

    @rule(seconds=st.sampled_from([60, 3_600, UNBONDING]))
    def time_passes(self, seconds: int) -> None:
        """Lets time pass without an action."""
        self.model.now += seconds

    @precondition(lambda self: any(work.open for work in self.model.works.values()))
    @rule(data=st.data(), late=st.integers(-1, 0), settled=st.booleans())
    def a_deadline_comes(self, data: st.DataObject, late: int, settled: bool) -> None:
        """Moves time so that the next action is in the last second of a window, or in the first one after it."""
        deadlines = sorted({work.deadline for work in self.model.works.values() if work.open})
        self.model.now = max(self.model.now, data.draw(st.sampled_from(deadlines)) + late)
        if settled:
            self.settle(*data.draw(st.sampled_from([("expire", "WorkExpired"), ("finalize", "WorkFinal")])))

    def stake(self, provider: str, amount: int) -> None:
        self.do(STAKE, "stake", amount, by=provider, model=lambda m: m.stake(provider, amount))

    def begin_unbond(self, provider: str, amount: int) -> None:
        self.do(STAKE, "beginUnbond", amount, by=provider, model=lambda m: m.begin_unbond(provider, amount))

    def cancel_unbond(self, provider: str, entry: int) -> None:
        self.do(STAKE, "cancelUnbond", entry, by=provider, model=lambda m: m.cancel_unbond(provider, entry))

    def withdraw(self, provider: str) -> None:
        self.do(STAKE, "withdraw", by=provider, model=lambda m: m.withdraw(provider))

    def fund(self, which: int, amount: int) -> None:
        pool = self.pools[which]
        self.do(POOLS, "fund", pool, amount, by="owner", model=lambda m: m.fund(pool, amount))

    def announce_withdrawal(self, which: int, amount: int) -> None:
        pool = self.pools[which]
        model = self.model.announce_withdrawal
        self.do(POOLS, "announceWithdrawal", pool, amount, by="owner", model=lambda _: model(pool, amount))

    def withdraw_escrow(self, which: int, amount: int) -> None:
        pool, to = self.pools[which], self.people["owner"].address
        model = self.model.withdraw_escrow
        self.do(POOLS, "withdrawEscrow", pool, amount, to, by="owner", model=lambda _: model(pool, amount))

    def set_terms(self, which: int, change: dict[str, int]) -> None:
        pool, terms = self.pools[which], known_terms(change)
        self.do(POOLS, "setTerms", pool, TERMS | change, by="owner", model=lambda m: m.set_terms(pool, terms))

    def end(self, which: int) -> None:
        pool = self.pools[which]
        self.do(POOLS, "end", pool, by="owner", model=lambda m: m.end(pool))

    def retire(self, node: str) -> None:
        address = self.people[node].address
        self.do(REGISTRY, "retireNode", address, by=OWNERS[node], model=lambda m: m.retire(node))

    def register(self, node: str) -> None:
        owner, machine = self.people[OWNERS[node]], self.people[node]
        consent = self.world.node_consent(owner.address, machine, nonce=self.consents[node])
        arguments = (machine.address, DIGEST, 10, FAR, consent)
        if self.do(REGISTRY, "registerNode", *arguments, by=OWNERS[node], model=lambda m: m.register(node)):
            self.consents[node] += 1

    def join(self, which: int, node: str) -> None:
        pool = self.pools[which]
        invite = self.world.invite(node, poolId=pool)
        signature = self.world.sign_invite(invite, domain=which + 1)
        self.do(POOLS, "join", invite, signature, b"", by=node, model=lambda m: m.join(pool, node))

    def leave(self, which: int, node: str, by_provider: bool) -> None:
        pool, address = self.pools[which], self.people[node].address
        by = OWNERS[node] if by_provider else node
        self.do(POOLS, "leavePool", pool, address, 0, b"", by=by, model=lambda m: m.leave(pool, node))

    def evict(self, which: int, node: str) -> None:
        pool, address = self.pools[which], self.people[node].address
        self.do(POOLS, "evict", pool, address, "", by="manager", model=lambda m: m.leave(pool, node))

    def ban(self, which: int, who: str) -> None:
        pool, function = self.pools[which], "ban" if who in OWNERS else "banProvider"
        address = self.people[who].address
        self.do(POOLS, function, pool, address, "", by="manager", model=lambda m: m.ban(pool, who))

    def unban(self, which: int, who: str) -> None:
        pool, function = self.pools[which], "unban" if who in OWNERS else "unbanProvider"
        self.do(POOLS, function, pool, self.people[who].address, by="manager", model=lambda m: m.unban(pool, who))

    def submit(self, which: int, node: str, index: int, units: int, *, expiry: int = FAR) -> None:
        pool = self.pools[which]
        lease = self.world.lease(node=node, index=index, poolId=pool, expiry=expiry)
        signature = self.world.sign_lease(lease)
        key = work_key(pool, self.people[node].address, index)
        arguments = (lease, signature, SHA256, units, b"")

        def model(economy: Economy) -> None:
            work = Work(
                pool=pool,
                node=node,
                units=units,
                max_units=lease["maxUnits"],
                terms=economy.terms(pool),
                since=economy.now,
                file=SHA256,
            )
            economy.submit(key, work, expiry=expiry)

        self.do(WORK, "submitWork", *arguments, by=node, model=model)

    def judge(self, key: bytes, verdict: Verdict, place: int) -> None:
        """Has the validator at this place give a verdict."""
        validator = self.model.turns(key, VALIDATORS)[place]
        item = self.world.verdict(
            key, verdict.outcome, decisive=verdict.decisive, sha256=verdict.file, units=verdict.units
        )
        self.say("judge", item, validator, lambda: self.model.judge(key, verdict, validator))

    def decide(self, data: st.DataObject, key: bytes) -> None:
        """Has a validator whose turn it may be decide a dispute."""
        work = self.model.works[key]
        if work.status == "disputed":
            self.model.now += data.draw(st.sampled_from([0, work.terms.dispute // 5, work.terms.dispute // 2]))
            verdict = self.fitting(key, data.draw(st.integers(1, 3)))
            self.judge(key, verdict, data.draw(st.just(0) | places))

    def uphold(self, key: bytes) -> None:
        """Has validators agree with the disputed verdict, late enough for the turn of each."""
        work = self.model.works[key]
        for place in range(len(VALIDATORS) - 1):
            if work.status == "disputed":
                self.model.now = max(self.model.now, work.deadline - work.terms.dispute // 8)
                self.judge(key, self.fitting(key, work.outcome), place)

    def confirm(self, key: bytes, outcome: int, validator: str) -> None:
        look = {"key": key, "sha256Hash": SHA256, "outcome": outcome, "reason": 7, "auditHash": DIGEST}
        self.say("confirm", look, validator, lambda: self.model.confirm(key, outcome, validator))

    def say(self, function: str, item: dict[str, Any], validator: str, model: Callable[[], None]) -> None:
        """Has a validator give one verdict, which contract and model must accept or refuse alike."""
        refused = ""
        self.step()
        try:
            model()
        except Refused as refusal:
            refused = refusal.name
        receipt = self.sent(WORK, function, [item], by=validator)
        given = [event.args["reason"] for event in receipt.events if event.name == "VerdictRefused"]
        assert given == ([keccak(text=SIGNATURES[refused])[:4]] if refused else [])

    def fitting(self, key: bytes, outcome: int) -> Verdict:
        """Returns the kind of verdict that the work waits for, on the submitted file."""
        work = self.model.works[key]
        return Verdict(outcome, work.file, work.units, decisive=work.status == "disputed")

    def dispute(self, key: bytes, who: str) -> None:
        self.do(WORK, "dispute", key, SHA256, 0, b"", by=who, model=lambda m: m.dispute(key, who))

    def claim(self, provider: str) -> None:
        to = self.people[provider].address
        self.do(WORK, "claim", self.pools, to, by=provider, model=lambda m: m.claim(provider))

    def some_works(self) -> list[bytes]:
        """Returns the keys of submitted work, open work first."""
        works = self.model.works
        return sorted(works, key=lambda key: (not works[key].open, works[key].since, key))[:6]

    def settle(self, function: str, event: str) -> None:
        """Expires or finalises all due work."""
        self.step()
        expected = getattr(self.model, function)()
        receipt = self.sent(WORK, function, sorted(self.model.works), by="stranger")
        assert receipt.names().count(event) == expected

    def step(self) -> None:
        """Advances the model by one second and one block before the next action."""
        self.model.now += 1
        self.model.block += 1

    def do(self, contract: Contract, function: str, *arguments: Any, by: str, model: Any) -> bool:
        """Does one action in the world and in the model, and compares; returns whether it succeeded."""
        self.step()
        refused = ""
        try:
            model(self.model)
        except Refused as refusal:
            refused = refusal.name
        result = self.chain.attempt(contract, function, *arguments, sender=self.people[by], at=self.model.now)
        got = "" if isinstance(result, Receipt) else result.name
        assert got == refused, f"{function}: the contract says {got or 'yes'!r}, the model {refused or 'yes'!r}"
        return not refused

    def sent(self, contract: Contract, function: str, *arguments: Any, by: str) -> Receipt:
        """Sends a transaction that must succeed."""
        result = self.chain.attempt(contract, function, *arguments, sender=self.people[by], at=self.model.now)
        assert isinstance(result, Receipt), result
        assert result.block == self.model.block, "each action has its own block"
        self.finals += [event.args["key"] for event in result.events if event.name == "WorkFinal"]
        return result

    @invariant()
    def everything_holds(self) -> None:
        """Compares the chain with the model, and both with the invariants."""
        model, address = self.model, self.chain.address
        names, earners = sorted(model.providers), [*sorted(model.providers), *VALIDATORS]
        people = [*earners, "owner", "stranger", "reserve"]
        holders = [self.people[name].address for name in people] + [address(c) for c in (STAKE, POOLS, WORK)]
        calls: list[tuple[Contract, str, tuple[Any, ...]]] = [(MUSTER, "totalSupply", ())]
        calls += [(MUSTER, "balanceOf", (holder,)) for holder in holders]
        calls += [(STAKE, "stakeOf", (self.people[name].address,)) for name in names]
        calls += [(POOLS, "escrowOf", (pool,)) for pool in self.pools]
        calls += [(WORK, "totalsOf", (pool,)) for pool in self.pools]
        calls += [(WORK, "accruedOf", (pool, self.people[name].address)) for pool in self.pools for name in earners]
        calls += [(POOLS, "memberCount", (pool,)) for pool in self.pools]
        keys = sorted(model.works)
        calls += [(WORK, "workOf", (key,)) for key in keys]
        answers = iter(self.chain.call_many(calls))
        supply = next(answers)
        balances = dict(zip([*people, "stakes", "escrows", "rewards"], (next(answers) for _ in holders), strict=True))
        stakes = {name: next(answers) for name in names}
        escrows = {pool: next(answers) for pool in self.pools}
        totals = {pool: next(answers) for pool in self.pools}
        accrued = {(pool, name): next(answers) for pool in self.pools for name in earners}
        members = {pool: next(answers) for pool in self.pools}
        works = dict(zip(keys, answers, strict=True))

        assert sum(balances.values()) == supply, "tokens are conserved"
        assert balances["stakes"] == sum(stake.active + stake.unbonding for stake in stakes.values())
        assert balances["escrows"] == sum(escrow.balance for escrow in escrows.values())
        assert balances["rewards"] == sum(accrued.values()) == sum(t.accrued - t.paid for t in totals.values())
        for pool in self.pools:
            assert totals[pool].paid <= totals[pool].accrued, "paid is at most accrued"
            due = [work.reserved for work in model.works.values() if work.pool == pool and work.open]
            assert sum(due) == escrows[pool].reserved <= escrows[pool].balance, "exactly the open work is reserved"
        for name in names:
            stake = stakes[name]
            mine = [w.penalty for w in works.values() if w.provider == self.people[name].address]
            still = [w.penalty for w in works.values() if w.provider == self.people[name].address and w.status < 4]
            assert sum(still) == stake.workLock <= sum(mine), "exactly the open work is locked"
            assert stake.active >= stake.membershipLock + stake.workLock, "locked stake exists"
        assert len(set(self.finals)) == len(self.finals), "work becomes final once"

        assert {name: (s.active, s.unbonding, s.membershipLock, s.workLock) for name, s in stakes.items()} == {
            name: (p.active, p.unbonding, p.membership_lock, p.work_lock) for name, p in model.providers.items()
        }
        assert {pool: (e.balance, e.reserved) for pool, e in escrows.items()} == {
            pool: (p.balance, p.reserved) for pool, p in model.pools.items()
        }
        assert {pool: (t.accrued, t.paid) for pool, t in totals.items()} == {
            pool: (p.accrued, p.paid) for pool, p in model.pools.items()
        }
        assert accrued == {at: model.accrued.get(at, 0) for at in accrued}
        assert members == {pool: len(entry.members) for pool, entry in model.pools.items()}
        assert {name: balances[name] for name in model.wallets} == model.wallets
        assert balances["reserve"] == model.reserve
        assert {key: (work.status, work.outcome) for key, work in works.items()} == {
            key: (STATUS[work.status], work.outcome) for key, work in model.works.items()
        }

    def everybody_goes_home(self) -> None:
        """Ends all work, returns all stake and rewards, and checks that the escrow is free again."""
        model = self.model
        for function, event in (("expire", "WorkExpired"), ("finalize", "WorkFinal")):
            model.now += DAY
            self.settle(function, event)
        self.everything_holds()
        for pool in self.pools:
            for node in sorted(model.pools[pool].members):
                self.leave(self.pools.index(pool), node, by_provider=True)
            if balance := model.pools[pool].balance:
                self.announce_withdrawal(self.pools.index(pool), balance)
                model.now += model.terms(pool).notice
                self.withdraw_escrow(self.pools.index(pool), balance)
        for name, account in sorted(model.providers.items()):
            model.now += UNBONDING
            if account.queue:
                self.withdraw(name)
            if account.active:
                self.begin_unbond(name, account.active)
                model.now += UNBONDING
                self.withdraw(name)
        for name in (*sorted(model.providers), *VALIDATORS):
            if any(model.accrued.get((pool, name)) for pool in self.pools):
                self.claim(name)
        left = [(MUSTER, "balanceOf", (self.chain.address(contract),)) for contract in (STAKE, POOLS, WORK)]
        assert self.chain.call_many(list(left)) == [0, 0, 0], "every contract is empty"


def work_key(pool: int, node: str, index: int) -> bytes:
    """Returns the key of a slot in the world's run and step."""
    return keccak(encode(["uint256", "bytes32", "address", "uint64", "uint32"], [pool, RUN, node, 3, index]))


SIGNATURES = {
    "WrongStatus": "WrongStatus(bytes32,uint8)",
    "OtherSubmission": "OtherSubmission(bytes32,bytes32,uint64)",
    "ConflictOfInterest": "ConflictOfInterest(bytes32,address)",
    "TooLate": "TooLate(bytes32,uint256)",
    "NotValidator": "NotValidator(uint256,address)",
    "NotYourTurn": "NotYourTurn(bytes32,address)",
    "NoLookWanted": "NoLookWanted(bytes32)",
    "OutcomeDiffers": "OutcomeDiffers(bytes32,uint8)",
}


def prepare(world: World) -> None:
    """Adds to the world three nodes that pay their own gas, two stakes, and a pool that burns penalties."""
    domain = world.create_domain(ZERO)
    world.create_pool(domain, funds=60_000, **SECOND)
    for pool, seats in zip((1, 2), SEATS, strict=True):
        for name in seats[2:]:
            world.chain.send(POOLS, "addValidator", pool, world.people[name].address, sender=world.owner)
    for name in VALIDATORS[3:]:
        world.chain.transfer(world.people[name].address, 10**18)
    for node in ("node2", "node3"):
        world.chain.transfer(world.people[node].address, 10**18)
        world.register(OWNERS[node], node)
    world.chain.send(STAKE, "stake", 50_000, sender=world.provider2)
    for node in ("node", "node3"):
        item = world.invite(node, poolId=2)
        world.chain.send(POOLS, "join", item, world.sign_invite(item, domain=domain), b"", sender=world.people[node])
    assert (domain, world.chain.call(DOMAINS, "domainCount")) == (2, 2)
