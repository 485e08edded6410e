"""Control of a run: the trainer sets demand and version, clients read progress."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from orchestrator.chain.run_interface import AnnouncedCheckpoint
from orchestrator.domain.slots import Counted, SlotState
from orchestrator.domain.steps import ask
from orchestrator.runs.download_links import Links
from orchestrator.runs.leasing import SlotLeasing
from orchestrator.runs.metrics import ReportedMetrics
from orchestrator.store.run_rows import RunState, SlotRow, StepRow
from orchestrator.store.runs import TrainerFenced
from protocol.errors import Conflict, InvalidInput, NotFound, Unavailable
from protocol.identifiers import Digest
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.wire.listings import RolloutItem, RolloutStatus, StepFigures
from protocol.wire.runs import (
    CheckpointRef,
    Demand,
    NewAnswers,
    NewCheckpoint,
    NewTrainedStep,
    RunAnswers,
    RunSamples,
    RunView,
    StepView,
    TrainedStep,
    TrainerLease,
    TrainerWish,
)

SHOWN_BEFORE = 4
"""Number of closed steps that the run's overview includes."""
_STEPS_PER_PAGE = 256
_ATTEMPTS = 5
_CURSOR = re.compile(r"([0-9]{1,15})\.([0-9]{1,12})\.([0-9]{1,15}:0x[0-9a-fA-F]{40}:[0-9]{1,10})")

WANTED = {
    "accepted": frozenset({Counted.ACCEPTED}),
    "rejected": frozenset({Counted.REJECTED}),
    "pending": frozenset({Counted.PENDING}),
}
"""For each filter of a listing, the counters whose slots it selects; the filter `all` has no entry."""


