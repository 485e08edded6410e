"""Ledger facts about nodes, cached in Redis for all instances.

The cached facts are also used while the chain is down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from discovery.store.record_store import KEYS
from discovery.store.records import FactsAge, NodeFacts
from protocol.identifiers import Address
from protocol.redis.connection import store_errors

_PROVIDERS = KEYS.of("ledger", "providers")
_STAKES = KEYS.of("ledger", "stakes")
_POOLS = KEYS.of("ledger", "pools")
_AS_OF = KEYS.of("ledger", "asof")


@dataclass(slots=True, kw_only=True)
class FactChanges:
    """New values of the facts that a batch of events changed.

    The values are absolute, not differences, so that a batch that is read twice has the same result.
    """

    providers: dict[Address, Address | None] = field(default_factory=dict)
    """Provider of each node; None for a retired node."""
    stakes: dict[Address, int] = field(default_factory=dict)
    """Active stake of each provider, in 10⁻¹⁸ MUST."""
    bans: dict[tuple[int, Address], bool] = field(default_factory=dict)
    """Whether a pool bans a node or provider, by the number of the pool and the address."""
    pools: dict[int, bool] = field(default_factory=dict)
    """Whether a pool exists, by its number. A pool stops existing only if a reorg removes its creation."""


class FactStore:
    """Reads and writes cached facts. Several instances may do so at the same time.

    Args:
        redis: Redis that all instances share.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def of(self, pool_id: int, nodes: Sequence[Address]) -> Mapping[Address, NodeFacts]:
        """Returns the facts about nodes that concern one pool, in two round trips to Redis for any number of nodes."""
        if not nodes:
            return {}
        with store_errors():
            found: list[Any] = await self._redis.hmget(_PROVIDERS, list(nodes))
            providers = [Address(value.decode()) if value else None for value in found]
            known = [provider or "-" for provider in providers]  # no provider has the address "-"
            pipe = self._redis.pipeline(transaction=False)
            pipe.hmget(_STAKES, known)
            pipe.smismember(_bans(pool_id), [*nodes, *known])
            stakes, bans = await pipe.execute()
        return {
            node: NodeFacts(
                provider=providers[i],
                stake=int(stakes[i] or 0),
                banned=bool(bans[i]) or bool(bans[len(nodes) + i]),
            )
            for i, node in enumerate(nodes)
        }

    async def knows(self, node: Address) -> bool:
        """Returns whether the node is registered on the ledger."""
        with store_errors():
            return bool(await self._redis.hexists(_PROVIDERS, node))

    async def known(self, nodes: Sequence[Address]) -> frozenset[Address]:
        """Returns those of the nodes that are registered on the ledger."""
        if not nodes:
            return frozenset()
        with store_errors():
            found: list[Any] = await self._redis.hmget(_PROVIDERS, list(nodes))
        return frozenset(node for node, provider in zip(nodes, found, strict=True) if provider is not None)

    async def has_pool(self, pool_id: int) -> bool:
        """Returns whether the pool exists; False while the event of its creation has not been read."""
        with store_errors():
            return bool(await self._redis.sismember(_POOLS, str(pool_id)))

    async def age(self) -> FactsAge:
        """Returns the time at which the cached facts were last up to date with the ledger."""
        with store_errors():
            value = await self._redis.get(_AS_OF)
        return FactsAge(as_of_ms=int(value or 0))

    async def apply(self, changes: FactChanges, *, as_of_ms: int | None = None) -> None:
        """Writes changes atomically; writing the same changes again has no effect.

        Args:
            changes: Changes to write.
            as_of_ms: Time at which events were read up to the chain's head, in Unix milliseconds; None while further
                events are unread.
        """
        with store_errors():
            pipe = self._redis.pipeline(transaction=True)
            for node, provider in changes.providers.items():
                if provider is None:
                    pipe.hdel(_PROVIDERS, node)
                else:
                    pipe.hset(_PROVIDERS, node, provider)
            for provider, stake in changes.stakes.items():
                pipe.hset(_STAKES, provider, stake)
            for (pool_id, who), banned in changes.bans.items():
                if banned:
                    pipe.sadd(_bans(pool_id), who)
                else:
                    pipe.srem(_bans(pool_id), who)
            for pool_id, exists in changes.pools.items():
                if exists:
                    pipe.sadd(_POOLS, str(pool_id))
                else:
                    pipe.srem(_POOLS, str(pool_id))
            if as_of_ms is not None:
                pipe.set(_AS_OF, as_of_ms)
            await pipe.execute()


def _bans(pool_id: int) -> str:
    return KEYS.of("ledger", "bans", str(pool_id))
