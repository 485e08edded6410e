"""Finds the pool that a contributor names, and verifies it against the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from cli.output.printing import strangers, strangers_errors, warn
from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.pools import Pool, PoolStatus, Terms
from ledger.deployment import Deployment, DeploymentDiffers, check_code
from protocol.clients import DiscoveryClient, NodeClient, ServiceLocation
from protocol.errors import Conflict, Forbidden, InvalidInput, NotFound, Unavailable
from protocol.http.client import BadAnswer
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.wire.joining import JoiningInformation


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolToJoin:
    """A pool, as its orchestrator or the contributor describes it."""

    pool_id: int
    deployment: Deployment
    discovery: tuple[str, ...]
    url: str | None = None
    """URL of the orchestrator, if known."""
    orchestrator: Address | None = None
    """Key that signed the orchestrator's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPool:
    """A pool whose description agrees with the ledger."""

    pool_id: int
    deployment: Deployment
    discovery: tuple[str, ...]
    """URLs of the discovery services, each with the address that it has now."""
    url: str | None
    entry: Pool
    terms: Terms
    governor: Address
    """Account that mints MUST, and decides who receives penalties."""
    unbonding_period: timedelta


async def ask_pool(url: str, *, allow_plain_http: bool) -> PoolToJoin:
    """Asks a pool's orchestrator for what a contributor needs.

    Raises:
        InvalidInput: The URL is malformed, or another service answers there.
        Unavailable: Nothing answers.
    """
    location = ServiceLocation.parse(url, allow_plain_http=allow_plain_http)
    stranger = Key.generate()  # any key may ask
    hint = "ask the pool's owner for the pool's URL; `muster pool list` shows the URLs that owners put on the ledger"
    try:
        with strangers_errors():
            async with NodeClient(location, key=stranger, allow_plain_http=allow_plain_http) as client:
                identity = await client.identity()
    except (NotFound, BadAnswer) as error:
        raise InvalidInput(f"{location.url} is not a pool's URL: {error.detail}", hint=hint) from error
    except Unavailable as error:
        error.hint = hint
        raise
    if identity.service != "orchestrator":
        raise InvalidInput(
            f"{location.url} is a service of kind {strangers(identity.service)}, not a pool's orchestrator", hint=hint
        )
    pinned = ServiceLocation(location.url, identity.address)
    try:
        with strangers_errors():
            async with NodeClient(pinned, key=stranger, allow_plain_http=allow_plain_http) as client:
                answer = await client.joining()
    except NotFound as error:
        raise InvalidInput(
            f"the orchestrator at {location.url} has an older release, which does not describe its pool",
            hint="give the pool's number instead of its URL, with --deployment and --discovery",
        ) from error
    return _described(answer, location.url, identity.address)


def _described(answer: JoiningInformation, url: str, signer: Address) -> PoolToJoin:
    deployment = Deployment.parse(answer.deployment.model_dump(mode="json"), origin=f"the answer of {url}")
    return PoolToJoin(
        pool_id=answer.pool_id, deployment=deployment, discovery=answer.discovery, url=url, orchestrator=signer
    )


async def find_pool(
    text: str,
    *,
    rpc: str,
    deployment: Path | None,
    stake_manager: Address | None,
    discovery: Sequence[str],
    allow_plain_http: bool,
) -> PoolToJoin:
    """Finds a pool by its URL, or by its number on the ledger.

    Args:
        text: The URL or number.
        rpc: JSON-RPC endpoint of the chain.
        deployment: Deployment file of the ledger; needed with a number.
        stake_manager: StakeManager that the pool must use, if the contributor named it.
        discovery: Discovery services to use instead of those that the orchestrator names.
        allow_plain_http: Whether plain http to other machines is allowed.

    Raises:
        InvalidInput: The text is neither, or something is missing or contradictory.
    """
    own = None if deployment is None else Deployment.load(deployment)
    if not text.isascii() or not text.isdigit():
        found = await ask_pool(text, allow_plain_http=allow_plain_http)
        if own is not None and own != found.deployment:
            raise InvalidInput(
                f"{deployment} and the pool at {found.url} name different contracts",
                hint="leave --deployment out, or ask the pool's owner which one is right",
            )
    else:
        if own is None:
            raise InvalidInput(
                "a pool's number is not enough: it needs the deployment file of its ledger",
                hint="give --deployment FILE, or the pool's URL instead of its number",
            )
        async with Ledger.connect(rpc, own) as ledger:
            place = (await _existing(ledger, int(text))).data_uri
        found = PoolToJoin(pool_id=int(text), deployment=own, discovery=())
        if not discovery and not place.startswith(("https://", "http://")):
            raise InvalidInput(
                f"the ledger has no URL of pool {text}",
                hint="give --discovery URL, or the pool's URL instead of its number; its owner knows both",
            )
        if not discovery:
            found = await ask_pool(place, allow_plain_http=allow_plain_http)
            if (found.pool_id, found.deployment) != (int(text), own):
                raise InvalidInput(
                    f"the orchestrator at {found.url} belongs to another pool than pool {text} of {deployment}",
                    hint="ask the pool's owner for the right URL",
                )
    named = found.deployment[Contract.STAKE_MANAGER]
    if stake_manager is not None and named != stake_manager:
        raise InvalidInput(
            f"the pool is on another ledger: its StakeManager is {named}, not {stake_manager}",
            hint="ask the ledger's governor for the right address; contracts that a pool names may keep your stake",
            code="other-ledger",
        )
    return replace(found, discovery=tuple(discovery)) if discovery else found