class RunControl:
    """Service that controls one run and reports its progress.

    Args:
        leasing: Leasing service of the run.
        clock: Clock of the time stamps of state changes.
    """

    def __init__(self, leasing: SlotLeasing, *, clock: Clock) -> None:
        self._leasing = leasing
        self._store = leasing.store
        self._clock = clock
        self._figures = ReportedMetrics(self._store)

    async def ask(self, demand: Demand, *, actor: str) -> StepView:
        """Sets the trainer's demand of a step, or closes the step.

        Raises:
            Conflict: The request would close a step that has not begun. Closed steps never open again.
            TrainerFenced: The request's trainer does not hold the trainer lease.
            Unavailable: Other requests changed the run's state in all five attempts.
        """
        for _ in range(_ATTEMPTS):
            state = await self._store.state()
            row = (await self._store.steps([demand.step]))[demand.step]
            floor = max(state.floor, state.version or 0)
            asked = ask(
                row.count,
                step=demand.step,
                floor=floor,
                groups=demand.groups,
                closed=demand.closed,
                stated=row.stated,
                max_rounds=self._leasing.terms.max_rounds,
            )
            if asked is None:
                return _step_view(demand.step, row, floor=floor)
            event = ("", "", "")
            if asked.floor > demand.step:
                self._check_begun(state, demand.step)
                event = ("run.step-closed", f"step {demand.step} is closed", actor)
            written = await self._store.change(
                state,
                {"floor": str(asked.floor)},
                now_ms=unix_ms(self._clock.now()),
                demand=(demand.step, asked.demand, asked.rounds),
                event=event,
                trainer=demand.trainer,
            )
            if written:
                row = (await self._store.steps([demand.step]))[demand.step]
                return _step_view(demand.step, row, floor=asked.floor)
        raise Unavailable(f"other requests changed the run's state in all {_ATTEMPTS} attempts", hint="try again")

    def _check_begun(self, state: RunState, step: int) -> None:
        last = self._leasing.window(state).last
        if state.version is not None and step > last:
            raise Conflict(
                f"step {step} can't be closed: with version {state.version} no step beyond {last} has begun",
                hint="check the number; closed steps, and all below them, never open again",
                code="step-not-begun",
            )

    async def adopt(self, new: NewCheckpoint, *, actor: str) -> CheckpointRef:
        """Switches the leasing of slots to a new version.

        Raises:
            Conflict: The ledger does not announce the version with this digest, or a newer version is in use.
            TrainerFenced: The request's trainer does not hold the trainer lease.
            Unavailable: The chain is down; or other requests changed the run's state in all five attempts.
        """
        announced = await self._leasing.ledger.announced(new.version)
        if announced is None or (announced.attempt, announced.digest) != (new.attempt, new.digest):
            named = (
                "no such version" if announced is None else f"attempt {announced.attempt}, digest {announced.digest}"
            )
            raise Conflict(
                f"version {new.version}, attempt {new.attempt} with digest {new.digest} is not announced: "
                f"the ledger names {named}",
                hint="announce it with the publisher's key first: `muster ledger announce`",
                code="not-announced",
                retryable=announced is None or announced.attempt < new.attempt,
            )
        for _ in range(_ATTEMPTS):
            state = await self._store.state()
            _check_forward(state, announced)
            fields = await self.fields_of(
                announced, units=new.units_per_group, relays=new.relays, arithmetic=new.arithmetic
            )
            fields["floor"] = str(max(state.floor, new.version))
            is_new = (state.version, state.attempt) != (new.version, new.attempt)
            detail = f"version {new.version}, attempt {new.attempt}, digest {new.digest}"
            event = ("run.checkpoint", detail, actor) if is_new else ("", "", "")
            now_ms = unix_ms(self._clock.now())
            if await self._store.change(state, fields, now_ms=now_ms, event=event, trainer=new.trainer):
                adopted = await self._leasing.checkpoint(await self._store.state())
                if adopted is not None:
                    return adopted
        raise Unavailable(f"other requests changed the run's state in all {_ATTEMPTS} attempts", hint="try again")

    async def hold(self, wish: TrainerWish) -> TrainerLease:
        """Grants the trainer lease to a trainer, or renews it.

        Raises:
            TrainerFenced: Another trainer holds the trainer lease.
        """
        lease = await self._store.hold_trainer(
            wish.lease, holder=wish.holder, start=wish.start or "", life_ms=wish.life_ms
        )
        if not lease:
            raise TrainerFenced("another trainer works on this run")
        return TrainerLease(lease=lease, life_ms=wish.life_ms)

    async def fields_of(
        self, announced: AnnouncedCheckpoint, *, units: int, relays: Sequence[str], arithmetic: Sequence[str] = ()
    ) -> dict[str, str]:
        """Returns the fields of the run's state that switch it to an announced version."""
        return {
            "version": str(announced.version),
            "attempt": str(announced.attempt),
            "digest": announced.digest,
            "block": str(announced.block),
            "publisher": await self._leasing.ledger.publisher_of(announced),
            "units": str(units),
            "relays": json.dumps(list(relays) or list(self._leasing.terms.relays)),
            "arithmetic": json.dumps(list(arithmetic)),
        }

    async def view(self, *, queued: int) -> RunView:
        """Returns an overview of the run."""
        state, terms = await self._store.state(), self._leasing.terms
        window = self._leasing.window(state)
        steps = list(range(max(0, window.first - SHOWN_BEFORE), window.first)) + list(window.steps)
        rows = await self._store.steps(steps[-64:])
        return RunView(
            run=terms.name,
            run_id=terms.run,
            checkpoint=await self._leasing.checkpoint(state),
            units_per_group=state.units or None,
            steps=tuple(_step_view(step, row, floor=window.first) for step, row in rows.items()),
            async_level=terms.async_level,
            max_rounds=terms.max_rounds,
            queued_submissions=queued,
            paused=await self._leasing.obstacle(state),
        )

    async def figures(self, *, first: int | None, limit: int) -> tuple[StepFigures, ...]:
        """Returns the reported metrics of accepted files by step, from step `first` on.

        Without `first`, it returns the newest `limit` steps.
        """
        window = self._leasing.window(await self._store.state())
        start = max(0, window.last + 1 - limit) if first is None else first
        return await self._figures.of(await self._store.known_steps(first=start, limit=limit), floor=window.first)

    async def answers(self) -> RunAnswers:
        """Returns the answers of the first and of the newest evaluated version."""
        return await self._store.answers()

    async def show_answers(self, new: NewAnswers) -> RunAnswers:
        """Stores a version's answers if no earlier or no later version has stored answers.

        Stored answers to other prompts are replaced.
        """
        known = await self._store.answers()
        before, after = known.before, known.after
        if before is None or new.version <= before.version or _prompts(before) != _prompts(new):
            before = new
        if after is None or new.version >= after.version or _prompts(after) != _prompts(new):
            after = new
        shown = RunAnswers(before=before, after=after)
        await self._store.set_answers(shown)
        return shown

    async def show_trained(self, trained: NewTrainedStep) -> None:
        """Stores metrics and samples of a learned step for the pool's page."""
        await self._store.add_trained(trained)

    async def trained(self, *, first: int | None, limit: int) -> tuple[TrainedStep, ...]:
        """Returns the metrics of learned steps, ascending, from step `first` on.

        Without `first`, it returns the newest `limit` steps.
        """
        return await self._store.trained(first=first, limit=limit)

    async def samples(self, *, step: int | None) -> RunSamples:
        """Returns the sampled rollouts of a step, by default of the newest one that has some."""
        steps = await self._store.sampled_steps()
        wanted = (steps[-1] if steps else None) if step is None else step
        found = () if wanted is None else await self._store.samples(wanted)
        return RunSamples(step=wanted, samples=found, steps=steps)

    async def rollout(self, key: Digest) -> SlotRow:
        """Returns a submitted work item.

        Raises:
            NotFound: The orchestrator has read no such work from the ledger, or its step was deleted.
        """
        row = await self._store.slot_of(key)
        if row is None or not row.slot.state.on_ledger:
            raise NotFound(
                f"this orchestrator knows no work {key}",
                hint="new work is read from the ledger within seconds; old steps are deleted",
            )
        return row

    async def rollouts(
        self, *, step: int | None, status: str, cursor: str | None, limit: int
    ) -> tuple[list[SlotRow], str | None]:
        """Returns a page of submitted work in the order of leases, and the cursor of the next page.

        Raises:
            InvalidInput: The cursor is malformed, or belongs to another step.
        """
        at, after = _read_cursor(cursor)
        first = step if step is not None else 0 if at is None else at
        if step is not None and at not in {None, step}:
            raise InvalidInput(
                f"the cursor is of step {at}, not of step {step}", hint="use the cursor with the step of its answer"
            )
        steps = [first] if step is not None else await self._store.known_steps(first=first, limit=_STEPS_PER_PAGE)
        found: list[SlotRow] = []
        last: SlotRow | None = None
        for each in steps:
            while len(found) < limit:
                page = await self._store.page(each, after=after if each == at else None, limit=limit - len(found))
                if not page:
                    break
                last, at, after = page[-1], each, (page[-1].expiry, page[-1].id)
                found += [row for row in page if _wanted(row, status)]
            if len(found) >= limit:
                return found, _cursor(found[-1])
        if step is None and len(steps) == _STEPS_PER_PAGE and last is not None:
            return found, _cursor(last)
        return found, None


