"""File transfers with the pool's object store: downloads of rollout files, uploads of audit files."""

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
    """The object store has no rollout file of this submission (yet).

    The validator retries until the work's deadline, because the node may still upload the file. A missing file never
    counts against the node.
    """

    code = "file-absent"


class StoreBroken(Unavailable):
    """The object store returned bytes with another hash than the requested one, or lacks a file that was uploaded."""

    code = "other-bytes"
    default_hint = (
        "the pool's object store is broken or dishonest: ask the pool's owner to check it; a node can cause this only "
        "if the store does not check SHA-256 (storage_checks_sha256)"
    )


class WorkDiskFull(Unavailable):
    """The disk of the validator's directory has no room for a rollout file."""

    code = "disk-full"
    default_hint = "free space on the disk of the validator's directory, or lower the setting workers"


class DiskBroken(Unavailable):
    """Files in the validator's working directory can't be written or read back."""

    code = "disk-trouble"
    default_hint = "check that the file system of the validator's directory is mounted and writable"


class OrchestratorRefuses(Unavailable):
    """The orchestrator refuses this validator's signed requests, because of its key or its clock."""

    code = "orchestrator-refuses"


class FileTooLarge(TooLarge):
    """The file is larger than any object store of a pool may accept, so the validator does not download it."""

    code = "file-too-large"
    default_hint = "ask the pool's owner how the store received the file; no orchestrator lets a node upload it"


class AuditFileWrong(Unprocessable):
    """The audit file that a verdict names is not in the store, has another hash, or can't be decoded."""

    code = "wrong-audit-file"


