"""One deployed contract: calls and transactions by name, with plain values in and typed values out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from eth_abi.exceptions import EncodingError
from web3 import AsyncWeb3
from web3.exceptions import MismatchedABI
from web3.types import RPCEndpoint

from ledger.abi_types import struct_from_abi
from ledger.artifacts import Artifact
from ledger.client.view_calls import views_of
from ledger.errors import TransactionReverted
from ledger.events.decoder import EventDecoder
from ledger.events.types import LedgerEvent
from ledger.rpc.connection import ChainConnection
from ledger.rpc.revert_decoder import RevertReader
from ledger.rpc.revert_messages import in_plain_words
from ledger.transactions.pending import TransactionCall
from ledger.transactions.receipts import Receipt
from ledger.transactions.sender import TransactionSender
from protocol.errors import InvalidInput
from protocol.identifiers import Address
from protocol.identity.typed_data import SigningDomain

T = TypeVar("T")
E = TypeVar("E", bound=LedgerEvent)


class ReadOnly(InvalidInput):
    """A write was asked of a client that has no key."""

    code = "read-only"
    default_hint = "open the ledger with a key to send transactions"


class BoundContract:
    """Reads and writes one contract. The typed clients are built on it; nobody else needs it.

    Args:
        web3: The connection.
        artifact: Its ABI.
        domain: Its address and chain, to which signatures for it are bound.
        decoder: Reads the events in receipts.
        reverts: Reads the reasons of refused batch items.
        sender: Sends transactions; without one the contract is read-only.
    """

    def __init__(
        self,
        web3: AsyncWeb3[Any],
        artifact: Artifact,
        *,
        domain: SigningDomain,
        decoder: EventDecoder,
        reverts: RevertReader,
        sender: TransactionSender | None,
    ) -> None:
        self.domain = domain
        self.at = domain.contract
        self._contract = web3.eth.contract(address=domain.contract, abi=list(artifact.abi))
        self._views = views_of(artifact)
        self._chain: ChainConnection = web3.provider
        self._decoder = decoder
        self._reverts = reverts
        self._sender = sender

    @property
    def caller(self) -> Address:
        """Who signs the writes.

        Raises:
            ReadOnly: Nobody does.
        """
        return self._writer().address

    async def read(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - as the ABI says
        """Reads a view function; one output is returned as it is, several as a tuple.

        Raises:
            InvalidInput: A value does not fit the contract's type.
            ChainUnavailable: The node did not answer in time.
            TransactionReverted: The function reverted; the custom error is decoded.
        """
        view = self._views[name]
        with _fitting(name):
            question = {"to": self.at, "data": view.call_data(arguments)}
        try:
            answer = await self._chain.make_request(RPCEndpoint("eth_call"), [question, "latest"])
        except TransactionReverted as error:
            raise in_plain_words(error) from error
        return view.answer(answer["result"])

    async def read_number(self, name: str, *arguments: object) -> int:
        """Reads a view function that returns an integer."""
        return int(await self.read(name, *arguments))

    async def read_flag(self, name: str, *arguments: object) -> bool:
        """Reads a view function that returns a boolean."""
        return bool(await self.read(name, *arguments))

    async def read_struct(self, kind: type[T], name: str, *arguments: object) -> T:
        """Reads a view function that returns a struct."""
        return struct_from_abi(kind, await self.read(name, *arguments))

    async def send(self, name: str, *arguments: object) -> Receipt:
        """Sends a transaction and waits until it is mined. An overloaded function is named with its types.

        Raises:
            ReadOnly: There is no key.
            InvalidInput: A value does not fit the contract's type.
            TransactionReverted: It can't succeed (nothing was sent) or did not (it was mined and failed).
            TransactionNotMined: It was not mined within the sender's patience.
            InsufficientFunds: The sender can't pay for gas.
        """
        with _fitting(name):
            data = self._contract.encode_abi(name, args=list(arguments))
        try:
            return await self._writer().send(TransactionCall(to=self.at, data=bytes.fromhex(data[2:])))
        except TransactionReverted as error:
            raise in_plain_words(error) from error

    async def refusal(self, name: str, *arguments: object) -> str:
        """The contract's error that a transaction of the caller would meet now, in its own words; empty if none.

        Nothing is sent, so the answer costs no gas.

        Raises:
            ReadOnly: There is no key.
            InvalidInput: A value does not fit the contract's type.
            ChainUnavailable: The chain could not be asked.
        """
        with _fitting(name):
            data = self._contract.encode_abi(name, args=list(arguments))
        try:
            await self._writer().estimate(TransactionCall(to=self.at, data=bytes.fromhex(data[2:])))
        except TransactionReverted as error:
            return self.explain(bytes.fromhex(error.data[2:])) if len(error.data) > 2 else error.detail
        return ""

    def events(self, kind: type[E], receipt: Receipt) -> list[E]:
        """The events of a kind in a receipt, in order."""
        decoded = (self._decoder.decode(log) for log in receipt.logs)
        return [event for event in decoded if isinstance(event, kind)]

    def explain(self, reason: bytes) -> str:
        """The contract's error behind a refused item of a batch, in its own words."""
        return str(self._reverts.read(reason))

    def _writer(self) -> TransactionSender:
        if self._sender is None:
            raise ReadOnly("this ledger client has no key")
        return self._sender


@contextmanager
def _fitting(name: str) -> Iterator[None]:
    """Says in words that a number is too large, or a text none, for what the contract takes."""
    try:
        yield
    except (MismatchedABI, EncodingError) as error:
        raise InvalidInput(
            f"{name} can't take these values: one of them is out of range", hint="check the numbers that you gave"
        ) from error
