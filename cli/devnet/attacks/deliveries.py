"""Attacks by uploads and submissions that differ from the task's output."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from protocol.identifiers import digest
from protocol.identity.signing import unix_ms
from protocol.wire.slots import SlotName
from protocol.wire.uploads import UploadKind, UploadRequest, UploadTicket
from worker.delivery.pool_delivery import _HANDED_OVER, _STORED, _TICKET, PoolDelivery
from worker.delivery.queue.item import QueueItem
from worker.delivery.queue.runner import GivenUp, NotYet
from worker.delivery.work_signing import leased

LATE = timedelta(seconds=20)
"""Time from submission to upload in `LateUpload`; a devnet's validator stops waiting for a file before that."""

_JUNK_BYTES = 1 << 20
_NOT_ITS_OWN = 1_000
"""Offset from a leased slot's index to one that the node has not leased."""


class SwappedUpload(PoolDelivery):
    """Signs a claim for one file, and uploads another file of the same size."""

    async def _send(self, item: QueueItem, ticket: UploadTicket) -> None:
        _, transfer = self._connected()
        with TemporaryDirectory() as home:
            other = Path(home) / "other"
            other.write_bytes(os.urandom(item.size))
            await transfer.put(ticket, other, size=item.size)


class NoUpload(PoolDelivery):
    """Submits files that the node never uploads, so that no validator can judge them."""

    async def _send(self, item: QueueItem, ticket: UploadTicket) -> None:
        """Reports success without doing anything."""


class Ghost(PoolDelivery):
    """Submits work for each slot to the ledger without the relayer, and never uploads a file."""

    async def request(self, _item: QueueItem) -> Mapping[str, str]:
        """Requests no upload URL."""
        return {}

    async def put(self, _item: QueueItem) -> Mapping[str, str]:
        """Uploads nothing."""
        return {_STORED: str(unix_ms(self._now()))}

    async def submit(self, item: QueueItem) -> Mapping[str, str]:
        """Submits the claim directly to the ledger, because the relayer would check that the file exists."""
        work = self._work(item)
        if work is not None and not await self._on_ledger(work):
            await self._submit_directly(work, because="there is no file")
        return {_HANDED_OVER: str(unix_ms(self._now()))}


class LateUpload(Ghost):
    """Submits to the ledger without the relayer, and uploads the file `LATE` after that.

    By then the seed that draws the audited rows may be public.
    """

    async def request(self, item: QueueItem) -> Mapping[str, str]:
        """Requests an upload URL while the lease is valid."""
        return await PoolDelivery.request(self, item)

    async def acknowledge(self, item: QueueItem) -> Mapping[str, str]:
        """Uploads the file long after its submission to the ledger.

        Raises:
            NotYet: The submission is less than `LATE` ago.
        """
        await super().acknowledge(item)
        if unix_ms(self._now()) - int(item.data[_HANDED_OVER]) < LATE / timedelta(milliseconds=1):
            raise NotYet("the seed of the audited rows may not be public yet")
        ticket = UploadTicket.model_validate_json(item.data[_TICKET])
        if not ticket.already_there:
            await self._send(item, ticket)
        return {}


class UnleasedUpload(PoolDelivery):
    """Fills the pool's store with files of slots that the node has not leased.

    Delivers nothing else.
    """

    async def request(self, item: QueueItem) -> Mapping[str, str]:
        """Requests an upload URL for random bytes, and uploads them if the pool grants the URL.

        Raises:
            GivenUp: The pool accepted the bytes. In either case the file of the node's own slot is not delivered.
        """
        pool, transfer = self._connected()
        lease = leased(item).lease
        with TemporaryDirectory() as home:
            junk = Path(home) / "junk"
            junk.write_bytes(os.urandom(_JUNK_BYTES))
            ticket = await pool.request_upload(
                UploadRequest(
                    kind=UploadKind.ROLLOUT,
                    sha256=digest(hashlib.sha256(junk.read_bytes()).digest()),
                    size=_JUNK_BYTES,
                    slot=SlotName(step=lease.step, index=lease.index + _NOT_ITS_OWN),
                )
            )
            await transfer.put(ticket, junk, size=_JUNK_BYTES)
        raise GivenUp("the store accepted a file of a slot without a lease")