class WorkFiles:
    """Downloads rollout files and uploads audit files.

    Args:
        pool_id: The pool.
        reader: Client that asks the orchestrator for submissions and download links, with the validator's key.
        writer: Client that asks the orchestrator for upload URLs.
        transfer: Transfers the bytes to and from the object store.
        directory: Working directory for files in use; no other process may use it.
        most_bytes: Maximum size of a file that is stored, in bytes. Larger files are hashed as they arrive.
        reserve_bytes: Space that stays free on the disk, in bytes.
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
        """Removes all files that an earlier run of the service left in the working directory."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True, mode=0o700)

    def try_disk(self) -> None:
        """Tests the working directory: writes a file of 4096 random bytes, reads it back and compares.

        Raises:
            WorkDiskFull: No more than the reserve is free on the disk.
            DiskBroken: The file can't be written or read, or has other bytes when read.
        """
        free = shutil.disk_usage(self._directory).free if self._directory.is_dir() else None
        if free is not None and free <= self._reserve_bytes:
            raise WorkDiskFull(f"{self._directory} has {free} bytes free, and {self._reserve_bytes} must stay free")
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
            raise DiskBroken(f"a file in {self._directory} has other bytes than were written")

    async def listed(self, work: SubmittedWork) -> RolloutItem | None:
        """Returns the orchestrator's entry of a submission, with the file's download link; None if it has no entry.

        Raises:
            Unavailable: The orchestrator is down or refuses this validator.
        """
        try:
            with temporary_refusals():
                return await self._reader.rollout(work.key)
        except NotFound:
            return None

    @asynccontextmanager
    async def fetched(self, item: Item, listed: RolloutItem | None) -> AsyncIterator[Path | HashedFile]:
        """Downloads the rollout file of an item, verifies its hash, and keeps it while the context is entered.

        A file that is larger than this validator's limit is hashed as it arrives and not stored. The context then
        yields only its hash and size, which suffice to compare the file with the limits of its lease.

        Args:
            item: The leased item.
            listed: The orchestrator's entry of the submission; None to ask for a download link.

        Raises:
            FileAbsent: The store does not have the file.
            FileTooLarge: The file is larger than any store may accept.
            WorkDiskFull: The disk has no room for the file.
            StoreBroken: The store returned bytes with another hash.
            Unavailable: The orchestrator or the store is down.
        """
        # The name has the lease's token: an earlier holder of the item, also in this process, may still use its copy.
        target = self._directory / f"{item.id}.{item.token}.parquet"
        try:
            yield await self._fetch(item.work, listed, target)
        finally:
            target.unlink(missing_ok=True)

    async def store(self, audit: AuditFile) -> Digest:
        """Uploads an audit file to the pool's store, unless the store has it already; returns its SHA-256.

        Raises:
            TooLarge: The encoded file is larger than the limit of audit files.
            StoreBroken: The store refused the bytes, or lacks the file after the upload.
            Unavailable: The orchestrator or the store is down.
        """
        content = await run_in_thread(audit.encode)
        if len(content) > LARGEST_AUDIT_FILE:
            raise TooLarge(
                f"the audit file has {len(content)} bytes; the limit is {LARGEST_AUDIT_FILE}", code="audit-size"
            )
        sha256 = digest(hashlib.sha256(content).digest())
        request = UploadRequest(
            kind=UploadKind.AUDIT, sha256=sha256, size=len(content), content_type="application/json"
        )
        with temporary_refusals():
            ticket = await self._writer.request_upload(request)
        if ticket.already_there:
            return sha256
        path = self._directory / f"{sha256}.json"
        try:
            await run_in_thread(path.write_bytes, content)
            await self._transfer.put(ticket, path, size=len(content))
            # The second request has two reasons: it proves that the evidence is in the store before the verdict is
            # sent, and it lets the orchestrator see the file, which closes the upload ticket.
            if not (await self._writer.request_upload(request)).already_there:
                raise StoreBroken(f"the store accepted the audit file {sha256}, but does not have it")
        except BytesRefused as error:
            raise StoreBroken(error.detail) from error
        finally:
            path.unlink(missing_ok=True)
        return sha256

    async def audit(self, validator: Address, sha256: Digest) -> AuditFile:
        """Downloads the audit file of another validator's verdict.

        Args:
            validator: The validator that uploaded the file.
            sha256: SHA-256 that the verdict on the ledger names.

        Raises:
            AuditFileWrong: The store lacks the file, returns other bytes, or has bytes that are no audit file.
            Unavailable: The orchestrator or the store is down.
        """
        key = ObjectKey(pool_id=self._pool_id, owner=validator, sha256=sha256, audit=True)
        path = self._directory / f"{token_hex(8)}.theirs.json"
        try:
            with temporary_refusals():
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
            raise FileAbsent(f"the object store has no file {work.sha256} of node {work.node}") from error
        except TooLarge as error:
            if isinstance(error, FileTooLarge):
                raise
            raise StoreBroken(error.detail) from error  # the store sent more bytes than it announced
        except BytesRefused as error:
            raise StoreBroken(error.detail) from error

    async def _link(self, work: SubmittedWork, listed: RolloutItem | None) -> tuple[str, int]:
        if listed is not None and listed.file_url is not None and listed.size is not None:
            return listed.file_url, listed.size
        key = ObjectKey(pool_id=self._pool_id, owner=work.node, sha256=work.sha256)
        with temporary_refusals():
            link = await self._reader.object_link(key)
        return link.url, link.size

    async def _transfer_into(self, url: str, size: int, sha256: Digest, target: Path) -> Path | HashedFile:
        if size > LARGEST_OBJECT:
            raise FileTooLarge(f"file {sha256} in the object store has {size} bytes; the limit is {LARGEST_OBJECT}")
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
def temporary_refusals() -> Iterator[None]:
    """Converts the orchestrator's 401 and 403 answers to retryable errors.

    The orchestrator refuses requests in this way because of this validator's key or clock, not because of the item.

    Raises:
        OrchestratorRefuses: The orchestrator refused the request; with the code `clock` if it refused the request's
            time, because the two clocks differ too much.
    """
    try:
        yield
    except (Forbidden, Unauthenticated) as error:
        code = error.code if error.code == "clock" else None
        raise OrchestratorRefuses(error.detail, hint=error.hint, code=code) from error
