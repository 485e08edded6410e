"""A run in Redis: its state, its steps' counts, its slots. All of it can be rebuilt from the ledger.

Keys below `run:`: `state` (hash), `step:S` (hash: demand and counts), `steps` (set by number), `slot:S:NODE:I` (hash),
`slots:S` (set by expiry of the lease, which is lease order), `due` (set by when somebody must look), `node:NODE` (list,
newest first), `live:NODE` (set), `open` (units under live leases, in all and by provider), `stakes` and `seats` (what
the ledger said), `keys` (work key to slot), `next:S` (next index by node), `request:NODE:ID` (slot of a request).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.runs.chain import Seat
from orchestrator.runs.slots import Counted, Slot, SlotState
from orchestrator.runs.steps import StepCount
from orchestrator.store.database import Argument, Database
from orchestrator.store.nodes import text_of
from protocol.errors import Conflict
from protocol.identifiers import Address, Digest, address
from protocol.verdicts import Outcome

MOST_UNITS = 1 << 52
"""Sums of units stay below it, so that a script's doubles hold them exactly."""


class TrainerFenced(Conflict):
    """A trainer that is not the run's trainer (any more) said something."""

    code = "trainer-fenced"
    default_hint = "one trainer works on a run: stop one of the two"


NO_DIGEST = Digest("")
"""Where there is none yet."""

LOOP = "run"
"""The loop whose lease guards what the ledger's events write."""

TRAINER = "trainer"
"""The trainer's lease, which is kept as a loop's: it guards what a trainer says."""

