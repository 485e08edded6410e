"""`muster worker dispute`: disputes a verdict. The pool relays it, so that the node needs no gas."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from cli.configuration import Configuration
from cli.connection import open_ledger
from cli.keys import open_key
from cli.output import note, say, warn
from cli.pool.connection import Where
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
"""Time for which a signed dispute may be relayed."""

MOST_EVIDENCE = 16 * 1024 * 1024
_LOOKS = 120
_PAUSE_S = 0.5


async def dispute(
    context: typer.Context,
    key_text: Annotated[str, typer.Argument(metavar="KEY", help="The work's key, from `muster worker verdicts`.")],
    *,
    because: Annotated[str, typer.Option(help="What you have to say; it is kept with the dispute.")] = "",
    evidence: Annotated[
        Path | None, typer.Option(help="A file to keep with it instead.", exists=True, dir_okay=False)
    ] = None,
    carrier: Annotated[
        str | None, typer.Option(help="Name of a key that pays for gas, if the pool is not to carry it.")
    ] = None,
    key: Annotated[
        str, typer.Option("--key", help="Name of the node's key; or of its provider's or a validator's, which pays.")
    ] = "node",
    where: Where = None,
) -> None:
    """Dispute a verdict on your work while it can be disputed; another validator decides, and that is final.

    A dispute that succeeds, or that no validator decides, costs nothing. If a rejection is upheld, a tenth of the
    work's penalty is taken from the provider's stake; if the work is judged forged, the whole penalty.
    """
    signer, work_key = open_key(context.obj, key), digest(key_text)
    async with open_ledger(context.obj, carrier or key) as ledger:
        work = _disputable(await ledger.work.get(work_key), work_key)
        if work.outcome is Outcome.REJECTED and signer.address in {work.node, work.provider}:
            say(f"if the rejection stands, this costs {format_amount(work.lost_dispute_cost)} MUST of the stake")
        said = _evidence(work_key, signer, because=because, evidence=evidence)
        await _keep(context.obj, signer, said, where=where)
        hashed = digest(hashlib.sha256(said).digest())
        if signer.address == work.node and carrier != key:
            await _by_word(context.obj, ledger, signer, work_key, hashed, carrier=carrier, where=where)
        else:
            await ledger.work.dispute(work_key, hashed)
        found = await ledger.work.get(work_key)
    if found is not None and found.status is WorkStatus.DISPUTED and found.deadline is not None:
        say(f"{work_key} is disputed; another validator may decide until {found.deadline:%Y-%m-%d %H:%M:%S} UTC")
    else:
        say(f"{work_key} is {'unknown' if found is None else found.status.name.lower()}")


def _disputable(work: WorkRecord | None, key: Digest) -> WorkRecord:
    if work is None:
        raise NotFound(f"no work has the key {key}", hint="`muster worker verdicts` lists your node's work")
    if work.status is not WorkStatus.PROVISIONAL:
        raise InvalidInput(
            f"work {key} is {work.status.name.lower()}: no verdict on it can be disputed now",
            hint="a verdict can be disputed from when it is given until the challenge period is over",
        )
    return work


def _evidence(key: Digest, signer: Key, *, because: str, evidence: Path | None) -> bytes:
    """Returns the disputant's statement; its SHA-256 goes on the ledger."""
    if evidence is not None:
        if because:
            raise InvalidInput("--because and --evidence exclude each other", hint="write it into the file")
        if evidence.stat().st_size > MOST_EVIDENCE:
            raise InvalidInput(f"{evidence} is larger than {MOST_EVIDENCE} bytes", hint="a hash of more is no help")
        return evidence.read_bytes()
    if len(because) > 4096:
        raise InvalidInput("what is said is longer than 4,096 characters", hint="give a file with --evidence")
    said = {"format": "muster-dispute-v1", "work": key, "by": signer.address, "because": because}
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


async def _keep(configuration: Configuration, signer: Key, said: bytes, *, where: str | None) -> None:
    """Uploads the evidence to the pool's store, if the store accepts it; the dispute does not depend on it."""
    location = where or configuration.pool.orchestrator
    if location is None:
        return
    sha256 = digest(hashlib.sha256(said).digest())
    try:
        async with NodeClient(location, key=signer) as client:
            request = UploadRequest(
                kind=UploadKind.FILE, sha256=sha256, size=len(said), content_type="application/json"
            )
            ticket = await client.request_upload(request)
            if not ticket.already_there:
                await _put(client.location.url, ticket, said)
    except MusterError as error:
        warn(f"what you have to say is not in the pool's store ({error.detail}); keep it: its hash is {sha256}")


async def _put(url: str, ticket: UploadTicket, said: bytes) -> None:
    transfer = ObjectTransfer(url, clock=SystemClock())
    try:
        with tempfile.TemporaryDirectory(prefix="muster-dispute-") as folder:
            path = Path(folder) / "evidence"
            path.write_bytes(said)
            await transfer.put(ticket, path, size=len(said))
    finally:
        await transfer.aclose()


async def _by_word(
    configuration: Configuration,
    ledger: Ledger,
    node: Key,
    key: Digest,
    hashed: Digest,
    *,
    carrier: str | None,
    where: str | None,
) -> None:
    """Sends the dispute through the named relayer key, else through the pool."""
    deadline = max(datetime.now(UTC), await ledger.now()) + VALID
    word = Dispute(key=key, evidence_hash=hashed, deadline=int(deadline.timestamp()))
    signature = word.sign(node, ledger.work.domain)
    if carrier is not None:
        await ledger.work.dispute(key, hashed, deadline=deadline, node_signature=signature)
        return
    location = where or configuration.pool.orchestrator
    if location is None:
        raise InvalidInput(
            "no orchestrator is configured that could carry the dispute",
            hint="give --orchestrator URL, or --carrier NAME of a key that pays for gas",
        )
    signed = SignedDispute(key=key, evidence_hash=hashed, deadline=word.deadline, signature="0x" + signature.hex())
    async with NodeClient(location, key=node) as client:
        receipt = await _carried(client, signed)
    if receipt.state is not ReceiptState.CARRIED:
        why = receipt.reason or "it is still queued"
        raise Unavailable(
            f"the pool has not carried the dispute: {why}",
            hint="try again; or carry it yourself with --carrier NAME, before the time is over",
        )


async def _carried(client: NodeClient, signed: SignedDispute) -> DisputeReceipt:
    receipt = await client.dispute(signed)
    if receipt.state is ReceiptState.QUEUED:
        note("the pool carries it to the ledger")
    for _ in range(_LOOKS):
        if receipt.state is not ReceiptState.QUEUED:
            break
        await asyncio.sleep(_PAUSE_S)
        receipt = await client.dispute(signed)
    return receipt
