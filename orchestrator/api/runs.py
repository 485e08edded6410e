"""Routes of the run for nodes (slots, submissions), the trainer (demand) and readers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from orchestrator.api.access import Node, NodePath, Reader, RunOperator, RunReader
from orchestrator.dependencies import Dependencies, dependencies_of
from orchestrator.relayer.disputes import take_dispute
from orchestrator.relayer.leaves import take_leave
from orchestrator.runs.control import RunControl, rollout_item
from orchestrator.runs.download_links import Links, links_to
from orchestrator.runs.leasing import SlotLeasing
from orchestrator.store.relayer import RelayedKind
from orchestrator.store.run_rows import SlotRow
from protocol.errors import NotFound
from protocol.http.openapi import json_body
from protocol.identifiers import EXAMPLE_DIGEST, WireDigest
from protocol.wire.listings import MOST_FIGURED_STEPS, FiguresPage, RolloutItem, RolloutPage
from protocol.wire.me import WorkEvidence
from protocol.wire.relayed import (
    ConsentReceipt,
    DisputeReceipt,
    JoinReceipt,
    JoinRequest,
    LeaveReceipt,
    SignedConsents,
    SignedDispute,
    SignedLeave,
    SubmissionReceipt,
    SubmissionRequest,
)
from protocol.wire.runs import (
    MOST_TRAINED_STEPS,
    CheckpointRef,
    Demand,
    NewAnswers,
    NewCheckpoint,
    NewTrainedStep,
    RunAnswers,
    RunSamples,
    RunView,
    StepAnswer,
    StepView,
    TrainedPage,
    TrainerLease,
    TrainerWish,
)
from protocol.wire.slots import Deliveries, ReleasedSlots, SlotGrant, SlotRequest

router = APIRouter(prefix="/v1", tags=["run"])

KeyPath = Annotated[WireDigest, Path(description="The work key", pattern="^0x[0-9a-f]{64}$", examples=[EXAMPLE_DIGEST])]
Cursor = Annotated[
    str | None, Query(max_length=100, pattern="^[0-9a-zA-Z.:]+$", description="`next_cursor` of the last page")
]


# Nodes


@router.get("/run/step", response_model=StepAnswer)
async def get_step(signed: Node, request: Request) -> Response:
    """Return the smallest step with too few rollouts, and the version of the policy to use."""
    dependencies = dependencies_of(request)
    return signed.answer(dependencies.key, await _run(dependencies).step())


@router.post("/slots", response_model=SlotGrant, openapi_extra=json_body(SlotRequest))
async def lease_slot(signed: Node, request: Request) -> Response:
    """Lease a slot to the node; a repeated request id returns the same slot."""
    dependencies = dependencies_of(request)
    granted = await _run(dependencies).lease(signed.address, signed.read(SlotRequest))
    return signed.answer(dependencies.key, granted)


@router.post("/slots/release", response_model=Deliveries, openapi_extra=json_body(ReleasedSlots))
async def release_slots(signed: Node, request: Request) -> Response:
    """Release slots of the node.

    The indices of released slots are not leased again, and their leases count as undelivered.
    """
    dependencies = dependencies_of(request)
    run = _run(dependencies)
    await run.release(signed.address, signed.read(ReleasedSlots).slots)
    return signed.answer(dependencies.key, await run.deliveries(signed.address))


@router.get("/nodes/me/leases", response_model=Deliveries)
async def list_own_leases(signed: Node, request: Request) -> Response:
    """Return the outcomes of the node's own leases."""
    dependencies = dependencies_of(request)
    return signed.answer(dependencies.key, await _run(dependencies).deliveries(signed.address))


@router.post("/submissions", response_model=SubmissionReceipt, openapi_extra=json_body(SubmissionRequest))
async def submit_work(signed: Node, request: Request) -> Response:
    """Queue a node's work claim, which the relayer sends to the ledger.

    A repeated request returns the state of the same claim.
    """
    dependencies = dependencies_of(request)
    run, submission = _run(dependencies), signed.read(SubmissionRequest)
    receipt = await dependencies.relayer.submit(
        signed.address, submission, run=run.terms.run, domain=run.ledger.domain, slots=run.store
    )
    return signed.answer(dependencies.key, receipt)


@router.get("/submissions/{key}", response_model=SubmissionReceipt)
async def get_submission(signed: Node, request: Request, key: KeyPath) -> Response:
    """Return whether work that the node submitted is queued, relayed to the ledger, or refused."""
    dependencies = dependencies_of(request)
    receipt = await dependencies.relayer.submission(signed.address, key, slots=_run(dependencies).store)
    return signed.answer(dependencies.key, receipt)


