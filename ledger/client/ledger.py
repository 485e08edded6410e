"""Client of all contracts of one deployment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from eth_typing import HexStr
from web3 import AsyncWeb3
from web3.exceptions import TransactionNotFound
from web3.types import RPCEndpoint

from ledger.artifacts import Contract, artifact
from ledger.client.audits import AuditSecrets
from ledger.client.checkpoints import Checkpoints
from ledger.client.contract import BoundContract
from ledger.client.domains import Domains
from ledger.client.pools import PoolContracts
from ledger.client.registry import Registry
from ledger.client.stake import StakeAccounts
from ledger.client.token import Token
from ledger.client.work import WorkBook
from ledger.deployment import Deployment, check_deployment
from ledger.errors import AnswerTooBig
from ledger.events.decoder import EventDecoder, topic_of
from ledger.events.types import EVENTS, LedgerEvent
from ledger.rpc.connection import connect
from ledger.rpc.revert_decoder import RevertReader
from ledger.transactions.pending import SendPolicy
from ledger.transactions.receipts import EventLog, read_log
from ledger.transactions.sender import TransactionSender
from protocol.errors import InvalidInput, NotFound
from protocol.identifiers import Address, Digest, address, digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.clock import Clock

E = TypeVar("E", bound=LedgerEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Header of the newest block at the time of the call."""

    number: int
    hash: Digest
    parent: Digest
    """Hash of the parent block."""
    time: datetime


