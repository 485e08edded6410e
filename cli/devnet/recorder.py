"""Observes a run: chain, disks, processes, the trainer's log, and the orchestrator's lists."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import psutil

from cli.devnet.directory import DevnetDirectory
from cli.devnet.report.data import ProcessCost, RunRecord
from cli.devnet.settings import ServicePlaces
from cli.devnet.supervisor import Supervisor
from cli.devnet.tasks import open_orchestrator
from ledger.client import Ledger
from ledger.deployment import Deployment
from ledger.events.cursor import EventCursor
from ledger.events.cursor_stores import MemoryCursorStore
from ledger.events.decoder import EventDecoder
from ledger.events.source import Web3Events
from ledger.events.types import EVENTS, LedgerEvent, VerdictGiven
from protocol.errors import MusterError
from protocol.identifiers import Address, Digest, digest
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import cancel_all
from protocol.verdicts import Outcome
from protocol.wire.audits import LARGEST_AUDIT_FILE, AuditFile
from protocol.wire.listings import RolloutItem
from protocol.wire.runs import RunSamples
from protocol.wire.slots import LeaseView

_CHAIN_POLL = timedelta(milliseconds=40)
_DISK_POLL = timedelta(milliseconds=100)
_PROCESS_POLL = timedelta(seconds=5)
_MEBIBYTE = 1 << 20


class RunRecorder:
    """Records a run; watches chain, disks and processes from entering to leaving the context.

    Args:
        directory: Folder of the devnet.
        places: Addresses of the devnet's services.
        deployment: Addresses of the contracts.
        supervisor: Supervisor of the processes whose resource use is recorded.
        known: Record with what is known before the run: parameters, machine, start and all workers, whose stakes the
            recorder reads.
        polling: Factor by which the pauses between polls of the chain are longer.
        clock: Source of time.
    """

    def __init__(
        self,
        directory: DevnetDirectory,
        places: ServicePlaces,
        deployment: Deployment,
        supervisor: Supervisor,
        *,
        known: RunRecord,
        polling: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self._directory = directory
        self._places = places
        self._deployment = deployment
        self._known = known
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._ledger: Ledger | None = None
        self._chain: ChainWatch | None = None
        shared = {one.name: directory.path / "workers" / one.name / "shared" for one in known.contributors}
        self._polling = polling
        self._arrivals = ArrivalWatch(shared, clock=self._clock)
        self._processes = ProcessWatch(supervisor, clock=self._clock)

    async def __aenter__(self) -> Self:
        self._ledger = await self._stack.enter_async_context(Ledger.connect(self._places.rpc, self._deployment))
        contributors = self._known.contributors
        stakes = await asyncio.gather(*[self._ledger.stake.of(one.provider) for one in contributors])
        before = [replace(one, stake_before=stake.active) for one, stake in zip(contributors, stakes, strict=True)]
        self._known = replace(self._known, contributors=before)
        self._chain = ChainWatch(self._ledger, every=self._polling * _CHAIN_POLL, clock=self._clock)
        for loop in (self._chain.run(), self._arrivals.run(), self._processes.run()):
            self._tasks.append(asyncio.create_task(loop))
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_all(self._tasks)
        await self._stack.aclose()

    def snapshot(self) -> RunRecord:
        """Returns the part of the record that needs no network request."""
        return replace(
            self._known,
            ended=self._clock.now().timestamp(),
            events=() if self._chain is None else tuple(self._chain.events),
            blocks={} if self._chain is None else dict(self._chain.blocks),
            progress=read_progress(self._directory.trainer / "progress.jsonl"),
            stored=stored_at(self._directory.objects),
            arrivals=self._arrivals.seen,
        )

    async def collect(self) -> RunRecord:
        """Returns the complete record of the run.

        Raises:
            MusterError: The chain does not answer.
        """
        if self._ledger is None or self._chain is None:
            raise RuntimeError("the recorder has not been entered")
        await self._chain.poll()
        contributors = self._known.contributors
        stakes = await asyncio.gather(*[self._ledger.stake.of(one.provider) for one in contributors])
        listed = await self._listed()
        snapshot = self.snapshot()
        cheaters = {one.node for one in contributors if one.cheat}
        audits = await run_in_thread(read_audits, self._directory.objects, snapshot.events, cheaters)
        return replace(
            snapshot,
            contributors=[
                replace(one, stake_after=stake.active + stake.unbonding)
                for one, stake in zip(contributors, stakes, strict=True)
            ],
            rollouts=listed.rollouts,
            leases=listed.leases,
            metrics=listed.metrics,
            samples=listed.samples,
            audits=audits,
            processes=self._processes.known,
        )

    async def _listed(self) -> _Listed:
        """Reads the orchestrator's lists; parts are empty if it is down, so that the report omits them."""
        found = _Listed()
        async with open_orchestrator(self._directory, self._places) as client:
            with suppress(MusterError):
                found.rollouts = [item async for item in client.rollouts(status="all")]
                for one in self._known.contributors:
                    with suppress(MusterError):
                        found.leases[one.node] = (await client.leases(one.node)).leases
                    with suppress(MusterError):
                        found.metrics[one.node] = (await client.metrics(one.node)).metrics
            with suppress(MusterError):
                newest = await client.samples()
                earlier = [await client.samples(step=step) for step in newest.steps[:1] if step != newest.step]
                found.samples = [*earlier, newest]
        return found


