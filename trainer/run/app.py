"""Builds a training run from its settings and runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ledger.client import Ledger
from ledger.metrics import CHAIN_METRICS_EVERY, ChainMetrics
from protocol.clients.orchestrator import OrchestratorClient
from protocol.errors import Conflict
from protocol.http.object_transfer import ObjectTransfer
from protocol.http.serving.metrics_server import MetricsServer
from protocol.identifiers import run_id
from protocol.identity.keys import Key
from protocol.redis.outages import patient
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.loops import BackgroundLoops
from protocol.runtime.threads import run_in_thread
from rollouts.environments.mixture import parts_of
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.sandbox import Sandboxes, SandboxSettings
from rollouts.sandbox.decoder import Decoder
from trainer.distributed.ranks import RankInfo, device_of
from trainer.errors import BadSettings
from trainer.policy.base_model import PolicyBase, open_base
from trainer.policy.policy_learner import PolicyLearner
from trainer.run.connections import Outside, connect, publisher_key
from trainer.run.curves import CurvePublisher
from trainer.run.dependencies import Dependencies
from trainer.run.evaluation_process import EvaluationProcess
from trainer.run.gathering.intake import IntakeLimits, IntakeSources, RolloutIntake, step_folder
from trainer.run.gathering.rollout_files import FileReader, FileRules
from trainer.run.gathering.verdicts import LedgerVerdicts
from trainer.run.learner.setup import learned_under, learning_settings, open_learner
from trainer.run.learner.thread import LearnerThread
from trainer.run.loop import TrainingRun
from trainer.run.orchestrator.demand import DemandPublisher
from trainer.run.orchestrator.lease import RunLease
from trainer.run.orchestrator.outages import OutageRetry
from trainer.run.progress import ProgressLog
from trainer.run.publishing.announcer import Announcer, VersionOffer
from trainer.run.publishing.folders import VersionFolders, open_folders
from trainer.run.resuming import Resumption, resume
from trainer.run.settings import TrainerSettings
from trainer.run.state.folder import lock_state
from trainer.run.state.journal import Journal, Recorded
from trainer.run.state.trainer_state import TrainerState
from trainer.saving.files import copy_version


async def run_trainer(
    settings: TrainerSettings,
    *,
    stop: asyncio.Event,
    key: Key | None = None,
    outside: Outside | None = None,
    place: RankInfo | None = None,
) -> TrainerState:
    """Trains until all steps are done or `stop` is set; returns the final state.

    Args:
        settings: Settings of the run.
        stop: Event that ends the run at the next point from which it can resume.
        key: The publisher's key; by default from its keystore or the environment.
        outside: Clock and connections; by default the system clock and the network.
        place: Rank of this process under torchrun, which must be 0: the other processes execute the commands of this
            process (`trainer.run.learner.follower`). None without torchrun.

    Raises:
        MeshBroken: Another process of the mesh has ended.
        MusterError: Any other failure; all completed steps are saved on disk.
    """
    outside = outside or Outside(clock=SystemClock())
    key = key or publisher_key(settings)
    learning = learning_settings(settings)
    base = open_base(settings.start)
    with lock_state(settings.state):
        async with AsyncExitStack() as stack:
            in_thread = await stack.enter_async_context(LearnerThread())
            learner = await stack.enter_async_context(
                open_learner(base, learning, settings, place=place, stop=stop, in_thread=in_thread)
            )
            ledger, client = await connect(settings, key, outside, stack)
            transfer = ObjectTransfer(
                client.location.url,
                clock=outside.clock,
                allow_plain_http=settings.allow_plain_http,
                transport=outside.transport,
            )
            stack.push_async_callback(transfer.aclose)
            links = _Links(
                ledger=ledger,
                client=client,
                transfer=transfer,
                clock=outside.clock,
                place=place,
                learner_thread=in_thread,
            )
            run = TrainingRun(*await _prepare(settings, base, learner, links, stack), stop=stop)
            await run.run()
            return run.state


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """Connections to other services."""

    ledger: Ledger
    client: OrchestratorClient
    transfer: ObjectTransfer
    clock: Clock
    place: RankInfo | None
    learner_thread: LearnerThread


async def _prepare(
    settings: TrainerSettings, base: PolicyBase, learner: PolicyLearner, links: _Links, stack: AsyncExitStack
) -> tuple[Dependencies, TrainerState]:
    """Creates the dependencies of the training loop, and resumes the run.

    Learner and state are restored up to the end of the journal.
    """
    client, clock = links.client, links.clock
    outage_retry = OutageRetry(clock=clock, longest=settings.patience)
    lease = RunLease(client, folder=settings.state, clock=clock, retry=outage_retry)
    stack.push_async_callback(lease.give_up)
    await lease.take()
    journal = Journal(settings.state)
    reader = FileReader(decoder=await _decoder(stack), rules=_rules(settings, base))
    identity = {
        "run": run_id(settings.run),
        "pool": str(settings.pool_id),
        "base": base.digest,
        "seed": str(settings.seed),
    }
    recorded = await run_in_thread(journal.read)
    resumption = _resumption(settings, links, journal=journal, recorded=recorded, reader=reader, identity=identity)
    state = await links.learner_thread(resume, resumption, learner=learner)
    folders = open_folders(settings, links.ledger, journal=journal, written=recorded.written, clock=clock)
    await _write_base(settings, base, folders)
    progress = ProgressLog(settings.state, clock=clock)
    if settings.metrics_port is not None:
        await _serve_metrics(settings, settings.metrics_port, links, progress=progress, stack=stack)
    curves = CurvePublisher(client.put_trained, tokenizer=await run_in_thread(FolderTokenizer, base.folder))
    stack.push_async_callback(curves.aclose)
    evaluation: EvaluationProcess | None = None
    if settings.evaluate_every:
        evaluation = EvaluationProcess(settings, progress=progress, clock=clock, show=client.put_answers)
        stack.push_async_callback(evaluation.aclose)
    dependencies = Dependencies(
        settings=settings,
        learner=learner,
        learner_thread=links.learner_thread,
        candidates=base.candidates,
        parts=parts_of(base.recipe.environment.name, base.recipe.environment.options),
        journal=journal,
        folders=folders,
        announcer=Announcer(
            folders,
            ledger=links.ledger,
            client=client,
            offer=VersionOffer(
                pool_id=settings.pool_id,
                run=run_id(settings.run),
                units_per_group=base.recipe.units_per_group,
                arithmetic=base.recipe.taken,
                relays=settings.relays,
            ),
            retry=outage_retry,
            lease=lease,
        ),
        demand=DemandPublisher(client, retry=outage_retry, lease=lease),
        lease=lease,
        intake=_intakes(settings, links, reader=reader, folders=folders),
        progress=progress,
        curves=curves,
        evaluation=evaluation,
        clock=clock,
        identity=identity,
    )
    return dependencies, state


async def _serve_metrics(
    settings: TrainerSettings, port: int, links: _Links, *, progress: ProgressLog, stack: AsyncExitStack
) -> None:
    """Serves the gauges of the run, and those of the chain and of the publisher's coin."""
    chain = ChainMetrics(progress.registry, clock=links.clock)

    async def read() -> None:
        await chain.read(links.ledger, {"publisher": links.ledger.address})

    loops = BackgroundLoops(clock=links.clock)
    loops.add("chain-metrics", patient("chain-metrics", read), every=CHAIN_METRICS_EVERY)
    await stack.enter_async_context(loops)
    await stack.enter_async_context(
        MetricsServer(progress.registry, host=settings.metrics_host, port=port, clock=links.clock)
    )