@router.post("/joins", response_model=JoinReceipt, openapi_extra=json_body(JoinRequest))
async def join_pool(signed: Node, request: Request) -> Response:
    """Queue a node's signed join, which the relayer sends to the ledger.

    A repeated request returns the state of the same join.
    """
    dependencies = dependencies_of(request)
    return signed.answer(dependencies.key, await dependencies.relayer.join(signed.address, signed.read(JoinRequest)))


@router.post("/disputes", response_model=DisputeReceipt, openapi_extra=json_body(SignedDispute))
async def dispute_verdict(signed: Node, request: Request) -> Response:
    """Queue a node's signed dispute of a verdict, which the relayer sends to the ledger.

    A repeated request returns the state of the same dispute.
    """
    dependencies = dependencies_of(request)
    run = _run(dependencies)
    receipt = await take_dispute(
        signed.address,
        signed.read(SignedDispute),
        relayer=dependencies.relayer,
        slots=run.store,
        domain=run.ledger.domain,
        now=dependencies.clock.now(),
    )
    return signed.answer(dependencies.key, receipt)


@router.post("/consents", response_model=ConsentReceipt, openapi_extra=json_body(SignedConsents))
async def register_node(signed: Node, request: Request) -> Response:
    """Queue the consents of the node and its provider, with which the relayer registers the node on the ledger.

    The provider's free stake must cover the node in this pool, and few of its relayed nodes may not have joined yet. A
    repeated request returns the state of the same consents.
    """
    dependencies = dependencies_of(request)
    _run(dependencies)  # without a run, no relayer runs
    receipt = await dependencies.consents.take(
        signed.address, signed.read(SignedConsents), ip=request.scope["muster.ip"]
    )
    return signed.answer(dependencies.key, receipt)


@router.post("/leaves", response_model=LeaveReceipt, openapi_extra=json_body(SignedLeave))
async def leave_pool(signed: Node, request: Request) -> Response:
    """Queue a member's signed leave, which the relayer sends to the ledger.

    A repeated request returns the state of the same leave.
    """
    dependencies = dependencies_of(request)
    ledger, node = _run(dependencies).ledger, signed.address

    async def is_member() -> bool:
        row = await dependencies.nodes.get(node)
        return (await dependencies.status_cache.membership(row)).member

    async def on_ledger() -> bool:
        return await ledger.membership(node) is not None

    async def joins() -> int:
        return await ledger.joins(node)

    receipt = await take_leave(
        node,
        signed.read(SignedLeave),
        pool_id=dependencies.settings.pool_id,
        relayer=dependencies.relayer,
        is_member=is_member,
        on_ledger=on_ledger,
        joins=joins,
        domain=dependencies.ledger.domain,
        now=dependencies.clock.now(),
    )
    return signed.answer(dependencies.key, receipt)


# Control and progress


@router.get("/run")
async def get_run(_reader: RunReader, request: Request) -> RunView:
    """Return an overview of the run."""
    dependencies = dependencies_of(request)
    return await _control(dependencies).view(queued=await dependencies.relayer.store.waiting(RelayedKind.WORK))


@router.put("/run/demand", openapi_extra=json_body(Demand))
async def set_demand(operator: RunOperator, request: Request) -> StepView:
    """Set the total demand of a step in groups, or close the step."""
    return await _control(dependencies_of(request)).ask(operator.read(Demand), actor=operator.name)


@router.put("/run/checkpoint", openapi_extra=json_body(NewCheckpoint))
async def set_checkpoint(operator: RunOperator, request: Request) -> CheckpointRef:
    """Switch the leasing of slots to a version that is announced on the ledger."""
    return await _control(dependencies_of(request)).adopt(operator.read(NewCheckpoint), actor=operator.name)


@router.put("/run/trainer", openapi_extra=json_body(TrainerWish))
async def hold_trainer_lease(operator: RunOperator, request: Request) -> TrainerLease:
    """Grant, renew or release the trainer lease, which lets only one trainer control the run."""
    return await _control(dependencies_of(request)).hold(operator.read(TrainerWish))


@router.put("/run/answers", openapi_extra=json_body(NewAnswers))
async def set_answers(operator: RunOperator, request: Request) -> RunAnswers:
    """Show a version's answers to held-out prompts beside those of the first evaluated version."""
    return await _control(dependencies_of(request)).show_answers(operator.read(NewAnswers))


@router.get("/run/answers")
async def get_answers(_reader: RunReader, request: Request) -> RunAnswers:
    """Return the answers of the first and of the newest evaluated version to the same held-out prompts."""
    return await _control(dependencies_of(request)).answers()