@dataclass(slots=True)
class _Listed:
    """Lists of the orchestrator: rollout files, leases and metrics of each node, and samples of steps."""

    rollouts: list[RolloutItem] = field(default_factory=list)
    leases: dict[Address, tuple[LeaseView, ...]] = field(default_factory=dict)
    metrics: dict[Address, dict[str, float]] = field(default_factory=dict)
    samples: list[RunSamples] = field(default_factory=list)


class ChainWatch:
    """Collects every event of the contracts, and the time at which each block appeared.

    Block timestamps are whole seconds, but the devnet makes two blocks per second. Durations are therefore measured
    from the time at which this process first saw a block, at most about 40 ms after the block was made.

    Args:
        ledger: The contracts, opened read-only.
        every: Pause between polls.
        clock: Source of time.
    """

    def __init__(self, ledger: Ledger, *, every: timedelta = _CHAIN_POLL, clock: Clock) -> None:
        self._ledger = ledger
        self._every = every
        self._clock = clock
        self._decoder = EventDecoder(ledger.deployment)
        source = Web3Events(ledger.web3, addresses=[ledger.deployment[contract] for contract in EVENTS])
        self._cursor = EventCursor(
            source, name="recorder", store=MemoryCursorStore(), start_block=ledger.deployment.block, clock=clock
        )
        self.blocks: dict[int, float] = {}
        """Time at which each block was first seen, Unix s."""
        self.events: list[LedgerEvent] = []
        """All events so far, in chain order."""

    async def run(self) -> None:
        """Polls until the task is cancelled; continues while the chain does not answer."""
        while True:
            with suppress(MusterError):
                await self.poll()
            await self._clock.sleep(self._every)

    async def poll(self) -> None:
        """Reads new blocks and events.

        Raises:
            MusterError: The chain does not answer.
        """
        height = await self._ledger.block()
        newest = max(self.blocks, default=height - 1)
        if height <= newest:
            return
        now = self._clock.now().timestamp()
        self.blocks |= dict.fromkeys(range(newest + 1, height + 1), now)
        while True:
            batch = await self._cursor.poll()
            decoded = (self._decoder.decode(event.log) for event in batch.events)
            self.events += [event for event in decoded if event is not None]
            await self._cursor.commit(batch)
            if batch.position.next_block > batch.head:
                return