def _rules(settings: TrainerSettings, base: PolicyBase) -> FileRules:
    return FileRules(
        run=run_id(settings.run),
        recipe=base.recipe,
        vocabulary=base.facts.vocabulary,
        context=base.facts.context,
        most_bytes=settings.most_file_bytes,
    )


def _resumption(
    settings: TrainerSettings,
    links: _Links,
    *,
    journal: Journal,
    recorded: Recorded,
    reader: FileReader,
    identity: dict[str, str],
) -> Resumption:
    return Resumption(
        folder=settings.state,
        journal=journal,
        recorded=recorded,
        rules=reader.rules,
        decoder=reader.decoder,
        identity=identity,
        under=learned_under(
            settings,
            learning_settings(settings),
            device=device_of(settings.device, links.place).type,
            processes=links.place.processes if links.place else 1,
        ),
    )


def _intakes(
    settings: TrainerSettings, links: _Links, *, reader: FileReader, folders: VersionFolders
) -> Callable[[int], RolloutIntake]:
    """Returns a function that creates the intake of a step."""
    sources = IntakeSources(
        client=links.client,
        transfer=links.transfer,
        verdicts=LedgerVerdicts(links.ledger, pool_id=settings.pool_id),
    )
    limits = IntakeLimits(
        max_staleness=settings.knobs.max_staleness, at_once=settings.downloads, patience=settings.patience
    )

    def intake(step: int) -> RolloutIntake:
        return RolloutIntake(
            step,
            sources=sources,
            folder=step_folder(settings.state, step),
            reader=reader,
            policy=folders.digest,
            limits=limits,
            clock=links.clock,
        )

    return intake


async def _decoder(stack: AsyncExitStack) -> Decoder:
    """Starts a sandboxed process that decodes untrusted files, because this process holds the publisher's key."""
    sandboxes = Sandboxes(SandboxSettings.load().model_copy(update={"most": 1}))
    stack.callback(sandboxes.close)
    decoder = Decoder(sandboxes)
    await run_in_thread(decoder.warm_up)
    return decoder


async def _write_base(settings: TrainerSettings, base: PolicyBase, folders: VersionFolders) -> None:
    try:
        settings.policies.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSettings(f"{settings.policies} can't be created: {error.strerror}") from error

    digest = await folders.write(0, lambda folder: run_in_thread(copy_version, base.folder, folder))
    if digest != base.digest:
        raise Conflict(
            f"this run began with the base {digest}, but {base.folder} has the digest {base.digest}",
            hint="give the same base, or begin a new run with an empty --state",
        )
