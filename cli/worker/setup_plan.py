"""Plan of `muster worker init`: reads the outstanding steps from the ledger and shows them.

It changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from urllib.parse import urlsplit

from cli.configuration.sections import ChainSection, Configuration, KeysSection, PoolSection, WorkerSection
from cli.keys import resolve_address
from cli.output.printing import note, say, show_fields, warn
from cli.pool.joining import VerifiedPool
from cli.worker.setup_files import WorkerFolder
from ledger.amounts import format_amount
from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.pools import PoolStatus
from protocol.errors import Conflict, Forbidden, InvalidInput, NotFound, Unavailable
from protocol.http.url_safety import addresses_of, is_public
from protocol.identifiers import Address
from worker.chain.earnings import PoolEarnings
from worker.chain.pool_record import PoolRecord

APPROVE_GAS, STAKE_GAS, REGISTER_GAS = 60_000, 130_000, 160_000
"""Upper estimates of the gas units of the three transactions; `tests/cli/test_worker_init.py` measures them."""
OPEN_WORK_FACTOR = 2
"""Default stake as a multiple of what joining locks. The rest covers penalties of work that has no verdict yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Options and answers of the user, apart from the pool."""

    folder: WorkerFolder
    rpc: str
    capacity: int | None
    stake: int | None
    password_file: Path | None
    allow_plain_http: bool
    may_ask: bool
    """Whether the command may ask questions; without, it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Outstanding transactions, their cost and the provider's money; amounts in the smallest units."""

    stake: int
    """Stake to add."""
    approve: bool
    register: bool
    gas: int
    """Upper estimate of the cost of all outstanding transactions, in wei."""
    tokens_owned: int
    coin_owned: int

    @property
    def missing(self) -> str:
        """Returns what the provider's account lacks, as text; empty if nothing."""
        lacks = []
        if self.tokens_owned < self.stake:
            lacks.append(f"{format_amount(self.stake - self.tokens_owned)} MUST")
        if self.coin_owned < self.gas:
            lacks.append(f"{format_amount(self.gas - self.coin_owned)} of the chain's coin for gas")
        return " and ".join(lacks)


def about_pool(
    pool: VerifiedPool, setup: Setup, earnings: PoolEarnings, record: PoolRecord, *, verified_code: bool
) -> dict[str, object]:
    """Returns the facts about a pool that `init` shows, and prints warnings about its state and record."""
    if pool.entry.status is PoolStatus.PENDING:
        warn(f"pool {pool.pool_id} is not active yet: nodes can join once its owner activates it")
    if pool.entry.member_count >= pool.terms.max_nodes:
        warn(f"pool {pool.pool_id} is full: it has all of its {pool.terms.max_nodes} members")
    if record.is_bad:
        warn(f"the pool's record is bad: {record.summary}")
    terms, money = pool.terms, format_amount
    state = pool.entry.status.name.lower()
    code = "the code of all contracts is that of this release" if verified_code else "code of the contracts not checked"
    return {
        "pool": f"{pool.pool_id}, {state}, {pool.entry.member_count} of {terms.max_nodes} members",
        "url": pool.url,
        "chain": f"{pool.deployment.chain_id} at {urlsplit(setup.rpc).hostname}; {code}",
        "token": pool.deployment[Contract.MUSTER],
        "stake manager": pool.deployment[Contract.STAKE_MANAGER],
        "governor": pool.governor,
        "unbonding period": pool.unbonding_period,
        "discovery": list(pool.discovery),
        "terms": f"version {pool.entry.terms_version}: {money(terms.price_per_unit)} MUST for an accepted unit, "
        f"{money(terms.penalty_per_unit)} MUST penalty for a forged one, "
        f"{money(terms.stake_per_capacity)} MUST stake for a unit of capacity",
        "record": record.summary,
        "earnings": earnings.summary,
    }


async def private_networks(url: str | None) -> tuple[IPv4Network, ...]:
    """Returns the private IPv4 addresses of a URL's host as networks, without loopback and link-local ones.

    It returns none if the host has a public address too: the pool is then not in a private network.
    """
    parts = urlsplit(url or "")
    try:
        found = await addresses_of(parts.hostname or "localhost", parts.port or 443)
    except Unavailable:
        return ()
    if any(is_public(each) for each in found):
        return ()
    addresses = [IPv4Address(each) for each in found if ":" not in each]
    return tuple(
        IPv4Network(each)
        for each in addresses
        if not (each.is_loopback or each.is_link_local or each.is_multicast or each.is_reserved or each.is_unspecified)
    )


def about_local_network(setup: Setup, networks: Sequence[IPv4Network]) -> str:
    """Returns which part of the local network tasks will reach, as text."""
    if setup.folder.configuration.exists():
        return f"as {setup.folder.configuration} says, which is kept"
    named = ", ".join(map(str, networks))
    return f"tasks in Docker reach {named} and nothing else in it" if named else "tasks in Docker don't reach it"


