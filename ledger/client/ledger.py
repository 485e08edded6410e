"""Client of all contracts of one deployment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import httpx
from web3 import AsyncWeb3

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
from ledger.events.source import Header, read_header, read_logs
from ledger.events.types import EVENTS, LedgerEvent
from ledger.rpc.connection import ChainConnection, connect
from ledger.rpc.revert_decoder import RevertReader
from ledger.transactions.pending import SendPolicy
from ledger.transactions.receipts import EventLog
from ledger.transactions.sender import TransactionSender
from protocol.errors import InvalidInput, NotFound
from protocol.identifiers import Address, Digest, address
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.clock import Clock

E = TypeVar("E", bound=LedgerEvent)


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
        self._chain: ChainConnection = web3.provider
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
        transport: httpx.AsyncBaseTransport | None = None,
        open_sender: Callable[..., TransactionSender] = TransactionSender,
    ) -> AsyncIterator[Ledger]:
        """Connects to a node and checks the chain id and the deployed contracts.

        Args:
            rpc: URL of a JSON-RPC node.
            deployment: Addresses of the contracts.
            key: Signs transactions; without it the ledger is read-only.
            timeout: Time limit of one request.
            clock: Clock for deadlines.
            policy: Fees, polling and deadlines of transactions.
            transport: HTTP transport to a chain in the same process.
            open_sender: Makes the sender of transactions; takes the arguments of `TransactionSender`.

        Raises:
            ChainUnavailable: The node does not answer.
            WrongChain: The node serves another chain.
            DeploymentDiffers: The contracts are missing, or of another version.
        """
        web3 = await connect(
            rpc,
            expected_chain_id=deployment.chain_id,
            timeout=timeout,
            reverts=_REVERTS,
            clock=clock,
            transport=transport,
        )
        try:
            await check_deployment(web3, deployment)
            if key is None:
                yield cls(web3, deployment)
                return
            async with open_sender(
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
        return datetime.fromtimestamp((await self.newest()).time, UTC)

    async def newest(self) -> Header:
        """Returns the header of the newest block."""
        return await self._header("latest")

    async def block(self) -> int:
        """Returns the height of the newest block."""
        return int(await self._chain.request("eth_blockNumber"), 16)

    async def block_hash(self, number: int) -> Digest:
        """Returns the hash of a block.

        Raises:
            NotFound: The chain has no such block (any more).
        """
        return (await self._header(number)).ref.hash

    async def block_time(self, number: int) -> int:
        """Returns the time of a block, Unix time in seconds.

        Raises:
            NotFound: The chain has no such block (any more).
        """
        return (await self._header(number)).time

    async def sender_of(self, transaction: Digest) -> Address:
        """Returns the address that signed a transaction.

        Raises:
            NotFound: The chain has no such transaction (any more).
        """
        found = await self._chain.request("eth_getTransactionByHash", transaction)
        if found is None:
            raise NotFound(f"the chain has no transaction {transaction}")
        return address(found["from"])

    async def balance(self, who: Address) -> int:
        """Returns an account's balance in the chain's native coin, in wei."""
        return int(await self._chain.request("eth_getBalance", who, "latest"), 16)

    async def gas_price(self) -> int:
        """Returns the chain's present price of gas, in wei."""
        return int(await self._chain.request("eth_gasPrice"), 16)

    async def history(
        self,
        kind: type[E],
        *,
        pool_id: int | None = None,
        second: Address | Digest | None = None,
        third: Digest | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[E]:
        """Returns every event of one type since the deployment, or in a range of blocks, oldest first.

        This method is for command-line tools. A service uses an `EventFollower`, which reads each event only once.

        Args:
            kind: The event type.
            pool_id: Only this pool's events; the event's first indexed parameter must be the pool.
            second: Only events with this second indexed parameter, such as a node or a run; needs `pool_id`.
            third: Only events with this third indexed parameter, such as a work key; needs `second`.
            since: First block to read.
            until: Last block to read; by default the newest.
        """
        topics: list[str | None] = [topic_of(kind)]
        if pool_id is not None:
            topics.append(f"0x{pool_id:064x}")
            if second is not None:
                topics += ["0x" + each[2:].lower().rjust(64, "0") for each in (second, third) if each is not None]
        contract = next(contract for contract, kinds in EVENTS.items() if kind in kinds)
        first = max(self.deployment.block, since or 0)
        last = await self.block() if until is None else until
        logs = await self._logs(self.deployment[contract], topics, first, last)
        decoded = (self._decoder.decode(log) for log in logs)
        return [event for event in decoded if isinstance(event, kind)]

    async def _header(self, block: int | Literal["latest"]) -> Header:
        found = await read_header(self._chain, block)
        if found is None:
            raise NotFound(f"the chain has no block {block}")
        return found

    async def _logs(self, place: Address, topics: list[str | None], first: int, last: int) -> list[EventLog]:
        """Returns the logs of a block range; halves the range while the node refuses its size."""
        if first > last:
            return []
        try:
            conditions = {"address": place, "topics": topics, "fromBlock": hex(first), "toBlock": hex(last)}
            return await read_logs(self._chain, conditions)
        except AnswerTooBig:
            if first == last:
                raise
            middle = (first + last) // 2
            return await self._logs(place, topics, first, middle) + await self._logs(place, topics, middle + 1, last)


_REVERTS = RevertReader(artifact(contract).abi for contract in Contract)
