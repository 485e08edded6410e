"""`muster work`: leases, submissions, verdicts, disputes and rewards by hand. The services do this automatically."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from cli.connection import (
    CarrierKey,
    NodeKey,
    OrchestratorKey,
    PoolOption,
    ProviderKey,
    ValidatorKey,
    chosen_pool,
    open_ledger,
)
from cli.groups import CommandGroup
from cli.keys import open_key, resolve_address
from cli.output.documents import read_document, write_document
from cli.output.listing import listing
from cli.output.printing import JsonOption, show_fields, show_table, warn
from cli.output.tables import Column, Columns
from cli.output.values import Must
from cli.transactions.changes import Change, DryRunOption
from ledger.amounts import format_amount
from ledger.client import Ledger
from ledger.client.work import Verdict, WorkRecord, WorkStatus
from ledger.events.types import WorkSubmitted
from ledger.rpc.revert_messages import name_in_plain_words
from protocol.errors import InvalidInput, NotFound
from protocol.identifiers import ZERO_DIGEST, Digest, digest, run_id
from protocol.leases import Dispute, Lease, SlotSalt
from protocol.leases import WorkClaim as SignedWords
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.leases import SignedLease, SignedWorkClaim

app = CommandGroup(no_args_is_help=True, help="Leases, submissions, verdicts, disputes and rewards by hand.")

DISPUTE_VALID = timedelta(minutes=10)

_VERDICT_REFUSALS = {
    "WrongStatus": (
        "the work is in a state in which the ledger does not accept this verdict",
        "`muster work show` shows the state; give --decisive if the work is disputed, and only then",
    ),
    "NotValidator": ("this key is not a validator of the work's pool", "`muster pool roles` lists the validators"),
    "ConflictOfInterest": (
        "this key is the node or its provider, or it has already judged, confirmed or disputed this work",
        "another validator must give this verdict: name that validator's key with --key",
    ),
    "NotYourTurn": ("it is another validator's turn to decide", "`muster work show` lists the turns"),
    "OtherSubmission": (
        "the node submitted another file, or claimed other work units",
        "`muster work show` shows the SHA-256 and the work units that it submitted",
    ),
    "TooLate": ("the deadline for this verdict has passed", "`muster work finalize` finalises the work"),
}
"""Message and hint for each error with which the ledger can refuse a verdict.

The ledger reports these errors without arguments, because verdicts are sent in batches.
"""

WORK = Columns.of(
    "key",
    "node",
    Column("step", drop=1),
    Column("index", drop=1),
    Column("units", drop=2),
    "status",
    "verdict",
    Column("reason", drop=3),
)
REASONS = Columns.of("code", Column("reason", least=16), Column("words", least=20))

Key = Annotated[str, typer.Argument(help="The work's key, from `muster work submit` or `muster work list`.")]
Keys = Annotated[list[str], typer.Argument(help="Keys of works.")]
RunName = Annotated[str, typer.Option("--run", help="Name of the run, or its id as 0x and 64 hex digits.")]
OutFile = Annotated[Path | None, typer.Option(help="File to write; default: standard output.")]


@app.command()
async def lease(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="Address or key name of the node.")],
    max_units: Annotated[int, typer.Option(min=1, help="Maximum work units of the slot.")] = 4096,
    step: Annotated[int, typer.Option(min=0)] = 0,
    index: Annotated[int, typer.Option(min=0, help="Number of the slot among the node's slots of the step.")] = 0,
    run_name: RunName = "main",
    version: Annotated[int, typer.Option(min=0, help="The policy's version.")] = 0,
    checkpoint: Annotated[str, typer.Option(help="The policy's version digest.")] = ZERO_DIGEST,
    groups: Annotated[int, typer.Option(min=1)] = 1,
    beacon_block: Annotated[
        int | None, typer.Option(min=0, help="Block whose hash is part of the slot's seed; default: the newest block.")
    ] = None,
    valid_for: Annotated[int, typer.Option(min=1, help="Seconds until the lease expires.")] = 600,
    out: OutFile = None,
    pool: PoolOption = None,
    key: OrchestratorKey = "orchestrator",
) -> None:
    """Sign a lease: the orchestrator's permission for one node to do one slot of work."""
    signer = open_key(context.obj, key)
    async with open_ledger(context.obj) as ledger:
        slot = SlotSalt(
            pool_id=chosen_pool(context.obj, pool),
            run=run_id(run_name),
            step=step,
            index=index,
            node=resolve_address(context.obj, node),
            version=version,
            digest=digest(checkpoint),
        )
        domain = ledger.work.domain
        terms = Lease(
            **asdict(slot),
            beacon_block=await ledger.block() if beacon_block is None else beacon_block,
            salt=slot.derive(signer, domain),
            groups=groups,
            max_units=max_units,
            expiry=int((await ledger.now()).timestamp()) + valid_for,
        )
        signed = SignedLease.of(terms, domain=domain, signature=terms.sign(signer, domain))
        write_document(out, signed)


