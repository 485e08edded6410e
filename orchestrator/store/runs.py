"""A run in Redis: its state, its steps' counts, its slots. All of it can be rebuilt from the ledger.

Keys below `run:`: `state` (hash), `step:S` (hash: demand and counts), `steps` (set by number), `slot:S:NODE:I`
(hash), `slots:S` (set by expiry of the lease, which is lease order), `due` (set by when a slot is looked at),
`node:NODE`, `provider:PROVIDER` (lists of slots, newest first), `live:NODE` (set), `accused:NODE` (set of slots whose
work was called forged), `open` (units under live leases, in all as `*` and by provider, and the number of leases as
`#`), `held:S` (leased groups by provider), `askers` (providers by when they asked), `times` (list of delivery times),
`stakes` and `seats` (what the ledger said), `keys` (work key to slot), `next:S` (next index by node),
`request:NODE:ID` (slot of a request), `named` (slot by node and file of its work), `uploads:S:NODE:I` (files that
were let in under a lease), `discarded` (slots that ended without work, by when).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from orchestrator.chain.run_interface import PoolSeat
from orchestrator.domain.lease_terms import TIMES_KEPT, DeliveryTime
from orchestrator.domain.slots import Slot
from orchestrator.store.database import Database
from orchestrator.store.nodes import text_of
from orchestrator.store.run_rows import RunState, SlotRow, StepRow, read_slot, read_state, read_step
from protocol.errors import Conflict
from protocol.identifiers import Address, Digest, address

MOST_UNITS = 1 << 52
"""Sums of units stay below it, so that a script's doubles hold them exactly."""


