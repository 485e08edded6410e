"""Builds the object store that the settings select."""

from __future__ import annotations

from pydantic import SecretStr

from orchestrator.settings import OrchestratorSettings
from orchestrator.storage.interface import ObjectStore
from orchestrator.storage.local import LocalStore
from orchestrator.storage.s3 import Bucket, S3Store
from protocol.errors import InvalidInput
from protocol.http.location import check_service_url
from protocol.runtime.clock import Clock


def build_store(settings: OrchestratorSettings, *, clock: Clock) -> ObjectStore:
    """Returns the pool's object store, which connects or creates directories at its first use.

    Raises:
        InvalidInput: The settings contradict each other, or the endpoint's URL is not allowed.
    """
    if settings.storage_bucket is None:
        return LocalStore(
            settings.storage_directory,
            base_url=settings.public_url,
            clock=clock,
            reserve=settings.storage_reserve_bytes,
        )
    if settings.storage_endpoint is not None:
        check_service_url(settings.storage_endpoint, allow_plain_http=settings.allow_plain_http)
    if (settings.storage_access_key is None) != (settings.storage_secret_key is None):
        raise InvalidInput(
            "storage_access_key and storage_secret_key belong together",
            hint="give both, or none",
            code="invalid-setting",
        )
    bucket = Bucket(
        name=settings.storage_bucket,
        endpoint=settings.storage_endpoint,
        region=settings.storage_region,
        access_key=_revealed(settings.storage_access_key),
        secret_key=_revealed(settings.storage_secret_key),
        checks_sha256=settings.storage_checks_sha256,
        checks_absence=settings.storage_checks_absence,
    )
    return S3Store(bucket, clock=clock)


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
