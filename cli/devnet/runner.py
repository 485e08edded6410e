"""Lifecycle of a devnet: start, display, and stop at the end of the run or on request."""

from __future__ import annotations

import asyncio
import itertools
import signal
import uuid
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from cli.devnet.base import bind_model
from cli.devnet.directory import DevnetDirectory, claim_directory
from cli.devnet.economy import CHEATER
from cli.devnet.machine import describe_machine
from cli.devnet.network import CHAIN_ID, NetworkStart, RunningNetwork
from cli.devnet.options import DevnetOptions
from cli.devnet.orphan_reaper import OrphanReaper
from cli.devnet.recorder import RunRecorder
from cli.devnet.report.data import Contributor, RunRecord
from cli.devnet.report.pipeline import steps_before
from cli.devnet.report.work import work_timelines
from cli.devnet.result import RunResult
from cli.devnet.serving import serving_run
from cli.devnet.settings import POOL, ServicePlaces
from cli.devnet.supervisor import ProcessFailed, Supervisor
from cli.devnet.tasks import open_orchestrator
from cli.devnet.version_links import share_versions
from cli.devnet.view import Dashboard, View
from cli.output.quantities import counted
from ledger.amounts import format_amount
from ledger.client import Ledger
from protocol.clients import OrchestratorClient
from protocol.errors import MusterError
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import cancel_all, wait_first

_REFRESH = timedelta(seconds=1)
_FACTS_EVERY = 3
"""Number of screen refreshes per update of the facts, because an update takes several calls to the chain."""
_LAST_REPORT_TIMEOUT = timedelta(seconds=10)
_SHARE_EVERY = timedelta(seconds=2)
_FINALITY_TIMEOUT = timedelta(seconds=20)


