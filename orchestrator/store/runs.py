"""A run in Redis: its state, the counts of its steps, and its slots.

After a loss of Redis, the data are rebuilt from the ledger's events, except what the trainer sent for display
(`answers`, `trained`, `samples`).

The Redis keys, all with the prefix `run:` (S is a step, I an index):

state                 hash: state of the run
step:S                hash: demand and counts of a step
steps                 sorted set: steps that have slots or a demand, by number
slot:S:NODE:I         hash: a slot
slots:S               sorted set: slots of a step, by the expiry of their lease
due                   sorted set: slots to check, by the time of the check
node:NODE             list: slots of a node, newest first
provider:PROVIDER     list: slots of all nodes of a provider, newest first
live:NODE             set: slots of a node with a live lease
accused:NODE          set: slots of a node whose work is judged forged
open                  hash: work units under open leases, by provider and in total (`*`); number of these leases (`#`)
held:S                hash: leased groups of a step, by provider
askers                sorted set: providers, by the time of their last request for a slot
times                 list: delivery times, newest first
stakes                hash: cached work units that a provider's free stake covers
memberships           hash: cached memberships of nodes
keys                  hash: slot by work key
next:S                hash: next slot index of each node in a step
request:NODE:ID       string: slot that a request got
named                 hash: slot by `NODE:SHA256` of its submitted file
audits                hash: slot by `VALIDATOR:SHA256` of an audit file that a verdict or a dispute names
audits:S:NODE:I       set: fields of `audits` that belong to a slot
needs                 sorted set: `KIND:OWNER:SHA256:KEY` of objects that non-final work of any run and step names
needs:KEY             set: members of `needs` that belong to a work item
uploads:S:NODE:I      set: SHA-256 of the files whose upload was allowed under a lease
discarded             sorted set: slots that ended without work, by the time of their end
means                 hash: reported means by step, with the counts that they belong to
answers               hash: answers of the first and of the newest evaluated version, as JSON
trained               sorted set: the trainer's metrics of steps as JSON, by step
samples               hash: sampled rollouts as JSON, by step
announced             sorted set: ledger events that were announced as events of the pool, by block
announced-after       string: newest block whose ledger events are not remembered
account:…, earned:…, ranking    accounts of pool, providers and nodes (`store/accounts.py`)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ledger.client.event_follower import ObservedEvent
from orchestrator.chain.pool_events import pool_events_of
from orchestrator.chain.run_interface import JoinedNode
from orchestrator.domain.lease_terms import TIMES_KEPT, DeliveryTime
from orchestrator.domain.slots import Counted, Slot
from orchestrator.store.accounts import SMALLEST
from orchestrator.store.database import Database
from orchestrator.store.nodes import text_of
from orchestrator.store.run_rows import ReportedFile, RunState, SlotRow, StepRow, read_slot, read_state, read_step
from orchestrator.store.scripts import (
    AnnounceLedgerEvent,
    ForgetSlots,
    HoldTrainerLease,
    LeaseSlot,
    NameAudit,
    NoteOpenWork,
    ReleaseWork,
    SlotLeased,
    WriteResult,
    WriteRunState,
    WriteSlot,
)
from protocol.errors import Conflict
from protocol.identifiers import Address, Digest, address
from protocol.wire.base import parse_answer
from protocol.wire.runs import (
    MOST_SAMPLED_STEPS,
    MOST_TRAINED_STEPS,
    NewAnswers,
    NewTrainedStep,
    RunAnswers,
    RunSamples,
    SampledRollout,
    TrainedStep,
)

MOST_UNITS = 1 << 52
"""Maximum of sums of work units, up to which the double-precision numbers of Lua scripts are exact."""


def units_for(amount: int, price_per_unit: int) -> int:
    """Returns the number of work units that an amount covers, at most `MOST_UNITS`.

    It is `MOST_UNITS` if the price is 0.
    """
    return MOST_UNITS if price_per_unit == 0 else min(MOST_UNITS, amount // price_per_unit)


class TrainerFenced(Conflict):
    """The trainer of the request does not hold the run's trainer lease."""

    code = "trainer-fenced"
    default_hint = "only one trainer may work on a run: stop one of the two"