FORGOTTEN_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What is known of the run as a whole."""

    revision: str = ""
    ready: bool = False
    """Whether the ledger was read to its end since Redis began: before that nobody knows what is accepted."""
    floor: int = 0
    """Steps below it are closed."""
    base: int = 0
    """The first index of a node: one life of Redis does not lease the indices of another."""
    version: int | None = None
    attempt: int = 0
    digest: Digest = NO_DIGEST
    block: int = 0
    publisher: Address | None = None
    units: int = 0
    """The most work units of a group."""
    relays: tuple[str, ...] = ()
    arithmetic: tuple[str, ...] = ()
    """The engines and types that the version is paid for, as the trainer says; empty if it has not said."""
    escrow: int = 0
    """How many work units the free escrow pays."""
    price: int = 0
    penalty: int = 0
    active: bool = False
    synced_ms: int = 0
    """Up to when the ledger's word is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step's counts, and whether the trainer stated its demand."""

    count: StepCount
    stated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """What Redis has of a slot."""

    id: str
    revision: str = ""
    step: int
    index: int
    node: Address
    provider: Address | None
    version: int
    digest: Digest
    groups: int
    max_units: int
    expiry: int
    """Unix seconds."""
    granted_ms: int = 0
    beacon: Digest = NO_DIGEST
    beacon_block: int = 0
    slot: Slot
    ended_ms: int = 0
    key: Digest = NO_DIGEST
    units: int = 0
    """As submitted."""
    sha256: Digest = NO_DIGEST
    block: int = 0
    at_ms: int = 0
    """When the submission was read on the ledger."""
    transaction: Digest = NO_DIGEST
    reason: int = 0
    audit_hash: Digest = NO_DIGEST
    judge: Address | None = None
    """Who gave the verdict that counts so far, and keeps its audit file."""
    figures: Mapping[str, float]


def slot_id(step: int, node: Address, index: int) -> str:
    """The name of a slot."""
    return f"{step}:{node}:{index}"


class RunStore:
    """Reads and writes the run.

    Args:
        database: The pool's.
        default_demand: Groups per step while the trainer has not said.
    """

    def __init__(self, database: Database, *, default_demand: int) -> None:
        self._database = database
        self._default_demand = default_demand

    # The run and its steps

    async def state(self) -> RunState:
        """The run as a whole."""
        return _state(text_of(await self._database.ask("HGETALL", self._key("state"))))

    async def change(
        self,
        state: RunState,
        fields: Mapping[str, str],
        *,
        now_ms: int,
        demand: tuple[int, int, int] | None = None,
        event: tuple[str, str, str] = ("", "", ""),
        lease: str = "",
        trainer: str = "",
    ) -> bool:
        """Writes fields of the state; False if somebody changed it since it was read, or the loop's lease was lost.

        Args:
            state: As read.
            fields: Empty values remove theirs.
            now_ms: Unix milliseconds.
            demand: A step, its demand and its rounds.
            event: Kind, detail and actor of an event of the pool.
            lease: Of the loop that writes; empty for a request.
            trainer: The lease of the trainer that asks for it; empty for others.

        Raises:
            TrainerFenced: The trainer's lease is not, or no longer, the one that counts.
        """
        step, groups, rounds = ("", "", "") if demand is None else map(str, demand)
        pairs = [part for pair in fields.items() for part in pair]
        answer = await self._database.call(
            "run_state",
            TRAINER if trainer else LOOP,
            trainer or lease,
            state.revision,
            now_ms,
            step,
            groups,
            rounds,
            *event,
            *pairs,
        )
        if trainer and answer == -1:
            raise TrainerFenced("another trainer works on this run, or this one's lease ran out")
        return bool(answer == 1)

    async def hold_trainer(self, lease: str, *, holder: str, start: str, life_ms: int) -> str:
        """Takes or renews the trainer's lease; its value, or nothing if another trainer has it."""
        answer = await self._database.call("run_trainer", holder, lease, life_ms, start)
        return str(answer.decode())

    async def steps(self, steps: Sequence[int]) -> dict[int, StepRow]:
        """How steps stand."""
        rows = await self._database.ask_many([("HGETALL", self._key("step", str(step))) for step in steps])
        return {step: self._step(text_of(row)) for step, row in zip(steps, rows, strict=True)}

    async def known_steps(self, *, first: int, limit: int) -> list[int]:
        """Steps that have slots or a demand, ascending."""
        found = await self._database.ask("ZRANGEBYSCORE", self._key("steps"), first, "+inf", "LIMIT", 0, limit)
        return [int(step) for step in found]

    async def open_units(self) -> int:
        """Units under all live leases."""
        return int(await self._database.ask("HGET", self._key("open"), "*") or 0)

    async def forget_step(self, step: int, *, lease: str) -> None:
        """Forgets a step with its slots, some at a time; what counts is on the ledger."""
        while await self._database.call("run_forget", LOOP, lease, step, FORGOTTEN_AT_ONCE):
            pass

    # Slots

    async def grant(self, *arguments: Argument) -> tuple[str, str]:
        """Runs `run_grant.lua`; `ok` or `again` with the slot's id, or the word for why not."""
        answer = [part.decode() for part in await self._database.call("run_grant", *arguments)]
        return answer[0], answer[1] if len(answer) > 1 else ""

    async def slots(self, names: Sequence[str]) -> list[SlotRow]:
        """Those that are there, in the order of their names."""
        hashes = await self._database.ask_many([("HGETALL", self._key("slot", name)) for name in names])
        return [_slot(name, text_of(found)) for name, found in zip(names, hashes, strict=True) if found]

    async def slot(self, name: str) -> SlotRow | None:
        """One slot."""
        found = await self.slots([name])
        return found[0] if found else None

    async def slot_of(self, key: Digest) -> SlotRow | None:
        """The slot of a piece of work."""
        name = await self._database.ask("HGET", self._key("keys"), key)
        return None if name is None else await self.slot(name.decode())

    async def write(
        self, row: SlotRow, slot: Slot, fields: Mapping[str, str], *, due_ms: int | None, lease: str = ""
    ) -> bool:
        """Writes where a slot is now; False if somebody changed it since it was read, or the loop's lease was lost."""
        told = {"state": slot.state, "outcome": "" if slot.outcome is None else str(int(slot.outcome)), **fields}
        pairs = [part for pair in told.items() for part in pair]
        due = "" if due_ms is None else str(due_ms)
        answer = await self._database.call(
            "run_slot", LOOP, lease, row.id, row.revision, slot.counted.value, due, *pairs
        )
        return bool(answer == 1)

    async def due(self, *, now_ms: int, limit: int) -> list[str]:
        """Slots that somebody must look at."""
        found = await self._database.ask("ZRANGEBYSCORE", self._key("due"), "-inf", now_ms, "LIMIT", 0, limit)
        return [name.decode() for name in found]

    async def put_off(self, name: str, *, until_ms: int) -> None:
        """Looks at a slot again later, if it is to be looked at at all."""
        await self._database.ask("ZADD", self._key("due"), "XX", until_ms, name)

    async def drop_due(self, name: str) -> None:
        """Nobody has to look at it any more."""
        await self._database.ask("ZREM", self._key("due"), name)

    async def leases_of(self, node: Address, *, limit: int) -> list[SlotRow]:
        """A node's newest slots, newest first."""
        names = await self._database.ask("LRANGE", self._key("node", node), 0, limit - 1)
        return await self.slots([name.decode() for name in names])

    async def page(self, step: int, *, after: tuple[int, str] | None, limit: int) -> list[SlotRow]:
        """Slots of a step in lease order, behind a lease's expiry and name."""
        low, skip = (0, "") if after is None else after
        found: list[str] = []
        offset = 0
        while len(found) < limit:
            part = await self._database.ask(
                "ZRANGEBYSCORE", self._key("slots", str(step)), low, "+inf", "WITHSCORES", "LIMIT", offset, limit
            )
            pairs = [(part[i].decode(), int(float(part[i + 1]))) for i in range(0, len(part), 2)]
            found += [name for name, score in pairs if score > low or name > skip]
            offset += limit
            if len(pairs) < limit:
                break
        return await self.slots(found[:limit])

    # What the ledger said

    async def seats(self, nodes: Sequence[Address]) -> dict[Address, Seat]:
        """Seats that are remembered."""
        if not nodes:
            return {}
        found = await self._database.ask("HMGET", self._key("seats"), *nodes)
        pairs = [(node, json.loads(seat)) for node, seat in zip(nodes, found, strict=True) if seat]
        return {node: Seat(provider=address(seat[0]), block=seat[1]) for node, seat in pairs}

    async def standing(self, node: Address) -> tuple[str, bool]:
        """A node's state, as far as it is known here, and whether it is a healthy member."""
        state, member = await self._database.ask("HMGET", self._database.key("node", node), "state", "member")
        return (state or b"unknown").decode(), state == b"healthy" and member == b"1"

    async def remember_seat(self, node: Address, seat: Seat) -> None:
        """Remembers a seat until something happens to it."""
        await self._database.ask("HSET", self._key("seats"), node, json.dumps([seat.provider, seat.block]))

    async def forget_seats(self, nodes: Sequence[Address]) -> None:
        """Asks the ledger anew next time."""
        if nodes:
            await self._database.ask("HDEL", self._key("seats"), *nodes)

    async def known_stakes(self) -> list[Address]:
        """Providers whose stake is remembered."""
        return [address(name.decode()) for name in await self._database.ask("HKEYS", self._key("stakes"))]

    async def remember_stake(self, provider: Address, units: int) -> None:
        """Remembers for how many units a provider's free stake answers."""
        await self._database.ask("HSET", self._key("stakes"), provider, min(units, MOST_UNITS))

    def _key(self, *parts: str) -> str:
        return self._database.key("run", *parts)

    def _step(self, fields: Mapping[str, str]) -> StepRow:
        count = StepCount(
            demand=int(fields.get("demand") or self._default_demand),
            rounds=int(fields.get("rounds") or 0),
            **{counted.value: int(fields.get(counted.value) or 0) for counted in Counted if counted.value},
        )
        return StepRow(count=count, stated="demand" in fields)