async def verify_pool(
    ledger: Ledger, found: PoolToJoin, *, unverified_contracts: bool, allow_plain_http: bool
) -> VerifiedPool:
    """Compares a pool's description with the ledger, and the discovery services with both.

    Terms are read from the ledger, so there is nothing to compare them with.

    Raises:
        DeploymentDiffers: The contracts are not those of this release, or have two governors.
        NotFound: The ledger has no such pool.
        Forbidden: The orchestrator's key is not the pool's.
        Conflict: The pool has ended.
    """
    if not unverified_contracts:
        await check_code(ledger.web3, found.deployment)
        await _check_governor(ledger)
    entry = await _existing(ledger, found.pool_id)
    if entry.status is PoolStatus.ENDED:
        raise Conflict(
            f"pool {found.pool_id} has ended: it takes no new members", hint="choose another: `muster pool list`"
        )
    if found.orchestrator is not None and not await ledger.pools.is_orchestrator(found.pool_id, found.orchestrator):
        raise Forbidden(
            f"{found.url} is served with the key {found.orchestrator}, which is not the orchestrator's key of pool "
            f"{found.pool_id} on the ledger",
            hint="check the URL: it may belong to someone who pretends to be the pool",
        )
    discovery = await _discoveries(found, allow_plain_http=allow_plain_http)
    terms = await ledger.pools.terms(found.pool_id)
    return VerifiedPool(
        pool_id=found.pool_id,
        deployment=found.deployment,
        discovery=discovery,
        url=found.url,
        entry=entry,
        terms=terms,
        governor=await ledger.domains.governor(),
        unbonding_period=await ledger.stake.unbonding_period(),
    )


async def _check_governor(ledger: Ledger) -> None:
    """Checks that the account that governs the token also governs the domains, as `muster ledger deploy` sets it.

    Domains name the receivers of penalties. With a governor of their own, a stranger's contracts could slash stake in a
    token that others own.

    Raises:
        DeploymentDiffers: These are two accounts.
    """
    token, domains = await ledger.token.governor(), await ledger.domains.governor()
    if token != domains:
        raise DeploymentDiffers(
            f"the token {ledger.token.at} is governed by {token}, but the domains, which name the receivers of "
            f"penalties, by {domains}",
            hint="ask the governor of the token for its own deployment file; a pool may have made these contracts",
            code="other-governor",
        )


async def _existing(ledger: Ledger, pool_id: int) -> Pool:
    count = await ledger.pools.count()
    if not 1 <= pool_id <= count:
        raise NotFound(
            f"there is no pool {pool_id} on chain {ledger.deployment.chain_id}: its newest pool has number {count}",
            hint="`muster pool list` shows the pools",
        )
    return await ledger.pools.get(pool_id)


async def _discoveries(found: PoolToJoin, *, allow_plain_http: bool) -> tuple[str, ...]:
    """Returns the locations of the discovery services, with the address of each that answers.

    Raises:
        InvalidInput: A service is of another kind or ledger, or none is known.
        Unavailable: None answers.
    """
    if not found.discovery:
        raise InvalidInput(
            "the pool names no discovery service", hint="give --discovery URL; the pool's owner knows it"
        )
    pinned, silent = [], []
    for text in found.discovery:
        location = ServiceLocation.parse(text, allow_plain_http=allow_plain_http)
        try:
            with strangers_errors():
                async with DiscoveryClient(location, key=Key.generate(), allow_plain_http=allow_plain_http) as client:
                    identity = await client.identity()
        except (NotFound, BadAnswer) as error:
            raise InvalidInput(
                f"{location.url} is not a discovery service: {error.detail}", hint="ask the pool's owner for its URL"
            ) from error
        except Unavailable as error:
            warn(f"the discovery service {location.url} does not answer: {error.detail}")
            silent.append(error)
            pinned.append(str(location))
            continue
        contract = found.deployment[Contract.COMPUTE_POOLS]
        if (identity.service, identity.chain_id, identity.contract) != (
            "discovery",
            found.deployment.chain_id,
            contract,
        ):
            raise InvalidInput(
                f"{location.url} is a service of kind {strangers(identity.service)} for contract {identity.contract} "
                f"on chain {identity.chain_id}; needed is discovery for {contract} on chain "
                f"{found.deployment.chain_id}",
                hint="ask the pool's owner for the URL of its discovery service",
            )
        pinned.append(str(ServiceLocation(location.url, identity.address)))
    if len(silent) == len(pinned):
        raise silent[0]
    return tuple(pinned)
