"""`muster worker dispute`: disputes a verdict. The pool's relayer sends the dispute, so the node pays no gas."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from cli.configuration.sections import Configuration
from cli.connection import open_ledger
from cli.keys import open_key, open_key_of, resolve_address
from cli.output.printing import JsonOption, note, say, warn
from cli.output.values import Must
from cli.pool.connection import Where
from cli.transactions.changes import Change, DryRunOption
from ledger.amounts import format_amount
from ledger.client import Ledger
from ledger.client.work import WorkRecord, WorkStatus
from protocol.clients import NodeClient
from protocol.errors import InvalidInput, MusterError, NotFound, Unavailable
from protocol.http.object_transfer import ObjectTransfer
from protocol.identifiers import Digest, digest
from protocol.identity.keys import Key
from protocol.leases import Dispute
from protocol.runtime.clock import SystemClock
from protocol.verdicts import Outcome
from protocol.wire.relayed import DisputeReceipt, ReceiptState, SignedDispute
from protocol.wire.uploads import UploadKind, UploadRequest, UploadTicket

VALID = timedelta(hours=1)
"""Validity of a signed dispute; the relayer must send the dispute within this time."""

MOST_EVIDENCE = 16 * 1024 * 1024
_POLLS = 120
"""Maximum number of requests for the state of a queued dispute."""
_PAUSE_S = 0.5
"""Pause between two of these requests, in seconds."""


async def dispute(
    context: typer.Context,
    key_text: Annotated[str, typer.Argument(metavar="KEY", help="The work's key, from `muster worker verdicts`.")],
    *,
    because: Annotated[str, typer.Option(help="Your reasons, which the pool stores as evidence.")] = "",
    evidence: Annotated[
        Path | None, typer.Option(help="A file with your evidence, instead of --because.", exists=True, dir_okay=False)
    ] = None,
    carrier: Annotated[
        str | None, typer.Option(help="Name of a key that sends the dispute and pays for gas, instead of the pool.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            help="Name of the node's, its provider's or a validator's key; the last two pay for gas. Default: the key "
            "of the work's node, in \\[worker] keystore or among `muster keys list`.",
        ),
    ] = None,
    where: Where = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Dispute a verdict on your work within the challenge period. Another validator then decides.

    A dispute that succeeds, or that no validator decides, costs nothing. If the deciding validators uphold a rejection,
    the provider loses a tenth of the work's penalty. If they judge the work forged, the provider loses the whole
    penalty.
    """
    work_key, change = digest(key_text), Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, carrier or key, change) as ledger:
        work = _disputable(await ledger.work.get(work_key), work_key)
        signer = _node_key(context.obj, work) if key is None else open_key(context.obj, key)
        if work.outcome is Outcome.REJECTED and signer.address in {work.node, work.provider}:
            (note if as_json else say)(
                f"if the rejection is upheld, the dispute costs {format_amount(work.lost_dispute_cost)} MUST of stake"
            )
        content = _evidence(work_key, signer, because=because, evidence=evidence)
        if not dry_run:
            await _keep(context.obj, signer, content, where=where)
        hashed = digest(hashlib.sha256(content).digest())
        # A node needs no gas, because another account sends its signed dispute. Only if --carrier names the node's own
        # key does the node itself send the dispute and pay for the gas.
        pays = carrier is not None and resolve_address(context.obj, carrier) == signer.address
        if signer.address == work.node and not pays:
            if carrier is None:
                change.plan_request(f"dispute {work_key} through the pool, which pays for gas")
            await _send_signed(context.obj, ledger, signer, work_key, hashed, carrier=carrier, where=where)
        else:
            await ledger.work.dispute(work_key, hashed)
        found = await ledger.work.get(work_key)
    if found is not None and found.status is WorkStatus.DISPUTED and found.deadline is not None:
        text = f"{work_key} is disputed; another validator may decide until {found.deadline:%Y-%m-%d %H:%M:%S} UTC"
    else:
        text = f"{work_key} is {'unknown' if found is None else found.status.name.lower()}"
    change.show(
        text,
        work=work_key,
        status=None if found is None else found.status.name.lower(),
        deadline=None if found is None else found.deadline,
        evidence_hash=hashed,
        cost_if_upheld=Must(work.lost_dispute_cost if work.outcome is Outcome.REJECTED else work.penalty),
    )


def _node_key(configuration: Configuration, work: WorkRecord) -> Key:
    try:
        return open_key_of(configuration, work.node)
    except NotFound as error:
        raise NotFound(
            f"the work is of node {work.node}, and {error.detail}",
            hint="give --key NAME of the node's, its provider's or a validator's key; `muster keys list` shows them",
            code=error.code,
        ) from None


