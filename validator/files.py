"""Transfers of files with the pool's store: downloads of work, uploads of audit files."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from protocol.clients import NodeClient, OrchestratorClient
from protocol.errors import Forbidden, InvalidInput, NotFound, TooLarge, Unauthenticated, Unavailable, Unprocessable
from protocol.http.object_store_errors import BytesRefused, UrlStale
from protocol.http.object_transfer import ObjectTransfer
from protocol.identifiers import Address, Digest, digest
from protocol.runtime.disk import DiskReserved, DiskSpace
from protocol.runtime.randomness import token_bytes, token_hex
from protocol.runtime.threads import run_in_thread
from protocol.wire.audits import LARGEST_AUDIT_FILE, AuditFile
from protocol.wire.listings import RolloutItem
from protocol.wire.uploads import LARGEST_OBJECT, ObjectKey, UploadKind, UploadRequest
from validator.domain.items import Item
from validator.domain.submissions import SubmittedWork
from validator.examination.interface import HashedFile


class FileAbsent(Unavailable):
    """The store has no such file, or is down. This never counts against the node: the file may come later."""

    code = "file-absent"


class StoreBroken(Unavailable):
    """The store returned bytes with another hash than the object's name."""

    code = "other-bytes"
    default_hint = (
        "the pool's object store is broken or lies: its owner has to look; a node can cause this only where the store "
        "does not check SHA-256 (storage_checks_sha256)"
    )


class WorkDiskFull(Unavailable):
    """There is no room for the work's file."""

    code = "disk-full"
    default_hint = "make room in the validator's directory, or give it fewer workers"


class DiskBroken(Unavailable):
    """The working directory can't be written or read."""

    code = "disk-trouble"
    default_hint = "look at the file system of the validator's directory: is it mounted, and writable?"


class OrchestratorRefuses(Unavailable):
    """The orchestrator refuses this validator's requests."""

    code = "orchestrator-refuses"


class FileTooLarge(TooLarge):
    """The file is larger than any pool's store may accept, so it is not downloaded."""

    code = "file-too-large"
    default_hint = "ask the pool's owner how its store came to have it; no orchestrator lets a node upload it"


class AuditFileWrong(Unprocessable):
    """The audit file that a verdict names is not in the store, has other bytes, or can't be decoded."""

    code = "wrong-audit-file"


