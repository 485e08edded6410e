"""Object store in a bucket of an S3-compatible store.

Such stores are Amazon S3, MinIO, Ceph, OpenStack Swift and Google Cloud Storage. Nodes upload files directly to the
bucket. The signature of an upload URL covers the file's size and media type. The signature also covers the SHA-256
and the condition that no object with this key exists, as far as the store checks them.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from orchestrator.storage.interface import (
    ObjectFacts,
    ObjectMissing,
    ObjectPage,
    PresignedPut,
    StorageUnavailable,
    StoredObject,
)
from protocol.errors import InvalidInput
from protocol.runtime.clock import Clock
from protocol.runtime.extras import installation
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.wire.uploads import ObjectKey

T = TypeVar("T")

_PIECE = 1 << 20
_CONNECT_S, _ATTEMPTS = 5, 3
_SESSION_LOCK = threading.Lock()
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Settings of a bucket in an S3-compatible store, with credentials.

    Args:
        name: Name of the bucket, which must exist.
        endpoint: URL of the store; None for Amazon S3.
        region: Region used in request signatures.
        access_key: Access key; None for the credentials that boto3 finds (machine role, environment, boto3's files).
        secret_key: Secret of the access key.
        checks_sha256: True if the store refuses bytes with another SHA-256 than announced.
        checks_absence: True if the store refuses to overwrite an object, by `If-None-Match: *`.
        timeout: Maximum time to wait for the store's answer to one request.
    """

    name: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None
    checks_sha256: bool = True
    checks_absence: bool = True
    timeout: timedelta = timedelta(seconds=15)