async def run_devnet(options: DevnetOptions, view: View) -> RunResult | None:
    """Runs a devnet until its run is over, a signal stops it, or a process fails for good.

    SIGINT, SIGTERM and SIGHUP stop the devnet.

    Returns:
        Result of the run; None if the devnet trains no model, only checks the network, or was stopped before the end.

    Raises:
        ProcessFailed: A process did not start, or ended for good.
        Conflict: A devnet already runs in the folder, or the continued devnet trains another model or uses
            another recipe.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.set)
    network_id = uuid.uuid4().hex
    with claim_directory(options.directory, keep=options.keep) as directory, OrphanReaper(network_id) as reaper:
        if options.serves:
            options = replace(options, run=serving_run(directory, options.run))
        if options.has_model:
            bind_model(directory, options.run)
        supervisor = Supervisor(directory.path, network_id=network_id)

        def on_event(event: str) -> None:
            view.event(event)
            view.processes(supervisor.processes)

        supervisor.on_event = on_event
        async with supervisor:
            runner = _Runner(options, directory, supervisor, reaper, view)
            running = asyncio.create_task(runner.run())
            try:
                await wait_first(stop.wait(), tasks=[running])
                if running.done():
                    return running.result()
                await runner.report_early()
            finally:
                await cancel_all([running])
            return None


class _Runner:
    def __init__(
        self,
        options: DevnetOptions,
        directory: DevnetDirectory,
        supervisor: Supervisor,
        reaper: OrphanReaper,
        view: View,
    ) -> None:
        self._options = options
        self._directory = directory
        self._supervisor = supervisor
        self._view = view
        self._start = NetworkStart(options, directory, supervisor, reaper, view)
        self._began = SystemClock().now().timestamp()
        self._recorder: RunRecorder | None = None
        self._reported = False
        self._finished = False
        """True if a continued run (`--keep`) has no step left, and its report exists and stays unchanged."""

    async def run(self) -> RunResult | None:
        """Runs the devnet from start to end; `run_devnet` cancels it when the user stops the devnet."""
        try:
            async with AsyncExitStack() as stack:
                network = await self._start.foundation()
                places = network.places
                if places is not None and self._options.learns:
                    self._recorder = await stack.enter_async_context(self._make_recorder(network, places))
                    self._detect_finished(self._recorder)
                showing = asyncio.create_task(self._show(network))
                stack.push_async_callback(cancel_all, [showing])
                if self._options.learns and self._options.run.scale.share_versions:
                    sharing = asyncio.create_task(self._share_versions())
                    stack.push_async_callback(cancel_all, [sharing])
                if places is not None:
                    await self._start.services(network, places)
                command = "pool nodes" if places is not None else "pool show"
                self._view.event(f"ready: try `{_program()} {command}` in another terminal, here in this folder")
                if places is not None:
                    for name, page in self._pages(network, places).items():
                        self._view.event(f"{name}: {page}")
                return await self._wait_for_end(showing)
        finally:
            await self._start.aclose()

    def _detect_finished(self, recorder: RunRecorder) -> None:
        """Detects that a continued run (`--keep`) has no step left, and tells the user at once."""
        report, wanted = self._directory.report / "report.html", self._options.run.steps
        if report.exists() and steps_before(recorder.snapshot()) >= wanted:
            self._finished = self._reported = True
            self._view.event(
                f"nothing is left to learn: an earlier start learned all of {counted(wanted, 'step')}; the report is "
                f"unchanged: {report}"
            )

    async def report_early(self) -> None:
        """Writes the report of a run that the user stops before its end.

        Writes nothing if the trainer has recorded no progress.
        """
        recorder = self._recorder
        if recorder is None or self._reported or not recorder.snapshot().progress:
            return
        with suppress(MusterError, TimeoutError):
            await asyncio.wait_for(self._report(recorder), _LAST_REPORT_TIMEOUT.total_seconds())

    async def _report(self, recorder: RunRecorder) -> RunResult:
        result = RunResult.of(await recorder.collect(), goal=self._options.run.goal)
        result.write(self._directory.report)
        self._reported = True
        self._view.event(f"the report is {self._directory.report / 'report.html'}")
        return result

    async def _wait_for_end(self, showing: asyncio.Task[None]) -> RunResult | None:
        if self._options.only_check:
            if self._recorder is not None and self._options.workers:
                await self._first_step(self._recorder)
            return None
        over = asyncio.create_task(self._run_over())
        failed = asyncio.create_task(self._supervisor.failure())
        try:
            await wait_first(tasks=[failed, over, showing])
            if failed.done():
                raise failed.result()
            if showing.done():
                showing.result()
            return over.result() if over.done() else None
        finally:
            await cancel_all([over, failed])

    async def _first_step(self, recorder: RunRecorder) -> None:
        """Waits until the trainer has learned a step.

        Raises:
            ProcessFailed: No step was learned in time.
        """
        clock, within = SystemClock(), self._options.run.scale.first_step.total_seconds()
        deadline = clock.monotonic() + within
        while not any(line.get("kind") == "step" for line in recorder.snapshot().progress):
            if clock.monotonic() > deadline:
                raise ProcessFailed(
                    f"no step was learned within {within:.0f} s",
                    hint=f"logs are in {self._directory.path / 'logs'}",
                )
            await clock.sleep(timedelta(milliseconds=200))
        self._view.event("a step was learned")

    async def _run_over(self) -> RunResult | None:
        """Waits until the trainer has ended and verdicts are final, then writes the report.

        Waits until it is cancelled if the devnet trains no model.
        """
        recorder, trainer = self._recorder, self._start.trainer
        if self._finished and not self._options.keep_running:
            self._view.event("the network ends; with --keep-running it stays up")
            return None
        if recorder is None or trainer is None or self._finished:
            await asyncio.Event().wait()
            return None
        await trainer.done.wait()
        self._view.event("the run's steps are done; waiting until its verdicts are final")
        within = max(_FINALITY_TIMEOUT, self._options.run.scale.judge_period)
        await _await_finality(recorder, within=within, clock=SystemClock())
        result = await self._report(recorder)
        if self._options.keep_running:
            self._view.event("the network keeps running; Ctrl-C stops everything")
            await asyncio.Event().wait()
        return result

    def _make_recorder(self, network: RunningNetwork, places: ServicePlaces) -> RunRecorder:
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
        return RunRecorder(
            self._directory,
            places,
            network.economy.deployment,
            self._supervisor,
            known=RunRecord(
                about={**run.about, "runtime": network.runtime.value},
                machine=describe_machine(self._directory.path, engine=run.engine, chain=self._options.chain),
                began=self._began,
                ended=self._began,
                contributors=contributors,
                steps_under_way=run.async_level + 1,
            ),
            polling=run.scale.polling,
        )

    async def _show(self, network: RunningNetwork) -> None:
        """Refreshes the view until the task is cancelled."""
        async with AsyncExitStack() as stack:
            ledger = await stack.enter_async_context(Ledger.connect(network.rpc, network.economy.deployment))
            orchestrator = None
            if network.places is not None:
                orchestrator = await stack.enter_async_context(open_orchestrator(self._directory, network.places))
            for refresh in itertools.count():
                self._view.processes(self._supervisor.processes)
                if refresh % _FACTS_EVERY == 0:
                    with suppress(MusterError):  # the supervisor's events report a service that is down
                        self._view.facts(await self._facts(network, ledger))
                if self._recorder is not None:
                    self._view.dashboard(
                        Dashboard.of(
                            self._recorder.snapshot(),
                            wanted_steps=self._options.run.steps,
                            states=await _node_states(orchestrator),
                        )
                    )
                await asyncio.sleep(_REFRESH.total_seconds())

    async def _share_versions(self) -> None:
        """Replaces relays' copies of versions by hard links, until the task is cancelled."""
        while True:
            await asyncio.sleep(_SHARE_EVERY.total_seconds())
            await run_in_thread(share_versions, self._directory)

    def _pages(self, network: RunningNetwork, places: ServicePlaces) -> dict[str, str]:
        """Returns the addresses of the web pages, with what opens them."""
        pages = {
            "owner's page": f"{places.page}, with the token in {self._directory.owner_token}",
            "public page": places.public_page,
        }
        if network.workers:
            pages["contributor's page"] = (
                f"`{_program()} worker page` prints a one-time link to {places.contributor_page}"
            )
        return pages

    async def _facts(self, network: RunningNetwork, ledger: Ledger) -> dict[str, str]:
        pool, escrow, totals = (
            await ledger.pools.get(POOL),
            await ledger.pools.escrow(POOL),
            await ledger.work.totals(POOL),
        )
        return ({} if network.places is None else self._pages(network, network.places)) | {
            "chain": f"{network.rpc} (id {CHAIN_ID}), block {await ledger.block()}",
            "pool": f"{POOL} {pool.status.name.lower()}, {counted(pool.member_count, 'member')}",
            "escrow": f"{format_amount(escrow.balance)} MUST, {format_amount(escrow.reserved)} reserved for open work",
            "earned": f"{format_amount(totals.accrued)} MUST, {format_amount(totals.paid)} of it claimed",
            "configuration": str(self._directory.configuration),
        }


async def _await_finality(recorder: RunRecorder, *, within: timedelta, clock: Clock) -> None:
    """Waits until all work submitted by now is paid, slashed or expired, or until a timeout."""
    deadline = clock.monotonic() + within.total_seconds()
    submitted = {one.key for one in work_timelines(recorder.snapshot())}
    while clock.monotonic() < deadline:
        if submitted <= {one.key for one in work_timelines(recorder.snapshot()) if one.final or one.expired}:
            return
        await clock.sleep(timedelta(milliseconds=300))


async def _node_states(orchestrator: OrchestratorClient | None) -> dict[str, str]:
    if orchestrator is not None:
        with suppress(MusterError):
            return {node.address: node.state.value async for node in orchestrator.nodes()}
    return {}


def _program() -> str:
    """Returns the command that starts Muster: `.venv/bin/muster` if it exists, else `muster`."""
    local = Path(".venv/bin/muster")
    return str(local) if local.exists() else "muster"