@app.command()
async def sign(
    context: typer.Context,
    lease_file: Annotated[Path, typer.Argument(help="File from `muster work lease`.", exists=True, dir_okay=False)],
    file: Annotated[Path, typer.Argument(help="Rollout file of the slot.", exists=True, dir_okay=False)],
    units: Annotated[int, typer.Option(min=1, help="Work units in the file.")],
    out: OutFile = None,
    key: NodeKey = "node",
) -> None:
    """Sign a submission that another account sends to the ledger, so that the node needs no gas."""
    node = open_key(context.obj, key)
    async with open_ledger(context.obj) as ledger:
        leased = read_document(lease_file, SignedLease, made_by="muster work lease")
        words = SignedWords(lease_hash=leased.lease.hash, sha256=_sha256(file), units=units)
        signature = "0x" + words.sign(node, ledger.work.domain).hex()
        signed = SignedWorkClaim(lease=leased, sha256=words.sha256, units=units, signature=signature)
        write_document(out, signed)


@app.command()
async def submit(
    context: typer.Context,
    lease_file: Annotated[Path, typer.Argument(help="File from `muster work lease`.", exists=True, dir_okay=False)],
    file: Annotated[Path, typer.Argument(help="Rollout file of the slot.", exists=True, dir_okay=False)],
    units: Annotated[int, typer.Option(min=1, help="Work units in the file.")],
    key: NodeKey = "node",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit work to the ledger; the node itself pays for gas."""
    leased = read_document(lease_file, SignedLease, made_by="muster work lease")
    change, sha256 = Change(as_json=as_json, dry_run=dry_run), _sha256(file)
    async with open_ledger(context.obj, key, change) as ledger:
        work_key = await ledger.work.submit(leased, sha256=sha256, units=units)
    change.show(work_key, key=work_key, sha256=sha256, units=units)


@app.command()
async def carry(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="Files from `muster work sign`.", exists=True, dir_okay=False)],
    key: CarrierKey = "orchestrator",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Relay signed submissions to the ledger in one batch.

    A refused submission does not affect the others.
    """
    signed = [read_document(file, SignedWorkClaim, made_by="muster work sign") for file in files]
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        refused = {refusal.subject: refusal.reason for refusal in await ledger.work.submit_batch(signed)}
    works = [claim.lease.lease.key.hash for claim in signed]
    relayed = [work_key for work_key in works if work_key not in refused]
    words = {work_key: name_in_plain_words(reason) for work_key, reason in refused.items()}
    for work_key, reason in words.items():
        warn(f"{work_key} was refused: {reason}")
    if relayed or as_json:
        change.show("\n".join(relayed), relayed=relayed, refused=words)
    if len(refused) == len(signed):
        raise InvalidInput("every submission was refused", hint="the reasons are above")


@app.command()
async def judge(
    context: typer.Context,
    key_text: Key,
    outcome: Annotated[str, typer.Argument(help="accepted, rejected (unpaid) or forged (slashed).")],
    reason: Annotated[int, typer.Option(min=0, max=65535, help="Reason code.")] = 0,
    audit: Annotated[Path | None, typer.Option(help="The audit file; only its SHA-256 goes on the ledger.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="The judged file; the ledger refuses the verdict unless the node submitted this file."),
    ] = None,
    decisive: Annotated[bool, typer.Option("--decisive", help="The verdict decides a dispute.")] = False,
    key: ValidatorKey = "validator",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give a verdict: the first one, or with --decisive the one that ends a dispute."""
    work_key, given = digest(key_text), _outcome(outcome)
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        work = await ledger.work.get(work_key)
        if work is None:
            raise _no_such_work(work_key)
        verdict = Verdict(
            key=work_key,
            sha256=work.sha256 if file is None else _sha256(file),
            units=work.units,
            outcome=given,
            reason=reason,
            audit_hash=ZERO_DIGEST if audit is None else _sha256(audit),
            decisive=decisive,
        )
        refusals = await ledger.work.judge([verdict])
        if refusals:
            name = refusals[0].error
            words, hint = _VERDICT_REFUSALS.get(
                name, ("this command has no description of the error", "`muster work show` shows the state of the work")
            )
            raise InvalidInput(f"the ledger refused the verdict: {words} ({name})", hint=hint)
        found = await ledger.work.get(verdict.key)
    change.show(_progress(found), **_state(work_key, found))


@app.command()
async def dispute(
    context: typer.Context,
    key_text: Key,
    evidence: Annotated[
        Path | None, typer.Option(help="File with your evidence; only its SHA-256 goes on the ledger.")
    ] = None,
    carrier: Annotated[
        str | None,
        typer.Option(help="Name of a key that sends the node's dispute and pays for gas; default: --key itself."),
    ] = None,
    key: Annotated[
        str, typer.Option("--key", help="Name of the node's, its provider's or a validator's key.")
    ] = "node",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Dispute a verdict within the challenge period; another validator decides."""
    work_key = digest(key_text)
    hashed = ZERO_DIGEST if evidence is None else _sha256(evidence)
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, carrier or key, change) as ledger:
        if carrier is None:
            await ledger.work.dispute(work_key, hashed)
        else:
            deadline = datetime.now(UTC) + DISPUTE_VALID
            statement = Dispute(key=work_key, evidence_hash=hashed, deadline=int(deadline.timestamp()))
            signature = statement.sign(open_key(context.obj, key), ledger.work.domain)
            await ledger.work.dispute(work_key, hashed, deadline=deadline, node_signature=signature)
        found = await ledger.work.get(work_key)
    change.show(_progress(found), **_state(work_key, found))


@app.command()
async def finalize(
    context: typer.Context,
    keys: Keys,
    key: CarrierKey = "orchestrator",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pay or slash decided work, and expire work that got no verdict in time. Any account may do this."""
    work_keys = [digest(each) for each in keys]
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.work.finalize(work_keys)
        await ledger.work.expire(work_keys)
        found = [(work_key, await ledger.work.get(work_key)) for work_key in work_keys]
    text = "\n".join(f"{work_key} {_progress(work)}" for work_key, work in found)
    change.show(text, works=[_state(work_key, work) for work_key, work in found])


@app.command()
async def show(context: typer.Context, key_text: Key, as_json: JsonOption = False) -> None:
    """Show the state of a work item, and its reward or penalty."""
    async with open_ledger(context.obj) as ledger:
        work = await ledger.work.get(digest(key_text))
        if work is None:
            raise _no_such_work(digest(key_text))
        turns = await _turns(ledger, digest(key_text), work)
    show_fields(
        {
            "key": digest(key_text),
            "status": work.status.name.lower(),
            "verdict": work.outcome.name.lower() if work.outcome else None,
            "reason": work.reason,
            "node": work.node,
            "provider": work.provider,
            "pool": work.pool_id,
            "units": work.units,
            "sha256": work.sha256,
            "judge": work.judge,
            "confirmed_by": work.looker,
            "disputer": work.disputer,
            "contradicted_by": work.juror,
            "contradiction": work.opinion.name.lower() if work.opinion else None,
            "may_decide": turns or None,
            "since": work.since,
            "deadline": work.deadline,
            "pays": Must(work.reward),
            "costs_if_forged": Must(work.penalty),
        },
        as_json=as_json,
    )


@app.command(name="list")
@listing(watch=True)
async def list_(
    context: typer.Context,
    node: Annotated[str | None, typer.Option(help="Address or key name of a node; default: all nodes.")] = None,
    pool: PoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the work of a pool, newest last."""
    async with open_ledger(context.obj) as ledger:
        of = None if node is None else resolve_address(context.obj, node)
        rows = []
        for each in await ledger.history(WorkSubmitted, pool_id=chosen_pool(context.obj, pool)):
            if of not in {None, each.node}:
                continue
            work = await ledger.work.get(each.key)
            if work is not None:
                status = work.status.name.lower()
                verdict = work.outcome.name.lower() if work.outcome else None
                rows.append((each.key, each.node, each.step, each.index, each.units, status, verdict, work.reason))
    show_table(WORK, rows, as_json=as_json, empty="no work was submitted yet")


@app.command()
async def claim(
    context: typer.Context,
    to: Annotated[str | None, typer.Option(help="Address or key name of the receiver; default: the provider.")] = None,
    pool: PoolOption = None,
    key: ProviderKey = "provider",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Collect what your nodes have earned."""
    receiver = None if to is None else resolve_address(context.obj, to)
    change, pool_id = Change(as_json=as_json, dry_run=dry_run), chosen_pool(context.obj, pool)
    async with open_ledger(context.obj, key, change) as ledger:
        receiver = receiver or ledger.address
        amount = await ledger.work.claim([pool_id], receiver)
    change.show(f"claimed {format_amount(amount)} MUST", pool=pool_id, amount=Must(amount), receiver=receiver)


@app.command()
@listing()
def reasons(as_json: JsonOption = False) -> None:
    """List the reason codes of verdicts."""
    rows = [(code.value, code.name.lower().replace("_", "-"), code.words) for code in ReasonCode]
    show_table(REASONS, rows, as_json=as_json)


async def _turns(ledger: Ledger, key: Digest, work: WorkRecord) -> list[str]:
    """Returns the validators that may decide a dispute, in order, with the start of their turns."""
    if work.status is not WorkStatus.DISPUTED:
        return []
    found = []
    for validator in await ledger.pools.validators(work.pool_id):
        opens_at = await ledger.work.turn_of(key, validator)
        if opens_at is not None:
            found.append((opens_at, validator))
    return [f"{validator} from {opens_at:%Y-%m-%d %H:%M:%S} UTC" for opens_at, validator in sorted(found)]


def _no_such_work(key: Digest) -> NotFound:
    return NotFound(f"no work has the key {key}", hint="`muster work list` lists the pool's work")


def _progress(work: WorkRecord | None) -> str:
    if work is None:
        return "is unknown"
    words = f"is {work.status.name.lower()}"
    if work.outcome:
        words += f", {work.outcome.name.lower()}"
    return words + (f"; its deadline is {work.deadline:%H:%M:%S} UTC" if work.deadline else "")


def _state(key: Digest, work: WorkRecord | None) -> dict[str, object]:
    """Returns the state of a work item for JSON."""
    return {
        "key": key,
        "status": None if work is None else work.status.name.lower(),
        "verdict": work.outcome.name.lower() if work is not None and work.outcome else None,
        "deadline": None if work is None else work.deadline,
    }


def _outcome(text: str) -> Outcome:
    try:
        return Outcome[text.upper()]
    except KeyError:
        choices = ", ".join(each.name.lower() for each in Outcome)
        raise InvalidInput(f"{text[:40]!r} is not a verdict", hint=f"one of {choices}") from None


def _sha256(path: Path) -> Digest:
    with path.open("rb") as file:
        return digest(hashlib.file_digest(file, "sha256").digest())