def units_for(money: int, each: int) -> int:
    """Returns the number of units that an amount of money is enough for, at most `MOST_UNITS`."""
    return MOST_UNITS if each == 0 else min(MOST_UNITS, money // each)


class TrainerFenced(Conflict):
    """A trainer that is not the run's trainer (any more) said something."""

    code = "trainer-fenced"
    default_hint = "one trainer works on a run: stop one of the two"


LOOP = "run"
"""The loop whose lease guards what the ledger's events write."""

TRAINER = "trainer"
"""The trainer's lease, which is kept as a loop's: it guards what a trainer says."""

FORGOTTEN_AT_ONCE = 200

MOST_FILES = 4
"""Different files that may be uploaded under one lease, of which one is submitted: a node may correct a broken one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRequest:
    """The arguments of `run_grant.lua`.

    Args:
        node: Asks for a slot.
        provider: The node's.
        step: The step that it asks for.
        groups: The most groups that it takes.
        request: Names the request: repeated, it gets the same slot.
        now_ms: The time, in Unix milliseconds.
        waits_until_ms: Until when the step waits for the slot, in Unix milliseconds; `now_ms` if it does not.
        expiry_s: When the lease ends, in Unix seconds.
        remembered_ms: How long the request is remembered.
        version: The version that the caller read; the script refuses another one.
        digest: The digest of that version.
        async_level: How many steps generation may be ahead of the version.
        default_demand: Groups of a step for which the trainer has not said.
        groups_per_slot: The most groups of a slot.
        most_units: The most work units of a lease.
        most_live: The most slots that the node may hold at a time.
        beacon: The hash of the beacon block.
        beacon_block: The block whose hash is part of the seed.
        asking_ms: How long a provider counts as asking after it asked.
        holders: While others ask, a provider holds at most this part of a step: 3 is a third.
    """

    node: Address
    provider: Address
    step: int
    groups: int
    request: str
    now_ms: int
    waits_until_ms: int
    expiry_s: int
    remembered_ms: int
    version: int
    digest: Digest
    async_level: int
    default_demand: int
    groups_per_slot: int
    most_units: int
    most_live: int
    beacon: Digest
    beacon_block: int
    asking_ms: int
    holders: int


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
        return read_state(text_of(await self._database.ask("HGETALL", self._key("state"))))

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
        """Returns the counts of steps."""
        rows = await self._database.ask_many([("HGETALL", self._key("step", str(step))) for step in steps])
        usual = self._default_demand
        return {step: read_step(text_of(row), default_demand=usual) for step, row in zip(steps, rows, strict=True)}

    async def known_steps(self, *, first: int, limit: int) -> list[int]:
        """Steps that have slots or a demand, ascending."""
        found = await self._database.ask("ZRANGEBYSCORE", self._key("steps"), first, "+inf", "LIMIT", 0, limit)
        return [int(step) for step in found]

    async def open_leases(self) -> tuple[int, int]:
        """Work units under all live leases, and the number of those leases."""
        units, leases = await self._database.ask("HMGET", self._key("open"), "*", "#")
        return int(units or 0), int(leases or 0)

    async def forget_step(self, step: int, *, lease: str) -> None:
        """Forgets a step with its slots, some at a time; what counts is on the ledger."""
        while await self._database.call("run_forget", LOOP, lease, step, FORGOTTEN_AT_ONCE):
            pass

    # Slots

    async def grant(self, request: GrantRequest) -> tuple[str, str]:
        """Leases a slot.

        Returns:
            `ok` or `again` and the slot's id; or the reason for the refusal and "".
        """
        answer = [part.decode() for part in await self._database.call("run_grant", json.dumps(asdict(request)))]
        return answer[0], answer[1] if len(answer) > 1 else ""

    async def slots(self, names: Sequence[str]) -> list[SlotRow]:
        """Those that are there, in the order of their names."""
        hashes = await self._database.ask_many([("HGETALL", self._key("slot", name)) for name in names])
        return [read_slot(name, text_of(found)) for name, found in zip(names, hashes, strict=True) if found]

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
        outcome = "" if slot.outcome is None else str(int(slot.outcome))
        told = {"state": slot.state, "outcome": outcome, "file": slot.file, **fields}
        pairs = [part for pair in told.items() for part in pair]
        due = "" if due_ms is None else str(due_ms)
        answer = await self._database.call(
            "run_slot", LOOP, lease, row.id, row.revision, slot.counted.value, due, int(slot.accused), *pairs
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
        """Removes a slot from the list of slots to check."""
        await self._database.ask("ZREM", self._key("due"), name)

    async def leases_of(self, node: Address, *, limit: int) -> list[SlotRow]:
        """A node's newest slots, newest first."""
        names = await self._database.ask("LRANGE", self._key("node", node), 0, limit - 1)
        return await self.slots([name.decode() for name in names])

    async def leases_of_provider(self, provider: Address, *, limit: int) -> list[SlotRow]:
        """The newest slots of all nodes of a provider, newest first."""
        names = await self._database.ask("LRANGE", self._key("provider", provider), 0, limit - 1)
        return await self.slots([name.decode() for name in names])

    # Delivery times

    async def remember_time(self, time: DeliveryTime) -> None:
        """Remembers how long a slot took, and forgets the oldest of those that are remembered."""
        key = self._key("times")
        await self._database.ask_many(
            [("LPUSH", key, f"{time.took_ms} {time.groups}"), ("LTRIM", key, 0, TIMES_KEPT - 1)]
        )

    async def times(self) -> list[DeliveryTime]:
        """Returns the newest delivery times, newest first."""
        found = await self._database.ask("LRANGE", self._key("times"), 0, TIMES_KEPT - 1)
        return [DeliveryTime(*map(int, each.split())) for each in found]

    # Files

    async def admit_file(self, slot: str, sha256: Digest, *, life_s: int) -> bool:
        """Notes that a file may be uploaded under a lease; False if that were one too many.

        Args:
            slot: The slot's id.
            sha256: Of the file.
            life_s: How long it is remembered: longer than anybody asks for it.
        """
        key = self._key("uploads", slot)
        added, files, _ = await self._database.ask_many(
            [("SADD", key, sha256), ("SCARD", key), ("EXPIRE", key, life_s)]
        )
        if added and files > MOST_FILES:
            await self._database.ask("SREM", key, sha256)
            return False
        return True

    async def files_of(self, slot: str) -> list[Digest]:
        """The files that were let in under a slot's lease."""
        return [Digest(each.decode()) for each in await self._database.ask("SMEMBERS", self._key("uploads", slot))]

    async def named(self, files: Sequence[tuple[Address, Digest]]) -> set[tuple[Address, Digest]]:
        """Those of these files, each with its node, that submitted work names."""
        if not files:
            return set()
        found = await self._database.ask("HMGET", self._key("named"), *(f"{node}:{sha}" for node, sha in files))
        return {file for file, slot in zip(files, found, strict=True) if slot}

    async def discarded(self, *, until_ms: int, limit: int) -> list[str]:
        """Slots that ended without work before a time, and whose files were not deleted yet."""
        key = self._key("discarded")
        found = await self._database.ask("ZRANGEBYSCORE", key, "-inf", until_ms, "LIMIT", 0, limit)
        return [name.decode() for name in found]

    async def forget_files(self, slot: str) -> None:
        """The files of a slot that ended without work are deleted."""
        await self._database.ask_many([("ZREM", self._key("discarded"), slot), ("DEL", self._key("uploads", slot))])

    # Listings

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

    async def seats(self, nodes: Sequence[Address]) -> dict[Address, PoolSeat]:
        """Seats that are remembered."""
        if not nodes:
            return {}
        found = await self._database.ask("HMGET", self._key("seats"), *nodes)
        pairs = [(node, json.loads(seat)) for node, seat in zip(nodes, found, strict=True) if seat]
        return {node: PoolSeat(provider=address(seat[0]), block=seat[1]) for node, seat in pairs}

    async def standing(self, node: Address) -> tuple[str, bool]:
        """A node's state, as far as it is known here, and whether it is a healthy member."""
        state, member = await self._database.ask("HMGET", self._database.key("node", node), "state", "member")
        return (state or b"unknown").decode(), state == b"healthy" and member == b"1"

    async def remember_seat(self, node: Address, seat: PoolSeat) -> None:
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