def about_money(provider: Address, node: Address, needs: Needs) -> dict[str, object]:
    """Returns both accounts, and what staking and registering cost, to show."""
    money = format_amount
    return {
        "provider": provider,
        "node": f"{node} (needs no coin while the pool's relayer pays for joining and work)",
        "to stake": f"{money(needs.stake)} MUST; the provider has {money(needs.tokens_owned)}",
        "gas": f"at most {money(needs.gas)} of the chain's coin; the provider has {money(needs.coin_owned)}",
    }


async def show_plan(ledger: Ledger, pool: VerifiedPool, setup: Setup, *, capacity: int) -> None:
    """Prints the steps that a run would take; needs no password, and writes nothing."""
    configuration = configuration_of(setup, None)
    steps, addresses = [], []
    for name in ("provider", "node"):
        try:
            addresses.append(resolve_address(configuration, name))
        except NotFound:
            steps.append(f"make the key {setup.folder.keystore(name)}")
    steps += [f"write {path}" for path in (setup.folder.deployment, setup.folder.configuration) if not path.exists()]
    if len(addresses) == 2:
        provider, node = addresses
        await check_node(ledger, pool.pool_id, provider, node)
        needs = await needs_of(ledger, pool, setup, capacity=capacity, provider=provider, node=node)
        show_fields(about_money(provider, node, needs))
        if needs.missing:
            steps.append(f"stop, because {provider} lacks {needs.missing}")
        amount, register = needs.stake, needs.register
    else:
        amount, register = target_stake(pool, setup, capacity=capacity), True
    steps += [f"stake {format_amount(amount)} MUST"] if amount else []
    steps += [f"register the node with capacity {capacity}"] if register else []
    steps.append("run muster worker doctor")
    for number, step in enumerate(steps, 1):
        say(f"{number}. {step}")
    note("dry run: nothing was changed")


def configuration_of(setup: Setup, password_file: Path | None) -> Configuration:
    """Returns a configuration whose keys are those of the setup's folder."""
    keys = KeysSection(directory=setup.folder.keys, password_file=password_file)
    return Configuration(chain=ChainSection(), keys=keys, pool=PoolSection(), worker=WorkerSection())


async def check_node(ledger: Ledger, pool_id: int, provider: Address, node: Address) -> None:
    """Checks that these keys may join the pool.

    Raises:
        Forbidden: The pool has banned the node or its provider.
        Conflict: Another provider has registered the node, or both keys are the same.
    """
    if provider == node:
        raise Conflict(
            f"provider and node have the same key {node}",
            hint="use two keys: the node's key is on a machine that runs tasks",
        )
    if await ledger.pools.is_banned(pool_id, node, provider):
        raise Forbidden(
            f"pool {pool_id} has banned the provider {provider} or the node {node}",
            hint="ask the pool's owner: a ban can be lifted",
        )
    entry = await ledger.registry.node(node)
    if entry is not None and not entry.retired and entry.provider != provider:
        raise Conflict(
            f"the node {node} is registered by another provider, {entry.provider}",
            hint="use that provider's key here, or another folder with a new node key: --directory",
        )


def target_stake(pool: VerifiedPool, setup: Setup, *, capacity: int) -> int:
    """Returns the active stake that the provider should have after `init`, in the smallest unit.

    Raises:
        InvalidInput: `--stake` is less than what joining locks.
    """
    least = pool.terms.stake_per_capacity * capacity
    if setup.stake is None:
        return OPEN_WORK_FACTOR * least
    if setup.stake < least:
        raise InvalidInput(
            f"a stake of {format_amount(setup.stake)} MUST is too little: joining with capacity {capacity} locks "
            f"{format_amount(least)} MUST",
            hint="give a larger --stake; open work locks more",
        )
    return setup.stake


async def needs_of(
    ledger: Ledger, pool: VerifiedPool, setup: Setup, *, capacity: int, provider: Address, node: Address
) -> Needs:
    """Reads from the ledger which transactions are outstanding, and what they cost."""
    stake = await ledger.stake.of(provider)
    entry = await ledger.registry.node(node)
    target = target_stake(pool, setup, capacity=capacity)
    member = await ledger.pools.membership(pool.pool_id, node) is not None
    # Stake that other nodes and open work of the provider lock is not available to this node.
    available = stake.active if setup.stake is not None or member else stake.free
    missing = 0 if member and setup.stake is None else max(0, target - available)
    register = entry is None or entry.retired
    approve = missing > 0 and await ledger.token.allowance(provider, ledger.stake.at) < missing
    units = (STAKE_GAS if missing else 0) + (APPROVE_GAS if approve else 0) + (REGISTER_GAS if register else 0)
    return Needs(
        stake=missing,
        approve=approve,
        register=register,
        gas=2 * units * int(await ledger.web3.eth.gas_price),  # the price may double before they are mined
        tokens_owned=await ledger.token.balance_of(provider),
        coin_owned=await ledger.balance(provider),
    )
