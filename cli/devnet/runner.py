"""Devnet lifecycle: starts it, shows it while it runs, and stops it at the end of the run or on request."""

from __future__ import annotations

import asyncio
import itertools
import signal
import uuid
from contextlib import AsyncExitStack, suppress
from datetime import timedelta

from cli.devnet.chronicle.data import Contributor
from cli.devnet.chronicle.recorder import Chronicle
from cli.devnet.chronicle.timing import steps_before
from cli.devnet.completion import RunResult, settle
from cli.devnet.costs import ProcessCosts
from cli.devnet.dashboard import dashboard
from cli.devnet.directory import DevnetDirectory, claim_directory
from cli.devnet.economy import CHEATER
from cli.devnet.network import CHAIN_ID, NetworkStart, RunningNetwork
from cli.devnet.options import DevnetOptions
from cli.devnet.orphan_reaper import OrphanReaper
from cli.devnet.services import POOL
from cli.devnet.supervisor import ProcessFailed, Supervisor
from cli.devnet.task import open_orchestrator
from cli.devnet.view import View
from ledger.amounts import format_amount
from ledger.client import Ledger
from protocol.clients import OrchestratorClient
from protocol.errors import MusterError
from protocol.runtime.clock import SystemClock

_REFRESH = timedelta(seconds=1)
_FACTS_EVERY = 3
"""Looks; each of them costs the chain some calls."""
_LAST_PATIENCE = timedelta(seconds=10)
_CHECK_PATIENCE = timedelta(seconds=120)


