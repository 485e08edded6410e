"""Main loop of the serving task: leases slots, and answers a gateway's clients in them.

The task calls the gateway, so the machine opens no port. Requests of all slots share the engine's batch. A slot ends
when the gateway says so; the next slot is opened before the file of the former one is written, so that clients don't
wait between slots. A new version is loaded after the answers in progress have ended, as in `muster serve` (decision
91).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from protocol.errors import Conflict, MusterError
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import cancel_all, wait_first
from protocol.wire.runs import StepAnswer
from protocol.wire.slots import SlotGrant, SlotName, SlotWish
from rollouts.engines.errors import GenerationStopped
from rollouts.errors import EngineFailed
from rollouts.files.samples import SlotHeader
from rollouts.recipe import read_recipe
from rollouts.serving.backend import Backend
from rollouts.task.arithmetic import paid_arithmetic
from rollouts.task.base import CLOSE_TIMEOUT, TaskLoop
from rollouts.task.generator import Produced
from rollouts.task.policies import HeldPolicy
from rollouts.task.serving_answer import ServingVersion, gateway_of
from rollouts.task.serving_session import SlotSession

MOST_SERVED_SLOTS = 2
"""Slots held at the same time: one takes requests, while the former one ends."""
_LOOK_AHEAD = timedelta(seconds=2)
"""Interval at which the task looks for a new version while a slot takes requests."""

_log = get_logger(__name__)


class NoGateway(Conflict):
    """The run names no gateway."""

    code = "no-gateway"
    default_hint = (
        "the pool owner sets run_serving and run_gateway_url of the orchestrator, or posts the task without --serve"
    )


class WrongGateway(Conflict):
    """The gateway has another key than the version's recipe names, so its lists would be refused."""

    code = "wrong-gateway"
    default_hint = "the pool owner corrects run_gateway_url, or publishes a version that names this gateway"


class WrongUnits(Conflict):
    """The lease has another limit of tokens per choice than the version's recipe."""

    code = "wrong-units"
    default_hint = "the pool owner corrects run_units_per_group of the orchestrator, or publishes the version again"