class ArrivalWatch:
    """Notes when versions appear on the nodes' disks.

    Nodes delete old versions, so this class polls during the run.

    Args:
        shared: Shared volume of each node, by node name.
        clock: Source of time.
    """

    def __init__(self, shared: Mapping[str, Path], *, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self.seen: dict[Digest, dict[str, float]] = {}
        """Time at which each node had the complete version, Unix s; by version digest and node name."""

    async def run(self) -> None:
        """Polls until the task is cancelled."""
        while True:
            now = self._clock.now().timestamp()
            for name, volume in self._shared.items():
                for version in _versions(volume / "checkpoints"):
                    self.seen.setdefault(version, {}).setdefault(name, now)
            await self._clock.sleep(_DISK_POLL)


def _versions(folder: Path) -> Iterator[Digest]:
    """Yields the digests of complete versions; the name of a partial version is no digest."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return
    for name in names:
        with suppress(MusterError, ValueError):
            yield digest(name)


class ProcessWatch:
    """Tracks the resource use of supervised processes.

    Polls, because the operating system drops a process's counters when the process ends.

    Args:
        supervisor: Supervisor of the processes.
        clock: Source of time.
    """

    def __init__(self, supervisor: Supervisor, *, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._known: dict[str, ProcessCost] = {}

    @property
    def known(self) -> list[ProcessCost]:
        """CPU time and memory of each process with its descendants, highest CPU time first.

        Processes in containers are not included.
        """
        return sorted(self._known.values(), key=lambda one: -one.cpu_seconds)

    async def run(self) -> None:
        """Polls until the task is cancelled."""
        while True:
            self._poll()
            await self._clock.sleep(_PROCESS_POLL)

    def _poll(self) -> None:
        owners = {process.pid: process.name for process in self._supervisor.processes if process.pid is not None}
        seconds = dict.fromkeys(owners.values(), 0.0)
        memory = dict.fromkeys(owners.values(), 0.0)
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                lineage = (process, *process.parents())
                owner = next((owners[one.pid] for one in lineage if one.pid in owners), None)
                if owner is not None:
                    times = process.cpu_times()
                    seconds[owner] += times.user + times.system + times.children_user + times.children_system
                    memory[owner] += process.memory_info().rss / _MEBIBYTE
        for name, spent in seconds.items():
            before = self._known.get(name)
            # The sum drops when a descendant ends and its parent does not wait for it, so keep the largest sum.
            most = spent if before is None else max(spent, before.cpu_seconds)
            self._known[name] = ProcessCost(name=name, cpu_seconds=most, memory_mib=memory[name])


def stored_at(objects: Path) -> dict[Digest, float]:
    """Returns the arrival time of each object in the local store, by the object's SHA-256.

    Times are Unix times in seconds.
    """
    found: dict[Digest, float] = {}
    for path in objects.rglob("*"):
        with suppress(FileNotFoundError):  # the store renames a file when its upload ends
            if len(path.name) == 64 and path.is_file():
                found[digest(f"0x{path.name}")] = path.stat().st_mtime
    return found


def read_progress(path: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of the trainer's `progress.jsonl`."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    lines = []
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines


def read_audits(objects: Path, events: Iterable[LedgerEvent], nodes: Set[Address]) -> dict[Digest, AuditFile]:
    """Returns audit files of the last verdicts against nodes, by work key, from the local object store.

    Leaves out files that are missing or malformed, or whose bytes do not have the hash on the ledger.

    Args:
        objects: Folder of the store.
        events: Events of the ledger.
        nodes: The nodes.
    """
    named: dict[Digest, Digest] = {}
    for event in events:
        if isinstance(event, VerdictGiven) and event.node in nodes:
            named.pop(event.key, None)
            if event.outcome is not Outcome.ACCEPTED:
                named[event.key] = event.audit_hash
    found = {}
    for key, audit_hash in named.items():
        path = next(objects.rglob(audit_hash[2:]), None)
        with suppress(MusterError, OSError):
            if path is not None and path.stat().st_size <= LARGEST_AUDIT_FILE:
                content = path.read_bytes()
                if digest(sha256(content).digest()) == audit_hash:
                    found[key] = AuditFile.decode(content)
    return found