class WorkFiles:
    """Downloads files of work and uploads audit files.

    Args:
        pool_id: The pool.
        reader: Client that asks the orchestrator for work, with the validator's key.
        writer: Client that asks it for upload URLs.
        transfer: Transfers the bytes.
        directory: Directory of files in use; no other process uses it.
        most_bytes: Maximum size of a file that is stored. Larger ones are hashed as they arrive.
        reserve_bytes: Bytes of the disk that stay free.
    """

    def __init__(
        self,
        *,
        pool_id: int,
        reader: OrchestratorClient,
        writer: NodeClient,
        transfer: ObjectTransfer,
        directory: Path,
        most_bytes: int,
        reserve_bytes: int,
    ) -> None:
        self._pool_id = pool_id
        self._reader = reader
        self._writer = writer
        self._transfer = transfer
        self._directory = directory
        self._most_bytes = most_bytes
        self._reserve_bytes = reserve_bytes
        self._space = DiskSpace(directory, reserve=reserve_bytes)

    def clear(self) -> None:
        """Removes files that an earlier run of the service left."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True, mode=0o700)

    def try_disk(self) -> None:
        """Returns if files in the working directory can be written and read.

        Raises:
            DiskFull: Less than the reserve is free.
            DiskBroken: Files on it can't be written or read.
        """
        free = shutil.disk_usage(self._directory).free if self._directory.is_dir() else None
        if free is not None and free <= self._reserve_bytes:
            raise WorkDiskFull(f"{free} bytes are free in {self._directory}, and {self._reserve_bytes} have to stay so")
        path, content = self._directory / f"self-test-{token_hex(4)}", token_bytes(4096)
        try:
            with path.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            same = path.read_bytes() == content
        except OSError as error:
            raise DiskBroken(f"{self._directory} can't be written and read: {error.strerror or error}") from error
        finally:
            with suppress(OSError):
                path.unlink()
        if not same:
            raise DiskBroken(f"{self._directory} gives other bytes than were written")

    async def listed(self, work: SubmittedWork) -> RolloutItem | None:
        """Returns the orchestrator's entry of a submission, with the download link; None if there is none."""
        try:
            with served():
                return await self._reader.rollout(work.key)
        except NotFound:
            return None

    @asynccontextmanager
    async def fetched(self, item: Item, listed: RolloutItem | None) -> AsyncIterator[Path | HashedFile]:
        """Downloads the work's file, verifies its hash, and keeps it while the context is entered.

        Of a file that is larger than this validator reads, only hash and size are returned. They suffice to check it
        against its lease, without memory or disk.

        Raises:
            FileAbsent: The store does not have the file.
            FileTooLarge: It is larger than any store may accept.
            DiskFull: There is no room.
            StoreBroken: The store returned bytes with another hash.
            Unavailable: The orchestrator or the store is down.
        """
        target = (
            self._directory / f"{item.id}.{item.token}.parquet"
        )  # an earlier holder of the item, also in this process, may still use its own copy
        try:
            yield await self._fetch(item.work, listed, target)
        finally:
            target.unlink(missing_ok=True)

    async def store(self, audit: AuditFile) -> Digest:
        """Uploads an audit file to the pool's store, unless it is there; returns its SHA-256.

        Raises:
            TooLarge: It is larger than the limit of audit files.
            Unavailable: The orchestrator or the store is down.
        """
        content = await run_in_thread(audit.encode)
        if len(content) > LARGEST_AUDIT_FILE:
            raise TooLarge(f"the audit file has {len(content)} bytes, {LARGEST_AUDIT_FILE} are read", code="audit-size")
        sha256 = digest(hashlib.sha256(content).digest())
        request = UploadRequest(
            kind=UploadKind.AUDIT, sha256=sha256, size=len(content), content_type="application/json"
        )
        with served():
            ticket = await self._writer.request_upload(request)
        if ticket.already_there:
            return sha256
        path = self._directory / f"{sha256}.json"
        try:
            await run_in_thread(path.write_bytes, content)
            await self._transfer.put(ticket, path, size=len(content))
            # Asked again for two reasons: the evidence must be there before the verdict, and the ticket stays open
            # until then.
            if not (await self._writer.request_upload(request)).already_there:
                raise StoreBroken(f"the store took the audit file {sha256} and does not have it")
        except BytesRefused as error:
            raise StoreBroken(error.detail) from error
        finally:
            path.unlink(missing_ok=True)
        return sha256

    async def audit(self, validator: Address, sha256: Digest) -> AuditFile:
        """Fetches the audit file of another validator.

        Raises:
            AuditFileWrong: The store does not have it or returns other bytes, or it is not an audit file.
            Unavailable: The orchestrator or the store is down.
        """
        key = ObjectKey(pool_id=self._pool_id, owner=validator, sha256=sha256, audit=True)
        path = self._directory / f"{token_hex(8)}.theirs.json"
        try:
            with served():
                link = await self._reader.object_link(key)
            await self._transfer.fetch(link.url, path, sha256=sha256, most_bytes=LARGEST_AUDIT_FILE)
            content = await run_in_thread(path.read_bytes)
        except (NotFound, BytesRefused, TooLarge) as error:
            raise AuditFileWrong(error.detail) from error
        finally:
            path.unlink(missing_ok=True)
        try:
            return await run_in_thread(AuditFile.decode, content)
        except InvalidInput as error:
            raise AuditFileWrong(error.detail) from error

    async def _fetch(self, work: SubmittedWork, listed: RolloutItem | None, target: Path) -> Path | HashedFile:
        try:
            url, size = await self._link(work, listed)
            try:
                return await self._transfer_into(url, size, work.sha256, target)
            except UrlStale:
                url, size = await self._link(work, None)
                return await self._transfer_into(url, size, work.sha256, target)
        except NotFound as error:
            raise FileAbsent(f"the store has no file {work.sha256} of {work.node}") from error
        except TooLarge as error:
            if isinstance(error, FileTooLarge):
                raise
            raise StoreBroken(error.detail) from error  # more bytes than the store announced
        except BytesRefused as error:
            raise StoreBroken(error.detail) from error

    async def _link(self, work: SubmittedWork, listed: RolloutItem | None) -> tuple[str, int]:
        if listed is not None and listed.file_url is not None and listed.size is not None:
            return listed.file_url, listed.size
        key = ObjectKey(pool_id=self._pool_id, owner=work.node, sha256=work.sha256)
        with served():
            link = await self._reader.object_link(key)
        return link.url, link.size

    async def _transfer_into(self, url: str, size: int, sha256: Digest, target: Path) -> Path | HashedFile:
        if size > LARGEST_OBJECT:
            raise FileTooLarge(f"the store has {size} bytes under {sha256}, and may take {LARGEST_OBJECT}")
        if size > self._most_bytes:
            await self._transfer.verify(url, sha256=sha256, size=size)
            return HashedFile(sha256=sha256, size=size)
        try:
            with self._space.claim(size) as claim:
                await self._transfer.fetch(url, target, sha256=sha256, most_bytes=size, claim=claim)
        except DiskReserved as error:
            raise WorkDiskFull(error.detail) from error
        return target


@contextmanager
def served() -> Iterator[None]:
    """Converts an orchestrator's refusal into a temporary error between it and this validator.

    Raises:
        OrchestratorRefuses: Always; with the code `clock` if the two clocks differ too much.
    """
    try:
        yield
    except (Forbidden, Unauthenticated) as error:
        code = error.code if error.code == "clock" else None
        raise OrchestratorRefuses(error.detail, hint=error.hint, code=code) from error