class ServingTask(TaskLoop[ServingVersion]):
    """Answers a gateway's clients until stopped.

    Args:
        allow_plain_http: Whether plain http to a gateway on another machine is allowed.
        options: See `TaskLoop`.
    """

    def __init__(self, *, allow_plain_http: bool = False, **options: Any) -> None:  # noqa: ANN401 - of `TaskLoop`
        super().__init__(**options)
        self._allow_plain_http = allow_plain_http
        self._backend: Backend | None = None
        self._sessions: dict[asyncio.Task[None], SlotSession] = {}
        self._engine_failure: EngineFailed | None = None

    async def _turn(self) -> timedelta:
        """Opens the next slot when the former one ends; returns the pause before the next turn.

        Raises:
            Exception: A slot under way failed with this error.
        """
        opens = await self._wait_for_opening()
        if self._stop.is_set():
            return timedelta()
        answer = await self._bridge.step()
        await self._hand_over_left()
        if answer.checkpoint is None or (answer.need == 0 and opens):
            _log.info("nothing-to-do", why=answer.reason, step=answer.step)
            return timedelta(milliseconds=max(answer.retry_after_ms, 100))
        if not answer.gateway:
            raise NoGateway(f"the run {answer.run} has no gateway")
        version = await self._ready(answer.run_id, answer.checkpoint)
        if opens:
            await self._open_slot(version, answer)
        return timedelta()

    async def _wait_for_opening(self) -> bool:
        """Waits until a slot may be opened, or until it is time to look for a new version.

        Returns:
            Whether a slot may be opened.

        Raises:
            Exception: A slot under way, or the engine, failed with this error.
        """
        until = self._clock.monotonic() + _LOOK_AHEAD.total_seconds()
        while not self._stop.is_set():
            self._collect()
            self._sessions = {slot: session for slot, session in self._sessions.items() if not slot.done()}
            failure, self._engine_failure = self._engine_failure, None
            if failure is not None:
                raise failure
            if len(self._slots) < MOST_SERVED_SLOTS and all(one.is_ending for one in self._sessions.values()):
                return True
            if self._clock.monotonic() >= until:
                return False
            await wait_first(self._clock.sleep(timedelta(milliseconds=50)), self._stop.wait(), tasks=self._slots)
        return False

    async def _open_slot(self, version: ServingVersion, answer: StepAnswer) -> None:
        groups = min(self._groups, answer.need, answer.groups_per_slot)
        grant = await self._bridge.slot(SlotWish(step=answer.step, groups=groups))
        async with self._released_on(grant, MusterError, OSError, asyncio.CancelledError):
            version = await self._loaded_for_lease(version, grant)
            _check_units(grant, version)
            name = SlotName(step=grant.lease.step, index=grant.lease.index)
            arithmetic = str(version.arithmetic)
            session = await self._bridge.open_session(name, arithmetic=arithmetic)
            if session.gateway != version.gateway:
                raise WrongGateway(
                    f"the gateway's key is {session.gateway}, but the version's recipe names {version.gateway}"
                )
            opened = SlotSession(
                session,
                grant=grant,
                version=version,
                renew=lambda: self._bridge.open_session(name, arithmetic=arithmetic),
                clock=self._clock,
                stop=self._stop,
                allow_plain_http=self._allow_plain_http,
            )
        _log.info("slot-opened", step=name.step, index=name.index, groups=grant.lease.groups)
        slot = asyncio.create_task(self._serve(opened, version, grant, answer))
        self._slots.add(slot)
        self._sessions[slot] = opened

    async def _serve(self, session: SlotSession, version: ServingVersion, grant: SlotGrant, answer: StepAnswer) -> None:
        """Answers requests until the slot ends, then hands its file over, or releases the slot if it answered none."""
        ends, began, lease = self._lease_end(grant), self._clock.monotonic(), grant.lease
        header = SlotHeader(
            run=lease.run,
            step=lease.step,
            index=lease.index,
            node=lease.node,
            checkpoint=lease.digest,
            environment=version.environment.name,
            environment_version=version.environment.version,
            arithmetic=version.arithmetic,
        )
        async with self._released_on(grant, GenerationStopped, MusterError, OSError, asyncio.CancelledError):
            file = session.file(await session.run(), header)
        if file is None:
            _log.info("slot-without-requests", step=lease.step, index=lease.index)
            with suppress(MusterError):  # the lease then expires, which is excused in a serving run
                await self._bridge.release(SlotName(step=lease.step, index=lease.index))
            return
        produced = Produced(file, timedelta(seconds=self._clock.monotonic() - began))
        await self._deliver(grant, answer, produced, ends=ends)

    async def _drained(self) -> None:
        """Lets the sessions end after their answers in progress, and waits for that."""
        for session in self._sessions.values():
            session.retire()
        await super()._drained()

    async def _load_version(self, policy: HeldPolicy) -> ServingVersion:
        """Loads a version; the answers in progress have ended."""
        recipe = read_recipe(policy.folder)
        paid_arithmetic(recipe.taken, self._engine)
        gateway_of(recipe)
        backend = self._backend
        if backend is None:
            backend = Backend(self._engine, policy.folder)
            await backend.__aenter__()
            self._backend = backend
        else:
            await backend.update(policy.folder, digest=policy.digest)
        policy.check_unchanged()
        return ServingVersion(
            policy.digest, recipe, engine=self._engine, backend=backend, on_engine_failure=self._note_engine_failure
        )

    def _note_engine_failure(self, error: EngineFailed) -> None:
        self._engine_failure = error

    async def aclose(self) -> None:
        """Stops the engine, and releases the policy; waits only briefly for the engine's last step."""
        closing = (
            asyncio.ensure_future(self._backend.__aexit__(None, None, None))
            if self._backend is not None
            else asyncio.ensure_future(asyncio.to_thread(self._engine.close))
        )
        await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT.total_seconds())
        if not closing.done():
            await cancel_all([closing])
        if self._policy is not None:
            self._policy.release()


def _check_units(grant: SlotGrant, version: ServingVersion) -> None:
    """Checks that the gateway, which reads the lease, allows the same number of new tokens as the recipe.

    Raises:
        WrongUnits: It does not.
    """
    lease, most = grant.lease, version.recipe.sampling.max_new_tokens
    if lease.max_units != lease.groups * most:
        raise WrongUnits(
            f"the lease allows {lease.max_units} tokens for {lease.groups} choices, but the recipe {most} per choice"
        )
