"""Nodes in Redis: a hash, a history and commands per node, and sorted sets over all nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.domain.node_states import MEMBERS
from orchestrator.scheduler.requirements import NodeHardware
from orchestrator.store.database import Database
from orchestrator.store.scripts import ForgetNode, LeaveCommand, WriteFacts, WriteTransition
from protocol.errors import Conflict, NotFound
from protocol.identifiers import Address
from protocol.redis.script_call import Argument
from protocol.runtime.clock import DAY_MS
from protocol.wire.heartbeat import MAX_COMMANDS, Command
from protocol.wire.nodes import Hardware, NodeState, Software
from protocol.wire.pool import HistoryEntry

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """Row of a node in Redis."""

    address: Address
    revision: str
    """Number that every transition increases, to detect concurrent writes; empty for an unknown node."""
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
    """Part of a heartbeat answer that identifies the assignment; result of `assignments.head_of`."""
    reference: str = ""
    """Id and generation of the assignment's task, as `id:generation`. They identify the task's part of a heartbeat
    answer."""
    version: int = 0
    """Number that every change raises, also those by the scheduler."""
    gauges: str = ""
    """Metrics of the last heartbeat as JSON. They are parsed on demand, because few readers of a row need them."""

    def metrics(self, name: str) -> dict[str, float]:
        """Returns a metric of the last heartbeat as `{name: value}`; empty if the heartbeat did not have it."""
        metrics: dict[str, float] = json.loads(self.gauges or "{}")
        return {name: metrics[name]} if name in metrics else {}


class NodeStore:
    """Reads and writes nodes.

    Args:
        database: Database of the pool.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, address: Address) -> NodeRow:
        """Returns the row of a node.

        For an unknown node it is a row in state `discovered` without a revision.
        """
        return (await self.get_many([address]))[0]

    async def get_known(self, address: Address) -> NodeRow:
        """Returns the row of a known node.

        Raises:
            NotFound: The pool does not know the node.
        """
        row = await self.get(address)
        if not row.revision:
            raise NotFound(
                f"the pool knows no node {address}",
                hint="`muster pool nodes` lists the known nodes",
                code="unknown-node",
            )
        return row

    async def get_many(self, addresses: Sequence[Address]) -> list[NodeRow]:
        """Returns the rows of nodes, in the order of the addresses."""
        raw = await self.raw_many(addresses)
        return [row_of(address, fields) for address, fields in zip(addresses, raw, strict=True)]

    async def raw_many(self, addresses: Sequence[Address]) -> list[dict[str, str]]:
        """Returns the Redis hashes of nodes, in the order of the addresses."""
        hashes = await self._database.ask_many([("HGETALL", self._node(address)) for address in addresses])
        return [text_of(fields) for fields in hashes]

    async def states(self, addresses: Sequence[Address]) -> list[tuple[str, str]]:
        """Returns the state and the provider of nodes, each empty if unknown, in the order of the addresses."""
        rows = await self._database.ask_many([("HMGET", self._node(each), "state", "provider") for each in addresses])
        return [((state or b"").decode(), (provider or b"").decode()) for state, provider in rows]

    async def version(self, address: Address) -> int:
        """Returns the version of a node; 0 for an unknown node."""
        return int(await self._database.ask("HGET", self._node(address), "ver") or 0)

    async def page(self, *, after: str | None, limit: int) -> list[Address]:
        """Returns known addresses greater than `after`, in ascending order."""
        low = "-" if after is None else f"({after}"
        members = await self._database.ask("ZRANGEBYLEX", self._database.key("nodes"), low, "+", "LIMIT", 0, limit)
        return [Address(member.decode()) for member in members]

    async def count(self) -> int:
        """Returns the number of known nodes."""
        return int(await self._database.ask("ZCARD", self._database.key("nodes")))

    async def expected(self) -> int:
        """Returns the number of nodes with a deadline, which send heartbeats or have an open invite."""
        return int(await self._database.ask("ZCARD", self._database.key("deadlines")))

    async def removals_waiting(self) -> int:
        """Returns the number of dead nodes that are still members on the ledger."""
        return int(await self._database.ask("ZCARD", self._database.key("removals")))

    async def events_read_ms(self) -> int:
        """Returns the time up to which membership events are applied, in Unix ms; 0 if never."""
        return int(await self._database.ask("GET", self._database.key("events-read")) or 0)

    async def mark_events_read(self, at_ms: int) -> None:
        """Records the time up to which membership events are applied, in Unix milliseconds."""
        await self._database.ask("SET", self._database.key("events-read"), at_ms)

    async def write(self, change: WriteTransition) -> bool:
        """Writes a transition; returns False if the node's row changed since it was read."""
        return await self._database.run(change)

    async def write_many(self, changes: Sequence[WriteTransition]) -> list[bool]:
        """Writes transitions in shared round trips; returns which of them were written."""
        return await self._database.run_many(changes)

    async def learn(self, address: Address, facts: Mapping[str, str]) -> None:
        """Writes facts that discovery reports about a known node; the node's state does not change."""
        await self._database.run(WriteFacts(address=address, facts=facts))

    async def forget_unlisted(self, addresses: Sequence[Address], *, before_ms: int) -> int:
        """Deletes those nodes that no discovery service has listed since a time; returns their number.

        Members, nodes in another state than `discovered`, and nodes with slots of the run are kept.

        Args:
            addresses: Nodes to check.
            before_ms: The time, in Unix milliseconds.
        """
        fields = ("ver", "state", "member", "listed", "since")
        rows = await self._database.ask_many([("HMGET", self._node(each), *fields) for each in addresses])
        old = [
            ForgetNode(address=each, version=ver.decode())
            for each, (ver, state, member, listed, since) in zip(addresses, rows, strict=True)
            if ver is not None
            and state == NodeState.DISCOVERED.value.encode()
            and member != b"1"
            # `listed` is a day. An earlier release did not write it: then the node's last change of state counts.
            and ((int(listed) + 1) * DAY_MS if listed else int(since or 0)) < before_ms
        ]
        return sum(await self._database.run_many(old)) if old else 0

    async def history(self, address: Address, *, limit: int) -> tuple[HistoryEntry, ...]:
        """Returns the newest history entries, newest first."""
        key = self._database.key("history", address)
        entries = await self._database.ask("XREVRANGE", key, "+", "-", "COUNT", limit)
        return tuple(_entry(text_of(fields)) for _, fields in entries)

    async def last_ips(self, addresses: Sequence[Address]) -> list[tuple[Address, str]]:
        """Returns the active members among these nodes, with the IP of their last heartbeat."""
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
        """Queues a command, which the node receives with its next heartbeat.

        Raises:
            Conflict: `MAX_COMMANDS` commands wait for the node already.
            NotFound: The pool does not know the node.
        """
        outcome = await self._database.run(
            LeaveCommand(address=address, id=command.id, command=command.model_dump_json(), most_waiting=MAX_COMMANDS)
        )
        if outcome == "unknown-node":
            raise NotFound(
                f"the pool knows no node {address}",
                hint="`muster pool nodes` lists the known nodes",
                code="unknown-node",
            )
        if outcome == "too-many":
            raise Conflict(
                f"{MAX_COMMANDS} commands wait for {address} already",
                hint="wait for the node's next heartbeat, or find out why it sends none",
                retryable=True,
            )

    async def due_removals(self, *, now_ms: int, limit: int) -> list[Address]:
        """Returns the dead nodes whose removal from the pool on the ledger is due."""
        key = self._database.key("removals")
        members = await self._database.ask("ZRANGEBYSCORE", key, "-inf", now_ms, "LIMIT", 0, limit)
        return [Address(member.decode()) for member in members]

    async def postpone_removals(self, addresses: Iterable[Address], *, until_ms: int) -> None:
        """Postpones removals, except those that were cancelled meanwhile."""
        pairs: list[Argument] = [part for address in addresses for part in (until_ms, address)]
        if pairs:
            await self._database.ask("ZADD", self._database.key("removals"), "XX", *pairs)

    async def forget_removals(self, addresses: Sequence[Address]) -> None:
        """Deletes nodes that were removed, or are alive again, from the list of removals."""
        if addresses:
            await self._database.ask("ZREM", self._database.key("removals"), *addresses)

    async def take_changed(self, *, limit: int) -> list[str]:
        """Removes and returns up to `limit` entries of the list of changes.

        An entry is the address of a changed node, or `tasks` if some task changed.
        """
        members = await self._database.ask("SPOP", self._database.key("changed"), limit)
        return [member.decode() for member in members or []]

    def _node(self, address: Address) -> str:
        return self._database.key("node", address)


def row_of(address: Address, fields: Mapping[str, str]) -> NodeRow:
    """Parses the Redis hash of a node; missing fields get their initial values."""
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
        version=int(fields.get("ver") or 0),
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
    except ValidationError:  # an older release wrote the value; discovery reports it again within minutes
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
    """Decodes the names and values of a Redis hash."""
    return {name.decode(): value.decode() for name, value in fields.items()}


def _integer(text: str | None) -> int | None:
    return int(text) if text else None
