"""Object store in a local directory, served under signed URLs; the default store.

ROOT/objects/POOL/[audits/]OWNER/ab/abcd…    complete objects, named by their hash
ROOT/incoming/…                              uploads in progress
ROOT/url.secret                              secret that signs URLs
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from orchestrator.storage.interface import (
    ObjectFacts,
    ObjectMissing,
    ObjectPage,
    PresignedPut,
    StorageFull,
    StorageUnavailable,
    StoredObject,
)
from orchestrator.storage.receiver import UploadReceiver, storage_error, sweep
from orchestrator.storage.signed_urls import UrlExpired, UrlSigner, shared_secret
from protocol.errors import InvalidInput, RateLimited
from protocol.identifiers import Address
from protocol.runtime.clock import Clock
from protocol.runtime.disk import DiskReserved, DiskSpace
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.wire.uploads import ObjectKey

T = TypeVar("T")

MOST_AT_ONCE = 256
"""Maximum number of concurrent uploads."""

MOST_OF_ONE = 32
"""Maximum number of concurrent uploads of one owner, so that its slow uploads don't block those of other owners."""

PIECE_TIMEOUT = timedelta(seconds=30)
"""Maximum time between two pieces of an upload."""

LEAST_RATE = 16 * 1024
"""Minimum average rate of an upload after its first minute, in bytes per second. Slower uploads are refused, so that
they don't use up `MOST_AT_ONCE`."""

_FIRST_MINUTE_S = 60.0
_AT_ONCE = 1 << 20
"""Number of bytes per read or write of a file."""
_LEFT_BEHIND_S = 24 * 3600.0
"""Age, in seconds, from which a temporary file counts as left by a crash and is deleted."""
_log = get_logger(__name__)


class UploadTooSlow(StorageUnavailable):
    """The bytes of an upload arrive too slowly."""

    code = "upload-too-slow"
    default_hint = "send it again over a better connection"


