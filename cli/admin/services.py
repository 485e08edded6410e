"""Services whose state `muster admin` handles, as the configuration of this machine has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.admin.archive import ServiceName
from gateway.settings import GatewaySettings
from gateway.store.database import SCHEMA as GATEWAY_SCHEMA
from gateway.store.database import gateway_keys
from ledger.artifacts import Contract
from ledger.deployment import Deployment
from orchestrator.domain.keys import SCHEMA as ORCHESTRATOR_SCHEMA
from orchestrator.domain.keys import pool_keys
from orchestrator.settings import OrchestratorSettings
from protocol.errors import Conflict, InvalidInput
from protocol.identifiers import Address
from protocol.redis.connection import RedisKeys
from protocol.runtime.settings import Settings
from trainer.run.settings import TrainerSettings
from validator.settings import ValidatorSettings
from validator.store.keys import SCHEMA as VALIDATOR_SCHEMA
from validator.store.keys import keys_of

SERVICES: tuple[ServiceName, ...] = ("orchestrator", "gateway", "validator", "trainer")
"""Services with state, in the order in which a backup has it. A trainer may be newer than the orchestrator, and an
orchestrator's files newer than its Redis, but not the other way round."""


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """A service's data in Redis.

    Args:
        url: URL of Redis, which may contain a password.
        keys: Names of the keys.
        schema: Schema version of this release.
    """

    url: str
    keys: RedisKeys
    schema: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A configured service.

    Args:
        name: Its name.
        pool_id: Number of the pool.
        deployment: The ledger.
        redis: Its data in Redis; None for the trainer.
        sealing_key: File of the key that encrypts secrets of tasks.
        objects: Folder of the pool's files; None if they are in a bucket.
        bucket: Bucket of the pool's files.
        state: The trainer's state directory.
        run: Name of the trainer's run.
    """

    name: ServiceName
    pool_id: int
    deployment: Deployment
    redis: RedisPlace | None = None
    sealing_key: Path | None = None
    objects: Path | None = None
    bucket: str | None = None
    state: Path | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """Services of one pool on this machine.

    Args:
        services: The services, in the order of `SERVICES`.
        left_out: Names of services that the configuration does not have.
    """

    services: Sequence[Service]
    left_out: Sequence[ServiceName]

    @property
    def id(self) -> int:
        """Number of the pool."""
        return self.services[0].pool_id

    @property
    def chain_id(self) -> int:
        """Id of the chain."""
        return self.services[0].deployment.chain_id

    @property
    def ledger(self) -> Address:
        """Address of ComputePools."""
        return self.services[0].deployment[Contract.COMPUTE_POOLS]


def configured(file: Path | None, *, wanted: Sequence[str] = ()) -> Pool:
    """Reads the settings of the services.

    Args:
        file: The configuration file; by default the one that every command finds.
        wanted: Names of services; by default all whose `pool_id` is set.

    Raises:
        InvalidInput: No service is configured, or a setting is missing or invalid.
        Conflict: The services belong to different pools.
    """
    names = [name for name in SERVICES if (name in wanted if wanted else _is_configured(name, file))]
    if not names:
        raise InvalidInput(
            "no service with state is configured here",
            hint="run this with the configuration of an orchestrator, gateway, validator or trainer: --config FILE",
        )
    services = [_READERS[name](file) for name in names]
    pool = Pool(services, [name for name in SERVICES if name not in names])
    for one in services:
        if (one.pool_id, one.deployment.chain_id, one.deployment[Contract.COMPUTE_POOLS]) != (
            pool.id,
            pool.chain_id,
            pool.ledger,
        ):
            raise Conflict(
                f"{services[0].name} and {one.name} belong to different pools in this configuration",
                hint="name the services of one pool with --service",
            )
    return pool


def _is_configured(name: ServiceName, file: Path | None) -> bool:
    rows, _ = _SETTINGS[name].explain(file=file)
    return any(row.key == "pool_id" and row.source for row in rows)


def _orchestrator(file: Path | None) -> Service:
    settings = OrchestratorSettings.load(file=file)
    return Service(
        name="orchestrator",
        pool_id=settings.pool_id,
        deployment=Deployment.load(settings.deployment),
        redis=RedisPlace(settings.redis_url.get_secret_value(), pool_keys(settings.pool_id), ORCHESTRATOR_SCHEMA),
        sealing_key=settings.secrets_key_file,
        objects=settings.storage_directory if settings.storage_bucket is None else None,
        bucket=settings.storage_bucket,
    )


def _gateway(file: Path | None) -> Service:
    settings = GatewaySettings.load(file=file)
    return Service(
        name="gateway",
        pool_id=settings.pool_id,
        deployment=Deployment.load(settings.deployment),
        redis=RedisPlace(settings.redis_url.get_secret_value(), gateway_keys(settings.pool_id), GATEWAY_SCHEMA),
    )


def _validator(file: Path | None) -> Service:
    settings = ValidatorSettings.load(file=file)
    return Service(
        name="validator",
        pool_id=settings.pool_id,
        deployment=Deployment.load(settings.deployment),
        redis=RedisPlace(settings.redis_url.get_secret_value(), keys_of(settings.pool_id), VALIDATOR_SCHEMA),
    )


def _trainer(file: Path | None) -> Service:
    settings = TrainerSettings.load(file=file)
    return Service(
        name="trainer",
        pool_id=settings.pool_id,
        deployment=Deployment.load(settings.deployment),
        state=settings.state,
        run=settings.run,
    )


_SETTINGS: Mapping[ServiceName, type[Settings]] = {
    "orchestrator": OrchestratorSettings,
    "gateway": GatewaySettings,
    "validator": ValidatorSettings,
    "trainer": TrainerSettings,
}
_READERS: Mapping[ServiceName, Callable[[Path | None], Service]] = {
    "orchestrator": _orchestrator,
    "gateway": _gateway,
    "validator": _validator,
    "trainer": _trainer,
}
