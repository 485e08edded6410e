"""Nodes in Redis: one hash per node, its history, its commands, and the sets that order them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.domain.node_states import MEMBERS
from orchestrator.scheduler.requirements import NodeHardware
from orchestrator.store.database import Argument, Database
from protocol.errors import Conflict, NotFound
from protocol.identifiers import Address
from protocol.wire.heartbeat import MAX_COMMANDS, Command, NodeState
from protocol.wire.nodes import Hardware, Software
from protocol.wire.pool import HistoryEntry

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """Row of a node in Redis."""

    address: Address
    revision: str
    """Changes with every transition; empty for a node that is not there."""
    state: NodeState
    since_ms: int = 0
    reason: str = ""
    member: bool = False
    provider: str | None = None
    drain: str = ""
    """Initiator of the drain: `owner`, `node`, or empty."""
    machine: NodeHardware
    worker_version: str | None = None
    seen_ms: int | None = None
    interval_ms: int | None = None
    assignment_id: str | None = None
    last_assignment_id: str | None = None
    generation: int = 0
    head: str = ""
    """The assignment's own part of the heartbeat's answer, as JSON without braces."""
    reference: str = ""
    """Task and its generation: names the rest of the answer."""
    gauges: str = ""
    """Of the last heartbeat, as JSON: few readers of a row want them."""

    def metrics(self, name: str) -> dict[str, float]:
        """The gauge of the last heartbeat that has this name, by its name; nothing if there was none."""
        told: dict[str, float] = json.loads(self.gauges or "{}")
        return {name: told[name]} if name in told else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A transition to write."""

    row: NodeRow
    after: NodeState
    event: str
    cause: str
    actor: str
    reason: str = ""
    now_ms: int
    deadline: str = "keep"
    """Milliseconds, `clear` or `keep`."""
    removal: str = "keep"
    only_if_due_by: str = ""
    """Milliseconds: written only if the node's deadline is not later."""
    quiet: bool = False
    fields: Mapping[str, str] | None = None

    def arguments(self) -> list[Argument]:
        """Returns the changes as script arguments."""
        fields = [part for pair in (self.fields or {}).items() for part in pair]
        return [
            self.row.address,
            self.row.revision,
            self.now_ms,
            self.row.state,
            self.after,
            self.event,
            self.cause,
            self.actor,
            self.reason,
            self.deadline,
            self.removal,
            self.only_if_due_by,
            "1" if self.quiet else "0",
            *fields,
        ]


