"""Initial state of a devnet: keys, money, the contracts, a domain and an active pool."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from cli.connection import open_chain
from cli.devnet.directory import DevnetDirectory
from cli.devnet.options import RunScale
from cli.ledger.node import register_node
from ledger.amounts import UNIT
from ledger.client import Ledger
from ledger.client.pools import Roles, Terms
from ledger.deployment import Deployment, deploy
from ledger.devchain import development_accounts
from ledger.transactions.pending import TransactionCall
from ledger.transactions.sender import TransactionSender
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.keystores import read_keystore, write_keystore

VALIDATORS = ("validator", "validator-2", "validator-3")
"""Key names of the pool's validators. There are three, so that the third can decide a dispute between two."""

ROLES = ("governor", "owner", "manager", "orchestrator", "publisher", "discovery", *VALIDATORS)

UNBONDING = timedelta(seconds=160)
TERMS = Terms.deterring(
    Terms(
        price_per_unit=UNIT // 10_000,
        penalty_per_unit=0,
        stake_per_capacity=10 * UNIT,
        audit_floor_bps=1_000,
        look_bps=500,
        judge_period=timedelta(seconds=60),
        challenge_period=timedelta(seconds=15),
        dispute_period=timedelta(seconds=20),
        notice_period=timedelta(seconds=60),
        max_nodes=1_000,
        min_capacity=1,
        verdict_fee=UNIT // 1_000,
    )
)
"""Terms of a pool that trains no model. Periods last seconds instead of hours, so that a user can try stake, rewards
and withdrawal within minutes."""

RUN_TERMS = replace(
    TERMS,
    penalty_per_unit=6 * TERMS.penalty_per_unit,
    challenge_period=timedelta(seconds=5),
    dispute_period=timedelta(seconds=10),
)
"""Terms of a pool with running validators. The challenge and dispute periods are shorter than in `TERMS`, so that
slashes become final within minutes. The penalty is large enough to be visible on a stake of 100 MUST."""

STAKE = 100 * UNIT
"""Stake of each provider with a worker."""

CHEATER = ("cheater-provider", "cheater")
"""Names of the provider and node keys of the cheating worker."""
CONTRIBUTOR = ("provider", "node")
"""Names of keys that have funds but no stake and no worker, for the user's own commands."""

_SCRYPT_N = 2**12  # a low work factor: the keys protect nothing of value, and decryption must be quick
_GAS_MONEY = UNIT
_PROVIDER_MONEY = 1_000 * UNIT
_OWNER_MONEY = 100_000 * UNIT
_ESCROW = 10_000 * UNIT
_DEADLINE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Economy:
    """The contracts' addresses, and all keys by name; the result of `found_economy`."""

    deployment: Deployment
    keys: dict[str, Key]


def run_terms(scale: RunScale) -> Terms:
    """Returns the terms of a pool with validators; their periods suit the run's model."""
    # The orchestrator leases no slot for longer than the notice period, so this period must cover the run's leases.
    notice = max(RUN_TERMS.notice_period, scale.lease)
    return replace(RUN_TERMS, judge_period=scale.judge_period, notice_period=notice)


def worker_names(count: int, *, cheater: bool = False) -> list[tuple[str, str]]:
    """Returns, for each worker of the devnet, the names of its provider key and its node key."""
    honest = [(f"worker-{i}-provider", f"worker-{i}") for i in range(1, count + 1)]
    return [*honest, CHEATER] if cheater else honest


def make_keys(directory: DevnetDirectory, names: Iterable[str]) -> dict[str, Key]:
    """Makes the keystores that do not exist yet, and returns all keys by name."""
    if not directory.password.exists():
        directory.password.touch(mode=0o600)
        directory.password.write_text(secrets.token_urlsafe(24) + "\n")
    password = directory.password.read_text().strip()
    keys = {}
    for name in names:
        path = directory.keys / f"{name}.json"
        if path.exists():
            keys[name] = read_keystore(path, password)
        else:
            keys[name] = Key.generate()
            write_keystore(path, keys[name], password, scrypt_n=_SCRYPT_N)
    return keys