class LocalStore:
    """An `ObjectStore` in a directory, which several orchestrators may share.

    Args:
        root: The directory; created at the first use.
        base_url: URL by which workers reach this orchestrator.
        clock: Clock of expiry times.
        reserve: Number of bytes of the disk that uploads must leave free.
    """

    def __init__(self, root: Path, *, base_url: str, clock: Clock, reserve: int = 0) -> None:
        self._root = root
        self._base_url = base_url
        self._clock = clock
        self._space = DiskSpace(root, reserve=reserve)
        self._signer: UrlSigner | None = None
        self._arriving: Counter[Address] = Counter()

    @property
    def urls(self) -> UrlSigner:
        """Signer of this store's URLs.

        Raises:
            StorageUnavailable: The directory can't be used.
        """
        return self._make_directories()

    def _make_directories(self) -> UrlSigner:
        if self._signer is None:
            try:
                for place in (self._root, self._objects, self._incoming):
                    place.mkdir(parents=True, exist_ok=True, mode=0o700)
                secret = shared_secret(self._root / "url.secret")
                if removed := sweep(self._incoming, older_than_s=_LEFT_BEHIND_S):
                    _log.info("incoming-swept", removed=removed)
            except OSError as error:
                raise storage_error(error) from error
            self._signer = UrlSigner(self._base_url, secret=secret, clock=self._clock)
        return self._signer

    async def presign_put(self, key: ObjectKey, *, size: int, content_type: str, expires: timedelta) -> PresignedPut:
        """Returns a signed URL for the upload, which this orchestrator serves."""
        self._make_directories()
        with _full():
            self._space.check(size)
        until = self._clock.now() + expires
        url = self.urls.put_url(key, size=size, content_type=content_type, expires=until)
        return PresignedPut(url=url, headers={"Content-Type": content_type}, expires=until)

    async def presign_get(self, key: ObjectKey, *, expires: timedelta) -> str:
        """Returns a signed URL for the download, which this orchestrator serves."""
        return self.urls.get_url(key, expires=self._clock.now() + expires)

    async def head(self, key: ObjectKey) -> ObjectFacts | None:
        """Returns the size of the file; None if there is none."""
        try:
            status = await run_in_thread(self.path(key).stat)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error) from error
        return ObjectFacts(size=status.st_size)

    @asynccontextmanager
    async def open(self, key: ObjectKey) -> AsyncIterator[AsyncIterator[bytes]]:
        """Reads the file."""
        try:
            file = await run_in_thread(self.path(key).open, "rb")
        except FileNotFoundError as error:
            raise ObjectMissing(f"there is no object {key}") from error

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await _whole(partial(file.read, _AT_ONCE)):
                yield piece

        try:
            yield pieces()
        finally:
            file.close()

    async def receive(self, key: ObjectKey, *, size: int, expires: datetime, pieces: AsyncIterator[bytes]) -> None:
        """Receives an upload. Afterwards the store has the complete object, or none.

        Args:
            key: Key of the object.
            size: Announced size in bytes; this much disk space is reserved until the upload ends.
            expires: Expiry of the URL; an upload that is still incomplete at this time fails.
            pieces: Pieces of the object's bytes, as they arrive from the network.

        Raises:
            UrlExpired: The upload was not complete when the URL expired.
            TooLarge, OtherBytes: The size or the SHA-256 of the bytes differs from the announced one.
            Conflict: Another upload of the same object is in progress.
            UploadTooSlow: The bytes arrive too slowly.
            RateLimited: Too many uploads are in progress.
            StorageFull: The disk has no free space beyond the reserve and the space of other uploads.
        """
        self._make_directories()
        place = self._incoming / hashlib.sha256(str(key).encode()).hexdigest()
        with self._place_for(key.owner), _full():
            incoming = await _whole(partial(UploadReceiver, place, self.path(key), size=size, sha256=key.sha256[2:]))
            try:
                # An upload of an object that is stored already reserves no space. Otherwise slow uploads of such an
                # object could reserve the whole disk.
                with self._space.claim(0 if incoming.is_there else size) as claim:
                    async for block in self._blocks(pieces, incoming, expires):
                        with nullcontext() if incoming.is_there else claim.writing(len(block)):
                            await _whole(partial(incoming.write, block))
                    await _whole(incoming.finish)
            finally:
                incoming.close()

    def path(self, key: ObjectKey) -> Path:
        """Returns the path of an object's file.

        Path traversal is impossible, because `ObjectKey` validates the parts of a key.
        """
        *folders, name = str(key).split("/")
        return self._objects.joinpath(*folders, name[:2], name)

    async def page(self, pool_id: int, *, audits: bool = False, after: str, limit: int) -> ObjectPage:
        """Lists objects by directory, in the order of the directories' names.

        Pages contain whole directories. The cursor is the last directory of a page, `OWNER/ab`.
        """
        try:
            return await run_in_thread(self._page, f"{pool_id}/audits" if audits else str(pool_id), after, limit)
        except OSError as error:
            raise storage_error(error) from error

    async def delete(self, key: ObjectKey) -> None:
        """Removes the file."""
        try:
            await run_in_thread(partial(self.path(key).unlink, missing_ok=True))
        except OSError as error:
            raise storage_error(error) from error

    async def check(self) -> None:
        """Checks that the directory is usable."""
        await run_in_thread(lambda: self.urls)

    async def aclose(self) -> None:
        """Does nothing: no resources are open."""

    @property
    def _objects(self) -> Path:
        return self._root / "objects"

    def _page(self, owners: str, after: str, limit: int) -> ObjectPage:
        found: list[StoredObject] = []
        root = self._objects / owners
        for owner in _names(root):
            if not owner.startswith("0x") or owner < after.split("/", maxsplit=1)[0]:
                continue
            for prefix in _names(root / owner):
                place = f"{owner}/{prefix}"
                if place <= after:
                    continue
                found += _objects_in(root / owner / prefix, f"{owners}/{owner}")
                if len(found) >= limit:
                    return ObjectPage(tuple(found), place)
        return ObjectPage(tuple(found), "")

    @property
    def _incoming(self) -> Path:
        return self._root / "incoming"

    @contextmanager
    def _place_for(self, owner: Address) -> Iterator[None]:
        for arriving, most, source in (
            (self._arriving.total(), MOST_AT_ONCE, ""),
            (self._arriving[owner], MOST_OF_ONE, f" from {owner}"),
        ):
            if arriving >= most:
                raise RateLimited(f"{most} uploads{source} are in progress already", retry_after=timedelta(seconds=5))
        self._arriving[owner] += 1
        try:
            yield
        finally:
            self._arriving[owner] -= 1
            self._arriving += Counter()  # removes owners with a count of zero

    async def _blocks(
        self, pieces: AsyncIterator[bytes], incoming: UploadReceiver, expires: datetime
    ) -> AsyncIterator[bytes]:
        """Joins an upload's pieces into blocks of 1 MiB, as each write costs a thread switch.

        It also applies the time limits of the upload.
        """
        started, gathered, waiting = self._clock.monotonic(), bytearray(), aiter(pieces)
        while True:
            left = expires - self._clock.now()
            try:
                async with asyncio.timeout(min(PIECE_TIMEOUT, left).total_seconds()):
                    gathered += await anext(waiting)
            except StopAsyncIteration:
                break
            except TimeoutError:
                if left < PIECE_TIMEOUT:
                    raise _expired(incoming) from None
                raise UploadTooSlow(f"no bytes arrived for {PIECE_TIMEOUT.total_seconds():.0f} s") from None
            if self._clock.now() > expires:
                raise _expired(incoming)
            late_s = self._clock.monotonic() - started - _FIRST_MINUTE_S
            if incoming.received + len(gathered) < late_s * LEAST_RATE:
                raise UploadTooSlow(f"fewer than {LEAST_RATE} bytes arrived per second")
            if len(gathered) >= _AT_ONCE:
                yield bytes(gathered)
                gathered.clear()
        if gathered:
            yield bytes(gathered)


@contextmanager
def _full() -> Iterator[None]:
    try:
        yield
    except DiskReserved as error:
        _log.warning("storage-full", detail=error.detail, hint=error.hint)
        raise StorageFull(f"the pool's store has no room: {error.detail}") from error


def _expired(incoming: UploadReceiver) -> UrlExpired:
    return UrlExpired(
        f"the URL expired after {incoming.received} of {incoming.size} bytes",
        hint="ask for another upload URL, and send the whole file again",
    )


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _objects_in(directory: Path, owner: str) -> list[StoredObject]:
    """Returns the objects in one directory; ignores files whose name is not a SHA-256."""
    found = []
    for name in _names(directory):
        try:
            key = ObjectKey.parse(f"{owner}/{name}")
            status = (directory / name).stat()
        except (InvalidInput, FileNotFoundError):
            continue
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        found.append(StoredObject(key=key, size=status.st_size, modified=modified))
    return found


async def _whole(work: Callable[[], T]) -> T:
    """Runs `work` in a thread, and waits for its end even if this task is cancelled.

    Otherwise the caller could close the file that the thread still uses.
    """
    running = asyncio.ensure_future(run_in_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