class S3Store:
    """An `ObjectStore` in a bucket. It connects at its first use.

    Args:
        bucket: The bucket.
        clock: Clock for the expiry of URLs; boto3 itself signs with the system time.

    Raises:
        InvalidInput: boto3 is not installed.
    """

    def __init__(self, bucket: Bucket, *, clock: Clock) -> None:
        try:
            import botocore.exceptions  # noqa: F401, PLC0415 - boto3 is an optional extra
        except ImportError as error:
            raise InvalidInput(
                "a bucket is named in the settings, and boto3 is not installed",
                hint=f"{installation('s3')}; or name no storage_bucket",
                code="invalid-setting",
            ) from error
        self._bucket = bucket
        self._clock = clock
        self._client: Any = None
        self._connecting = asyncio.Lock()

    async def presign_put(self, key: ObjectKey, *, size: int, content_type: str, expires: timedelta) -> PresignedPut:
        """Returns a presigned URL, whose signature covers all headers of the PUT request."""
        headers = {"Content-Type": content_type, "Content-Length": str(size)}
        terms: dict[str, object] = {**self._named(key), "ContentLength": size, "ContentType": content_type}
        if self._bucket.checks_sha256:
            digest = base64.b64encode(bytes.fromhex(key.sha256[2:])).decode()
            headers["x-amz-checksum-sha256"] = terms["ChecksumSHA256"] = digest
        if self._bucket.checks_absence:
            headers["If-None-Match"] = terms["IfNoneMatch"] = "*"
        until = self._clock.now() + expires
        url = await self._presigned("put_object", terms, expires)
        return PresignedPut(url=url, headers=headers, expires=until)

    async def presign_get(self, key: ObjectKey, *, expires: timedelta) -> str:
        """Returns a presigned URL, for which a browser saves the file instead of showing it."""
        terms = {**self._named(key), "ResponseContentDisposition": "attachment"}
        return await self._presigned("get_object", terms, expires)

    async def head(self, key: ObjectKey) -> ObjectFacts | None:
        """Returns the size of the object; None if there is none."""
        client = await self._connected()
        try:
            facts = await self._ask(lambda: client.head_object(**self._named(key)))
        except ObjectMissing:
            return None
        if "ContentLength" not in facts:
            raise StorageUnavailable(
                "the pool's store does not report the size of an object",
                hint="the pool's owner has to check whether a proxy before the store changes its answers",
            )
        return ObjectFacts(size=int(facts["ContentLength"]))

    @asynccontextmanager
    async def open(self, key: ObjectKey) -> AsyncIterator[AsyncIterator[bytes]]:
        """Opens the object; yields its bytes in pieces."""
        client = await self._connected()
        found = await self._ask(lambda: client.get_object(**self._named(key)))
        body = found["Body"]

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await self._ask(lambda: body.read(_PIECE)):
                yield piece

        try:
            yield pieces()
        finally:
            body.close()

    async def page(self, pool_id: int, *, audits: bool = False, after: str, limit: int) -> ObjectPage:
        """Lists objects in the order of their keys; the cursor is the last key."""
        client = await self._connected()
        asked = {"Bucket": self._bucket.name, "Prefix": f"{pool_id}/{'audits/' if audits else ''}0x", "MaxKeys": limit}
        if after:
            asked["StartAfter"] = after
        answer = await self._ask(lambda: client.list_objects_v2(**asked))
        listed = answer.get("Contents", [])
        found = []
        for each in listed:
            with suppress(InvalidInput):  # ignores objects that this service did not name
                key, size = ObjectKey.parse(each["Key"]), int(each["Size"])
                found.append(StoredObject(key=key, size=size, modified=each["LastModified"]))
        following = listed[-1]["Key"] if listed and answer.get("IsTruncated") else ""
        return ObjectPage(tuple(found), following)

    async def delete(self, key: ObjectKey) -> None:
        """Deletes the object; does nothing if there is none."""
        client = await self._connected()
        with suppress(ObjectMissing):
            await self._ask(lambda: client.delete_object(**self._named(key)))

    async def check(self) -> None:
        """Checks that the bucket exists and accepts the credentials."""
        client = await self._connected()
        try:
            await self._ask(lambda: client.head_bucket(Bucket=self._bucket.name))
        except ObjectMissing as error:
            raise StorageUnavailable(
                f"there is no bucket {self._bucket.name}", hint="create the bucket, or correct storage_bucket"
            ) from error

    async def aclose(self) -> None:
        """Closes connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _named(self, key: ObjectKey) -> dict[str, object]:
        return {"Bucket": self._bucket.name, "Key": str(key)}

    async def _presigned(self, operation: str, terms: dict[str, object], expires: timedelta) -> str:
        client, seconds = await self._connected(), max(1, int(expires.total_seconds()))
        return str(await self._ask(lambda: client.generate_presigned_url(operation, Params=terms, ExpiresIn=seconds)))

    async def _connected(self) -> Any:  # noqa: ANN401 - boto3 creates its client classes at run time
        async with self._connecting:
            if self._client is None:
                self._client = await run_in_thread(_client, self._bucket)
            return self._client

    async def _ask(self, work: Callable[[], T]) -> T:
        """Runs a call of boto3 in a thread, and converts its errors.

        Details from the store are only logged, because nodes see the converted errors.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            return await run_in_thread(work)
        except ClientError as error:
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            code = str(error.response.get("Error", {}).get("Code", ""))
            if status == 404 and code != "NoSuchBucket":
                raise ObjectMissing("there is no such object") from error
            _log.warning("storage-refused", bucket=self._bucket.name, status=status, code=code)
            raise _refusal(status, code) from error
        except (BotoCoreError, OSError) as error:
            _log.warning("storage-unreachable", bucket=self._bucket.name, error=type(error).__name__)
            raise StorageUnavailable(f"the pool's store does not answer: {type(error).__name__}") from error


def _refusal(status: int, code: str) -> StorageUnavailable:
    if status in {401, 403}:
        return StorageUnavailable(
            f"the pool's store refuses the orchestrator's credentials ({code[:60]})",
            hint="the pool's owner has to check storage_access_key, storage_secret_key, the bucket's policy, and that "
            "the orchestrator's clock is right: stores refuse signatures that are 15 minutes off",
        )
    return StorageUnavailable(f"the pool's store answered {status} ({code[:60]})")


def _client(bucket: Bucket) -> Any:  # noqa: ANN401 - see above
    from botocore.config import Config  # noqa: PLC0415

    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path" if bucket.endpoint else "auto"},
        # By default, boto3 sends checksums in HTTP trailers, which stores other than Amazon's may not support.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=_CONNECT_S,
        read_timeout=bucket.timeout.total_seconds(),
        retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
    )
    with _SESSION_LOCK:
        return _session().client(
            "s3",
            endpoint_url=bucket.endpoint,
            region_name=bucket.region,
            aws_access_key_id=bucket.access_key,
            aws_secret_access_key=bucket.secret_key,
            config=config,
        )


@cache
def _session() -> Any:  # noqa: ANN401 - see above
    """Returns the one boto3 session of this process.

    A session parses megabytes of API descriptions, so it is shared. It is not thread-safe, so callers hold
    `_SESSION_LOCK`.
    """
    import boto3  # noqa: PLC0415

    return boto3.session.Session()
