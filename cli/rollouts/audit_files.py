"""Downloads audit files for commands.

Audit files are public, so the requests need no token and are signed with a new random key.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cli.configuration.sections import Configuration
from protocol.clients import OrchestratorClient
from protocol.errors import InvalidInput
from protocol.http.object_transfer import ObjectTransfer
from protocol.identifiers import ZERO_DIGEST, Address, Digest
from protocol.identity.keys import Key
from protocol.runtime.clock import SystemClock
from protocol.wire.audits import LARGEST_AUDIT_FILE, AuditFile
from protocol.wire.uploads import ObjectKey


class AuditFiles:
    """Reader of the audit files of one pool; `open_audit_files` creates it."""

    def __init__(self, client: OrchestratorClient, transfer: ObjectTransfer, folder: Path, *, pool_id: int) -> None:
        self._client = client
        self._transfer = transfer
        self._folder = folder
        self._pool_id = pool_id

    async def read(self, validator: Address, sha256: Digest) -> AuditFile:
        """Returns the audit file that a verdict names.

        Raises:
            NotFound: The file is not in the store.
            InvalidInput: The verdict names no file, or the file is not an audit file.
            BytesRefused: The store sent bytes with another SHA-256.
            Unavailable: The orchestrator or the store can't be reached.
        """
        if sha256 == ZERO_DIGEST:
            raise InvalidInput("the verdict names no audit file")
        key = ObjectKey(pool_id=self._pool_id, owner=validator, sha256=sha256, audit=True)
        link = await self._client.object_link(key)
        path = self._folder / f"{validator}-{sha256[2:]}"
        try:
            await self._transfer.fetch(link.url, path, sha256=sha256, most_bytes=LARGEST_AUDIT_FILE)
            return AuditFile.decode(path.read_bytes())
        finally:
            path.unlink(missing_ok=True)


@asynccontextmanager
async def open_audit_files(
    configuration: Configuration, *, pool_id: int, where: str | None = None
) -> AsyncIterator[AuditFiles]:
    """Yields a reader of a pool's audit files, which are in the orchestrator's store.

    Raises:
        InvalidInput: No orchestrator is configured.
    """
    location = where or configuration.pool.orchestrator
    if location is None:
        raise InvalidInput(
            "no orchestrator is configured",
            hint="give --orchestrator URL, or set orchestrator under [pool] in muster.toml",
        )
    async with OrchestratorClient(location, key=Key.generate()) as client:
        transfer = ObjectTransfer(client.location.url, clock=SystemClock())
        try:
            with tempfile.TemporaryDirectory(prefix="muster-audits-") as folder:
                yield AuditFiles(client, transfer, Path(folder), pool_id=pool_id)
        finally:
            await transfer.aclose()