async def found_economy(
    rpc: str,
    chain_id: int,
    directory: DevnetDirectory,
    *,
    workers: Sequence[tuple[str, str]] = (),
    terms: Terms = TERMS,
    stake: int = STAKE,
    on_event: Callable[[str], None],
) -> Economy:
    """Deploys the contracts, makes a domain and a pool, and funds all accounts; safe to repeat.

    Args:
        rpc: URL of a development chain; its first account pays for gas.
        chain_id: Id of the chain.
        directory: Folder of the devnet, for keys and addresses.
        workers: For each worker, the names of its provider's key and of its node's key. Each provider stakes and
            registers its node.
        terms: Terms of the pool.
        stake: Stake of each provider.
        on_event: Called with a line per step.
    """
    pairs = [CONTRIBUTOR, *workers]
    names = [name for pair in pairs for name in pair]
    keys = await asyncio.to_thread(make_keys, directory, [*ROLES, *names])
    on_event(f"{len(keys)} keys are in {directory.keys}")
    await _give_gas(rpc, chain_id, [key.address for key in keys.values()])
    if directory.deployment.exists():
        return Economy(Deployment.load(directory.deployment), keys)
    deployment = await _deploy(rpc, chain_id, keys["governor"], unbonding=_unbonding(terms))
    on_event(f"{len(deployment.contracts)} contracts are deployed")
    async with Ledger.connect(rpc, deployment, key=keys["governor"]) as ledger:
        providers = [keys[provider].address for provider, _ in pairs]
        await asyncio.gather(
            ledger.domains.create(name="text", uri="about:blank"),
            ledger.token.mint(keys["owner"].address, _OWNER_MONEY),
            *[ledger.token.mint(each, _PROVIDER_MONEY) for each in providers],
        )
    async with Ledger.connect(rpc, deployment, key=keys["owner"]) as ledger:
        roles = Roles(keys["manager"].address, keys["orchestrator"].address, keys["publisher"].address)
        pool = await ledger.pools.create(domain_id=1, roles=roles, terms=terms)
        await asyncio.gather(
            ledger.pools.activate(pool),
            ledger.pools.fund(pool, _ESCROW),
            *[ledger.pools.add_validator(pool, keys[name].address) for name in VALIDATORS],
        )
    on_event(f"pool {pool} is active and funded")
    await asyncio.gather(
        *[_enlist(rpc, deployment, keys[provider], keys[node], stake=stake) for provider, node in workers]
    )
    if workers:
        on_event(f"{len(workers)} providers have staked and registered their nodes")
    deployment.save(directory.deployment)  # saved last, because a set-up without this file is repeated
    return Economy(deployment, keys)


async def _give_gas(rpc: str, chain_id: int, accounts: list[Address]) -> None:
    bank = Key.from_hex(development_accounts(1)[0].key)
    async with (
        open_chain(rpc, chain_id) as web3,
        TransactionSender(web3, bank.account(), chain_id=chain_id) as sender,
    ):
        poor = [each for each in accounts if await web3.eth.get_balance(each) < _GAS_MONEY // 10]
        await asyncio.gather(
            *[sender.send(TransactionCall(to=each, value=_GAS_MONEY), deadline=_DEADLINE) for each in poor]
        )


async def _enlist(rpc: str, deployment: Deployment, provider: Key, node: Key, *, stake: int) -> None:
    """Stakes for the provider, and registers the node with a consent that the node's key signs."""
    async with Ledger.connect(rpc, deployment, key=provider) as ledger:
        await ledger.stake.add(stake)
        await register_node(ledger, node)


def _unbonding(terms: Terms) -> timedelta:
    """Returns the unbonding period.

    Stake must stay slashable for longer than it takes until work is final.
    """
    final = terms.judge_period + terms.challenge_period + terms.dispute_period + terms.notice_period
    return max(UNBONDING, final + timedelta(seconds=1))


async def _deploy(rpc: str, chain_id: int, governor: Key, *, unbonding: timedelta) -> Deployment:
    async with (
        open_chain(rpc, chain_id) as web3,
        TransactionSender(web3, governor.account(), chain_id=chain_id) as sender,
    ):
        return await deploy(web3, sender, governor=governor.address, unbonding_period=unbonding)