class Ledger:
    """Reads and writes the ledger. Create it with `Ledger.connect`.

    Args:
        web3: A connection to the deployment's chain.
        deployment: Addresses of the contracts.
        sender: Signs and sends transactions; without one every write raises `ReadOnly`.
    """

    def __init__(self, web3: AsyncWeb3[Any], deployment: Deployment, sender: TransactionSender | None = None) -> None:
        decoder = EventDecoder(deployment)

        def bound(contract: Contract) -> BoundContract:
            return BoundContract(
                web3,
                artifact(contract),
                domain=SigningDomain(deployment.chain_id, deployment[contract]),
                decoder=decoder,
                reverts=_REVERTS,
                sender=sender,
            )

        self.web3 = web3
        self.deployment = deployment
        self._decoder = decoder
        self._sender = sender
        self.token = Token(bound(Contract.MUSTER))
        self.registry = Registry(bound(Contract.COMPUTE_REGISTRY))
        self.stake = StakeAccounts(bound(Contract.STAKE_MANAGER), self.token)
        self.domains = Domains(bound(Contract.DOMAIN_REGISTRY))
        self.pools = PoolContracts(bound(Contract.COMPUTE_POOLS), self.token)
        self.checkpoints = Checkpoints(bound(Contract.CHECKPOINTS))
        self.work = WorkBook(bound(Contract.WORK_LEDGER))
        self.audits = AuditSecrets(bound(Contract.AUDIT_SECRETS))

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        rpc: str,
        deployment: Deployment,
        *,
        key: Key | None = None,
        timeout: timedelta = timedelta(seconds=10),  # noqa: ASYNC109 - of each request, not of this call
        clock: Clock | None = None,
        policy: SendPolicy | None = None,
    ) -> AsyncIterator[Ledger]:
        """Connects to a node and checks the chain id and the deployed contracts.

        Args:
            rpc: URL of a JSON-RPC node.
            deployment: Addresses of the contracts.
            key: Signs transactions; without it the ledger is read-only.
            timeout: Time limit of one request.
            clock: Clock for deadlines.
            policy: Fees, polling and deadlines of transactions.

        Raises:
            ChainUnavailable: The node does not answer.
            WrongChain: The node serves another chain.
            DeploymentDiffers: The contracts are missing, or of another version.
        """
        web3 = await connect(rpc, expected_chain_id=deployment.chain_id, timeout=timeout, reverts=_REVERTS, clock=clock)
        try:
            await check_deployment(web3, deployment)
            if key is None:
                yield cls(web3, deployment)
                return
            async with TransactionSender(
                web3, key.account(), chain_id=deployment.chain_id, clock=clock, policy=policy
            ) as sender:
                yield cls(web3, deployment, sender)
        finally:
            await web3.provider.disconnect()

    @property
    def address(self) -> Address:
        """The address that signs transactions.

        Raises:
            InvalidInput: The ledger is read-only.
        """
        if self._sender is None:
            raise InvalidInput("this ledger client has no key", hint="open it with a key")
        return self._sender.address

    async def now(self) -> datetime:
        """Returns the time of the newest block, which is the contracts' only clock."""
        return (await self.newest()).time

    async def newest(self) -> Head:
        """Returns the header of the newest block."""
        block = await self._header("latest")
        return Head(
            number=int(block["number"], 16),
            hash=digest(block["hash"]),
            parent=digest(block["parentHash"]),
            time=datetime.fromtimestamp(int(block["timestamp"], 16), UTC),
        )

    async def block(self) -> int:
        """Returns the height of the newest block."""
        return int(await self.web3.eth.block_number)

    async def block_hash(self, number: int) -> Digest:
        """Returns the hash of a block.

        Raises:
            NotFound: The chain has no such block (any more).
        """
        return digest((await self._header(hex(number)))["hash"])

    async def block_time(self, number: int) -> int:
        """Returns the time of a block, Unix time in seconds.

        Raises:
            NotFound: The chain has no such block (any more).
        """
        return int((await self._header(hex(number)))["timestamp"], 16)

    async def sender_of(self, transaction: Digest) -> Address:
        """Returns the address that signed a transaction.

        Raises:
            NotFound: The chain has no such transaction (any more).
        """
        try:
            found = await self.web3.eth.get_transaction(HexStr(transaction))
        except TransactionNotFound as error:
            raise NotFound(f"the chain has no transaction {transaction}") from error
        return address(found["from"])

    async def balance(self, who: Address) -> int:
        """Returns an account's balance in the chain's native coin, in wei."""
        return int(await self.web3.eth.get_balance(who))

    async def validators(self, pool_id: int) -> list[Address]:
        """Returns the current validators of a pool, in the order of their seats."""
        return await self.pools.validators(pool_id)

    async def history(
        self,
        kind: type[E],
        *,
        pool_id: int | None = None,
        second: Address | Digest | None = None,
        third: Digest | None = None,
        since: int | None = None,
    ) -> list[E]:
        """Returns every event of one type since the deployment, or since a block, oldest first.

        Use it in command-line tools. A service follows events with an `EventFollower`, which reads each of them once.

        Args:
            kind: The event type.
            pool_id: Only this pool's events; the event's first indexed parameter must be the pool.
            second: Only events with this second indexed parameter, such as a node or a run; needs `pool_id`.
            third: Only events with this third indexed parameter, such as a work key; needs `second`.
            since: First block to read.
        """
        topics: list[str | None] = [topic_of(kind)]
        if pool_id is not None:
            topics.append(f"0x{pool_id:064x}")
            if second is not None:
                topics += ["0x" + each[2:].lower().rjust(64, "0") for each in (second, third) if each is not None]
        contract = next(contract for contract, kinds in EVENTS.items() if kind in kinds)
        first = max(self.deployment.block, since or 0)
        logs = await self._logs(self.deployment[contract], topics, first, await self.block())
        decoded = (self._decoder.decode(log) for log in logs)
        return [event for event in decoded if isinstance(event, kind)]

    async def _header(self, which: str) -> Mapping[str, Any]:
        """Returns a block's raw JSON fields; web3 would convert all of them, and callers need one or two."""
        asked = await self.web3.provider.make_request(RPCEndpoint("eth_getBlockByNumber"), [which, False])
        found: Mapping[str, Any] | None = asked["result"]
        if found is None:
            name = which if which == "latest" else int(which, 16)
            raise NotFound(f"the chain has no block {name}")
        return found

    async def _logs(self, place: Address, topics: list[str | None], first: int, last: int) -> list[EventLog]:
        """Returns the logs of a block range; halves the range while the node refuses its size."""
        if first > last:
            return []
        try:
            found = await self.web3.eth.get_logs(
                {"address": place, "topics": topics, "fromBlock": hex(first), "toBlock": hex(last)}  # type: ignore[typeddict-item]  # hex text is what nodes take
            )
        except AnswerTooBig:
            if first == last:
                raise
            middle = (first + last) // 2
            return await self._logs(place, topics, first, middle) + await self._logs(place, topics, middle + 1, last)
        return [read_log(log) for log in found]


_REVERTS = RevertReader(artifact(contract).abi for contract in Contract)
