"""Connections of a trainer to the chain and to the orchestrator."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx

from ledger.client import Ledger
from ledger.deployment import Deployment
from ledger.transactions.pending import SendPolicy
from protocol.clients.orchestrator import OrchestratorClient
from protocol.identity.keys import Key
from protocol.identity.keystores import find_key
from protocol.runtime.clock import Clock
from trainer.run.settings import TrainerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Clock and connections that tests replace.

    Args:
        clock: Clock of the run.
        transport: HTTP transport to an orchestrator in the same process; None for the network.
        chain_transport: HTTP transport to a chain in the same process; None for the network.
        policy: Fee, retry and time-out policy of transactions.
    """

    clock: Clock
    transport: httpx.AsyncBaseTransport | None = None
    chain_transport: httpx.AsyncBaseTransport | None = None
    policy: SendPolicy | None = None


def publisher_key(settings: TrainerSettings) -> Key:
    """Returns the publisher's key from its keystore or the environment.

    Raises:
        MusterError: There is no key, or the password is wrong.
    """
    return find_key("publisher", keystore=settings.keystore, password_file=settings.password_file)


async def connect(
    settings: TrainerSettings, key: Key, outside: Outside, stack: AsyncExitStack
) -> tuple[Ledger, OrchestratorClient]:
    """Opens the connections; `stack` closes them."""
    ledger = await stack.enter_async_context(
        Ledger.connect(
            settings.chain_url.get_secret_value(),
            Deployment.load(settings.deployment),
            key=key,
            clock=outside.clock,
            policy=outside.policy,
            transport=outside.chain_transport,
        )
    )
    client = await stack.enter_async_context(
        OrchestratorClient(
            settings.orchestrator,
            key=key,
            clock=outside.clock,
            allow_plain_http=settings.allow_plain_http,
            transport=outside.transport,
        )
    )
    return ledger, client