@router.put("/run/trained", status_code=204, openapi_extra=json_body(NewTrainedStep))
async def set_trained(operator: RunOperator, request: Request) -> Response:
    """Add a learned step to the trainer's curves and samples; later steps, which the trainer abandoned, are removed."""
    await _control(dependencies_of(request)).show_trained(operator.read(NewTrainedStep))
    return Response(status_code=204)


@router.get("/run/trained")
async def list_trained(
    _reader: RunReader,
    request: Request,
    *,
    first: Annotated[int | None, Query(ge=0, lt=1 << 48, description="From this step on; default: the newest")] = None,
    limit: Annotated[
        int, Query(ge=1, le=MOST_TRAINED_STEPS, description="Maximum number of steps")
    ] = MOST_TRAINED_STEPS,
) -> TrainedPage:
    """Return the trainer's metrics by step, such as loss, entropy and tokens per second; the newest 500 are kept."""
    return TrainedPage(items=await _control(dependencies_of(request)).trained(first=first, limit=limit))


@router.get("/run/samples")
async def get_samples(
    _owner: Reader,
    request: Request,
    *,
    step: Annotated[int | None, Query(ge=0, lt=1 << 48, description="The step; default: the newest")] = None,
) -> RunSamples:
    """Return a few rollouts of a step as text, which the trainer sent; the newest 50 steps are kept."""
    return await _control(dependencies_of(request)).samples(step=step)


@router.get("/run/rollouts")
async def list_rollouts(
    _reader: RunReader,
    request: Request,
    *,
    step: Annotated[int | None, Query(ge=0, lt=1 << 48, description="Only files of this step")] = None,
    status: Annotated[
        Literal["accepted", "rejected", "pending", "all"], Query(description="Only files in this state")
    ] = "accepted",
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    links: Annotated[
        bool, Query(description="Include sizes and download links; each item costs requests to the object store")
    ] = True,
) -> RolloutPage:
    """List submitted files in lease order, so that fast nodes are not preferred."""
    dependencies = dependencies_of(request)
    found, following = await _control(dependencies).rollouts(step=step, status=status, cursor=cursor, limit=limit)
    items = await _items(dependencies, found) if links else tuple(rollout_item(row, Links()) for row in found)
    return RolloutPage(items=items, next_cursor=following)


@router.get("/run/figures")
async def list_figures(
    _reader: RunReader,
    request: Request,
    *,
    first: Annotated[int | None, Query(ge=0, lt=1 << 48, description="From this step on; default: the newest")] = None,
    limit: Annotated[
        int, Query(ge=1, le=MOST_FIGURED_STEPS, description="Maximum number of steps")
    ] = MOST_FIGURED_STEPS,
) -> FiguresPage:
    """Return the mean reward and length of accepted files by step, as nodes reported them."""
    return FiguresPage(items=await _control(dependencies_of(request)).figures(first=first, limit=limit))


@router.get("/run/rollouts/{key}")
async def get_rollout(_reader: RunReader, request: Request, key: KeyPath) -> RolloutItem:
    """Return one submitted file by its work key.

    Validators call this after they have read the submission on the ledger.
    """
    dependencies = dependencies_of(request)
    return (await _items(dependencies, [await _control(dependencies).rollout(key)]))[0]


@router.get("/run/rollouts/{key}/evidence")
async def get_evidence(_reader: RunReader, request: Request, key: KeyPath) -> WorkEvidence:
    """Return what the validator found in a file: checks, findings with row and token, and rows.

    It is the verdict's audit file, shortened; the orchestrator compares its hash with the ledger's.
    """
    dependencies = dependencies_of(request)
    return await dependencies.evidence.read(await _control(dependencies).rollout(key))


@router.get("/nodes/{node}/leases", tags=["nodes"])
async def list_node_leases(_owner: Reader, request: Request, node: NodePath) -> Deliveries:
    """Return the outcomes of a node's leases, newest first."""
    return await _run(dependencies_of(request)).deliveries(node)


async def _items(dependencies: Dependencies, rows: Sequence[SlotRow]) -> tuple[RolloutItem, ...]:
    life = timedelta(seconds=dependencies.settings.download_url_life_s)
    links = await links_to(rows, objects=dependencies.objects, pool_id=dependencies.settings.pool_id, life=life)
    return tuple(rollout_item(row, each) for row, each in zip(rows, links, strict=True))


def _run(dependencies: Dependencies) -> SlotLeasing:
    if dependencies.slot_leasing is None:
        raise _no_run()
    return dependencies.slot_leasing


def _control(dependencies: Dependencies) -> RunControl:
    if dependencies.run_control is None:
        raise _no_run()
    return dependencies.run_control


def _no_run() -> NotFound:
    return NotFound(
        "this pool has no run", hint="the orchestrator's settings need `run`: the run's name", code="no-run"
    )