class NodeStore:
    """Reads and writes nodes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, address: Address) -> NodeRow:
        """The row of a node; one that is not there is `discovered` and has no revision."""
        return (await self.get_many([address]))[0]

    async def get_known(self, address: Address) -> NodeRow:
        """The row of a node that is there.

        Raises:
            NotFound: It is not.
        """
        row = await self.get(address)
        if not row.revision:
            raise NotFound(
                f"the pool knows no node {address}",
                hint="`muster pool nodes` lists those it knows",
                code="unknown-node",
            )
        return row

    async def get_many(self, addresses: Sequence[Address]) -> list[NodeRow]:
        """Rows in the order of the addresses."""
        raw = await self.raw_many(addresses)
        return [row_of(address, fields) for address, fields in zip(addresses, raw, strict=True)]

    async def raw_many(self, addresses: Sequence[Address]) -> list[dict[str, str]]:
        """Hashes in the order of the addresses."""
        hashes = await self._database.ask_many([("HGETALL", self._node(address)) for address in addresses])
        return [text_of(fields) for fields in hashes]

    async def page(self, *, after: str | None, limit: int) -> list[Address]:
        """The next addresses in order, without a scan."""
        low = "-" if after is None else f"({after}"
        members = await self._database.ask("ZRANGEBYLEX", self._database.key("nodes"), low, "+", "LIMIT", 0, limit)
        return [Address(member.decode()) for member in members]

    async def count(self) -> int:
        """Returns the number of known nodes."""
        return int(await self._database.ask("ZCARD", self._database.key("nodes")))

    async def expected(self) -> int:
        """Returns the number of nodes that should send heartbeats."""
        return int(await self._database.ask("ZCARD", self._database.key("deadlines")))

    async def removals_waiting(self) -> int:
        """Returns the number of dead nodes that are still members on the ledger."""
        return int(await self._database.ask("ZCARD", self._database.key("removals")))

    async def events_read_ms(self) -> int:
        """Returns the time of the last complete read of membership events, Unix ms; 0 before the first."""
        return int(await self._database.ask("GET", self._database.key("events-read")) or 0)

    async def mark_events_read(self, at_ms: int) -> None:
        """Records the time up to which membership events are applied."""
        await self._database.ask("SET", self._database.key("events-read"), at_ms)

    async def write(self, change: Change) -> bool:
        """Writes a transition; False if something happened to the node since its row was read."""
        return bool(await self._database.call("transition", *change.arguments()))

    async def write_many(self, changes: Sequence[Change]) -> list[bool]:
        """Writes transitions in shared round trips; which of them were written."""
        calls = (self._database.call("transition", *change.arguments()) for change in changes)
        return [bool(answer) for answer in await asyncio.gather(*calls)]

    async def learn(self, address: Address, facts: Mapping[str, str]) -> None:
        """Writes what others say of a known node, without touching its state."""
        await self._database.call("facts", address, *(part for pair in facts.items() for part in pair))

    async def history(self, address: Address, *, limit: int) -> tuple[HistoryEntry, ...]:
        """The newest entries first."""
        key = self._database.key("history", address)
        entries = await self._database.ask("XREVRANGE", key, "+", "-", "COUNT", limit)
        return tuple(_entry(text_of(fields)) for _, fields in entries)

    async def last_ips(self, addresses: Sequence[Address]) -> list[tuple[Address, str]]:
        """Of these nodes, those that are active members now, each with the IP of its last heartbeat."""
        rows = await self._database.ask_many([("HMGET", self._node(each), "state", "ip") for each in addresses])
        active = {state.value.encode() for state in MEMBERS}
        return [
            (address, ip.decode())
            for address, (state, ip) in zip(addresses, rows, strict=True)
            if state in active and ip
        ]

    async def metrics(self, address: Address) -> tuple[int | None, dict[str, float]]:
        """Returns the time of the node's last heartbeat, and its metrics."""
        seen, metrics = await self._database.ask("HMGET", self._node(address), "seen", "metrics")
        return (int(seen) if seen else None), (json.loads(metrics) if metrics else {})

    async def leave_command(self, address: Address, command: Command) -> None:
        """Leaves a command for the node's next heartbeat.

        Raises:
            Conflict: Too many wait already.
            NotFound: There is no such node.
        """
        answer = await self._database.call("command", address, command.id, command.model_dump_json(), MAX_COMMANDS)
        if answer == -1:
            raise NotFound(f"the pool knows no node {address}", code="unknown-node")
        if answer == 0:
            raise Conflict(
                f"{MAX_COMMANDS} commands wait for {address} already",
                hint="wait until the node has spoken, or look why it does not",
                retryable=True,
            )

    async def due_removals(self, *, now_ms: int, limit: int) -> list[Address]:
        """Dead nodes whose removal from the ledger is due."""
        key = self._database.key("removals")
        members = await self._database.ask("ZRANGEBYSCORE", key, "-inf", now_ms, "LIMIT", 0, limit)
        return [Address(member.decode()) for member in members]

    async def put_off_removals(self, addresses: Iterable[Address], *, until_ms: int) -> None:
        """Tries these again later, unless they were taken from the list meanwhile."""
        pairs: list[Argument] = [part for address in addresses for part in (until_ms, address)]
        if pairs:
            await self._database.ask("ZADD", self._database.key("removals"), "XX", *pairs)

    async def forget_removals(self, addresses: Sequence[Address]) -> None:
        """Takes these from the list: the ledger has done it."""
        if addresses:
            await self._database.ask("ZREM", self._database.key("removals"), *addresses)

    async def take_changed(self, *, limit: int) -> list[str]:
        """Takes the names of what changed since they were last taken: addresses, or `tasks`."""
        members = await self._database.ask("SPOP", self._database.key("changed"), limit)
        return [member.decode() for member in members or []]

    def _node(self, address: Address) -> str:
        return self._database.key("node", address)


def row_of(address: Address, fields: Mapping[str, str]) -> NodeRow:
    """A row from a hash."""
    return NodeRow(
        address=address,
        revision=fields.get("rev", ""),
        state=NodeState(fields.get("state", NodeState.DISCOVERED)),
        since_ms=int(fields.get("since") or 0),
        reason=fields.get("reason", ""),
        member=fields.get("member") == "1",
        provider=fields.get("provider") or None,
        drain=fields.get("drain", ""),
        machine=machine_of(fields),
        worker_version=fields.get("version") or None,
        seen_ms=_integer(fields.get("seen")),
        interval_ms=_integer(fields.get("interval")),
        assignment_id=fields.get("aid") or None,
        last_assignment_id=fields.get("last_aid") or None,
        generation=int(fields.get("agen") or 0),
        head=fields.get("ahead", ""),
        reference=fields.get("aref", ""),
        gauges=fields.get("metrics", ""),
    )


def machine_of(fields: Mapping[str, str]) -> NodeHardware:
    """Parses the hardware, software and labels of a node; parts that can't be parsed are None."""
    return NodeHardware(
        hardware=_parsed(Hardware, fields.get("hardware")),
        software=_parsed(Software, fields.get("software")),
        labels=json.loads(fields.get("labels") or "{}"),
    )


def _parsed(model: type[_Model], text: str | None) -> _Model | None:
    if not text:
        return None
    try:
        return model.model_validate_json(text)
    except ValidationError:  # written by an older release: discovery tells us again within minutes
        return None


def _entry(fields: Mapping[str, str]) -> HistoryEntry:
    return HistoryEntry(
        time_ms=int(fields["time"]),
        before=NodeState(fields["before"]),
        after=NodeState(fields["after"]),
        event=fields["event"],
        cause=fields["cause"],
        actor=fields["actor"],
    )


def text_of(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """A hash as text."""
    return {name.decode(): value.decode() for name, value in fields.items()}


def _integer(text: str | None) -> int | None:
    return int(text) if text else None