def _disputable(work: WorkRecord | None, key: Digest) -> WorkRecord:
    if work is None:
        raise NotFound(f"no work has the key {key}", hint="`muster worker verdicts` lists your node's work")
    if work.status is not WorkStatus.PROVISIONAL:
        raise InvalidInput(
            f"work {key} is {work.status.name.lower()}: no verdict on it can be disputed now",
            hint="a verdict can be disputed until its challenge period ends",
        )
    return work


def _evidence(key: Digest, signer: Key, *, because: str, evidence: Path | None) -> bytes:
    """Returns the evidence: the content of the given file, or the reasons as JSON.

    The SHA-256 of the evidence goes on the ledger.
    """
    if evidence is not None:
        if because:
            raise InvalidInput("--because and --evidence exclude each other", hint="write your reasons into the file")
        if evidence.stat().st_size > MOST_EVIDENCE:
            raise InvalidInput(f"{evidence} is larger than {MOST_EVIDENCE} bytes", hint="give a smaller file")
        return evidence.read_bytes()
    if len(because) > 4096:
        raise InvalidInput("--because is longer than 4,096 characters", hint="give a file with --evidence")
    fields = {"format": "muster-dispute-v1", "work": key, "by": signer.address, "because": because}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


async def _keep(configuration: Configuration, signer: Key, content: bytes, *, where: str | None) -> None:
    """Uploads the evidence to the pool's store, if the store accepts the evidence.

    If the upload fails, the command prints a warning and continues: the ledger needs only the evidence's SHA-256.
    """
    location = where or configuration.pool.orchestrator
    if location is None:
        return
    sha256 = digest(hashlib.sha256(content).digest())
    try:
        async with NodeClient(location, key=signer) as client:
            request = UploadRequest(
                kind=UploadKind.FILE, sha256=sha256, size=len(content), content_type="application/json"
            )
            ticket = await client.request_upload(request)
            if not ticket.already_there:
                await _put(client.location.url, ticket, content)
    except MusterError as error:
        warn(f"the pool did not store the evidence ({error.detail}); keep a copy: its SHA-256 is {sha256}")


async def _put(url: str, ticket: UploadTicket, content: bytes) -> None:
    transfer = ObjectTransfer(url, clock=SystemClock())
    try:
        with tempfile.TemporaryDirectory(prefix="muster-dispute-") as folder:
            path = Path(folder) / "evidence"
            path.write_bytes(content)
            await transfer.put(ticket, path, size=len(content))
    finally:
        await transfer.aclose()


async def _send_signed(
    configuration: Configuration,
    ledger: Ledger,
    node: Key,
    key: Digest,
    hashed: Digest,
    *,
    carrier: str | None,
    where: str | None,
) -> None:
    """Sends the node's signed dispute with the `carrier` key, or through the pool's relayer.

    The pool's relayer sends the dispute if `carrier` is None.
    """
    deadline = max(datetime.now(UTC), await ledger.now()) + VALID
    statement = Dispute(key=key, evidence_hash=hashed, deadline=int(deadline.timestamp()))
    signature = statement.sign(node, ledger.work.domain)
    if carrier is not None:
        await ledger.work.dispute(key, hashed, deadline=deadline, node_signature=signature)
        return
    location = where or configuration.pool.orchestrator
    if location is None:
        raise InvalidInput(
            "no orchestrator is configured that could relay the dispute",
            hint="give --orchestrator URL, or --carrier NAME of a key that pays for gas",
        )
    signed = SignedDispute(key=key, evidence_hash=hashed, deadline=statement.deadline, signature="0x" + signature.hex())
    async with NodeClient(location, key=node) as client:
        receipt = await _relayed(client, signed)
    if receipt.state is not ReceiptState.CARRIED:
        why = receipt.reason or "the dispute is still queued"
        raise Unavailable(
            f"the pool has not relayed the dispute: {why}",
            hint="try again, or send it yourself with --carrier NAME, before the challenge period ends",
        )


async def _relayed(client: NodeClient, signed: SignedDispute) -> DisputeReceipt:
    receipt = await client.dispute(signed)
    if receipt.state is ReceiptState.QUEUED:
        note("the pool relays the dispute to the ledger")
    for _ in range(_POLLS):
        if receipt.state is not ReceiptState.QUEUED:
            break
        await asyncio.sleep(_PAUSE_S)
        receipt = await client.dispute(signed)
    return receipt
