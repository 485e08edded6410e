"""Calls functions of one deployed contract by name, with plain arguments and typed results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from eth_abi.exceptions import EncodingError
from web3 import AsyncWeb3
from web3.exceptions import MismatchedABI

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


@dataclass(frozen=True, slots=True)
class Refusal:
    """A batch item that a contract refused; the other items of the batch are unaffected."""

    subject: str
    """The item's work key, or the node that wanted to join."""
    error: str
    """Name of the contract's error."""
    reason: str
    """The error with its arguments."""


class ReadOnly(InvalidInput):
    """A client without a key was asked to send a transaction."""

    code = "read-only"
    default_hint = "open the ledger with a key to send transactions"


class BoundContract:
    """Calls view functions of one contract and sends it transactions.

    The typed clients (`Registry`, `WorkBook`, …) use this class.

    Args:
        web3: The connection.
        artifact: The contract's ABI.
        domain: The contract's EIP-712 domain: its address and chain, to which signatures are bound.
        decoder: Decodes the events in receipts.
        reverts: Decodes the revert data of refused batch items.
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
        self._name = artifact.contract.value
        self._web3, self._artifact = web3, artifact
        self._views = views_of(artifact)
        self._chain: ChainConnection = web3.provider
        self._decoder = decoder
        self._reverts = reverts
        self._sender = sender

    @cached_property
    def _contract(self) -> Any:  # noqa: ANN401 - of web3
        """The contract with its functions, which takes ten milliseconds to make and only transactions need."""
        return self._web3.eth.contract(address=self.at, abi=list(self._artifact.abi))

    @property
    def caller(self) -> Address:
        """The address that signs transactions.

        Raises:
            ReadOnly: The client has no key.
        """
        return self._writer().address

    async def read(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - as the ABI says
        """Calls a view function; returns a single output as it is, several as a tuple.

        Raises:
            InvalidInput: An argument does not fit the parameter's ABI type.
            ChainUnavailable: The node did not answer in time.
            TransactionReverted: The function reverted; the custom error is decoded.
        """
        view = self._views[name]
        with _encoding_errors(name):
            question = {"to": self.at, "data": view.call_data(arguments)}
        try:
            answer = await self._chain.request("eth_call", question, "latest")
        except TransactionReverted as error:
            raise in_plain_words(error) from error
        return view.answer(answer)

    async def read_number(self, name: str, *arguments: object) -> int:
        """Calls a view function that returns an integer."""
        return int(await self.read(name, *arguments))

    async def read_flag(self, name: str, *arguments: object) -> bool:
        """Calls a view function that returns a boolean."""
        return bool(await self.read(name, *arguments))

    async def read_struct(self, kind: type[T], name: str, *arguments: object) -> T:
        """Calls a view function that returns a struct, and converts it to the dataclass `kind`."""
        return struct_from_abi(kind, await self.read(name, *arguments))

    async def send(self, name: str, *arguments: object, least_gas: int = 0) -> Receipt:
        """Sends a transaction and waits until it is mined.

        Args:
            name: Name of the function, with parameter types if it is overloaded, such as `withdraw(address)`.
            arguments: Arguments of the function.
            least_gas: Minimum gas limit, if the estimate is lower.

        Raises:
            ReadOnly: The client has no key.
            InvalidInput: An argument does not fit the parameter's ABI type.
            TransactionReverted: The gas estimate failed (nothing was sent), or the mined transaction failed.
            TransactionNotMined: The transaction was not mined before the sender's default deadline.
            InsufficientFunds: The sender can't pay for gas.
        """
        call = self._call(name, arguments, least_gas=least_gas)
        try:
            return await self._writer().send(call)
        except TransactionReverted as error:
            raise in_plain_words(error) from error

    async def dry_run(self, subject: str, name: str, *arguments: object) -> Refusal | None:
        """Returns the error with which a transaction would revert now; None if it would succeed.

        The method only estimates the gas. It sends no transaction, so the caller pays nothing.

        Raises:
            ReadOnly: The client has no key.
            InvalidInput: An argument does not fit the parameter's ABI type.
            ChainUnavailable: The node did not answer.
        """
        call = self._call(name, arguments)
        try:
            await self._writer().estimate(call)
        except TransactionReverted as error:
            if len(error.data) > len("0x"):
                return self.refusal(subject, bytes.fromhex(error.data[2:]))
            return Refusal(subject, error.name, error.detail)
        return None

    def events(self, kind: type[E], receipt: Receipt) -> list[E]:
        """Returns the events of one type in a receipt, in order."""
        decoded = (self._decoder.decode(log) for log in receipt.logs)
        return [event for event in decoded if isinstance(event, kind)]

    def refusal(self, subject: str, revert_data: bytes) -> Refusal:
        """Decodes the revert data of a refused batch item."""
        revert = self._reverts.read(revert_data)
        return Refusal(subject, revert.name, str(revert))

    def _call(self, name: str, arguments: tuple[object, ...], *, least_gas: int = 0) -> TransactionCall:
        with _encoding_errors(name):
            data = self._contract.encode_abi(name, args=list(arguments))
        called = f"{self._name}.{name.partition('(')[0]}"
        return TransactionCall(to=self.at, data=bytes.fromhex(data[2:]), least_gas=least_gas, name=called)

    def _writer(self) -> TransactionSender:
        if self._sender is None:
            raise ReadOnly("this ledger client has no key")
        return self._sender


@contextmanager
def _encoding_errors(name: str) -> Iterator[None]:
    """Converts errors of the ABI encoder into `InvalidInput`."""
    try:
        yield
    except (MismatchedABI, EncodingError) as error:
        raise InvalidInput(
            f"an argument of {name} is out of range or of the wrong type", hint="check the numbers that you gave"
        ) from error