async def run_devnet(options: DevnetOptions, view: View) -> RunResult | None:
    """Runs a devnet until its run is over, it is told to stop (SIGINT, SIGTERM), or a process is lost for good.

    Returns:
        What the run was, if it came to its end; None if it was stopped, or has none.

    Raises:
        ProcessFailed: A process did not start, or was lost.
        Conflict: A devnet runs in the folder already.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.set)
    network_id = uuid.uuid4().hex
    with claim_directory(options.directory, keep=options.keep) as directory, OrphanReaper(network_id) as guardian:
        supervisor = Supervisor(directory.path, network_id=network_id)

        def tell(event: str) -> None:
            view.event(event)
            view.processes(supervisor.processes)

        supervisor.on_event = tell
        async with supervisor:
            life = _Life(options, directory, supervisor, guardian, view)
            return await _until_stopped(life, stop)


async def _until_stopped(life: _Life, stop: asyncio.Event) -> RunResult | None:
    living, stopped = asyncio.create_task(life.live()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({living, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if living.done():
            return living.result()
        await life.report_so_far()
    finally:
        stopped.cancel()
        living.cancel()
        await asyncio.gather(living, stopped, return_exceptions=True)
    return None


class _Life:
    def __init__(
        self,
        options: DevnetOptions,
        directory: DevnetDirectory,
        supervisor: Supervisor,
        guardian: OrphanReaper,
        view: View,
    ) -> None:
        self._options = options
        self._directory = directory
        self._supervisor = supervisor
        self._view = view
        self._start = NetworkStart(options, directory, supervisor, guardian, view)
        self._began = SystemClock().now().timestamp()
        self._chronicle: Chronicle | None = None
        self._costs = ProcessCosts(supervisor)
        self._reported = False
        self._finished = False
        """The kept run has no step left and its report lies there, so it isn't written again."""

    async def live(self) -> RunResult | None:
        """All of it; cancelled when somebody wants to stop."""
        try:
            async with AsyncExitStack() as stack:
                network = await self._start.foundation()
                if network.places is not None and self._options.learns:
                    self._chronicle = await stack.enter_async_context(self._open_chronicle(network))
                    self._notice_finished()
                showing = asyncio.create_task(self._show(network))
                stack.push_async_callback(_end, showing)
                if network.places is not None:
                    await self._start.services(network, network.places)
                command = "pool nodes" if network.places is not None else "pool show"
                self._view.event(f"ready: try `.venv/bin/muster {command}` in another terminal, here in this folder")
                if network.places is not None:
                    self._view.event(f"or open {network.places.page} with the token in {self._directory.owner_token}")
                return await self._go_on(showing)
        finally:
            await self._start.aclose()

    def _notice_finished(self) -> None:
        """Tells at once that a kept run has nothing left to learn."""
        if self._chronicle is None or not (self._directory.report / "report.html").exists():
            return
        wanted = self._options.run.steps
        if steps_before(self._chronicle.so_far()) < wanted:
            return
        self._finished = self._reported = True
        self._view.event(
            f"nothing is left to learn: all {wanted} steps were learned before; the report stays as it is, "
            f"{self._directory.report / 'report.html'}"
        )

    async def report_so_far(self) -> None:
        """Writes the report of a run that is stopped before its end, if anything was learned in it."""
        chronicle = self._chronicle
        if chronicle is None or self._reported or not chronicle.so_far().progress:
            return
        with suppress(MusterError, TimeoutError):
            await asyncio.wait_for(self._report(chronicle), _LAST_PATIENCE.total_seconds())

    async def _report(self, chronicle: Chronicle) -> RunResult:
        material = await chronicle.gathered(self._costs.known)
        ending = RunResult.of(material, goal=self._options.run.goal)
        ending.write(self._directory.report)
        self._reported = True
        self._view.event(f"the report is {self._directory.report / 'report.html'}")
        return ending

    async def _go_on(self, showing: asyncio.Task[None]) -> RunResult | None:
        chronicle = self._chronicle
        if self._options.only_check:
            if chronicle is not None and self._options.workers:
                await self._first_step(chronicle)
            return None
        over = asyncio.create_task(self._run_over(chronicle))
        lost = asyncio.create_task(self._supervisor.failure())
        try:
            await asyncio.wait({lost, over, showing}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise lost.result()
            if showing.done():
                showing.result()
            return over.result() if over.done() else None
        finally:
            await asyncio.gather(*[_end(task) for task in (over, lost)])

    async def _first_step(self, chronicle: Chronicle) -> None:
        """Returns when something was learned.

        Raises:
            ProcessFailed: Nothing was, in time.
        """
        clock = SystemClock()
        until = clock.monotonic() + _CHECK_PATIENCE.total_seconds()
        while not any(line.get("kind") == "step" for line in chronicle.so_far().progress):
            if clock.monotonic() > until:
                raise ProcessFailed(
                    f"no step was learned within {_CHECK_PATIENCE.total_seconds():.0f} s",
                    hint=f"logs are in {self._directory.path / 'logs'}",
                )
            await clock.sleep(timedelta(milliseconds=200))
        self._view.event("a step was learned")

    async def _run_over(self, chronicle: Chronicle | None) -> RunResult | None:
        """Waits for the trainer's end and all that follows from it; for ever, if there is none."""
        trainer = self._start.trainer
        if self._finished and not self._options.keep_running:
            self._view.event("the network ends; with --keep-running it stays up")
            return None
        if chronicle is None or trainer is None or self._finished:
            await asyncio.Event().wait()
            return None
        await trainer.done.wait()
        self._view.event("the run's steps are done; waiting until its verdicts are final")
        await settle(chronicle, clock=SystemClock())
        ending = await self._report(chronicle)
        if self._options.keep_running:
            self._view.event("the network goes on; Ctrl-C stops all of it")
            await asyncio.Event().wait()
        return ending

    def _open_chronicle(self, network: RunningNetwork) -> Chronicle:
        if network.places is None:
            raise RuntimeError("a chronicle needs services")
        keys, run = network.economy.keys, self._options.run
        contributors = [
            Contributor(
                name=node,
                node=keys[node].address,
                provider=keys[provider].address,
                cheat=self._options.cheat if (provider, node) == CHEATER else "",
            )
            for provider, node in network.workers
        ]
        about = {
            "preset": run.preset.value,
            "task": run.terms.task,
            "steps": str(run.steps),
            "asynchrony": run.asynchrony,
            "seed": str(run.seed),
            "engine": run.engine.value,
            "runtime": network.runtime.value,
        }
        return Chronicle(
            self._directory,
            network.places,
            network.economy.deployment,
            contributors=contributors,
            about=about,
            steps_under_way=run.async_level + 1,
            began=self._began,
        )

    async def _show(self, network: RunningNetwork) -> None:
        async with AsyncExitStack() as stack:
            ledger = await stack.enter_async_context(Ledger.connect(network.rpc, network.economy.deployment))
            orchestrator = None
            if network.places is not None:
                orchestrator = await stack.enter_async_context(open_orchestrator(self._directory, network.places))
            for look in itertools.count():
                self._view.processes(self._supervisor.processes)
                if look % _FACTS_EVERY == 0:
                    with suppress(MusterError):  # a service that restarts is told by its own events
                        self._view.facts(await self._facts(network, ledger))
                if self._chronicle is not None:
                    shown = dashboard(
                        self._chronicle.so_far(),
                        wanted_steps=self._options.run.steps,
                        states=await _states(orchestrator),
                    )
                    self._view.dashboard(shown)
                self._costs.look()
                await asyncio.sleep(_REFRESH.total_seconds())

    async def _facts(self, network: RunningNetwork, ledger: Ledger) -> dict[str, str]:
        pool, escrow, totals = (
            await ledger.pools.get(POOL),
            await ledger.pools.escrow(POOL),
            await ledger.work.totals(POOL),
        )
        page, token = network.places and network.places.page, network.directory.owner_token
        return ({"web page": f"{page}, with the token in {token}"} if page else {}) | {
            "chain": f"{network.rpc} (id {CHAIN_ID}), block {await ledger.block()}",
            "pool": f"{POOL} {pool.status.name.lower()}, {pool.member_count} members",
            "escrow": f"{format_amount(escrow.balance)} MUST, {format_amount(escrow.reserved)} reserved for open work",
            "earned": f"{format_amount(totals.accrued)} MUST, {format_amount(totals.paid)} of it claimed",
            "configuration": str(network.directory.configuration),
        }


async def _states(orchestrator: OrchestratorClient | None) -> dict[str, str]:
    if orchestrator is None:
        return {}
    with suppress(MusterError):
        return {node.address: node.state.value async for node in orchestrator.nodes()}
    return {}


async def _end(task: asyncio.Task[object] | asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