MOST_ANNOUNCED = 50_000
"""Maximum number of ledger events that are remembered as announced. An event that is read again is announced again only
if it is not among them, and if its block is newer than theirs."""
LOOP = "run"
"""Name of the loop that applies ledger events; its leader lease guards the loop's writes."""

TRAINER = "trainer"
"""Name of the trainer's lease. It is stored like a loop's leader lease and guards the trainer's requests."""

FORGOTTEN_AT_ONCE = 200
"""Number of slots that one script call deletes, so that it does not block Redis for long."""

MOST_NODES_OF_PROVIDER = 500
"""Maximum number of nodes that are listed for a provider."""

REPORTS_AT_ONCE = 250
"""Number of slots whose reports are read per round trip."""

MOST_FILES = 4
"""Maximum number of different files that may be uploaded under one lease; more than one, so that a node can replace a
broken file."""


class RunStore:
    """Reads and writes the run.

    Args:
        database: Database of the pool.
        default_demand: Groups per step until the trainer states a demand.
    """

    def __init__(self, database: Database, *, default_demand: int) -> None:
        self._database = database
        self._default_demand = default_demand

    # The run and its steps

    async def state(self) -> RunState:
        """Returns the state of the run."""
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
        """Writes fields of the run's state; returns False if the state changed after it was read.

        It also returns False if the loop's leader lease was lost.

        Args:
            state: State as it was read.
            fields: Fields to write; an empty value deletes its field.
            now_ms: Current time in Unix milliseconds.
            demand: A step, its demand in groups, and the number of raises so far; None to change no demand.
            event: Kind, detail and actor of a pool event to append; three empty texts for no event.
            lease: Value of the loop's leader lease; empty for an API request.
            trainer: Value of the caller's trainer lease; empty if the caller is not a trainer.

        Raises:
            TrainerFenced: Another trainer holds the trainer's lease, or the caller's lease expired.
        """
        step, groups, rounds = (None, 0, 0) if demand is None else demand
        kind, detail, actor = event
        written = await self._database.run(
            WriteRunState(
                loop=TRAINER if trainer else LOOP,
                lease=trainer or lease,
                revision=state.revision,
                now_ms=now_ms,
                step=step,
                demand=groups,
                rounds=rounds,
                kind=kind,
                detail=detail,
                actor=actor,
                fields=fields,
            )
        )
        if trainer and written is WriteResult.LEASE_LOST:
            raise TrainerFenced("another trainer works on this run, or this trainer's lease has expired")
        return written is WriteResult.YES

    async def hold_trainer(self, lease: str, *, holder: str, start: str, life_ms: int) -> str:
        """Acquires or renews the trainer lease; returns its value, empty if another trainer holds it.

        `HoldTrainerLease` describes the arguments.
        """
        return await self._database.run(HoldTrainerLease(holder=holder, lease=lease, lifetime_ms=life_ms, start=start))

    async def steps(self, steps: Sequence[int]) -> dict[int, StepRow]:
        """Returns the rows of steps; a step without a row has the default demand."""
        rows = await self._database.ask_many([("HGETALL", self._key("step", str(step))) for step in steps])
        default = self._default_demand
        return {step: read_step(text_of(row), default_demand=default) for step, row in zip(steps, rows, strict=True)}

    async def number_of_slots(self, step: int) -> int:
        """Returns the number of a step's slots, including ended ones."""
        return int(await self._database.ask("ZCARD", self._key("slots", str(step))))

    async def known_steps(self, *, first: int, limit: int) -> list[int]:
        """Returns steps that have slots or a demand, ascending."""
        found = await self._database.ask("ZRANGEBYSCORE", self._key("steps"), first, "+inf", "LIMIT", 0, limit)
        return [int(step) for step in found]

    async def answers(self) -> RunAnswers:
        """Returns the answers of the first and of the newest evaluated version."""
        found = await self._database.ask("HMGET", self._key("answers"), "before", "after")
        before, after = (None if text is None else parse_answer(NewAnswers, text) for text in found)
        return RunAnswers(before=before, after=after)

    async def set_answers(self, answers: RunAnswers) -> None:
        """Stores the answers of the first and of the newest evaluated version."""
        for name, each in (("before", answers.before), ("after", answers.after)):
            if each is not None:
                await self._database.ask("HSET", self._key("answers"), name, each.model_dump_json())

    async def add_trained(self, trained: NewTrainedStep) -> None:
        """Stores metrics and samples of a learned step, in place of those of this and later steps.

        A trainer that learns a step again has abandoned the later ones. Only the metrics of the newest
        `MOST_TRAINED_STEPS` and the samples of the newest `MOST_SAMPLED_STEPS` are kept.
        """
        step, key, samples = trained.step, self._key("trained"), self._key("samples")
        await self._database.ask_many(
            [
                ("ZREMRANGEBYSCORE", key, step, "+inf"),
                ("ZADD", key, step, trained.model_dump_json(exclude={"samples"}, exclude_none=True)),
                ("ZREMRANGEBYRANK", key, 0, -MOST_TRAINED_STEPS - 1),
            ]
        )
        known = await self.sampled_steps()
        kept = [each for each in known if each < step][1 - MOST_SAMPLED_STEPS :]
        if dropped := set(known) - set(kept):
            await self._database.ask("HDEL", samples, *dropped)
        if trained.samples:
            shown = RunSamples(step=step, samples=trained.samples, steps=())
            await self._database.ask("HSET", samples, step, shown.model_dump_json())

    async def sampled_steps(self) -> tuple[int, ...]:
        """Returns the steps that have samples, ascending."""
        return tuple(sorted(int(step) for step in await self._database.ask("HKEYS", self._key("samples"))))

    async def samples(self, step: int) -> tuple[SampledRollout, ...]:
        """Returns the samples of a step."""
        found = await self._database.ask("HGET", self._key("samples"), step)
        return () if found is None else parse_answer(RunSamples, found).samples

    async def trained(self, *, first: int | None, limit: int) -> tuple[TrainedStep, ...]:
        """Returns the metrics of learned steps, ascending, from step `first` on; without it, of the newest steps."""
        key = self._key("trained")
        if first is None:
            found = await self._database.ask("ZRANGE", key, -limit, -1)
        else:
            found = await self._database.ask("ZRANGEBYSCORE", key, first, "+inf", "LIMIT", 0, limit)
        return tuple(parse_answer(TrainedStep, text) for text in found)

    async def open_leases(self) -> tuple[int, int]:
        """Returns the work units that open leases reserve, and the number of these leases."""
        units, leases = await self._database.ask("HMGET", self._key("open"), "*", "#")
        return int(units or 0), int(leases or 0)

    async def forget_step(self, step: int, *, lease: str) -> None:
        """Deletes a step and its slots, in batches; the work records stay on the ledger."""
        while await self._database.run(ForgetSlots(loop=LOOP, lease=lease, step=step, limit=FORGOTTEN_AT_ONCE)):
            pass
        await self._database.ask("HDEL", self._key("means"), step)

    # Slots

    async def lease_slot(self, request: LeaseSlot) -> SlotLeased:
        """Leases a slot, or returns the code of a refusal."""
        return await self._database.run(request)

    async def slots(self, names: Sequence[str]) -> list[SlotRow]:
        """Returns the slots that exist, in the order of `names`."""
        hashes = await self._database.ask_many([("HGETALL", self._key("slot", name)) for name in names])
        return [read_slot(name, text_of(found)) for name, found in zip(names, hashes, strict=True) if found]

    async def slot(self, name: str) -> SlotRow | None:
        """Returns a slot; None if there is none."""
        found = await self.slots([name])
        return found[0] if found else None

    async def slot_of(self, key: Digest) -> SlotRow | None:
        """Returns the slot of a work item; None if the key is unknown."""
        name = await self._database.ask("HGET", self._key("keys"), key)
        return None if name is None else await self.slot(name.decode())

    async def write(
        self, row: SlotRow, slot: Slot, fields: Mapping[str, str], *, due_ms: int | None, lease: str = ""
    ) -> bool:
        """Writes a slot; returns False if it changed meanwhile or the leader lease was lost."""
        outcome = "" if slot.outcome is None else str(int(slot.outcome))
        written = await self._database.run(
            WriteSlot(
                loop=LOOP,
                lease=lease,
                slot=row.id,
                revision=row.revision,
                counted=slot.counted.value,
                due_ms=due_ms,
                accused=slot.accused,
                fields={"state": slot.state, "outcome": outcome, "file": slot.file, **fields},
            )
        )
        return written is WriteResult.YES

    async def announce(self, observed: ObservedEvent, *, quiet: bool, day: int, now_ms: int, lease: str) -> bool:
        """Appends the pool's events that a ledger event causes, each once; returns False if the leader lease was lost.

        It also counts them in the accounts (`AccountStore`).

        Args:
            observed: The ledger event. If a reorg has removed it, its announcement is revoked by another event.
            quiet: True to remember the ledger event as announced without an event.
            day: Day of the ledger event, as days since 1970 in UTC.
            now_ms: Current time in Unix milliseconds.
            lease: Value of the leader lease.
        """
        log = observed.event.log
        for text in pool_events_of(observed.event):
            written = await self._database.run(
                AnnounceLedgerEvent(
                    loop=LOOP,
                    lease=lease,
                    identity=f"{log.block_hash}-{log.index}-{text.kind}",
                    reverted=observed.reverted,
                    block=log.block_number,
                    most_kept=MOST_ANNOUNCED,
                    quiet=quiet,
                    now_ms=now_ms,
                    kind=text.reverted_kind if observed.reverted else text.kind,
                    detail=text.detail,
                    actor=text.actor,
                    node=text.node or "",
                    counter=text.kind,
                    work=text.work or "",
                    provider=text.provider or "",
                    amount=str(text.amount // SMALLEST),
                    day=day,
                )
            )
            if written is WriteResult.LEASE_LOST:
                return False
        return True

    async def due(self, *, now_ms: int, limit: int) -> list[str]:
        """Returns slots that are due to be checked."""
        found = await self._database.ask("ZRANGEBYSCORE", self._key("due"), "-inf", now_ms, "LIMIT", 0, limit)
        return [name.decode() for name in found]

    async def postpone(self, name: str, *, until_ms: int) -> None:
        """Postpones the check of a slot, if one is due."""
        await self._database.ask("ZADD", self._key("due"), "XX", until_ms, name)

    async def drop_due(self, name: str) -> None:
        """Removes a slot from the list of slots to check."""
        await self._database.ask("ZREM", self._key("due"), name)

    async def leases_of(self, node: Address, *, limit: int) -> list[SlotRow]:
        """Returns a node's newest slots, newest first."""
        names = await self._database.ask("LRANGE", self._key("node", node), 0, limit - 1)
        return await self.slots([name.decode() for name in names])

    async def leases_of_provider(self, provider: Address, *, skipped: int = 0, limit: int) -> list[SlotRow]:
        """Returns slots of all nodes of a provider, newest first, without the `skipped` newest ones."""
        names = await self._database.ask("LRANGE", self._key("provider", provider), skipped, skipped + limit - 1)
        return await self.slots([name.decode() for name in names])

    # Delivery times

    async def record_delivery_time(self, time: DeliveryTime) -> None:
        """Records the delivery time of a slot; only the newest `TIMES_KEPT` are kept."""
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
        """Allows the upload of a file under a lease.

        It returns False if `MOST_FILES` other files are allowed already.

        Args:
            slot: The slot's id.
            sha256: Hash of the file.
            life_s: Time for which the hash is stored, in seconds; it must outlast the lease and its uploads.
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
        """Returns the files whose upload was allowed under a slot's lease."""
        return [Digest(each.decode()) for each in await self._database.ask("SMEMBERS", self._key("uploads", slot))]

    async def named(self, files: Sequence[tuple[Address, Digest]]) -> set[tuple[Address, Digest]]:
        """Returns those of `files`, pairs of node and SHA-256, to which submitted work refers."""
        if not files:
            return set()
        found = await self._database.ask("HMGET", self._key("named"), *(f"{node}:{sha}" for node, sha in files))
        return {file for file, slot in zip(files, found, strict=True) if slot}

    async def work_of(
        self, files: Sequence[tuple[Address, Digest]], *, audits: bool
    ) -> dict[tuple[Address, Digest], SlotRow]:
        """Returns the slots of those files to whose work they belong; files of unknown work are absent.

        Args:
            files: Pairs of owner and SHA-256.
            audits: True if these are audit files, which verdicts or disputes name; otherwise they are rollout files.
        """
        if not files:
            return {}
        fields = [f"{owner}:{sha256}" for owner, sha256 in files]
        found = await self._database.ask("HMGET", self._key("audits" if audits else "named"), *fields)
        names = {file: name.decode() for file, name in zip(files, found, strict=True) if name}
        rows = {row.id: row for row in await self.slots(sorted(set(names.values())))}
        return {file: rows[name] for file, name in names.items() if name in rows}

    async def note_open_work(self, key: Digest, *, owner: Address, sha256: Digest, audit: bool, lease: str) -> bool:
        """Records that work which is not final names an object, so that the sweeper keeps the object.

        It returns False if the leader lease was lost.

        Unlike a slot, the entry outlasts the deletion of the slot's step, and work of other runs has one, too.

        Args:
            key: Key of the work.
            owner: Owner of the object.
            sha256: SHA-256 of the object.
            audit: True for an audit file, otherwise the object is a rollout file.
            lease: Value of the leader lease.
        """
        objects = (_object(owner, sha256, audit=audit),)
        return await self._database.run(NoteOpenWork(loop=LOOP, lease=lease, work=key, objects=objects))

    async def release_work(self, key: Digest, *, lease: str) -> bool:
        """Forgets the objects of work that is final, or not on the ledger any more.

        It returns False if the leader lease was lost.
        """
        return await self._database.run(ReleaseWork(loop=LOOP, lease=lease, work=key))

    async def named_by_open_work(
        self, files: Sequence[tuple[Address, Digest]], *, audits: bool
    ) -> set[tuple[Address, Digest]]:
        """Returns those of `files`, pairs of owner and SHA-256, that work names which is not final."""
        names = [_object(owner, sha256, audit=audits) for owner, sha256 in files]
        # `;` is the character after `:`, so the range has all entries of one object.
        found = await self._database.ask_many(
            [("ZRANGEBYLEX", self._key("needs"), f"[{name}:", f"({name};", "LIMIT", 0, 1) for name in names]
        )
        return {file for file, entries in zip(files, found, strict=True) if entries}

    async def name_audit(self, slot: str, *, owner: Address, sha256: Digest, lease: str) -> None:
        """Records that a verdict on a slot's work, or a dispute about it, names an audit file."""
        await self._database.run(NameAudit(loop=LOOP, lease=lease, slot=slot, audit=f"{owner}:{sha256}"))

    async def discarded(self, *, until_ms: int, limit: int) -> list[str]:
        """Returns slots that ended without work before a time and still have files."""
        key = self._key("discarded")
        found = await self._database.ask("ZRANGEBYSCORE", key, "-inf", until_ms, "LIMIT", 0, limit)
        return [name.decode() for name in found]

    async def forget_files(self, slot: str) -> None:
        """Deletes the list of files allowed under a lease; the caller has deleted the files before."""
        await self._database.ask_many([("ZREM", self._key("discarded"), slot), ("DEL", self._key("uploads", slot))])

    # Listings

    async def page(self, step: int, *, after: tuple[int, str] | None, limit: int) -> list[SlotRow]:
        """Returns a page of a step's slots, sorted by lease expiry and id.

        The page follows the slot `after`, given by its expiry and id; None for the first page.
        """
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

    async def reports(self, step: int, *, limit: int) -> list[ReportedFile]:
        """Returns what nodes report about a step's accepted files, in the order of leases, from at most `limit` slots.

        It reads three fields of a slot instead of all, because steps have thousands of slots.
        """
        names = await self._database.ask("ZRANGE", self._key("slots", str(step)), 0, limit - 1)
        found: list[ReportedFile] = []
        for start in range(0, len(names), REPORTS_AT_ONCE):
            part = [name.decode() for name in names[start : start + REPORTS_AT_ONCE]]
            rows = await self._database.ask_many(
                [("HMGET", self._key("slot", name), "counted", "groups", "figures") for name in part]
            )
            found += [
                ReportedFile(int(groups), json.loads(figures or "{}"))
                for counted, groups, figures in rows
                if counted is not None and Counted(counted.decode()) is Counted.ACCEPTED
            ]
        return found

    async def stored_means(self, steps: Sequence[int]) -> dict[int, str]:
        """Returns the stored means of steps; steps without are left out."""
        if not steps:
            return {}
        found = await self._database.ask("HMGET", self._key("means"), *steps)
        return {step: text.decode() for step, text in zip(steps, found, strict=True) if text is not None}

    async def store_means(self, step: int, text: str) -> None:
        """Stores the means of a step, for all instances."""
        await self._database.ask("HSET", self._key("means"), step, text)

    # Cached ledger state

    async def memberships(self, nodes: Sequence[Address]) -> dict[Address, JoinedNode]:
        """Returns the cached memberships."""
        if not nodes:
            return {}
        found = await self._database.ask("HMGET", self._key("memberships"), *nodes)
        pairs = [(node, json.loads(membership)) for node, membership in zip(nodes, found, strict=True) if membership]
        return {node: JoinedNode(provider=address(membership[0]), block=membership[1]) for node, membership in pairs}

    async def node_state(self, node: Address) -> tuple[str, bool]:
        """Returns a node's state (`unknown` if it has none) and whether it is a healthy member."""
        state, member = await self._database.ask("HMGET", self._database.key("node", node), "state", "member")
        return (state or b"unknown").decode(), state == b"healthy" and member == b"1"

    async def cache_membership(self, node: Address, membership: JoinedNode) -> None:
        """Caches a node's membership until an event changes it."""
        nodes = self._key("nodes", membership.provider)
        await self._database.ask_many(
            [
                ("HSET", self._key("memberships"), node, json.dumps([membership.provider, membership.block])),
                ("LREM", nodes, 0, node),
                ("LPUSH", nodes, node),
                ("LTRIM", nodes, 0, MOST_NODES_OF_PROVIDER - 1),
            ]
        )

    async def drop_cached_memberships(self, nodes: Sequence[Address]) -> None:
        """Deletes cached memberships, so that they are read from the ledger again."""
        if nodes:
            await self._database.ask("HDEL", self._key("memberships"), *nodes)

    async def known_stakes(self) -> list[Address]:
        """Returns providers whose stake is cached."""
        return [address(name.decode()) for name in await self._database.ask("HKEYS", self._key("stakes"))]

    async def cache_stake(self, provider: Address, units: int) -> None:
        """Caches the number of work units that a provider's free stake covers, at the pool's penalty per unit."""
        await self._database.ask("HSET", self._key("stakes"), provider, min(units, MOST_UNITS))

    def _key(self, *parts: str) -> str:
        return self._database.key("run", *parts)


def _object(owner: Address, sha256: Digest, *, audit: bool) -> str:
    return f"{'audit' if audit else 'file'}:{owner}:{sha256}"
