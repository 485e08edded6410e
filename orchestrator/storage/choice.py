"""Which store the settings ask for."""

from __future__ import annotations

from orchestrator.settings import OrchestratorSettings
from orchestrator.storage.interface import ObjectStore
from orchestrator.storage.local import LocalStore
from protocol.clock import Clock


def build_store(settings: OrchestratorSettings, *, clock: Clock) -> ObjectStore:
    """The pool's object store; nothing is touched before it is used."""
    return LocalStore(
        settings.storage_directory,
        base_url=settings.public_url,
        clock=clock,
        reserve=settings.storage_reserve_bytes,
    )
