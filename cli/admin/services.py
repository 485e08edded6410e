"""Services whose state `muster admin` handles, as the configuration of this machine has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cli.admin.archive import PoolIdentity, ServiceName
from cli.admin.records import RedisPlace
from gateway.settings import GatewaySettings
from gateway.store.database import SCHEMA as GATEWAY_SCHEMA
from gateway.store.database import gateway_keys
from ledger.artifacts import Contract
from ledger.deployment import Deployment
from orchestrator.domain.keys import SCHEMA as ORCHESTRATOR_SCHEMA
from orchestrator.domain.keys import pool_keys
from orchestrator.settings import OrchestratorSettings
from protocol.errors import Conflict, InvalidInput
from trainer.run.settings import TrainerSettings
from validator.settings import ValidatorSettings
from validator.store.keys import SCHEMA as VALIDATOR_SCHEMA
from validator.store.keys import keys_of

_SETTINGS: dict[
    ServiceName,
    type[OrchestratorSettings] | type[GatewaySettings] | type[ValidatorSettings] | type[TrainerSettings],
] = {
    ServiceName.ORCHESTRATOR: OrchestratorSettings,
    ServiceName.GATEWAY: GatewaySettings,
    ServiceName.VALIDATOR: ValidatorSettings,
    ServiceName.TRAINER: TrainerSettings,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A configured service.

    Args:
        name: Its name.
        pool: Its pool.
        redis: Its data in Redis; None for the trainer.
        sealing_key: File of the key that encrypts secrets of tasks.
        storage: Folder of the orchestrator's object store; None if the pool's files are in a bucket.
        bucket: Bucket of the pool's files.
        state: The trainer's state directory.
        run: Name of the trainer's run.
    """

    name: ServiceName
    pool: PoolIdentity
    redis: RedisPlace | None = None
    sealing_key: Path | None = None
    storage: Path | None = None
    bucket: str | None = None
    state: Path | None = None
    run: str | None = None

    @property
    def objects(self) -> Path | None:
        """Folder of the pool's files."""
        return None if self.storage is None else self.storage / "objects" / str(self.pool.pool_id)

    @property
    def key_files(self) -> dict[str, Path]:
        """Files of keys, by their names in a backup."""
        url_secret = None if self.storage is None else self.storage / "url.secret"
        found = {"sealing.key": self.sealing_key, "url.secret": url_secret}
        return {name: path for name, path in found.items() if path is not None}


@dataclass(frozen=True, slots=True)
class Pool:
    """Services of one pool on this machine, in the order in which a backup has them."""

    services: Sequence[Service]
    left_out: Sequence[ServiceName]
    """Names of services that the configuration does not have."""

    @property
    def identity(self) -> PoolIdentity:
        """The pool."""
        return self.services[0].pool


def configured(file: Path | None, *, wanted: Sequence[ServiceName] = ()) -> Pool:
    """Reads the settings of the services.

    Args:
        file: The configuration file; by default the one that every command finds.
        wanted: Names of services; by default all whose `pool_id` is set.

    Raises:
        InvalidInput: No service is configured, or a setting is missing or invalid.
        Conflict: The services belong to different pools.
    """
    names = [name for name in ServiceName if (name in wanted if wanted else _is_configured(name, file))]
    if not names:
        raise InvalidInput(
            "no service with state is configured here",
            hint="run this with the configuration of an orchestrator, gateway, validator or trainer: --config FILE",
        )
    services = [_service(name, file) for name in names]
    for one in services:
        if one.pool != services[0].pool:
            raise Conflict(
                f"{services[0].name} and {one.name} belong to different pools in this configuration: {services[0].pool}"
                f", and {one.pool}",
                hint="name the services of one pool with --service",
            )
    return Pool(services, [name for name in ServiceName if name not in names])


def _is_configured(name: ServiceName, file: Path | None) -> bool:
    rows, _ = _SETTINGS[name].explain(file=file)
    return any(row.key == "pool_id" and row.source for row in rows)


def _service(name: ServiceName, file: Path | None) -> Service:
    settings = _SETTINGS[name].load(file=file)
    deployment = Deployment.load(settings.deployment)
    pool = PoolIdentity(settings.pool_id, deployment[Contract.COMPUTE_POOLS], deployment.chain_id)
    service = Service(name=name, pool=pool)
    match settings:
        case TrainerSettings():
            return replace(service, state=settings.state, run=settings.run)
        case OrchestratorSettings():
            keys, schema = pool_keys(pool.pool_id), ORCHESTRATOR_SCHEMA
            bucket = settings.storage_bucket
            storage = settings.storage_directory if bucket is None else None
            service = replace(service, sealing_key=settings.secrets_key_file, storage=storage, bucket=bucket)
        case GatewaySettings():
            keys, schema = gateway_keys(pool.pool_id), GATEWAY_SCHEMA
        case ValidatorSettings():
            keys, schema = keys_of(pool.pool_id), VALIDATOR_SCHEMA
    return replace(service, redis=RedisPlace(settings.redis_url.get_secret_value(), keys, schema))