def rollout_item(row: SlotRow, links: Links) -> RolloutItem:
    """Converts the slot of submitted work into the model that the API returns."""
    return RolloutItem(
        key=row.key,
        node=row.node,
        provider=row.provider,
        step=row.step,
        index=row.index,
        version=row.version,
        digest=row.digest,
        beacon_block=row.beacon_block or None,
        groups=row.groups,
        units=row.units,
        sha256=row.sha256,
        size=links.size,
        submitted_block=row.block,
        submitted_at_ms=row.at_ms,
        status=RolloutStatus(row.slot.state.value),
        outcome=row.slot.outcome,
        reason=row.reason,
        audit_hash=row.audit_hash or None,
        figures=dict(row.figures),
        file_url=links.file,
        audit_url=links.audit,
    )


def _wanted(row: SlotRow, status: str) -> bool:
    if not row.slot.state.on_ledger:
        return False
    if status == "pending":  # includes work that the step no longer waits for
        return row.slot.state is SlotState.SUBMITTED
    return status == "all" or row.slot.counted in WANTED[status]


def _check_forward(state: RunState, new: AnnouncedCheckpoint) -> None:
    if state.version is None or (new.version, new.attempt) >= (state.version, state.attempt):
        return
    raise Conflict(
        f"version {new.version}, attempt {new.attempt} is older than version {state.version}, attempt {state.attempt}",
        hint="versions never go back: announce a higher one",
        code="checkpoint-goes-back",
    )


def _prompts(answers: NewAnswers) -> list[str]:
    return [each.prompt for each in answers.answers]


def _step_view(step: int, row: StepRow, *, floor: int) -> StepView:
    count, closed = row.count, step < floor
    return StepView(
        step=step,
        demand=count.demand,
        rounds=count.rounds,
        closed=closed,
        accepted=count.accepted,
        pending=count.pending,
        leased=count.leased + count.spare,
        spare=count.spare,
        rejected=count.rejected,
        need=0 if closed else count.need,
    )


def _cursor(row: SlotRow) -> str:
    return f"{row.step}.{row.expiry}.{row.id}"


def _read_cursor(cursor: str | None) -> tuple[int | None, tuple[int, str] | None]:
    if cursor is None:
        return None, None
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidInput(f"{cursor[:80]!r} is not a cursor of rollouts", hint="use the cursor of an earlier answer")
    return int(match[1]), (int(match[2]), match[3])