def _state(fields: Mapping[str, str]) -> RunState:
    return RunState(
        revision=fields.get("rev", ""),
        ready=fields.get("ready") == "1",
        floor=int(fields.get("floor") or 0),
        base=int(fields.get("base") or 0),
        version=int(fields["version"]) if fields.get("version") else None,
        attempt=int(fields.get("attempt") or 0),
        digest=Digest(fields.get("digest", "")),
        block=int(fields.get("block") or 0),
        publisher=address(fields["publisher"]) if fields.get("publisher") else None,
        units=int(fields.get("units") or 0),
        relays=tuple(json.loads(fields.get("relays") or "[]")),
        arithmetic=tuple(json.loads(fields.get("arithmetic") or "[]")),
        escrow=int(fields.get("escrow") or 0),
        price=int(fields.get("price") or 0),
        penalty=int(fields.get("penalty") or 0),
        active=fields.get("active") == "1",
        synced_ms=int(fields.get("synced") or 0),
    )


def _slot(name: str, fields: Mapping[str, str]) -> SlotRow:
    outcome = Outcome(int(fields["outcome"])) if fields.get("outcome") else None
    numbers: dict[str, Any] = {
        field: int(fields.get(told) or 0)
        for field, told in {
            "step": "step",
            "index": "index",
            "version": "version",
            "groups": "groups",
            "max_units": "units",
            "expiry": "expiry",
            "granted_ms": "granted",
            "beacon_block": "beacon_block",
            "ended_ms": "ended",
            "units": "worked",
            "block": "block",
            "at_ms": "at",
            "reason": "reason",
        }.items()
    }
    digests: dict[str, Any] = {
        field: Digest(fields.get(told, ""))
        for field, told in {
            "digest": "digest",
            "beacon": "beacon",
            "key": "key",
            "sha256": "sha256",
            "transaction": "transaction",
            "audit_hash": "audit",
        }.items()
    }
    return SlotRow(
        id=name,
        revision=fields["rev"],
        node=address(fields["node"]),
        provider=address(fields["provider"]) if fields.get("provider") else None,
        judge=address(fields["judge"]) if fields.get("judge") else None,
        slot=Slot(SlotState(fields["state"]), Counted(fields["counted"]), outcome),
        figures=json.loads(fields.get("figures") or "{}"),
        **numbers,
        **digests,
    )
